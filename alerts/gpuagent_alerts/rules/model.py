"""A rule file as data: groups of rules, checked and compiled, frozen; and the faults of a file, all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuagent_alerts.promql.expression import Expression
from gpuagent_alerts.rules.template import Template

MISSING_DATA_ANNOTATION = "gpuagent_missing_data"
"""Reserved: says what a rule makes of data that could not be measured. Prometheus takes it for any annotation."""

REASONS_ANNOTATION = "reasons"
"""Annotation in whose place the agent puts its own words, if it knows any; else the rule's text stands."""


class MissingData(StrEnum):
    """Treatment of an instance while the data behind it is missing."""

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
        """Labels, as of an alert."""
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


_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class RuleFault:
    """One thing to put right. `line` counts from 1; 0 is unknown (a missing file)."""

    file: str
    line: int
    problem: str
    group: str = ""
    rule: str = ""
    remedy: str = ""
    """The way out; "" where the problem says it."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        where = ", ".join(
            f"{kind} {quote_text(name)}" for kind, name in (("group", self.group), ("rule", self.rule)) if name
        )
        return f"{place}: {f'{where}: ' if where else ''}{self.problem}{f'; {self.remedy}' if self.remedy else ''}"


class RuleFileError(Exception):
    """The files cannot be used; `faults` has every reason, in the order of the files."""

    def __init__(self, faults: Iterable[RuleFault]) -> None:
        self.faults = tuple(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


def quote_text(text: str) -> str:
    """Return a text from outside, quoted, short, and free of control characters."""
    short = text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
    return f'"{short}"' if short.isprintable() else ascii(short)


def suggest(name: str, names: Iterable[str]) -> str:
    """Return a question that names what was probably meant, or ""."""
    near = difflib.get_close_matches(name[:_MAX_SHOWN], list(names), n=1)
    return f"did you mean {near[0]}?" if near else ""
