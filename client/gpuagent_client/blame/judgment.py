"""Judge which of the holders that hold more than before is a leak: it goes on growing, and is a part of the growth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpuagent_client.blame.contexts import ContextReferences
from gpuagent_client.blame.filling import BELOW
from gpuagent_client.blame.memory_in_use import Usage, rises_on
from gpuagent_client.blame.watch import LENGTH, LIMITS, NO_CONTEXTS, decode, goes_on, measure_all
from gpuagent_client.blame.wire import size

ALTERNATIVES = "alternatives"
"""Key of the places where a holder may have grown, of which the watch chooses one. It never leaves the app."""
LEAST_SHARE = 0.05
LEAST_BYTES = 2048
FAR_BOUND = 8
"""A container that may hold so many times what it holds now is as good as one without a bound."""
LEAST_FILLED = 3
FILLED_PART = 0.3
"""Least number of tensors, and part of those that are expected, that come to elements which are there already."""
UNWATCHED_SHARE = 0.3
"""Least share of the growth for a holder that cannot be watched."""
UNWATCHED = "and could not be watched"
MUCH_MORE = 10
"""A container that gets so many times more than came with tensors keeps most of it without: the tensors go again."""
MAX_NOTES = 5
Series = Mapping["tuple[int, int]", Sequence["int | None"]]
OWN_KEYS = ("targets", "gained", "bound", "rooted", "device")


class Watch:
    """Series of what the suspected containers come to, asked in the app itself."""

    def __init__(self, groups: Sequence[Mapping[str, Any]], contexts: ContextReferences = NO_CONTEXTS) -> None:
        self._contexts = contexts
        self._targets = {
            (number, place): decode(one["targets"])
            for number, group in enumerate(groups)
            for place, one in enumerate(group[ALTERNATIVES])
        }
        self.series: dict[tuple[int, int], list[int | None]] = {key: [] for key in self._targets}

    @property
    def is_blind(self) -> bool:
        """Whether one of the holders has no container that could be asked."""
        groups = {number for (number, _), watched in self._targets.items() if watched}
        return any(number not in groups for number, _ in self._targets)

    def sample(self) -> None:
        """Ask each container once; None where it cannot be reached any more."""
        for key, watched in self._targets.items():
            known = [value for value in measure_all(watched, self._contexts) if value is not None]
            self.series[key].append(sum(known) if known else None)


class Judgment(NamedTuple):
    """Holders that go on growing, and what is to be said of the others."""

    growing: list[dict[str, object]]
    notes: list[str]
    bounded_bytes: int = 0
    """Growth of containers that state a bound, and are not near it."""


def judge(
    found: Mapping[str, Any],
    series: Series,
    pace: float,
    least_bytes: int = LEAST_BYTES,
    usage: Usage | None = None,
    usage_part: float = 1.0,
) -> Judgment:
    """Return the verdict on each holder; `pace` is how much more happened after the second look than before.

    What grew by less than `least_bytes` is left out. `usage` is the memory in use while the containers were watched:
    what cannot be watched is blamed only if that went on growing. None where nobody has measured it; a device that is
    not in it was not measured either. `usage_part` is for which part of the time since the second look it was measured.
    """
    groups: list[dict[str, Any]] = found["groups"]
    choices = [
        _choose(group, number, series, pace, freed_by_gc=found["freed_by_gc"]) for number, group in enumerate(groups)
    ]
    watched: dict[str, float] = {}  # device -> bytes that holders which go on growing have got since the second look
    for group, (chosen, why) in zip(groups, choices):
        if not why:
            watched[chosen["device"]] = watched.get(chosen["device"], 0) + int(group["growth_bytes"]) * pace
    total = sum(int(group["growth_bytes"]) for group in groups)
    growing: list[dict[str, object]] = []
    notes: list[str] = []
    bounded_bytes = 0
    for group, (chosen, reason) in zip(groups, choices):
        share = int(group["growth_bytes"]) / total if total else 0.0
        if share < LEAST_SHARE or int(group["growth_bytes"]) < least_bytes:
            continue
        device, expected = chosen["device"], int(group["growth_bytes"]) * pace * usage_part
        besides = watched.get(device, 0.0) * usage_part
        is_seen = not usage or device not in usage or rises_on(usage[device], expected, besides)
        why = "" if reason == UNWATCHED and share >= UNWATCHED_SHARE and is_seen else reason
        told = {key: value for key, value in group.items() if key != ALTERNATIVES}
        told.update({key: value for key, value in chosen.items() if key not in OWN_KEYS})
        if why:
            bounded_bytes += int(group["growth_bytes"]) if why == _bounded(chosen) else 0
            name = chosen["container"] or chosen["path"]
            notes.append(f"not blamed: `{name}` holds {size(int(group['growth_bytes']))} more than before, {why}")
        else:
            growing.append({**told, "growing": True})
    growing.sort(key=lambda group: -int(str(group["growth_bytes"])))
    explained = sum(int(str(group["growth_bytes"])) for group in growing)
    if growing and total - explained > LEAST_SHARE * total:
        notes.append(f"of {size(total)} that came between the looks, {size(total - explained)} are not explained")
    return Judgment(growing, notes[:MAX_NOTES], bounded_bytes)


def _choose(
    group: Mapping[str, Any], number: int, series: Series, pace: float, *, freed_by_gc: bool
) -> tuple[Mapping[str, Any], str]:
    """Return the place that grows, and why it is not to be blamed; an empty text if it is."""
    candidates: Sequence[Mapping[str, Any]] = group[ALTERNATIVES]
    best: tuple[float, Mapping[str, Any]] | None = None
    for place, one in enumerate(candidates):
        values = series.get((number, place), [])
        at_second = sum(int(target[3]) for target in one["targets"])
        gained = int(one["gained"])
        limit = min((LIMITS.get(target[2], float("inf")) for target in one["targets"]), default=float("inf"))
        if one["targets"] and goes_on(values, at_second - gained, at_second, gained * pace, limit):
            last = next((value for value in reversed(values) if value is not None), at_second)
            if one["targets"][0][2].startswith(BELOW) and (
                best is not None or last - at_second < max(LEAST_FILLED, FILLED_PART * gained * pace)
            ):
                continue
            if one["targets"][0][2] == LENGTH and last - at_second > MUCH_MORE * max(1.0, gained * pace):
                continue
            rise = (last - at_second) / max(1, at_second)
            if best is None or rise > best[0]:
                best = rise, one
    first = candidates[0]
    if best is not None:
        return best[1], _bounded(best[1])
    if any(one["targets"] for one in candidates) and series:
        return first, "and has not grown since"
    if not first["rooted"] and first["path"].startswith("<") and freed_by_gc and group_is_cycle(first):
        return first, "in reference cycles that the garbage collector frees"
    return first, UNWATCHED


def group_is_cycle(candidate: Mapping[str, Any]) -> bool:
    """Return whether what holds it is a reference cycle."""
    return str(candidate["cause"]).startswith("reference cycle")


def _bounded(one: Mapping[str, Any]) -> str:
    bound, length = one["bound"], one["container_length"] or 0
    if bound is not None and bound < FAR_BOUND * max(1, length):
        return f"and has a bound of {bound}"
    return ""
