"""Requests by hand: which process a person means by a pid, and what they were shown before they said so.

What was shown is compared by a digest of the facts. Of a GPU that cannot be read, the processes of its last good
reading can be named, where they still run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gpuagent.core.identity import SHOWN_FIELDS
from gpuagent.core.snapshot import ProcessReading, ProcessState, Snapshot
from gpuagent.core.units import format_bytes
from gpuagent.core.wording import NOT_ON_LAST_LIST
from gpuagent_alerts.remedies.facts.command_digests import CommandDigests
from gpuagent_alerts.remedies.facts.fresh_lookup import FreshProcess
from gpuagent_alerts.remedies.snapshot_targets import context_of, target_of
from gpuagent_alerts.remedies.target import Target, TiedProcess
from gpuagent_alerts.remedies.unreadable_gpus import UnreadableGpu

Fresh = Mapping[int, FreshProcess | None]
SHOWN_MEMBERS = "ends_with_it"
"""Field of those that were shown as ending together with the process; without it nobody was."""
TOGETHER = "together"
"""Field of those whose end is asked for at the same time, by other requests."""
NAMES: Mapping[str, str] = {
    "id": "start", "uid": "user", "uids": "user ids", "name": "name", "command_digest": "command line",
    "cgroup": "cgroup", "cgroups": "cgroups", "proven_names": "owners of its cgroups", "executable": "executable",
    "executable_file": "file of its executable", "image": "program, executed since", "pid_namespace": "pid namespace",
    "process_group": "process group", "handle_inode": "pidfd", "user": "name of its user", "gpus": "GPUs",
}  # fmt: skip
"""How each fact of a card is called where it is not as it was."""
Gpus = Iterable[tuple[str, int]]
"""The GPUs that a process is on: UUID and MIG instance."""


class NoSuchProcess(Exception):
    """No process with this pid is on a GPU, as far as the agent can see; or none that could be acted on."""


class AnotherProcess(Exception):
    """The pid belongs to another process than the one that the person was shown."""


def with_fresh_info(snapshot: Snapshot, fresh: Fresh) -> Snapshot:
    """Return the snapshot with what its processes are now; one whose number went over stays as it was measured."""
    return replace(snapshot, processes=tuple(_renewed(each, fresh) for each in snapshot.processes))


def find_shown_target(
    snapshot: Snapshot | None,
    pid: int,
    gpu: str,
    shown: IdentifiedProcess,
    fresh: Fresh,
    digests: CommandDigests,
    unreadable: Sequence[UnreadableGpu] = (),
) -> Target:
    """Return the process that was shown, as it is now. Raises NoSuchProcess, AnotherProcess.

    What was compared goes with it: whoever holds it then compares it once more. Where it is on a GPU that can be read,
    it is taken from there; else from the last list of one of `unreadable`.
    """
    if snapshot is None:
        raise NoSuchProcess("nothing has been measured yet: ask again in a few seconds")
    snapshot = with_last_lists(snapshot, unreadable, fresh)
    processes = [each for each in snapshot.processes if each.pid == pid]
    if gpu:
        processes = [each for each in processes if gpu in {str(each.gpu_index), each.gpu_uuid}]
    if not processes:
        raise NoSuchProcess(no_such_process_text(pid, gpu, unreadable))
    if pid not in fresh:
        raise AnotherProcess(f"what pid {pid} is now cannot be read from /proc, so it cannot be compared")
    now = fresh[pid]
    if different := shown.difference(pid, now, gpus_of(snapshot, pid), digests):
        raise AnotherProcess(different)
    blind = {each.gpu_uuid for each in unreadable}
    processes.sort(key=lambda each: (each.gpu_uuid in blind, -(each.used_bytes or 0)))
    for process in processes:
        target = target_of(_renewed(process, fresh), None, context_of(snapshot))
        if target is not None and now is not None:
            return replace(target, identity=now.identity)
    raise NoSuchProcess(cannot_act_reason(processes[0], fresh))


def with_last_lists(snapshot: Snapshot, unreadable: Iterable[UnreadableGpu], fresh: Fresh) -> Snapshot:
    """Return the snapshot with those who were on each unreadable GPU at its last good reading, and still run.

    Who has ended, or has handed on its number, is not among them; where /proc could not be read, all are.
    """
    last = [each for gpu in unreadable for each in gpu.processes if _still_runs(each, fresh)]
    return replace(snapshot, processes=(*snapshot.processes, *last)) if last else snapshot


def _still_runs(process: ProcessReading, fresh: Fresh) -> bool:
    if process.info is None:
        return False
    if process.pid not in fresh:
        return True
    now = fresh[process.pid]
    return now is not None and now.info.id == process.info.id


def gpus_of(snapshot: Snapshot, pid: int) -> list[tuple[str, int]]:
    """Return UUID and MIG instance of each GPU on which the driver lists this pid."""
    return [(each.gpu_uuid, each.gpu_instance_id) for each in snapshot.processes if each.pid == pid]


def no_such_process_text(pid: int, gpu: str, unreadable: Sequence[UnreadableGpu]) -> str:
    """Say that no such process is known; where a GPU that is meant cannot be read, that."""
    meant = [each.text for each in unreadable if gpu in {"", str(each.gpu_index), each.gpu_uuid}]
    if meant:
        return f"whether pid {pid} is on a GPU is not known: {'; '.join(meant)}; {NOT_ON_LAST_LIST}"
    return f"no process with pid {pid} is on {f'GPU {gpu}' if gpu else 'a GPU'}; `gpuagent ps` shows who is"


def cannot_act_reason(process: ProcessReading, fresh: Fresh) -> str:
    """Say why a listed process cannot be acted on at all; "" if it can."""
    if target_of(process, None) is not None:
        return ""
    info = process.info
    if process.state is ProcessState.UNRESOLVED:
        return (
            f"the agent is not in the host's pid namespace: who pid {process.pid} is cannot be told here;"
            ' run the agent on the host, or with the host\'s pids ("hostPID: true")'
        )
    if info is None:
        return _nobody_known_reason(process, fresh)
    who = f"pid {process.pid}{f' ({info.name})' if info.name else ''} is on GPU {process.gpu_index}"
    if info.id.start_ticks <= 0:
        return (
            f"{who}, and /proc hides when it started (hidepid): its number alone names no process; give"
            " the agent a /proc without hidepid, or end the process with what started it"
        )
    return (
        f"{who}, and the driver does not tell how much memory it holds: nothing could show that it came back;"
        " end it with what started it"
    )


def _nobody_known_reason(process: ProcessReading, fresh: Fresh) -> str:
    """Say what is known of memory that no process was shown to hold. No option acts on whoever has its number now."""
    memory = "memory" if process.used_bytes is None else format_bytes(process.used_bytes)
    counted = f"the driver counts {memory} on GPU {process.gpu_index} for pid {process.pid}"
    if process.is_zombie and process.former is not None:
        parent = process.former.parent_pid
        whose = f" End or restart the parent, pid {parent}." if parent > 1 else ""
        return f"{counted}: it has ended and is a zombie: its parent has to reap it, and no signal helps.{whose}"
    if process.pid not in fresh:
        return (
            f"{counted}, of no process that is known to hold it, and who has that number now cannot be read from /proc:"
            " ask again in a few seconds; `gpuagent doctor` says what the agent may not read"
        )
    if (now := fresh[process.pid]) is None:
        return (
            f"{counted}, and no process has that number: whoever held it has ended, there is nobody to end, and the"
            " driver alone can give the memory back"
        )
    name = f"{now.info.name} of {now.info.user or now.info.uid}"
    return (
        f"{counted}. {name} has that number now, and is not known to have had it when the driver first listed it: the"
        " memory may be that of an earlier process that has ended, or its own, if its number was given again while"
        " nothing was measured. --force does not lift this. If you know that it is to end, end it with what started"
        " it; if the memory stays then, the driver alone can give it back"
    )


def add_identity_facts(
    document: dict[str, Any],
    snapshot: Snapshot | None,
    fresh: Fresh,
    unreadable: Sequence[UnreadableGpu],
    digests: CommandDigests,
) -> None:
    """Add to the identified processes who ends with each, a digest of what is shown, and why one cannot be acted on.

    `snapshot` has the last lists of `unreadable` in it: what is from there says so.
    """
    blind = {each.gpu_uuid: each.text for each in unreadable}
    processes = snapshot.processes if snapshot is not None else ()
    listed = {(each.gpu_uuid, each.gpu_index, each.pid): each for each in processes}
    units: dict[str, list[dict[str, Any]]] = {}
    for row in document["processes"]:
        now = fresh.get(row["pid"])
        is_same = now is not None and now.info.id.start_ticks == row["start_ticks"]
        members = now.ends_with_it if now is not None and is_same else ()
        row["ends_with_it"] = None if members is None else _member_rows(members)
        row["unit_at_risk"] = now.unit if now is not None and is_same else ""
        if now is not None and row["unit_at_risk"]:
            units[now.unit] = _member_rows(now.ends_with_unit)
        row["unreadable"] = blind.get(row["gpu_uuid"], "")
        row["card"] = ""
        if snapshot is not None and now is not None and is_same:
            row["card"] = identity_card(now, gpus_of(snapshot, row["pid"]), digests)
        why = cannot_act_reason(listed[row["gpu_uuid"], row["gpu"], row["pid"]], fresh)
        if not why and not row["card"]:
            why = (
                f"what pid {row['pid']} is now cannot be read from /proc: a request could not be compared with it;"
                " `gpuagent doctor` says what the agent may not read"
            )
        row["why_not"] = why
    document["units_at_risk"] = [{"unit": unit, "ends_with_it": rows} for unit, rows in sorted(units.items())]
    document["unreadable"] = [
        {"gpu": each.gpu_index, "gpu_uuid": each.gpu_uuid, "text": each.text} for each in unreadable
    ]


def _member_rows(members: Iterable[TiedProcess]) -> list[dict[str, Any]]:
    return [
        {
            "pid": each.pid, "start_ticks": each.start_ticks, "process": each.names[0], "user": each.user,
            "belongs": each.belongs, "certain": each.certain, "why": each.why,
        }
        for each in members
    ]  # fmt: skip


def _renewed(process: ProcessReading, fresh: Fresh) -> ProcessReading:
    now = fresh.get(process.pid)
    if now is None or process.info is None or process.info.id != now.info.id:
        return process
    return process._replace(info=now.info)


class IdentifiedProcess(NamedTuple):
    """What tells a process from every other one that ever had its pid, and from every other program that it ran."""

    start_ticks: int
    """Start in clock ticks since the boot, as in /proc/PID/stat."""
    boot_id: str
    pid_namespace: int | None
    """Inode of its pid namespace; None where the agent may not read it, and said so."""
    card: str
    """Digest of what is compared of it: see `identity_card`."""
    ends_with_it: frozenset[tuple[int, int]] = frozenset()
    """Pid and start of each that was shown as ending together with it."""
    together: frozenset[tuple[int, int]] = frozenset()
    """Pid and start of each whose end is asked for at the same time."""

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


def identity_card(now: FreshProcess, gpus: Gpus, digests: CommandDigests) -> str:
    """Return digests, by the agent's own key, of what is compared: what is missing is in it as missing."""
    return digests.of_facts(facts_of(now, gpus))


def read_identified(request: Mapping[str, Any]) -> IdentifiedProcess:
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
    shown, together = (_members(request.get(name, []), name) for name in (SHOWN_MEMBERS, TOGETHER))
    return IdentifiedProcess(start, boot_id, namespace, card, shown, together)


def _members(value: object, name: str) -> frozenset[tuple[int, int]]:
    """Read a list of pairs. Raises ValueError."""
    found = set()
    for pair in value if isinstance(value, list) else [None]:
        numbers = [_whole(each, 2**63 - 1) for each in pair] if isinstance(pair, list) else []
        match numbers:
            case [int(pid), int(start)]:
                found.add((pid, start))
            case _:
                raise ValueError(f"{name} must be a list of [pid, start_ticks]")
    return frozenset(found)


def _whole(value: object, most: int) -> int | None:
    """Return a whole number from 1 on; None for anything else, 7.0 among it: beyond 2**53 that may be another one."""
    return value if type(value) is int and 0 < value <= most else None
