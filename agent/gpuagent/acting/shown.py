"""The process that a person was shown, as the request of theirs names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpuagent.acting.digests import CommandDigests
from gpuagent.acting.lookup import FreshProcess
from gpuagent.core.identity import SHOWN_FIELDS

SHOWN_MEMBERS = "ends_with_it"
"""Field of those that were shown as ending together with the process; without it nobody was."""

NAMES: Mapping[str, str] = {
    "id": "start", "uid": "user", "uids": "user ids", "name": "name", "command_digest": "command line",
    "cgroup": "cgroup", "cgroups": "cgroups", "proven_names": "owners of its cgroups", "executable": "executable",
    "executable_file": "file of its executable", "image": "program, executed since", "pid_namespace": "pid namespace",
    "process_group": "process group", "handle_inode": "pidfd", "user": "name of its user", "gpus": "GPUs",
}  # fmt: skip
"""How each fact of a card is called where it is not as it was."""

Gpus = Iterable[tuple[str, int]]
"""The GPUs that a process is on: UUID and MIG instance."""


class ShownProcess(NamedTuple):
    """What tells a process from every other one that ever had its pid, and from every other program that it ran."""

    start_ticks: int
    """Start in clock ticks since the boot, as in /proc/PID/stat."""
    boot_id: str
    pid_namespace: int | None
    """Inode of its pid namespace; None where the agent may not read it, and said so."""
    card: str
    """Digest of what is compared of it: see `card_of`."""
    ends_with_it: frozenset[tuple[int, int]] = frozenset()
    """Pid and start of each that was shown as ending together with it."""

    def difference(self, pid: int, now: FreshProcess | None, gpus: Gpus, digests: CommandDigests) -> str:
        """Return why the process that has this pid now is not the one that was shown; "" if it is."""
        if now is None:
            return f"pid {pid} was shown as a process that runs, and has ended since"
        info, here = now.info, now.info.id
        if self.boot_id != here.boot_id:
            return f"pid {pid} was shown before the machine was started again: it is another process now"
        if self.start_ticks != here.start_ticks:
            return f"pid {pid} is another process now: {info.name} of {info.user or info.uid}, started since"
        if self.pid_namespace != (info.pid_namespace or None):
            return f"pid {pid} is in another pid namespace than the process that was shown"
        changed = digests.differing(self.card, facts_of(now, gpus))
        if not changed:
            return ""
        what = ", ".join(NAMES[name] for name in changed)
        return (
            f"pid {pid} is not what was shown any more ({info.name} of {info.user or info.uid} now);"
            f" changed since: {what}"
        )


def facts_of(now: FreshProcess, gpus: Gpus) -> dict[str, object]:
    """Return all that has to be as it was shown: what a ladder compares before each step, its user's name, its GPUs.

    Unit, container and job follow from its cgroups, and what is shown of its command line from the whole. Figures are
    no part of it: memory that grows makes no other process.
    """
    identity = {
        name: sorted(value) if isinstance(value, frozenset) else value for name, value in now.identity.compared.items()
    }
    return {**identity, "user": now.info.user, "gpus": sorted(set(gpus))}


def card_of(now: FreshProcess, gpus: Gpus, digests: CommandDigests) -> str:
    """Return digests, by the agent's own key, of what is compared: what is missing is in it as missing."""
    return digests.of_facts(facts_of(now, gpus))


def read_shown(request: Mapping[str, Any]) -> ShownProcess:
    """Read what a request was shown of its process. Raises ValueError: says what is missing, or what one must be."""
    if missing := [name for name in SHOWN_FIELDS if name not in request]:
        raise ValueError(
            f"missing: {', '.join(missing)}; a pid alone names no process: take them from"
            " GET /api/v1/processes/identified"
        )
    ticks, boot_id, namespace, card = (request[name] for name in SHOWN_FIELDS)
    if (start := _whole(ticks, 2**63 - 1)) is None:
        raise ValueError("start_ticks must be a whole number above 0")
    if not isinstance(boot_id, str) or not boot_id:
        raise ValueError("boot_id must be a text")
    if namespace is not None and (namespace := _whole(namespace, 2**32 - 1)) is None:
        raise ValueError("pid_namespace must be a whole number above 0, or null where it was shown as null")
    if not isinstance(card, str) or not card:
        raise ValueError("card must be a text, as it was shown")
    return ShownProcess(start, boot_id, namespace, card, _members(request.get(SHOWN_MEMBERS, [])))


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
