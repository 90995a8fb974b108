"""How often the agent may act: pauses, budgets, cool-downs, and a breaker that stops all of it.

Counted from the audit log, so that neither a restart of the agent nor a clock that is set gives a budget back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from gpuagent.core.identity import format_container
from gpuagent.core.units import format_duration
from gpuagent_alerts.remedies.safeguards.never_list import is_users_own
from gpuagent_alerts.remedies.safeguards.refusals import TemporaryRefusal
from gpuagent_alerts.remedies.target import Target

HOUR = 3600.0
DAY = 24 * HOUR
STOPPED_BY_HAND = "a person has stopped them"
_MOST_OWNERS = 3
"""Owners of whom actions are of no use: as many do not all restart their jobs, so something else is wrong."""
_UNIT, _CONTAINER, _USER = "unit:", "container:", "user:"


@dataclass(frozen=True, slots=True)
class RemedyLimits:
    """Most that is done, by the keys of `remedies.limits`. An action is one run that got beyond `release_cache`."""

    pause: float = 60.0
    """Seconds on the node after an action: freed memory shows up late, and the next victim may be none."""
    per_hour: int = 2
    per_day: int = 5
    unit_per_hour: int = 1
    cooldown: float = 900.0
    """Seconds for the same unit, container, or command of a user: see `cooldown_key`."""
    breaker: int = 3
    """Actions in a row on one owner without memory coming back, after which a person has to look."""


@dataclass(frozen=True, slots=True)
class PastAction:
    """An action, as the limits see it."""

    age_seconds: float
    gpu_uuid: str
    unit: str = ""
    cooldown_key: str = ""
    """What cools down; "" for an action that an older version recorded."""
    owner: str = ""
    """Whose processes it was done to, as `owner_key` has it; "" where that is not known."""
    container_id: str = ""
    helped: bool | None = None
    """Whether the memory came back; None while nobody knows, or where nothing was really done."""
    failed_rights: bool = False
    """EPERM: no further try can work."""
    unknown: bool = False
    """What can be read of it does not say whom it was done to: it may have been anybody."""
    record_lost: bool = False
    """No action: a mark that rows of the record are lost, nobody knows how many."""
    stopped: bool = False
    """No action: a mark that a person has stopped remedies."""


def refusals(
    limits: RemedyLimits, past: Sequence[PastAction], *, unit: str = "", cooldown_key: str = "", dry_run: bool = False
) -> Iterator[str]:
    """Yield every limit that an action now would break. `past` are actions of the same kind: real ones, or dry runs."""
    was, seen = ("would have been", " (dry run)") if dry_run else ("was", "")
    past = [each for each in past if not (each.record_lost or each.stopped)]
    early = limits.pause - min((each.age_seconds for each in past), default=math.inf)
    if early > 0:
        yield TemporaryRefusal(
            f"the last action is too recent: remedies.limits.pause asks for another {format_duration(early)}", early
        )
    for name, limit, window in (("per_hour", limits.per_hour, HOUR), ("per_day", limits.per_day, DAY)):
        ages = [each.age_seconds for each in past if each.age_seconds < window]
        if len(ages) >= limit:
            many = "1 action" if len(ages) == 1 else f"{len(ages)} actions"
            span = "hour" if window == HOUR else "day"
            text = f"{many} in the last {span}: remedies.limits.{name} is {limit}"
            yield _until_room(text, ages, limit, window)
    if unit:
        ages = [one.age_seconds for one in past if (one.unknown or one.unit == unit) and one.age_seconds < HOUR]
        if len(ages) >= limits.unit_per_hour:
            text = (
                f"{unit} {was} acted on {len(ages)} times in the last hour{seen}:"
                f" unit_per_hour is {limits.unit_per_hour}"
            )
            yield _until_room(text, ages, limits.unit_per_hour, HOUR)
    if cooldown_key:
        ages = [each.age_seconds for each in past if each.unknown or _same(each.cooldown_key, cooldown_key)]
        if ages and min(ages) < limits.cooldown:
            left = limits.cooldown - min(ages)
            age = f"{min(ages):.0f} s ago{seen}"
            text = f"{_described(cooldown_key)} {was} acted on {age}: it cools down for another {format_duration(left)}"
            yield TemporaryRefusal(text, left)


def _until_room(text: str, ages: Sequence[float], limit: int, window: float) -> str:
    """Return the refusal, which passes when so many of the actions are old enough; a limit of 0 never does."""
    if limit <= 0:
        return text
    return TemporaryRefusal(text, window - sorted(ages)[limit - 1])


def cooldown_key(target: Target, command_digest: str) -> str:
    """Return what cools down after an action: the unit, the container, or this command line of this user.

    Never the executable: every Python job of a node shares the interpreter.
    """
    if target.unit:
        return f"{_UNIT}{target.unit}"
    if target.container_id:
        return f"{_CONTAINER}{target.container_id}"
    return f"{_USER}{target.uid}:{command_digest}"


def owner_key(target: Target) -> str:
    """Return whose processes a useless action counts against: a unit or container by root's word, else a user.

    What a user's own manager runs is the user's: units there are of the user's making.
    """
    if target.proven_unit and not is_users_own(target):
        return f"{_UNIT}{target.proven_unit}"
    if target.proven_container_id:
        return f"{_CONTAINER}{target.proven_container_id}"
    return f"{_USER}{target.uid}"


def _same(past: str, now: str) -> bool:
    """Return whether two keys are of one thing, or may be: digests by different keys cannot be compared."""
    if not (past.startswith(_USER) and now.startswith(_USER)):
        return past == now
    (of_past, digest_past), (of_now, digest_now) = (key.removeprefix(_USER).split(":", 1) for key in (past, now))
    if of_past != of_now:
        return False
    keys_differ = digest_past.rpartition("-")[0] != digest_now.rpartition("-")[0]
    return digest_past == digest_now or keys_differ


def has_plain_digest(key: str) -> bool:
    """Return whether an older version has made this key: its digest can be guessed back, and is not to be shown."""
    return key.startswith(_USER) and "-" not in key


def _described(key: str) -> str:
    if key.startswith(_CONTAINER):
        return f"container {format_container(key.removeprefix(_CONTAINER))}"
    if key.startswith(_USER):
        return f"this command of uid {key.split(':')[1]}"
    return key.removeprefix(_UNIT)


def breaker_reason(limits: RemedyLimits, past: Sequence[PastAction]) -> str:
    """Return why nothing may be done; "" if it may. `past` are the real actions since the reset, newest first."""
    if any(each.stopped for each in past):
        return STOPPED_BY_HAND
    if any(each.record_lost for each in past):
        return "the state file was damaged, and nobody knows which actions the record has lost"
    if past and past[0].failed_rights:
        return "the agent may not act: it lacks CAP_KILL or a polkit rule, or runs in a user namespace"
    return _no_use(limits, past)


def _no_use(limits: RemedyLimits, past: Sequence[PastAction]) -> str:
    """Return that the actions are of no use, whoever they are taken on; "" where that is not so."""
    useless = _useless_in_a_row(past)
    several = len({each.owner for each in useless}) >= _MOST_OWNERS
    if several and (many := len(useless)) >= _MOST_OWNERS * limits.breaker:
        return f"the last {many} actions gave no memory back"
    if (many := sum(not each.owner for each in useless)) >= limits.breaker:
        return f"{many} of the last actions gave no memory back, and the record does not say whose processes they ended"
    owners = {each.owner for each in past} - {""}
    if (many := sum(_is_left_alone(limits, past, owner) for owner in owners)) >= _MOST_OWNERS:
        return f"of {many} users, units or containers each, the last actions gave no memory back"
    return ""


def owner_refusal(limits: RemedyLimits, past: Sequence[PastAction], owner: str) -> str:
    """Return why rules leave the processes of an owner alone; "" where they do not. `past` is as for the breaker.

    One user whose jobs start again by themselves stops no remedy for anybody else.
    """
    if not _is_left_alone(limits, past, owner):
        return ""
    return (
        f"rules leave the processes of {_named(owner)} alone: the last {limits.breaker} actions on them gave no memory"
        " back; after a look, `gpuagent remedies reset` lets them go on"
    )


def owners_left_alone(limits: RemedyLimits, past: Sequence[PastAction]) -> list[str]:
    """Return whose processes rules leave alone, as people read it. `past` is as for the breaker."""
    owners = sorted({each.owner for each in past} - {""})
    return [_named(owner) for owner in owners if _is_left_alone(limits, past, owner)]


def _named(owner: str) -> str:
    return f"uid {owner.removeprefix(_USER)}" if owner.startswith(_USER) else _described(owner)


def _is_left_alone(limits: RemedyLimits, past: Sequence[PastAction], owner: str) -> bool:
    """Return whether enough actions in a row were of no use; what may have been of this owner counts as such."""
    of_owner = [each for each in past if each.owner in {owner, ""}]
    return len(_useless_in_a_row(of_owner)) >= limits.breaker


def _useless_in_a_row(past: Sequence[PastAction]) -> list[PastAction]:
    """Return the newest actions without effect, before which one helped."""
    return list(takewhile(lambda each: not each.helped, [each for each in past if each.helped is not None]))
