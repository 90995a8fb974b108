"""Walking through a JSON file of any size, holding a chunk of it: enough of a parser to find where things lie."""

from __future__ import annotations

import json
import re
from typing import Any, BinaryIO, Final

from gpuagent_alerts.leak.replay.rows import TraceError

MOST_VALUE_BYTES: Final = 1_048_576
"""The most that is held of one value: a metric's labels are smaller by far."""
_SPACE: Final = b" \t\r\n"
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PLAIN: Final = re.compile(rb"[^\s,\]}:\[{\"]+")
_NEXT: Final = re.compile(rb'["\[\]{}]')


class JsonScanner:
    """A place in a file. Raises TraceError where there is no JSON."""

    def __init__(self, file: BinaryIO, offset: int = 0, chunk_bytes: int = 65_536) -> None:
        """`file` is shared: every read seeks first."""
        self._file = file
        self._chunk_bytes = chunk_bytes
        self._offset = offset  # of the buffer's begin
        self._buffer = b""
        self._place = 0

    @property
    def offset(self) -> int:
        """Bytes from the file's begin to here."""
        return self._offset + self._place

    def peek(self) -> bytes:
        """The next character that is no space; empty at the end."""
        while True:
            rest = self._buffer[self._place :].lstrip(_SPACE)
            if rest:
                self._place = len(self._buffer) - len(rest)
                return rest[:1]
            self._place = len(self._buffer)
            if not self._more():
                return b""

    def take(self, wanted: bytes) -> bool:
        """Step over this character, if it comes next."""
        if self.peek() != wanted:
            return False
        self._place += 1
        return True

    def need(self, wanted: bytes) -> None:
        """Step over this character, which must come next."""
        if not self.take(wanted):
            raise TraceError(f"no JSON at byte {self.offset}: {wanted.decode()} should be here")

    def value(self) -> Any:  # noqa: ANN401 - it is JSON
        """The next value, which must be a small one."""
        self.peek()
        start = self.offset
        self.skip(keep=True)
        raw = self._buffer[start - self._offset : self._place]
        try:
            return json.loads(raw)
        except ValueError as error:
            raise TraceError(f"no JSON at byte {start}: {error}") from None

    def skip(self, *, keep: bool = False) -> None:
        """Step over the next value, of any size; with `keep` all of it stays in the buffer."""
        first = self.peek()
        if first not in {b"[", b"{"}:
            self._skip_scalar(first)
            return
        depth = 0
        while True:
            found = _NEXT.search(self._buffer, self._place)
            if found is None:
                if not keep:
                    self._place = len(self._buffer)
                if not self._more(keep=keep):
                    raise TraceError("the JSON ends too early")
                continue
            self._place = found.start()
            if found[0] == b'"':
                self._skip_scalar(b'"', keep=keep)
                continue
            self._place += 1
            depth += 1 if found[0] in b"[{" else -1
            if depth == 0:
                return

    def _skip_scalar(self, first: bytes, *, keep: bool = True) -> None:
        pattern = _STRING if first == b'"' else _PLAIN
        while True:
            found = pattern.match(self._buffer, self._place)
            if found is not None and (first == b'"' or found.end() < len(self._buffer)):
                self._place = found.end()
                return
            if not self._more(keep=keep):
                if found is None:
                    raise TraceError(f"no JSON at byte {self.offset}")
                self._place = found.end()
                return

    def _more(self, *, keep: bool = False) -> bool:
        """Read on; what lies before the place is dropped, unless `keep`."""
        if len(self._buffer) - self._place > MOST_VALUE_BYTES or (keep and len(self._buffer) > 4 * MOST_VALUE_BYTES):
            raise TraceError(f"a value of more than {MOST_VALUE_BYTES} bytes at byte {self.offset}")
        self._file.seek(self._offset + len(self._buffer))
        chunk = self._file.read(self._chunk_bytes)
        if not keep:
            self._offset += self._place
            self._buffer = self._buffer[self._place :]
            self._place = 0
        self._buffer += chunk
        return bool(chunk)
