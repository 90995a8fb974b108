"""Matchers on label sets. Regular expressions are RE2's, anchored at both ends, as in Prometheus and Alertmanager."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuagent.core.matchers import Matcher, MatchOperator, compile_pattern

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
    fullmatch = compile_pattern(matcher)

    def matches(text: str) -> bool:
        try:
            return fullmatch(text) is not None
        except UnicodeEncodeError:  # half of a surrogate pair, which a process may have in its name
            return fullmatch(text.encode("utf-8", "replace").decode()) is not None

    return matches
