"""Label matchers as Alertmanager writes them, and the RE2 patterns behind them.

The form of `severity="critical"`, `unit!=""`, `gpu=~"0|1"` is read here:
https://prometheus.io/docs/alerting/latest/configuration/#matcher.

This is the one module that compiles regular expressions for texts or patterns of other people's. RE2 takes time linear
in the text, whatever the pattern and the text; Python's re can be made to take for ever by a pattern such as `(a+)+$`
and a text of sixty letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

REGEX_HELP = "a regular expression, as RE2 has them (https://github.com/google/re2/wiki/Syntax)"
_FOREIGN = ("invalid perl operator", "invalid escape sequence")
_MISSING = r"there are no look-around and no back-references, and the end of the text is \z"
_LITERALS = re.compile(r"[A-Za-z0-9_|:/@ -]+")
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


def literal_alternatives(pattern: str) -> frozenset[str] | None:
    """Return the texts that a pattern such as `critical|warning` matches whole; None where it takes more than that.

    Most matchers are of this kind. To look a text up in a set is exact, and RE2, 2.4 MiB of it, is not loaded.
    """
    return frozenset(pattern.split("|")) if _LITERALS.fullmatch(pattern) else None


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
        """Compile a pattern. Raise ValueError for what RE2 does not take."""
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


MATCHER_HELP = 'name="value", name!="value", name=~"regex" or name!~"regex"'

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_HEAD = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)", re.ASCII)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_PARTS = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+', re.DOTALL)
_SECOND = re.compile(r"[\s,][a-zA-Z_][a-zA-Z0-9_]*\s*(?:=|!)")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_UNESCAPED = {"n": "\n", '"': '"', "\\": "\\"}


class MatchOperator(StrEnum):
    """How a label's value is compared."""

    EQUAL = "="
    NOT_EQUAL = "!="
    MATCHES = "=~"
    """The whole value matches the regular expression."""
    MATCHES_NOT = "!~"

    @property
    def is_pattern(self) -> bool:
        """Whether it takes a regular expression."""
        return self in {MatchOperator.MATCHES, MatchOperator.MATCHES_NOT}


class Matcher(NamedTuple):
    """One condition on one label. A label that is missing has the value ""."""

    name: str
    op: MatchOperator
    value: str

    def __str__(self) -> str:
        value = self.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'{self.name}{self.op}"{value}"'


def parse_matcher(text: str) -> Matcher:
    r"""Read one matcher. The quotes may be left out; inside them `\"`, `\\` and `\n` are escapes.

    Raises ValueError, in words for the person who wrote it.
    """
    text = text.strip()
    if text.startswith("{"):
        raise ValueError("a matcher stands alone: write one per list item, without braces")
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(f"this is no matcher: write {MATCHER_HELP}")
    rest = text[head.end() :].strip()
    if rest.startswith("="):
        raise ValueError(f"== is no operator of a matcher: write {head[1]}{head[2]}{rest.lstrip('=').strip()}")
    return Matcher(head[1], MatchOperator(head[2]), _unquote(rest))


def parse_matchers(text: str) -> list[Matcher]:
    """Read one matcher, or several between braces, as `amtool` takes them: `{alertname="GpuLost", gpu="0"}`.

    Raises ValueError, in words for the person who wrote it.
    """
    inner = text.strip()
    if not inner.startswith("{"):
        return [parse_matcher(text)]
    if not inner.endswith("}"):
        raise ValueError("the brace of these matchers is not closed")
    parts = _PARTS.findall(inner[1:-1])
    return [parse_matcher(part) for part in parts if part.strip()]


def _unquote(value: str) -> str:
    quoted = _QUOTED.fullmatch(value)
    if quoted is not None:
        # What is no escape stays as it is, as in Alertmanager: regular expressions are full of it.
        return _ESCAPE.sub(lambda escape: _UNESCAPED.get(escape[1], escape[0]), quoted[1])
    if '"' in value:
        raise ValueError(f"the quotes of this matcher do not fit: write {MATCHER_HELP}")
    if _SECOND.search(value):
        raise ValueError("these are several matchers in one word: write each as a word of its own, or quote the value")
    return value


def compile_pattern(matcher: Matcher) -> Callable[[str], object]:
    """Compile to a function from a text to its whole match, or None. Raises ValueError for what RE2 does not take."""
    try:
        return compile_regex(matcher.value).fullmatch
    except RegexError as error:
        raise ValueError(f"{matcher}: not a regular expression as RE2 has them: {error}") from None


def is_label_name(text: str) -> bool:
    """Return whether Prometheus takes it as the name of a label."""
    return _LABEL.fullmatch(text) is not None


Labels = Mapping[str, str]
_Test = Callable[[str], bool]


class Matchers:
    """All of them must hold. A label that is missing has the value ""."""

    __slots__ = ("_tests", "texts")

    def __init__(self, matchers: Iterable[Matcher] = ()) -> None:
        """Compile matchers. Raises ValueError for a regular expression that RE2 does not take."""
        kept = tuple(matchers)
        self.texts = tuple(str(matcher) for matcher in kept)
        self._tests = tuple((matcher.name, _test(matcher)) for matcher in kept)

    def __call__(self, labels: Labels) -> bool:
        return all(test(labels.get(name, "")) for name, test in self._tests)

    def __len__(self) -> int:
        return len(self._tests)

    @property
    def match_empty(self) -> bool:
        """Whether they match an alert without any labels, and so nearly everything."""
        return self({})


def _test(matcher: Matcher) -> _Test:
    value = matcher.value
    match matcher.op:
        case MatchOperator.EQUAL:
            return lambda text: text == value
        case MatchOperator.NOT_EQUAL:
            return lambda text: text != value
        case MatchOperator.MATCHES:
            return _pattern(matcher)
        case MatchOperator.MATCHES_NOT:
            matches = _pattern(matcher)
            return lambda text: not matches(text)


def _pattern(matcher: Matcher) -> _Test:
    literals = literal_alternatives(matcher.value)
    if literals is not None:
        return literals.__contains__
    fullmatch = compile_pattern(matcher)

    def matches(text: str) -> bool:
        try:
            return fullmatch(text) is not None
        except UnicodeEncodeError:  # half of a surrogate pair, which a process may have in its name
            return fullmatch(text.encode("utf-8", "replace").decode()) is not None

    return matches
