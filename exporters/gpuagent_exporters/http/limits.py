"""An HTTP connection that no client can hold on to: bounds on its head, its time and its size, around uvicorn's.

h11 is lenient where two parsers can disagree (bare LF, line folding, a repeated or overruled Content-Length), and it
compares with its size limit only while a head is incomplete. A front proxy that reads such a head in another way takes
our answer to one request for the answer to another ("request smuggling", RFC 9112, sections 6.3 and 11.2).

uvicorn alone waits for ever for the rest of a half-sent request, and for ever for a client that
asks and does not read (a keep-alive timeout closes its transport, but closing first waits for the
buffer to empty). Both are one timer here. `request_head` bounds the head, Starlette the body.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

import h11
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuagent_exporters.http.middleware import error_response, phrase_of
from gpuagent_exporters.http.peers import PeerCredentials, peer_credentials, set_peer
from gpuagent_exporters.http.slim_imports import Config, H11Protocol, ServerState

_END = re.compile(rb"\n\r?\n")
"""Where h11 sees the end of a head; anything but CRLF CRLF is refused afterwards."""
_FORBIDDEN = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n)")
"""Control characters (RFC 9110, section 5.5), and CR or LF alone (RFC 9112, section 2.2)."""
_TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(_TOKEN + rb" [\x21-\x7e]+ HTTP/(\d\.\d)")
_FIELD_NAME = re.compile(_TOKEN)
_CONTENT_LENGTH = re.compile(rb"[0-9]{1,18}")


class RequestHeadError(Exception):
    """A head that is refused: the status of the answer, and a sentence that says why."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(message)


def check_head(head: bytes, *, max_headers: int) -> None:
    """Check a whole head, from the request line through the empty line. Raises RequestHeadError."""
    if _FORBIDDEN.search(head):
        raise _bad("The head of the request has a control character, or CR or LF alone.")
    request_line, *fields = head[:-4].split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(request_line)
    if line is None:
        raise _bad("The request line is not METHOD TARGET HTTP/1.1.")
    version = line[1]
    if version not in {b"1.0", b"1.1"}:
        message = "This server speaks HTTP/1.1 and HTTP/1.0."
        raise RequestHeadError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, message)
    if len(fields) > max_headers:
        message = f"A request may have {max_headers} headers."
        raise RequestHeadError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)
    _check_framing([_split(field) for field in fields], version)


class StrictConnection(h11.Connection):
    """An h11 connection of a server that passes each head through `check_head` first.

    Args:
        max_head_bytes: The largest head, request line and empty line included, however it arrives.
        max_headers: The most header lines of one request.
    """

    def __init__(self, *, max_head_bytes: int, max_headers: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=max_head_bytes)
        self.refusal: RequestHeadError | None = None
        """Why nothing more is read here, or None."""
        self._max_head_bytes = max_head_bytes
        self._max_headers = max_headers
        self._searched = 0

    def next_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        """Return the next event, as h11 does; raises h11.RemoteProtocolError and sets `refusal` for a refused head."""
        try:
            if self.refusal is not None:
                raise self.refusal
            if self.their_state is h11.IDLE:
                self._check_received()
        except RequestHeadError as error:
            self.refusal = error
            raise h11.RemoteProtocolError(error.message, error_status_hint=error.status) from error
        return super().next_event()

    def _check_received(self) -> None:
        """Check the head at the start of the buffer, or the size of what there is of it. Raises RequestHeadError."""
        received, _ = self.trailing_data
        end = _END.search(received, max(0, self._searched - 2))
        self._searched = 0 if end else len(received)
        if (end.end() if end else len(received)) > self._max_head_bytes:
            message = f"The head of a request may have {self._max_head_bytes} bytes."
            raise RequestHeadError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)
        if end:
            check_head(received[: end.end()], max_headers=self._max_headers)


def _split(field: bytes) -> tuple[bytes, bytes]:
    """Return name (lower case) and value of a header line. Raises RequestHeadError."""
    if field[:1] in {b" ", b"\t"}:
        raise _bad("A header is folded over several lines, which is obsolete.")
    name, colon, value = field.partition(b":")
    if not colon or not _FIELD_NAME.fullmatch(name):
        raise _bad("A header line is not NAME: VALUE, without space before the colon.")
    return name.lower(), value.strip(b" \t")


def _check_framing(fields: Sequence[tuple[bytes, bytes]], version: bytes) -> None:
    """Refuse a request whose end two servers may see in two places (RFC 9112, section 6). Raises RequestHeadError."""
    lengths = [value for name, value in fields if name == b"content-length"]
    codings = [value for name, value in fields if name == b"transfer-encoding"]
    if lengths and codings:
        raise _bad("A request has Content-Length or Transfer-Encoding, not both.")
    if len(lengths) > 1 or not all(map(_CONTENT_LENGTH.fullmatch, lengths)):
        raise _bad("Content-Length is one decimal number.")
    if len(codings) > 1 or any(coding.lower() != b"chunked" for coding in codings):
        raise _bad("Transfer-Encoding is chunked and nothing else.")
    if codings and version == b"1.0":
        raise _bad("HTTP/1.0 has no Transfer-Encoding.")


def _bad(message: str) -> RequestHeadError:
    return RequestHeadError(HTTPStatus.BAD_REQUEST, message)


# uvicorn warns of every request it cannot read: lines in the journal that a stranger writes.
_quiet_logger = logging.getLogger(f"{__name__}.uvicorn")
_quiet_logger.setLevel(logging.ERROR)

_READ_BYTES = 4 * 1024
_PIECE_BYTES = 64 * 1024
"""What the transport is handed at once: a slow reader costs a copy of this, not of the whole."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, 0 s; the kernel drops what it still holds

_REQUEST_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one client may cost.

    `idle_timeout_seconds` is above Prometheus' default scrape interval of 60 s, so that a scraper
    keeps its connection (and its TLS session). It costs nobody else: where all connections are
    taken, the one that has been idle longest makes room.
    """

    max_connections: int = 64
    request_timeout_seconds: float = 5.0
    """For a whole request, headers and body, from its first byte; and for a TLS handshake."""
    write_timeout_seconds: float = 10.0
    """From the moment a client does not take what it asked for, until it has all of it."""
    idle_timeout_seconds: float = 75.0
    max_header_bytes: int = 16 * 1024
    """Request line and headers together, the empty line included."""
    max_headers: int = 100
    """Header lines of one request."""
    max_body_bytes: int = 64 * 1024


class BoundedProtocol(H11Protocol, asyncio.BufferedProtocol):
    """One connection. `on_lost` is called once, with this, when it has ended."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        limits: HttpLimits,
        *,
        on_lost: Callable[[BoundedProtocol], None],
    ) -> None:
        super().__init__(config, server_state, app_state={})
        self.logger = _quiet_logger
        self.app = self._answer
        self.conn: StrictConnection = StrictConnection(
            max_head_bytes=limits.max_header_bytes, max_headers=limits.max_headers
        )
        # Declared as int, but call_later(), where it goes, takes fractions.
        self.timeout_keep_alive = limits.idle_timeout_seconds  # type: ignore[assignment]
        self.idle_since: float | None = None
        """Loop time since when nothing is going on here, or None while something is."""
        self.awaited_since: float | None = self.loop.time()
        """Loop time since when the rest of a request, or of a TLS handshake, is waited for; None while it is not."""
        self.unread_since: float | None = None
        """Loop time since when the client does not take its answer; None while it does."""
        self._limits = limits
        self._on_lost = on_lost
        self._peer: PeerCredentials | None = None
        self._read_buffer = memoryview(bytearray(_READ_BYTES))
        self._half_closed = False
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Be told of every byte that a client leaves lying, not only after 64 KiB. At 0 a TLS
        # transport would pause with an empty buffer, so there it is one byte.
        transport.set_write_buffer_limits(high=1 if self.scheme == "https" else 0, low=0)
        connected = transport.get_extra_info("socket")
        if connected.family == socket.AF_UNIX:
            with contextlib.suppress(OSError):  # no peer is noted, and who needs one refuses
                self._peer = peer_credentials(connected)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._request_timer)
        _cancel(self._write_timer)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves it running after an error
        self._on_lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio's
        """Return a small buffer: sizes are compared between reads, and asyncio's own takes 256 KiB for each read."""
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.transport.is_closing():  # over TLS some may come after that
            return
        self.idle_since = None
        self.data_received(bytes(self._read_buffer[:nbytes]))
        self._watch()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's never keeps it open
        """Keep half of the connection for who has asked and will ask no more, such as `nc -N`."""
        self._half_closed = True
        answering = self.cycle is not None and not self.cycle.response_complete
        return answering and self.scheme == "http"  # TLS has no such half

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self.unread_since = self.loop.time()
            delay = self._limits.write_timeout_seconds
            self._write_timer = self.loop.call_later(delay, self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    # What uvicorn calls

    def on_response_complete(self) -> None:
        body_still_coming = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        # A body that nobody wants may have no end. And while requests wait, uvicorn does not read,
        # so who has closed their half has had their last answer.
        if body_still_coming or self._half_closed:
            self.transport.close()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, say why, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.abort()  # in the middle of an exchange there is no place for another answer
            return
        refusal = self.conn.refusal or RequestHeadError(HTTPStatus.BAD_REQUEST, msg)
        response = error_response(refusal.status, refusal.message, {"connection": "close", "date": _now()})
        reason = phrase_of(refusal.status).encode()
        head = h11.Response(status_code=refusal.status, headers=response.raw_headers, reason=reason)
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, told who calls; answer in pieces, and with the date (RFC 9110, section 6.6.1)."""
        chunked = "transfer-encoding" in Headers(scope=scope)
        # h11 is lenient with chunks and trailers, so no request is read behind them.
        closing = [(b"connection", b"close")] if chunked else []

        async def send_in_pieces(message: Message) -> None:
            if message["type"] == "http.response.start":
                date = (b"date", _now().encode())
                message = {**message, "headers": [date, *closing, *message.get("headers", ())]}
            body = message.get("body", b"")
            last = max(len(body) - 1, 0) // _PIECE_BYTES * _PIECE_BYTES
            for start in range(0, last, _PIECE_BYTES):
                piece = body[start : start + _PIECE_BYTES]
                await send({**message, "body": piece, "more_body": True})
            await send({**message, "body": body[last:]} if last else message)

        if self._peer is not None:
            set_peer(scope, self._peer)
        announced = Headers(scope=scope).get("content-length", "0")  # digits: see request_head
        app: ASGIApp = self.config.loaded_app
        if int(announced) > self._limits.max_body_bytes:
            message = f"The body of a request may have {self._limits.max_body_bytes} bytes."
            app = error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        try:
            await app(scope, receive, send_in_pieces)
        except asyncio.CancelledError:  # the server stops; uvicorn would log it as a fault
            self.abort()

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except h11.LocalProtocolError:  # the exchange has failed already: there is nothing to finish
            self.transport.close()

    # Bounds

    def _watch(self) -> None:
        """Start and stop the timers as the state of the exchange demands."""
        if self.transport.is_closing():
            return
        waiting_data, _ = self.conn.trailing_data
        answered = self.cycle is not None and self.cycle.response_complete
        written = not self.flow.write_paused
        idle = answered and written and self.conn.their_state is h11.IDLE and not waiting_data
        if idle and self.idle_since is None:
            self.idle_since = self.loop.time()

        # One clock for the whole request, from its first byte: a further byte does not set it back.
        awaited = self.conn.their_state in {h11.IDLE, h11.SEND_BODY}
        first_or_begun = self.cycle is None or waiting_data or self.conn.their_state is h11.SEND_BODY
        if not (awaited and first_or_begun):
            _cancel(self._request_timer)
            self._request_timer = self.awaited_since = None
        elif self._request_timer is None:
            self.awaited_since = self.awaited_since or self.loop.time()
            delay = self._limits.request_timeout_seconds
            self._request_timer = self.loop.call_later(delay, self._request_timed_out)

        # One clock for the whole response: taking a byte now and then does not set it back.
        if written and (self.cycle is None or answered):
            _cancel(self._write_timer)
            self._write_timer = self.unread_since = None

    def _request_timed_out(self) -> None:
        waiting_data, _ = self.conn.trailing_data
        if self.cycle is None and waiting_data:
            self.transport.write(_REQUEST_TIMEOUT)
            self.transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        """End the connection now and drop what was not read, the kernel's share included."""
        connected = self.transport.get_extra_info("socket")
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()


def _now() -> str:
    return formatdate(usegmt=True)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
