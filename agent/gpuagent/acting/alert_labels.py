"""What the labels of an alert can be before it fires, and which of a configuration's ladders it can get then.

A ladder's matchers look at the labels of the alert, never at the process that is chosen because of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuagent_alerts.remedies.grounds import Grounds, grounds_of_rule
from gpuagent_alerts.rules.alert_labels import AlertLabels, labels_of_rules
from gpuagent_alerts.rules.model import RuleGroup

if TYPE_CHECKING:
    from gpuagent.config.remedies import Ladder


class KnownAlert(AlertLabels):
    """The alerts of one rule: their labels, and whether they are a reason to act."""

    __slots__ = ("budgets", "grounds")

    def __init__(self, alert: AlertLabels, budgets: frozenset[str]) -> None:
        super().__init__(alert.rule, alert.labels)
        self.grounds: Grounds = grounds_of_rule(alert.rule)
        self.budgets = budgets


def known_alerts(groups: Iterable[RuleGroup], budgets: Iterable[str]) -> list[KnownAlert]:
    """Return what is known of the alerts of all rules."""
    names = frozenset(budgets)
    return [KnownAlert(alert, names) for alert in labels_of_rules(groups, names)]


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
