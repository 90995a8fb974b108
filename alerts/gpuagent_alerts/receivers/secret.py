"""A secret from the configuration, or from a file that is read anew at every use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpuagent.core.regular_files import read_regular_file

_MAX_BYTES = 4096


class Misconfigured(Exception):
    """Something has to be put right on this machine; the text holds no secret."""


class Hidden(Protocol):
    """A text that does not show itself, such as pydantic's SecretStr."""

    def get_secret_value(self) -> str:
        """The text."""
        ...


@dataclass(frozen=True, slots=True)
class Secret:
    """Given as it is, or by a file; exactly one of the two."""

    what: str
    """What it is, for messages: "URL", "key"."""
    value: str | Hidden | None = field(default=None, repr=False)
    file: Path | None = None
    """With its whole path."""

    def read(self) -> str:
        """The secret, without white space around it. Raises Misconfigured."""
        if self.value is not None:
            return self.value if isinstance(self.value, str) else self.value.get_secret_value()
        if self.file is None:
            raise Misconfigured(f"there is no {self.what}")
        return self._from_file(self.file)

    def line(self) -> str:
        """Likewise, of a secret that has no white space inside. Raises Misconfigured."""
        text = self.read()
        if not text.isprintable() or " " in text:
            raise Misconfigured(f"the {self.what} must be one line without spaces")
        return text

    def _from_file(self, path: Path) -> str:
        try:
            text = _read(path).decode("utf-8-sig")  # some editors begin a file with a byte order mark
        except UnicodeDecodeError:
            raise Misconfigured(f"the file of the {self.what}, {path}, holds no text") from None
        except OSError as error:
            raise Misconfigured(f"cannot read the file of the {self.what}, {path}: {error.strerror}") from None
        if not text.strip():
            raise Misconfigured(f"the file of the {self.what}, {path}, is empty")
        return text.strip()


def _read(path: Path) -> bytes:
    data = read_regular_file(path, _MAX_BYTES)
    if len(data) > _MAX_BYTES:
        raise OSError(0, f"it is longer than {_MAX_BYTES} bytes")
    return data
