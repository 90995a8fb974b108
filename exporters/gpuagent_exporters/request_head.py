"""Check the head of a request before h11 parses it: its size, its grammar and its framing.

h11 is lenient where two parsers can disagree (bare LF, line folding, a repeated or overruled Content-Length), and it
compares with its size limit only while a head is incomplete. A front proxy that reads such a head in another way takes
our answer to one request for the answer to another ("request smuggling", RFC 9112, sections 6.3 and 11.2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus

import h11

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
