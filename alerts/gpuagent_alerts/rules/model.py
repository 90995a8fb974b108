"""A rule file as data: groups of rules, checked and compiled, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuagent_alerts.promql.expression import Expression
from gpuagent_alerts.rules.template import Template

MISSING_DATA_ANNOTATION = "gpuagent_missing_data"
"""Reserved: says what a rule makes of data that could not be measured. Prometheus takes it for any annotation."""

REASONS_ANNOTATION = "reasons"
"""Where a rule has it, the agent puts its own words there, if it knows any. Elsewhere the rule's text stands."""


class MissingData(StrEnum):
    """What becomes of an instance while the data behind it is missing."""

    KEEP = "keep"
    """It stays as it is, and the time does not count."""
    RESOLVE = "resolve"
    """As in Prometheus: what is not there is not true."""


@dataclass(frozen=True, slots=True)
class AlertRule:
    """An alert, as written. Durations are in seconds."""

    name: str
    expression: Expression
    for_seconds: float = 0.0
    keep_firing_for_seconds: float = 0.0
    labels: Mapping[str, Template] = field(default_factory=dict)
    annotations: Mapping[str, Template] = field(default_factory=dict)
    missing_data: MissingData = MissingData.KEEP
    file: str = ""
    line: int = 0

    @property
    def label_texts(self) -> dict[str, str]:
        """The labels before their templates are filled in: with the name, the identity of a rule in its group."""
        return {name: template.text for name, template in self.labels.items()}


@dataclass(frozen=True, slots=True)
class RecordRule:
    """A recording rule: the result of the expression becomes a series of this name. Its labels are no templates."""

    name: str
    expression: Expression
    labels: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    line: int = 0

    @property
    def label_texts(self) -> dict[str, str]:
        """As of an alert."""
        return dict(self.labels)


Rule = AlertRule | RecordRule


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that are evaluated one after the other, at the same interval."""

    name: str
    rules: tuple[Rule, ...] = ()
    interval_seconds: float | None = None
    """None: as the agent's default."""
    limit: int = 0
    """Most instances of an alert, or series of a recording rule; 0 is no limit."""
    file: str = ""
    line: int = 0
