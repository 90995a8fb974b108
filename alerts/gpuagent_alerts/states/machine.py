"""The states of one alert rule's instances: Prometheus' own rules, and what a node agent needs beyond them.

As https://github.com/prometheus/prometheus/blob/main/rules/alerting.go (`Eval`). Added to it: an instance whose data
could not be measured is frozen, one of a GPU goes on when the GPU's index changes, and all timers survive a restart.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.promql.values import METRIC_NAME, Element, LabelSet, Row
from gpuagent_alerts.rules.model import REASONS_ANNOTATION, AlertRule, MissingData
from gpuagent_alerts.states.instance import Instance, InstanceDump, State, load_instance

RESOLVED_RETENTION_SECONDS = 15 * 60.0
MAX_INSTANCES = 10_000
"""Most instances of one rule, or series of a recording rule, even without a limit of its group: each has a cost."""
RULE_REMOVED = "the rule was removed"
WAITS_LONGER = "the rule was changed: it waits longer now before it fires"
TOO_MANY = "the rule had more alerts than its group allows, and all of them were dropped"
HAS_ANOTHER_INDEX = "it goes on under the index that the GPU has now"
_TOLERANCE_SECONDS = 1e-6
"""Durations are whole milliseconds: what is nearer than this is a rounding of the clock."""

Labels = Mapping[str, str]
Frozen = Callable[[Labels], bool]
Explain = Callable[[Labels], str]
"""Why an alert with these labels is true, in words; "" where nothing is known."""
EndTest = Callable[[Labels], bool]
"""Whether what an alert with these labels was about is over for certain: then nothing is kept firing."""
_Key = frozenset[tuple[str, str]]


class RuleFailure(Exception):
    """The rule could not be evaluated. `ended` are the alerts that it took with it."""

    def __init__(self, problem: str, ended: Sequence[Transition] = ()) -> None:
        super().__init__(problem)
        self.ended = tuple(ended)


class Change(StrEnum):
    """Change of an alert that is told to receivers."""

    STARTED = "started"
    CONTINUES = "continues"
    ENDED = "ended"


class Transition(NamedTuple):
    """An alert, and what happened to it."""

    change: Change
    alert: Alert


def nothing_missing(_: Labels) -> bool:
    """Return False, the default predicate: no series is missing."""
    return False


def no_explanation(_: Labels) -> str:
    """Return "", the default explanation: nothing is known."""
    return ""


def nothing_certain(_: Labels) -> bool:
    """Return False, the default test: no end is certain, and every alert is kept for as long as its rule says."""
    return False


class AlertStates:
    """The instances of one alert rule.

    `now_seconds` is a clock that never goes back; `wall_seconds` is Unix time, and only told to receivers: the wall
    clock may jump as it likes.
    """

    def __init__(
        self, rule: AlertRule, limit: int = 0, longest_gap_seconds: float = math.inf, *, house_format: bool = False
    ) -> None:
        """Begin without instances. Evaluations more than `longest_gap_seconds` apart say nothing of the time between.

        `house_format` writes quantities in annotations as every other surface of the agent does, instead of as
        Prometheus would: see `Template.fill`.
        """
        self.rule = rule
        self._house_format = house_format
        self._longest_gap_seconds = longest_gap_seconds
        self._limit = limit
        self._active: dict[_Key, Instance] = {}
        self._last_seconds: float | None = None
        self._restored_seconds: float | None = None

    @property
    def instances(self) -> Sequence[Instance]:
        """Pending, firing, and those that have ended in the last 15 minutes. Not to be changed."""
        return tuple(self._active.values())

    def evaluate(
        self,
        now_seconds: float,
        rows: Iterable[Row],
        frozen: Frozen = nothing_missing,
        *,
        wall_seconds: float,
        explain: Explain = no_explanation,
        is_over: EndTest = nothing_certain,
        is_unproven: Frozen = nothing_missing,
    ) -> list[Transition]:
        """Take the rows for which the expression is true now; returns every alert that began, goes on or ended.

        `frozen` tells of a label set whether its data is missing: such an instance neither begins, nor ends, nor
        counts the time; the same goes for what `is_unproven`, unless it is true now. Of a time in which nobody
        evaluated no more counts than `longest_gap_seconds`. `explain` is asked for the words of rules that have a place
        for them, and `is_over` whether `keep_firing_for` has to be waited for. Raises RuleFailure: for two rows with
        the same labels nothing has changed; beyond the limit all instances are gone, as in Prometheus.
        """
        found = self._found(rows)
        self._resume(now_seconds)
        since_last = now_seconds - self._last_seconds if self._last_seconds is not None else 0.0
        self._last_seconds = now_seconds
        if since_last > self._longest_gap_seconds:
            # Of what is evaluated ever more slowly some time counts each time, or it would never fire.
            self._skip(since_last - self._longest_gap_seconds)
            since_last = self._longest_gap_seconds
        if self.rule.missing_data is MissingData.RESOLVE:
            frozen = is_unproven = nothing_missing
        transitions = self._follow_gpus(found, now_seconds, wall_seconds)
        still = self._freeze(
            lambda key, labels: frozen(labels) or (key not in found and is_unproven(labels)), since_last, wall_seconds
        )
        for key, (labels, row) in found.items():
            if key not in still:
                reasons = explain(labels) if REASONS_ANNOTATION in self.rule.annotations else ""
                write = partial(_annotations, self.rule, row, reasons, self._house_format)
                self._see(key, labels, write, row.value, now_seconds, wall_seconds, frozen)
        count = 0
        for key, instance in list(self._active.items()):
            if key in still:
                counts = True
                if instance.state is State.FIRING:
                    transitions.append(_told(Change.CONTINUES, instance))
            else:
                counts = self._advance(key, instance, key in found, now_seconds, wall_seconds, is_over, transitions)
            count += counts
        if self._limit and count > self._limit:
            ended = [
                _ended(transition, wall_seconds)
                for transition in transitions
                if transition.change is not Change.STARTED
            ]
            self._active = {}
            raise RuleFailure(f"exceeded limit of {self._limit} with {count} alerts", ended)
        return transitions

    def follow_wall_clock(self, step: float) -> None:
        """Move all times that are told along with the wall clock, which was set forward by so many seconds."""
        for instance in self._active.values():
            instance.follow_wall_clock(step)

    def interrupt(self) -> None:
        """Note that the expression was not evaluated: whether it has been true all the time is not known any more."""
        for instance in self._active.values():
            instance.true_clock = None

    def _skip(self, seconds: float) -> None:
        """Leave out a time in which nothing was evaluated: it says neither that anything held nor that it did not."""
        self.interrupt()
        for instance in self._active.values():
            instance.shift(seconds)

    def held_seconds(self, instance: Instance) -> float:
        """Return for how long an instance had been true without a break at the last evaluation; 0 if it is not."""
        if instance.true_clock is None or self._last_seconds is None:
            return 0.0
        return self._last_seconds - instance.true_clock

    def series(self, now_seconds: float, wall_seconds: float) -> list[Element]:
        """Return `ALERTS` and `ALERTS_FOR_STATE` of what is pending or firing, with Prometheus' labels."""
        elements: list[Element] = []
        for instance in self._active.values():
            if instance.state is State.INACTIVE:
                continue
            # A rule's label whose template came out empty shows its template here. It is so in Prometheus.
            labels = LabelSet({**self.rule.label_texts, **instance.labels})
            with_state = LabelSet({**labels, "alertstate": instance.state.value})
            since = wall_seconds - (now_seconds - instance.active_clock)
            elements += [
                ("ALERTS", with_state, 1.0),
                ("ALERTS_FOR_STATE", labels, float(math.floor(since + _TOLERANCE_SECONDS))),
            ]
        return elements

    def drop(self, wall_seconds: float) -> list[Transition]:
        """Forget all instances; returns those that were firing, as ended: nothing else would end them."""
        ended = [
            Transition(
                Change.ENDED,
                dataclasses.replace(instance.as_alert(Status.RESOLVED, wall_seconds), end_reason=RULE_REMOVED),
            )
            for instance in self._active.values()
            if instance.state is State.FIRING
        ]
        self._active = {}
        return ended

    def take_over(self, other: AlertStates) -> None:
        """Go on with another's instances: after a reload, whatever the new expression is.

        Of a new expression it is not known for how long it has been true.
        """
        self._active = other._active
        if self.rule.expression.text != other.rule.expression.text:
            self.interrupt()
        self._last_seconds = other._last_seconds
        self._restored_seconds = other._restored_seconds

    def shape(self) -> Hashable:
        """Return what must not be older on disk than here: which instances there are, their states, which clocks run.

        How far those have run may be.
        """
        return tuple((key, one.state, one.kept_clock is None, one.starts_at) for key, one in self._active.items())

    def dump(self) -> list[InstanceDump]:
        """Return every instance, ready for JSON, with its timers as seconds that had passed at the last evaluation.

        What has passed since then was not measured, and counts only if the next evaluation says so.
        """
        # Not evaluated since a restart: the clocks stand where they stood.
        at = self._last_seconds if self._restored_seconds is None else self._restored_seconds
        return [] if at is None else [instance.dump(at) for instance in self._active.values()]

    def load(self, dumps: Iterable[Mapping[str, object]], now_seconds: float) -> int:
        """Go on where `dump` stopped; the time between it and the next evaluation does not count.

        Returns how many could not be read: the rest is taken.
        """
        broken = 0
        self._restored_seconds = now_seconds
        for dump in dumps:
            try:
                instance = load_instance(dump, now_seconds)
            except ValueError:
                broken += 1
                continue
            self._active[frozenset(instance.labels.items())] = instance
        return broken

    def _resume(self, now_seconds: float) -> None:
        """Resume at the first evaluation after a restart: what passed since the dump was not measured."""
        if self._restored_seconds is not None:
            for instance in self._active.values():
                instance.shift(now_seconds - self._restored_seconds)
            self._restored_seconds = None
            self._last_seconds = now_seconds

    def _follow_gpus(
        self, found: Mapping[_Key, tuple[dict[str, str], Row]], now_seconds: float, wall_seconds: float
    ) -> list[Transition]:
        """Let instances go on under the index that their GPU has by now; return the ends under the one it had.

        A GPU is itself by its UUID, and the driver may give it another index whenever it is loaded. For how long the
        condition has been true without a break is not known over that.
        """
        if all(key in self._active for key in found):
            return []
        gone = {
            _but_index(one.labels): key
            for key, one in self._active.items()
            if key not in found and one.state is not State.INACTIVE and one.labels.get("uuid")
        }
        ended = []
        for key, (labels, _) in found.items():
            before = gone.get(_but_index(labels)) if labels.get("uuid") else None
            known = self._active.get(key)
            if before is None or (known is not None and known.state is not State.INACTIVE):
                continue
            instance = self._active.pop(before)
            if instance.state is State.FIRING:
                reason = f"{HAS_ANOTHER_INDEX}: GPU {labels.get('gpu', '?')}"
                over = instance.as_alert(Status.RESOLVED, wall_seconds)
                ended.append(Transition(Change.ENDED, dataclasses.replace(over, end_reason=reason)))
            self._active.pop(key, None)
            self._active[key] = dataclasses.replace(instance, labels=labels, true_clock=now_seconds)
        return ended

    def _freeze(
        self, frozen: Callable[[_Key, Labels], bool], since_last: float, wall_seconds: float
    ) -> set[_Key]:  # fmt: skip
        """Stop the clocks of those whose data is missing; returns their keys."""
        still: set[_Key] = set()
        for key, instance in self._active.items():
            instance.frozen = instance.state is not State.INACTIVE and frozen(key, instance.labels)
            passed = 0.0 if instance.measured_at is None else wall_seconds - instance.measured_at
            instance.frozen_seconds = max(instance.frozen_seconds + since_last, passed) if instance.frozen else 0.0
            if not instance.frozen:
                instance.measured_at = wall_seconds
            else:
                instance.true_clock = None
                instance.shift(since_last)
                still.add(key)
        return still

    def _found(self, rows: Iterable[Row]) -> dict[_Key, tuple[dict[str, str], Row]]:
        """Return rows by the labels of their alerts."""
        found: dict[_Key, tuple[dict[str, str], Row]] = {}
        for count, row in enumerate(rows, 1):
            if count > MAX_INSTANCES:
                raise RuleFailure(f"the expression has more than {MAX_INSTANCES} results: narrow it, or aggregate")
            labels = self._labels(row)
            key = frozenset(labels.items())
            if key in found:
                raise RuleFailure("vector contains metrics with the same labelset after applying alert labels")
            found[key] = (labels, row)
        return found

    def _labels(self, row: Row) -> dict[str, str]:
        labels = {name: value for name, value in row.labels.items() if name != METRIC_NAME and value}
        for name, template in self.rule.labels.items():
            text = template.fill(row.labels, row.value)
            if text:
                labels[name] = text
            else:  # an empty label is no label
                labels.pop(name, None)
        labels["alertname"] = self.rule.name
        return labels

    def _see(
        self, key: _Key, labels: dict[str, str], write: Callable[[], dict[str, str]], value: float,
        now_seconds: float, wall_seconds: float, frozen: Frozen,
    ) -> None:  # fmt: skip
        known = self._active.get(key)
        if known is not None and known.state is not State.INACTIVE:
            known.value = value
            known.write = write
            known.true_clock = now_seconds if known.true_clock is None else known.true_clock
        elif not frozen(labels):
            self._active.pop(key, None)
            self._active[key] = Instance(
                labels, write, value, now_seconds, true_clock=now_seconds, began_at=wall_seconds
            )

    def _advance(
        self, key: _Key, instance: Instance, is_true: bool, now_seconds: float, wall_seconds: float,
        is_over: EndTest, transitions: list[Transition],
    ) -> bool:  # fmt: skip
        """Advance one instance by one step; return whether it is pending or firing."""
        if not is_true:
            instance.true_clock = None
        if is_true and instance.state is not State.INACTIVE:
            instance.kept_clock = instance.ceased_at = instance.kept_until = None
        elif not self._is_kept(instance, now_seconds, wall_seconds, is_over):
            if instance.state is State.FIRING:
                instance.end(now_seconds, wall_seconds)
                transitions.append(_told(Change.ENDED, instance))
            elif instance.state is State.PENDING or _is_old(instance, now_seconds):
                del self._active[key]
            return False
        held = now_seconds - instance.active_clock >= self.rule.for_seconds - _TOLERANCE_SECONDS
        if instance.state is State.PENDING and held:
            instance.fire(wall_seconds)
            transitions.append(_told(Change.STARTED, instance))
        elif instance.state is State.FIRING and held:
            transitions.append(_told(Change.CONTINUES, instance))
        elif instance.state is State.FIRING:
            # `for` was made longer by a reload. Whoever was told that it fires must be told that it does not.
            ended = instance.as_alert(Status.RESOLVED, wall_seconds)
            transitions.append(Transition(Change.ENDED, dataclasses.replace(ended, end_reason=WAITS_LONGER)))
            instance.wait_again()
        return True

    def _is_kept(self, instance: Instance, now_seconds: float, wall_seconds: float, is_over: EndTest) -> bool:
        """Return whether `keep_firing_for` holds it though it is no longer true."""
        if instance.state is State.FIRING and instance.ceased_at is None:
            instance.ceased_at = wall_seconds
        keep = self.rule.keep_firing_for_seconds
        if instance.state is not State.FIRING or not keep:
            return False
        if instance.kept_clock is None:
            instance.kept_clock = now_seconds
        left = keep - (now_seconds - instance.kept_clock)
        instance.kept_until = wall_seconds + max(left, 0.0)
        return left > _TOLERANCE_SECONDS and not is_over(instance.labels)


def _but_index(labels: Mapping[str, str]) -> _Key:
    return frozenset(item for item in labels.items() if item[0] != "gpu")


def _annotations(rule: AlertRule, row: Row, reasons: str, house_format: bool) -> dict[str, str]:
    texts = {
        name: template.fill(row.labels, row.value, house_format=house_format)
        for name, template in rule.annotations.items()
    }
    return texts | {REASONS_ANNOTATION: reasons} if reasons else texts


def _is_old(instance: Instance, now_seconds: float) -> bool:
    ended = instance.ended_clock
    return ended is None or now_seconds - ended > RESOLVED_RETENTION_SECONDS


def _ended(transition: Transition, wall_seconds: float) -> Transition:
    """Return the same alert, over now."""
    alert = transition.alert
    ends_at = wall_seconds if alert.ends_at is None else alert.ends_at
    over = dataclasses.replace(alert, status=Status.RESOLVED, ends_at=ends_at, end_reason=TOO_MANY)
    return Transition(Change.ENDED, over)


def _told(change: Change, instance: Instance) -> Transition:
    status = Status.RESOLVED if change is Change.ENDED else Status.FIRING
    return Transition(change, instance.as_alert(status, instance.ends_at))
