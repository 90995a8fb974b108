"""One instance of an alert rule: its state, and clocks that can be stopped, written down and started again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from gpuagent_alerts.alert import Alert, Status, fingerprint
from gpuagent_alerts.rules.model import MISSING_DATA_ANNOTATION
from gpuagent_alerts.store.tables import (
    duration,
    duration_or_none,
    labels,
    measured,
    member,
    texts,
    unix_time_or_none,
    word,
)


class State(StrEnum):
    """State of an instance, as Prometheus has them."""

    PENDING = "pending"
    FIRING = "firing"
    INACTIVE = "inactive"
    """It has ended, and is remembered for a while."""


class InstanceDump(TypedDict):
    """An instance as JSON: timers as seconds that have passed, so that they mean something after a reboot."""

    labels: dict[str, str]
    annotations: dict[str, str]
    value: float | str
    state: str
    active_for: float
    kept_for: float | None
    ended_for: float | None
    starts_at: float | None
    ends_at: float | None
    began_at: float | None
    ceased_at: float | None
    measured_at: float | None


@dataclass(slots=True)
class Instance:
    """One label set of a rule. The clocks are of the caller's monotonic seconds, `*_at` ones are Unix time."""

    labels: Mapping[str, str]
    write: Callable[[], dict[str, str]]
    """Fills the annotations in, as of when it was last true. Most instances are never told of, so nobody asks."""
    value: float
    active_clock: float
    """When it began to be true; moved on by the time in which nothing was measured."""
    state: State = State.PENDING
    frozen: bool = False
    """Its data was missing at the last evaluation: nobody knows whether it is true."""
    frozen_seconds: float = 0.0
    """For how long that has been so, also over a restart."""
    measured_at: float | None = None
    """Unix time of the last evaluation that had its data."""
    true_clock: float | None = None
    """Since when every evaluation by this agent has found it true, on measured data and without a gap; None while it is
    not. Never written down: what happened while nobody evaluated is not known."""
    kept_clock: float | None = None
    """When it ceased to be true, while `keep_firing_for` holds it."""
    ended_clock: float | None = None
    starts_at: float | None = None
    """Unix time at which it began to fire."""
    ends_at: float | None = None
    began_at: float | None = None
    """Unix time at which it began to be true."""
    ceased_at: float | None = None
    """Unix time at which it ceased to be true, while `keep_firing_for` holds it and after its end."""
    kept_until: float | None = None
    """Unix time until which `keep_firing_for` holds it, as of the last evaluation; None where it does not."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """The texts, those that are reserved among them."""
        return self.write()

    @property
    def is_kept(self) -> bool:
        """Whether it fires only because of `keep_firing_for`: its condition is not true now."""
        return self.state is State.FIRING and self.ceased_at is not None

    @property
    def fingerprint(self) -> str:
        """Stands for the label set, the same over restarts."""
        return fingerprint(self.labels)

    def shift(self, seconds: float) -> None:
        """Stop the clocks for that long: the time did not count."""
        self.active_clock += seconds
        if self.kept_clock is not None:
            self.kept_clock += seconds

    def follow_wall_clock(self, step: float) -> None:
        """Move the times that are told along with the wall clock, which was set forward by so many seconds."""
        for name in ("starts_at", "ends_at", "began_at", "ceased_at", "kept_until", "measured_at"):
            time = getattr(self, name)
            if time is not None:
                setattr(self, name, max(time + step, 0.0))

    def fire(self, wall_seconds: float) -> None:
        """Begin to fire: it has held for long enough."""
        self.state = State.FIRING
        self.starts_at = wall_seconds

    def wait_again(self) -> None:
        """Go back to pending: it fires, but has not held for as long as it now has to."""
        self.state = State.PENDING
        self.starts_at = self.kept_clock = self.kept_until = None

    def end(self, now_seconds: float, wall_seconds: float) -> None:
        """End it."""
        self.state = State.INACTIVE
        self.ended_clock = now_seconds
        self.ends_at = wall_seconds

    def as_alert(self, status: Status, ends_at: float | None = None) -> Alert:
        """Return what receivers are told; without what is reserved to the agent."""
        told = {name: text for name, text in self.annotations.items() if name != MISSING_DATA_ANNOTATION}
        starts_at = self.starts_at if self.starts_at is not None else 0.0
        return Alert(
            self.labels, told, status, starts_at, ends_at, self.value,
            true_from=self.began_at, true_until=ends_at if self.ceased_at is None else self.ceased_at,
            kept_until=self.kept_until if status is Status.FIRING else None,
            unmeasured_seconds=self.frozen_seconds if self.frozen and status is Status.FIRING else 0.0,
        )  # fmt: skip

    def dump(self, now_seconds: float) -> InstanceDump:
        """Return it for a restart."""
        return InstanceDump(
            labels=dict(self.labels),
            annotations=dict(self.annotations),
            value=self.value if math.isfinite(self.value) else repr(self.value),
            state=self.state.value,
            active_for=max(0.0, now_seconds - self.active_clock),
            kept_for=_passed(now_seconds, self.kept_clock),
            ended_for=_passed(now_seconds, self.ended_clock),
            starts_at=self.starts_at,
            ends_at=self.ends_at,
            began_at=self.began_at,
            ceased_at=self.ceased_at,
            measured_at=self.measured_at,
        )


def load_instance(dump: Mapping[str, object], now_seconds: float) -> Instance:
    """Load what `dump` gave, with all clocks where they stood. Raises ValueError for what no dump is."""
    annotations = texts(member(dump, "annotations"))
    instance = Instance(
        labels=labels(member(dump, "labels")),
        write=lambda: annotations,
        value=measured(member(dump, "value")),
        active_clock=now_seconds - duration(member(dump, "active_for")),
        state=State(word(member(dump, "state"))),
        kept_clock=_clock(now_seconds, member(dump, "kept_for")),
        ended_clock=_clock(now_seconds, member(dump, "ended_for")),
        starts_at=unix_time_or_none(member(dump, "starts_at")),
        ends_at=unix_time_or_none(member(dump, "ends_at")),
        # Older versions wrote none of these.
        began_at=unix_time_or_none(dump.get("began_at")),
        ceased_at=unix_time_or_none(dump.get("ceased_at")),
        measured_at=unix_time_or_none(dump.get("measured_at")),
    )
    if instance.state is not State.PENDING and instance.starts_at is None:
        raise ValueError("an instance that fires, but never began to")
    if instance.state is State.INACTIVE and instance.ended_clock is None:
        raise ValueError("an instance that has ended, but never did")
    return instance


def _passed(now_seconds: float, clock: float | None) -> float | None:
    return None if clock is None else max(0.0, now_seconds - clock)


def _clock(now_seconds: float, passed: object) -> float | None:
    seconds = duration_or_none(passed)
    return None if seconds is None else now_seconds - seconds
