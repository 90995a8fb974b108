"""The process that a person was shown, as the request of theirs names it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpuagent.reading import ProcessInfo

FIELDS = ("start_ticks", "boot_id", "pid_namespace")
"""What a request has to carry besides the pid, which the kernel gives to another process sooner or later."""


SHOWN_MEMBERS = "ends_with_it"
"""Field of those that were shown as ending together with the process; without it nobody was."""


SHOWN_CARD = "card"
"""Field with the digest of what a person sees of a process; without it only the identity is compared."""
CARD = ("uid", "user", "name", "command", "unit", "container_id", "slurm_job")
"""What is shown of a process beside figures: by these a person knows it."""


class ShownProcess(NamedTuple):
    """What tells a process from every other one that ever had its pid."""

    start_ticks: int
    """Start in clock ticks since the boot, as in /proc/PID/stat."""
    boot_id: str
    pid_namespace: int | None
    """Inode of its pid namespace; None where the agent may not read it, and said so."""
    ends_with_it: frozenset[tuple[int, int]] = frozenset()
    """Pid and start of each that was shown as ending together with it."""
    card: str = ""
    """Digest of what was shown of it; "" where nothing was."""

    def difference(self, pid: int, info: ProcessInfo | None) -> str:
        """Return why the process that has this pid now is not the one that was shown; "" if it is."""
        if info is None:
            return f"pid {pid} was shown as a process that runs, and has ended since"
        now = shown_as(info)
        if self.boot_id != now.boot_id:
            return f"pid {pid} was shown before the machine was started again: it is another process now"
        if self.start_ticks != now.start_ticks:
            return f"pid {pid} is another process now: {info.name} of {info.user or info.uid}, started since"
        if self.pid_namespace != now.pid_namespace:
            return f"pid {pid} is in another pid namespace than the process that was shown"
        if self.card and self.card != now.card:
            return (
                f"pid {pid} is not what was shown any more: its program, user, unit, container or job is another one"
                f" ({info.name} of {info.user or info.uid} now)"
            )
        return ""


def card_of(info: ProcessInfo) -> str:
    """Return the digest of what is shown of a process, all of it redacted already."""
    shown = json.dumps([getattr(info, name) for name in CARD])
    return hashlib.sha256(shown.encode()).hexdigest()[:32]


def shown_as(info: ProcessInfo) -> ShownProcess:
    """Return what the agent tells of a process for a later request."""
    return ShownProcess(info.id.start_ticks, info.id.boot_id, info.pid_namespace or None, card=card_of(info))


def read_shown(request: Mapping[str, Any]) -> ShownProcess:
    """Read the three fields of a request. Raises ValueError: says all that are missing, or what one must be."""
    if missing := [name for name in FIELDS if name not in request]:
        raise ValueError(
            f"missing: {', '.join(missing)}; a pid alone names no process: take them from"
            " GET /api/v1/processes/identified"
        )
    ticks, boot_id, namespace = (request[name] for name in FIELDS)
    if (start := _whole(ticks, 2**63 - 1)) is None:
        raise ValueError("start_ticks must be a whole number above 0")
    if not isinstance(boot_id, str) or not boot_id:
        raise ValueError("boot_id must be a text")
    if namespace is not None and (namespace := _whole(namespace, 2**32 - 1)) is None:
        raise ValueError("pid_namespace must be a whole number above 0, or null where it was shown as null")
    if not isinstance(card := request.get(SHOWN_CARD, ""), str):
        raise ValueError(f"{SHOWN_CARD} must be a text")
    return ShownProcess(start, boot_id, namespace, _members(request.get(SHOWN_MEMBERS, [])), card)


def _members(value: object) -> frozenset[tuple[int, int]]:
    """Read a list of pairs. Raises ValueError."""
    found = set()
    for pair in value if isinstance(value, list) else [None]:
        numbers = [_whole(each, 2**63 - 1) for each in pair] if isinstance(pair, list) else []
        match numbers:
            case [int(pid), int(start)]:
                found.add((pid, start))
            case _:
                raise ValueError(f"{SHOWN_MEMBERS} must be a list of [pid, start_ticks]")
    return frozenset(found)


def _whole(value: object, most: int) -> int | None:
    """Return a whole number from 1 on; None for anything else, 7.0 among it: beyond 2**53 that may be another one."""
    return value if type(value) is int and 0 < value <= most else None
