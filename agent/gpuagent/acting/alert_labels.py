"""What the labels of an alert can be before it fires, and which of a configuration's ladders it can get then.

A ladder's matchers look at the labels of the alert, never at the process that is chosen because of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuagent.core.growth import Evidence
from gpuagent_alerts.notify.matchers import Matchers
from gpuagent_alerts.remedies.grounds import Grounds, grounds_of_rule
from gpuagent_alerts.rules.model import AlertRule, RuleGroup

if TYPE_CHECKING:
    from gpuagent.config.remedies import Ladder
    from gpuagent.core.matchers import Matcher

Values = frozenset[str] | None
"""What a label can be, "" where it may be missing; None is anything."""
_MISSING = frozenset({""})
_EVIDENCE = frozenset({"", *map(str, Evidence)})


@dataclass(frozen=True, slots=True)
class KnownAlert:
    """The alerts of one rule."""

    rule: AlertRule
    grounds: Grounds
    budgets: frozenset[str]

    @property
    def name(self) -> str:
        """The rule's, and the label `alertname`."""
        return self.rule.name

    def has(self, label: str) -> bool:
        """Return whether some of its alerts may have this label."""
        return self.values(label) != _MISSING

    def values(self, label: str) -> Values:
        """Return what a label can be."""
        if label == "alertname":
            return frozenset({self.name})
        if (own := self.rule.labels.get(label)) is not None:
            return frozenset({own.text}) if own.is_constant else None
        if label == "simulated" or self.grounds.labels is None:
            return None
        if label not in self.grounds.labels:
            return _MISSING
        return {"budget": self.budgets | {""}, "evidence": _EVIDENCE}.get(label)

    def narrowed(self, label: str, matchers: Iterable[Matcher]) -> Values:
        """Return what a label can be where all of these matchers hold that are about it."""
        about = [matcher for matcher in matchers if matcher.name == label]
        values = self.values(label)
        if values is None:
            values = frozenset(matcher.value for matcher in about if matcher.op == "=") or None
        return None if values is None else frozenset(v for v in values if Matchers(about)({label: v}))

    def can_match(self, matchers: Sequence[Matcher]) -> bool:
        """Return whether all of these can hold of an alert."""
        return all(self.narrowed(matcher.name, matchers) != frozenset() for matcher in matchers)

    def is_taken_by(self, earlier: Sequence[Matcher], later: Sequence[Matcher]) -> bool:
        """Return whether every alert of which the later matchers hold is one of which the earlier ones do."""
        return all(self._follows(matcher, later) for matcher in earlier)

    def _follows(self, matcher: Matcher, given: Sequence[Matcher]) -> bool:
        values = self.narrowed(matcher.name, given)
        if values is None:
            return matcher in given
        return all(Matchers([matcher])({matcher.name: value}) for value in values)


def known_alerts(groups: Iterable[RuleGroup], budgets: Iterable[str]) -> list[KnownAlert]:
    """Return what is known of the alerts of all rules."""
    names = frozenset(budgets)
    return [
        KnownAlert(rule, grounds_of_rule(rule), names)
        for group in groups
        for rule in group.rules
        if isinstance(rule, AlertRule)
    ]


@dataclass(frozen=True, slots=True)
class Reach:
    """Which alerts a ladder can get."""

    matched: tuple[KnownAlert, ...]
    """Its matchers may hold of these."""
    gets: tuple[KnownAlert, ...]
    """Those of them of which no ladder before it takes every one."""
    taken_by: tuple[int, ...]
    """Ladders before it that take what it matches."""


def reaches(ladders: Sequence[Ladder], alerts: Sequence[KnownAlert]) -> Iterator[Reach]:
    """Yield the reach of each ladder: the first one that matches an alert is taken."""
    for index, ladder in enumerate(ladders):
        matched = [alert for alert in alerts if alert.can_match(ladder.match)]
        takers: Mapping[int, int | None] = {
            id(alert): next((i for i in range(index) if alert.is_taken_by(ladders[i].match, ladder.match)), None)
            for alert in matched
        }
        gets = tuple(alert for alert in matched if takers[id(alert)] is None)
        taken_by = sorted({taker for taker in takers.values() if taker is not None})
        yield Reach(tuple(matched), gets, tuple(taken_by))
