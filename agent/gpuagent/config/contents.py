"""How the content of a configuration file is had. Light: the agent imports it, and pydantic is not needed for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuagent.core.regular_files import read_regular_file

MAX_FILE_BYTES = 1024 * 1024

Read = Callable[[Path], bytes]
"""Returns a file's content, of a larger one the first `MAX_FILE_BYTES` + 1 bytes; raises OSError."""


def read_file(path: Path) -> bytes:
    """Read a regular file, without waiting for anything. See `Read`."""
    return read_regular_file(path, MAX_FILE_BYTES)


def content_of(read: bytes | OSError) -> bytes:
    """Return what was read. Raises the OSError with which it could not be."""
    if isinstance(read, OSError):
        raise read
    return read
