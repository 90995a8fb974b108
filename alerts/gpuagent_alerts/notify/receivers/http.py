"""HTTP to the outside: the only module that uses httpx.

No redirect is followed: with 302 a message would be lost as a GET, with 307 it would go, signature and all, to another
host. No proxy of the environment is used: it would see what is meant for 127.0.0.1. A certificate has to be trusted by
the system. An answer may take 15 s in all, however it trickles in, and 4 KiB of it are read. Nothing goes to a
link-local address, whatever name it has.

A receiver knows the secrets of its own address and may say them in any form: encoded, spaced out, in parts, in a way
that nobody has thought of. No list of forms is complete, so of what `Masker` has left `plain_words` keeps only what no
secret looks like: words of letters, and a few small numbers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from itertools import groupby

from gpuagent.core.clock import Clock, SystemClock
from gpuagent_alerts.masker import HIDDEN, Masker
from gpuagent_alerts.notify.outbox.attempt import DELIVERED, DeliveryOutcome, Reason
from gpuagent_alerts.notify.receivers.addresses import ForbiddenAddressError, Resolve, Resolver, allowed_addresses
from gpuagent_alerts.notify.receivers.base import HttpRequest

# httpx imports its own command line if it can: rich, pygments and click, 3 MiB. It goes on without it where None stands
# in for the module (https://docs.python.org/3/reference/import.html#the-module-cache).
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

import httpx  # noqa: E402  after the line above

DEADLINE_SECONDS = 15.0
MAX_ANSWER_BYTES = 4096
_ANSWER_SECONDS = 2.0
"""Time to read what comes after the status: it only explains a refusal."""
_SHOWN = 160
_AGAIN = frozenset({408, 425})


class HttpClient:
    """Shared by all receivers: a client for each scheme, made when it is first used. For one event loop."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        trust: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
        masker: Masker | None = None,
    ) -> None:
        """Make no connection yet. `masker` hides secrets in what receivers answer."""
        self._clock = clock or SystemClock()
        self._deadline_seconds = deadline_seconds
        self._trust = trust
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._resolver = Resolver()
        self._resolve = resolve or self._resolver
        self._masker = masker or Masker()

    async def send(self, request: HttpRequest) -> DeliveryOutcome:
        """Try once. Whatever goes wrong is an outcome."""
        return (await self.ask(request, MAX_ANSWER_BYTES))[0]

    async def ask(self, request: HttpRequest, most_bytes: int) -> tuple[DeliveryOutcome, bytes]:
        """Try once, and return the answer with the outcome, up to so many bytes; nothing of one that is no success."""
        try:
            url = httpx.URL(request.url)
            host, port = url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
            if url.scheme not in {"http", "https"} or not host or port > 65535:
                raise ValueError("no address")
            async with asyncio.timeout(self._deadline_seconds):
                addresses = await allowed_addresses(host, port, self._resolve)
                return await self._try_each(request, url, addresses, most_bytes)
        except (TimeoutError, httpx.TimeoutException):
            return DeliveryOutcome(Reason.TIMED_OUT, "it did not answer in time"), b""
        except ForbiddenAddressError:
            return DeliveryOutcome(Reason.MISCONFIGURED, "it has a link-local address: nothing is sent there"), b""
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, ValueError):
            why = (
                "its address is no URL that begins with http:// or https:// and names a host, or a header is not ASCII"
            )
            return DeliveryOutcome(Reason.MISCONFIGURED, why), b""
        except (httpx.TransportError, OSError) as error:
            return DeliveryOutcome(Reason.UNREACHABLE, _why(error)), b""

    async def close(self) -> None:
        """Close what is open."""
        clients, self._clients = self._clients, {}
        self._resolver.close()
        for client in clients.values():
            await client.aclose()

    async def _try_each(
        self, request: HttpRequest, url: httpx.URL, addresses: Sequence[str], most_bytes: int
    ) -> tuple[DeliveryOutcome, bytes]:
        """Send to the first address that takes the connection: nothing has been sent to the others."""
        for address in addresses[:-1]:
            try:
                return await self._exchange(request, url, address, most_bytes)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._exchange(request, url, addresses[-1], most_bytes)

    async def _exchange(
        self, request: HttpRequest, url: httpx.URL, address: str, most_bytes: int
    ) -> tuple[DeliveryOutcome, bytes]:
        async with self._client(url.scheme).stream(
            request.method,
            url.copy_with(host=address),
            content=request.body or None,
            headers={"Host": url.netloc.decode("ascii"), **request.headers},
            # The name that the certificate has to be for.
            extensions={} if url.host == address else {"sni_hostname": url.raw_host.decode("ascii")},
        ) as response:
            if response.is_success:
                # Read to its end, so that the connection can be used again.
                return DELIVERED, (await _excerpt(response, most_bytes))[0]
            excerpt, whole = await _excerpt(response, MAX_ANSWER_BYTES)
            said = plain_words(self._masker.hide(excerpt, [request.url, *request.secrets], ends=whole))[:_SHOWN]
            return self._judge(response, f": {said}" if said else ""), b""

    def _client(self, scheme: str) -> httpx.AsyncClient:
        """Return the client of a scheme: the system's certificates take some MiB that plain HTTP need not spend."""
        if scheme not in self._clients:
            # Without certificates of authorities: were it ever asked for TLS, it would trust nobody.
            trust = ssl.create_default_context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._clients[scheme] = _new_client(self._trust or trust)
        return self._clients[scheme]

    def _judge(self, response: httpx.Response, said: str) -> DeliveryOutcome:
        status = response.status_code
        after = self._retry_after(response.headers)
        if status == 429:
            return DeliveryOutcome(Reason.SLOW_DOWN, f"it wants fewer messages (429){said}", after)
        if status in _AGAIN or status >= 500:
            return DeliveryOutcome(Reason.UNAVAILABLE, f"it answered {status}{said}", after)
        if status == 410:
            return DeliveryOutcome(Reason.GONE, f"it wants nothing any more (410){said}")
        if response.is_redirect or 300 <= status < 400:
            return DeliveryOutcome(
                Reason.REDIRECTED, f"it redirects ({status}), which is not followed: put in its new address"
            )
        return DeliveryOutcome(Reason.REFUSED, f"it refused the message ({status}){said}")

    def _retry_after(self, headers: Mapping[str, str]) -> float | None:
        """Return seconds; the header may have a date: https://www.rfc-editor.org/rfc/rfc9110#field.retry-after."""
        text = headers.get("retry-after", "").strip()
        if text.isascii() and text.isdigit() and len(text) < 10:
            return float(text)
        try:
            date = parsedate_to_datetime(text)
            date = date if date.tzinfo else date.replace(tzinfo=UTC)
            return max(0.0, date.timestamp() - self._clock.wall())
        except (ValueError, OverflowError):
            return None


def _new_client(trust: ssl.SSLContext) -> httpx.AsyncClient:
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)  # below it they write whole URLs
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=3),  # the whole of it has a deadline
        follow_redirects=False,
        trust_env=False,
        limits=httpx.Limits(max_connections=4, max_keepalive_connections=2),
        verify=trust,
        # Compressed, 4 KiB would be any size.
        headers={"User-Agent": "gpuagent", "Accept-Encoding": "identity"},
    )


async def _excerpt(response: httpx.Response, most_bytes: int) -> tuple[bytes, bool]:
    """Return the beginning of the answer, and whether that is all of it."""
    kept = b""
    whole = False
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            async for chunk in response.aiter_raw(MAX_ANSWER_BYTES):
                kept += chunk
                if len(kept) >= most_bytes:
                    break
            else:
                whole = True
    except (TimeoutError, httpx.HTTPError):
        pass  # the status has come, and counts
    return kept[:most_bytes], whole


def _why(error: BaseException | None) -> str:
    """Return the kind of fault, never the library's own words: they may hold the host's name."""
    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (ssl.SSLCertVerificationError, "its certificate is not trusted here"),
        (ssl.SSLError, "TLS with it failed"),
        (socket.gaierror, "its name cannot be resolved"),
        (ConnectionRefusedError, "it refused the connection"),
        (httpx.ConnectError, "no connection to it"),
        (httpx.RemoteProtocolError, "it closed the connection without an answer"),
    )
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    for kind, words in kinds:
        if any(isinstance(link, kind) for link in chain):
            return words
    return "the connection to it broke"


_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_SEPARATOR = re.compile(r"((?:[\s\"'`{}\[\](),;<>|=]|\\[\"/nrt])+)")
_WORD = re.compile(r"[^\W\d_]{2,}(?:[-_./:]+[^\W\d_]{2,})*[.:!?]*")
_HUMP = re.compile(r"[A-Z]*[^A-Z]+|[A-Z]+")
"""Letters of one case, with a capital in front or none: `ends` and `At` of `endsAt`."""
_LETTERS_A_HUMP = 3
"""Fewest letters between changes of case, on average: words change it less often than keys do."""
_LONGEST_WORD = 40
_SHORT = re.compile(r"(?:\d{1,5}(?:[.:]\d{1,5}){0,4}|\w|[A-Fa-f]{2}|[-+*/&#.:!?]{1,3})[.:!?]*")
"""A number, or what may be one character or one byte of something that was taken apart."""
_MOST_SHORT = 3
"""Most numbers and hidden parts between two words: a line and a column, a date."""


def plain_words(text: str) -> str:
    """Return the text on one line; `<hidden>` stands for whatever is no plain word."""
    text = _TAG.sub(" ", unicodedata.normalize("NFKC", text.replace(HIDDEN, "\0")))
    pieces = _SEPARATOR.split(text)
    line = "".join(_kept(pieces))
    return " ".join(re.sub(rf"{HIDDEN}(?:[\s\"'`{{}}\[\](),;|=]*{HIDDEN})+", HIDDEN, line).split())


def _kept(pieces: list[str]) -> Iterator[str]:
    """Yield the pieces, every second of which is a separator, with what is not plain replaced."""
    for plain, group in groupby(range(0, len(pieces), 2), lambda place: _is_word(pieces[place])):
        places = list(group)
        told = plain or sum(map(bool, (pieces[place] for place in places))) <= _MOST_SHORT
        for place in places:
            piece = pieces[place]
            yield piece if not piece or (told and (plain or _SHORT.fullmatch(piece))) else HIDDEN
            yield from pieces[place + 1 : place + 2]


def _is_word(piece: str) -> bool:
    if _SHORT.fullmatch(piece) or len(piece) > _LONGEST_WORD or _WORD.fullmatch(piece) is None:
        return False
    return len(piece) >= _LETTERS_A_HUMP * len(_HUMP.findall(piece)) or len(piece) < _LETTERS_A_HUMP
