"""The small files of the state directory: read within bounds whatever lies there, and written for the agent only.

A FIFO, a device or a huge file there must not hold up the start, and none of these files is worth failing it.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from gpuagent.regular_files import read_regular_file

MAX_BYTES = 8 * 2**20
"""Some 80,000 numbers on the driver's lists: far more than a node has."""
_ASIDE = "unreadable-"
"""Before the name of what was set aside. No file that the agent reads is called so."""


def read_bounded(path: Path) -> str:
    """Return as `read_state` does, and leave what cannot be read where it is. Raises as it does."""
    return _content(path).decode()


def read_state(path: Path) -> str:
    """Return the text of a regular file, without waiting for anything.

    What is no such file, or is larger than `MAX_BYTES`, is moved aside.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read; the text says where it is now.
        UnicodeDecodeError: it is no text.
    """
    try:
        content = _content(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}{_set_aside(path)}") from None
    return content.decode()


def write_state(path: Path, text: str) -> None:
    """Replace the file by one with this text that only its owner reads. Raises OSError; the old one is there then."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(new, flags, 0o600), "w") as stream:
        stream.write(text)
    new.replace(path)


def _content(path: Path) -> bytes:
    content = read_regular_file(path, MAX_BYTES, follow_links=False)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_BYTES // 2**20} MiB")
    return content


def _set_aside(path: Path) -> str:
    aside = path.with_name(_ASIDE + path.name)
    with suppress(OSError):
        path.replace(aside)
        return f"; it was moved to {aside}"
    return ""
