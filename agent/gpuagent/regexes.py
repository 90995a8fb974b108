"""Regular expressions by RE2: the one module that compiles them for texts or patterns of other people's.

RE2 takes time linear in the text, whatever the pattern and the text; Python's re can be made to take for ever by a
pattern such as `(a+)+$` and a text of sixty letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

REGEX_HELP = "a regular expression, as RE2 has them (https://github.com/google/re2/wiki/Syntax)"
_FOREIGN = ("invalid perl operator", "invalid escape sequence")
_MISSING = r"there are no look-around and no back-references, and the end of the text is \z"
_LONE_SURROGATES = range(0xD800, 0xE000)
_PRIVATE_PLANE = 0x100000
"""The last plane of Unicode, of private use: nobody writes these."""


class Match(Protocol):
    """One match, as of Python's re."""

    def __getitem__(self, group: int) -> str: ...

    def groups(self) -> tuple[str | None, ...]: ...

    def start(self) -> int: ...

    def end(self) -> int: ...


class Compiled(Protocol):
    """A compiled pattern, as of Python's re."""

    @property
    def groups(self) -> int: ...

    @property
    def groupindex(self) -> Mapping[str, int]: ...

    def search(self, text: str) -> Match | None: ...

    def fullmatch(self, text: str) -> Match | None: ...

    def finditer(self, text: str) -> Iterator[Match]: ...


class RegexError(ValueError):
    """RE2 does not take the pattern; the text is RE2's reason."""


def compile_regex(pattern: str) -> Compiled:
    """Compile a pattern. Raises RegexError for what RE2 does not take."""
    import re2  # noqa: PLC0415  commands that compile nothing start without it

    options = re2.Options()
    options.log_errors = False  # they would go to standard error
    try:
        compiled: Compiled = re2.compile(pattern, options)
    except UnicodeEncodeError:
        raise RegexError("it holds half a character") from None
    except re2.error as error:
        why = error.args[0] if error.args else ""
        raise RegexError(why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)) from None
    return compiled


def check_regex(pattern: str) -> str:
    """Pass a pattern that RE2 takes. Raises ValueError, in words for the person who wrote it."""
    try:
        compile_regex(pattern)
    except RegexError as error:
        hint = f"; {_MISSING}" if str(error).startswith(_FOREIGN) else ""
        raise ValueError(f"is not a regular expression as RE2 has them: {error}{hint}") from None
    return pattern


class TextRegex:
    """A pattern for any text, also one that holds bytes which are no UTF-8 (as lone surrogates, PEP 383)."""

    def __init__(self, pattern: str) -> None:
        """Raises ValueError for what RE2 does not take."""
        self._compiled = compile_regex(check_regex(pattern))

    def is_in(self, text: str) -> bool:
        """Return whether the pattern matches somewhere in the text."""
        return self._compiled.search(_encodable(text)) is not None

    def replaced(self, text: str, by: str) -> str:
        """Return the text with `by` in the place of each match that is not empty."""
        parts: list[str] = []
        copied = 0
        # Each lone surrogate stands for one character: places in both texts are the same.
        for match in self._compiled.finditer(_encodable(text)):
            if match.end() > match.start():
                parts += [text[copied : match.start()], by]
                copied = match.end()
        return "".join([*parts, text[copied:]]) if parts else text


def _encodable(text: str) -> str:
    """Return a text of the same length that RE2 can take: it reads UTF-8, which has no lone surrogates."""
    if text.isascii() or not any(ord(character) in _LONE_SURROGATES for character in text):
        return text
    return "".join(chr(_PRIVATE_PLANE + ord(c)) if ord(c) in _LONE_SURROGATES else c for c in text)
