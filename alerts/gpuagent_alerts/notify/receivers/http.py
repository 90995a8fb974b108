"""HTTP to the outside: the only module that uses httpx.

No redirect is followed: with 302 a message would be lost as a GET, with 307 it would go, signature and all, to another
host. No proxy of the environment is used: it would see what is meant for 127.0.0.1. A certificate has to be trusted by
the system. An answer may take 15 s in all, however it trickles in, and 4 KiB of it are read. Nothing goes to a
link-local address, whatever name it has.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime

from gpuagent.clock import Clock, SystemClock
from gpuagent_alerts.masker import Masker, plain_words
from gpuagent_alerts.notify.outbox.attempt import DELIVERED, Outcome, Reason
from gpuagent_alerts.notify.receivers.addresses import ForbiddenAddressError, Resolve, Resolver, allowed_addresses

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


@dataclass(frozen=True, slots=True)
class Request:
    """A request. Neither the URL nor the headers are ever shown."""

    url: str = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    method: str = "POST"
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Secrets of this request besides the URL and those that the masker knows."""


class Http:
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

    async def send(self, request: Request) -> Outcome:
        """Try once. Whatever goes wrong is an outcome."""
        return (await self.ask(request, MAX_ANSWER_BYTES))[0]

    async def ask(self, request: Request, most_bytes: int) -> tuple[Outcome, bytes]:
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
            return Outcome(Reason.TIMED_OUT, "it did not answer in time"), b""
        except ForbiddenAddressError:
            return Outcome(Reason.MISCONFIGURED, "it has a link-local address: nothing is sent there"), b""
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, ValueError):
            why = (
                "its address is no URL that begins with http:// or https:// and names a host, or a header is not ASCII"
            )
            return Outcome(Reason.MISCONFIGURED, why), b""
        except (httpx.TransportError, OSError) as error:
            return Outcome(Reason.UNREACHABLE, _why(error)), b""

    async def close(self) -> None:
        """Close what is open."""
        clients, self._clients = self._clients, {}
        self._resolver.close()
        for client in clients.values():
            await client.aclose()

    async def _try_each(
        self, request: Request, url: httpx.URL, addresses: Sequence[str], most_bytes: int
    ) -> tuple[Outcome, bytes]:
        """Send to the first address that takes the connection: nothing has been sent to the others."""
        for address in addresses[:-1]:
            try:
                return await self._exchange(request, url, address, most_bytes)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._exchange(request, url, addresses[-1], most_bytes)

    async def _exchange(self, request: Request, url: httpx.URL, address: str, most_bytes: int) -> tuple[Outcome, bytes]:
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

    def _judge(self, response: httpx.Response, said: str) -> Outcome:
        status = response.status_code
        after = self._retry_after(response.headers)
        if status == 429:
            return Outcome(Reason.SLOW_DOWN, f"it wants fewer messages (429){said}", after)
        if status in _AGAIN or status >= 500:
            return Outcome(Reason.UNAVAILABLE, f"it answered {status}{said}", after)
        if status == 410:
            return Outcome(Reason.GONE, f"it wants nothing any more (410){said}")
        if response.is_redirect or 300 <= status < 400:
            return Outcome(Reason.REDIRECTED, f"it redirects ({status}), which is not followed: put in its new address")
        return Outcome(Reason.REFUSED, f"it refused the message ({status}){said}")

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
