"""A secret from the configuration, and every form in which it may come back.

A secret is given as it is, or by a file that is read anew at every use. It may come back in another case, cut, in
parts, and in base64 or hexadecimal. Escapes (percent, JSON, HTML) are no forms here: `masker` undoes those in the text.
A secret that somebody splits over white space, reverses, compresses or encrypts is not found.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from gpuagent.core.regular_files import read_regular_file

_MAX_BYTES = 4096


class Misconfigured(Exception):
    """Something has to be put right on this machine; the text holds no secret."""


class HiddenText(Protocol):
    """A text that does not show itself, such as `gpuagent.core.sections.SecretText`."""

    def get_secret_value(self) -> str:
        """Return the text."""
        ...


@dataclass(frozen=True, slots=True)
class Secret:
    """Given as it is, or by a file; exactly one of the two."""

    what: str
    """Name of it in messages: "URL", "key"."""
    value: str | HiddenText | None = field(default=None, repr=False)
    file: Path | None = None
    """Absolute path of its file."""

    def read(self) -> str:
        """Return the secret, without white space around it. Raises Misconfigured."""
        if self.value is not None:
            return self.value if isinstance(self.value, str) else self.value.get_secret_value()
        if self.file is None:
            raise Misconfigured(f"there is no {self.what}")
        return self._from_file(self.file)

    def line(self) -> str:
        """Return it likewise, of a secret that has no white space inside. Raises Misconfigured."""
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


_SHORTEST = 4
"""Shortest part that is hidden wherever it stands; shorter ones are words such as `v2`."""
CUT_BYTES = 8
"""Length of the beginning or end of a secret that is cut in the middle: that much is hidden wherever it stands."""
_DECODED_TIMES = 3
_REMEMBERED = 64
_SEPARATORS = ((), (" ",), (":",))
"""Between two bytes in hexadecimal, as `bytes.hex` takes it: none, or what programs put there."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://\S+")
_ASSIGNED = re.compile(r"(?i)(?:passw|secret|token|key|auth|credential)[^=: ]{0,64}[=: ]\s*(\S.*)", re.DOTALL)


class Forms(NamedTuple):
    """Forms to look for. The longest come first."""

    literal: tuple[bytes, ...]
    """Hidden wherever they stand."""
    words: tuple[bytes, ...]
    """Credentials of less than four bytes: hidden where they stand alone."""
    base64: tuple[bytes, ...]
    """What base64 makes of them, without the characters that also depend on what stands beside them."""
    lower: tuple[bytes, ...]
    """Hexadecimal digits, host names, and the literal ones of at least eight bytes: hidden in upper and lower case."""
    cut: tuple[bytes, ...]
    """Keys and passwords in lower case, of which the beginning and the end alone are hidden too."""
    spaced: tuple[bytes, ...]
    """Those of the literal ones that are several words: of these a part may be left where a text was cut."""


@lru_cache(maxsize=_REMEMBERED)
def forms(secret: str) -> Forms:
    """Return every form of a secret: of a URL also of its user, password, host, path, query and what is in them."""
    texts, credentials, hosts, cut = _texts(secret)
    found = {form for text in texts for form in _bytes(text)}
    found |= {raw for text in credentials for raw in _key_bytes(text)}
    long = {form for form in found if len(form) >= _SHORTEST}
    short = {form for text in credentials for form in _bytes(text) if 0 < len(form) < _SHORTEST}
    return Forms(
        literal=_longest_first(long),
        words=_longest_first(short),
        base64=_longest_first(core for form in long for core in _base64_cores(form)),
        lower=_longest_first(
            [
                *(form.hex(*separator).encode() for form in long for separator in _SEPARATORS),
                *(host.lower().encode() for host in hosts if len(host) > 3),
                *(form.lower() for form in long if len(form) >= CUT_BYTES),
            ]
        ),
        cut=_longest_first(
            form.lower() for text in cut for word in text.split() for form in _bytes(word) if len(form) > CUT_BYTES
        ),
        spaced=_longest_first(form for form in long if _has_gap(form.decode("utf-8", "replace"))),
    )


def argument_secrets(arguments: Iterable[str]) -> Iterator[str]:
    """Yield what is secret in a command line of the configuration: URLs, and values behind a name that says so."""
    for argument in arguments:
        yield from _URL.findall(argument)
        assigned = _ASSIGNED.search(argument)
        if assigned is not None:
            yield from assigned[1].split()


def _texts(secret: str) -> tuple[set[str], set[str], set[str], set[str]]:
    """Return the parts of a secret, those that are credentials whatever their length, the hosts, and those to be cut.

    Of a URL, password and parts with a digit may be cut: the beginning of another part is mostly a word.
    """
    texts, credentials, hosts = {secret}, {secret}, set()
    try:
        parts = urlsplit(secret)
        user, password = parts.username or "", parts.password or ""
        hosts = {parts.netloc.rpartition("@")[2], parts.hostname or ""}
    except ValueError:  # brackets that do not close: then it is no URL
        return _decoded(texts), _decoded(credentials), hosts, {secret}
    texts |= {parts.netloc, *hosts, user, parts.path, parts.query, parts.fragment}
    pieces = set(re.split(r"[/&=?;]", f"{parts.path}&{parts.query}"))
    texts |= pieces
    cut = {piece for piece in pieces if any(map(str.isdigit, piece))} | {password} if parts.netloc else {secret}
    if user or password:
        pairs = {f"{user}:{password}", f"{unquote(user)}:{unquote(password)}"}
        # httpx makes `Authorization: Basic` of them (RFC 7617), and that may be quoted in base64 once more.
        pairs |= {base64.b64encode(pair.encode("utf-8", "replace")).decode() for pair in pairs}
        texts |= pairs
        credentials |= {password, *pairs}
    return _decoded(texts | credentials), _decoded(credentials), hosts, _decoded(cut)


def _decoded(texts: set[str]) -> set[str]:
    """Add what undoing percent escapes makes of them."""
    found = set(texts)
    for _ in range(_DECODED_TIMES):
        found |= {unquote(text) for text in found}
    return found | {text.replace(" ", "+") for text in found}


def _bytes(text: str) -> Iterator[bytes]:
    yield text.encode("utf-8", "replace")
    if not text.isascii():
        try:
            yield text.encode("latin-1")
        except UnicodeEncodeError:
            return


def _key_bytes(text: str) -> Iterator[bytes]:
    """Yield what a key for signatures consists of: `whsec_` and base64."""
    if text.startswith("whsec_"):
        key = text.removeprefix("whsec_")
        yield key.encode("utf-8", "replace")
        try:
            yield base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            return


def _base64_cores(data: bytes) -> Iterator[bytes]:
    """Yield what stands for `data` in base64 behind three bytes, one and two, in both alphabets.

    A character of base64 holds six bits: those at the two ends that hold bits of a neighbor are left out.
    """
    for before in range(3):
        first = -(-before * 8 // 6)
        core = base64.b64encode(bytes(before) + data)[first : (before + len(data)) * 8 // 6]
        if len(core) >= _SHORTEST:
            yield core
            yield core.translate(_URL_SAFE)


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def _has_gap(text: str) -> bool:
    return any(character == " " or not character.isprintable() for character in text)


def _longest_first(found: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(sorted(set(found), key=lambda form: (-len(form), form)))
