"""The process that a person means by a pid, and what they are shown before they say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuagent.acting.digests import CommandDigests
from gpuagent.acting.lookup import FreshProcess
from gpuagent.acting.shown import ShownProcess, card_of
from gpuagent.acting.targets import measured, target_of
from gpuagent.acting.unreadable import UnreadableGpu
from gpuagent.core.snapshot import ProcessReading, ProcessState, Snapshot
from gpuagent.core.units import format_bytes
from gpuagent_alerts.remedies.target import Target

Fresh = Mapping[int, FreshProcess | None]


class NoSuchProcess(Exception):
    """No process with this pid is on a GPU, as far as the agent can see; or none that could be acted on."""


class AnotherProcess(Exception):
    """The pid belongs to another process than the one that the person was shown."""


def renewed(snapshot: Snapshot, fresh: Fresh) -> Snapshot:
    """Return the snapshot with what its processes are now; one whose number went over stays as it was measured."""
    return replace(snapshot, processes=tuple(_renewed(each, fresh) for each in snapshot.processes))


def find(
    snapshot: Snapshot | None,
    pid: int,
    gpu: str,
    shown: ShownProcess,
    fresh: Fresh,
    digests: CommandDigests,
    unreadable: Sequence[UnreadableGpu] = (),
) -> Target:
    """Return the process that was shown, as it is now. Raises NoSuchProcess, AnotherProcess.

    What was compared goes with it: whoever holds it then compares it once more.
    """
    if snapshot is None:
        raise NoSuchProcess("nothing has been measured yet")
    processes = [each for each in snapshot.processes if each.pid == pid]
    if gpu:
        processes = [each for each in processes if gpu in {str(each.gpu_index), each.gpu_uuid}]
    if not processes:
        raise NoSuchProcess(not_there(pid, gpu, unreadable))
    if pid not in fresh:
        raise AnotherProcess(f"what pid {pid} is now cannot be read from /proc, so it cannot be compared")
    now = fresh[pid]
    if different := shown.difference(pid, now, gpus_of(snapshot, pid), digests):
        raise AnotherProcess(different)
    processes.sort(key=lambda each: -(each.used_bytes or 0))
    for process in processes:
        target = target_of(_renewed(process, fresh), None, measured(snapshot))
        if target is not None and now is not None:
            return replace(target, identity=now.identity)
    raise NoSuchProcess(why_not(processes[0], fresh))


def gpus_of(snapshot: Snapshot, pid: int) -> list[tuple[str, int]]:
    """Return UUID and MIG instance of each GPU on which the driver lists this pid."""
    return [(each.gpu_uuid, each.gpu_instance_id) for each in snapshot.processes if each.pid == pid]


def not_there(pid: int, gpu: str, unreadable: Sequence[UnreadableGpu]) -> str:
    """Say that no such process is known; where a GPU that is meant cannot be read, that."""
    meant = [each.text for each in unreadable if gpu in {"", str(each.gpu_index), each.gpu_uuid}]
    if meant:
        return f"whether pid {pid} is on a GPU is not known: {'; '.join(meant)}"
    return f"no process with pid {pid} is on {f'GPU {gpu}' if gpu else 'a GPU'}"


def why_not(process: ProcessReading, fresh: Fresh) -> str:
    """Say why a listed process cannot be acted on at all; "" if it can."""
    if target_of(process, None) is not None:
        return ""
    info, held = process.info, process.used_bytes
    if process.state is ProcessState.UNRESOLVED:
        return f"the agent is not in the host's pid namespace: who pid {process.pid} is cannot be told here"
    if info is None:
        memory = "memory" if held is None else format_bytes(held)
        text = (
            f"the process that held {memory} as pid {process.pid} on GPU {process.gpu_index} has ended, and the driver"
            " still counts it: there is nobody to end"
        )
        now = fresh.get(process.pid)
        if now is None:
            return text
        return f"{text}; the number is another process now ({now.info.name} of {now.info.user or now.info.uid})"
    who = f"pid {process.pid}{f' ({info.name})' if info.name else ''} is on GPU {process.gpu_index}"
    if info.id.start_ticks <= 0:
        return f"{who}, and /proc hides when it started (hidepid): its number alone names no process"
    return f"{who}, and the driver does not tell how much memory it holds: nothing could show that it came back"


def add_facts(
    document: dict[str, Any],
    snapshot: Snapshot | None,
    fresh: Fresh,
    unreadable: Sequence[UnreadableGpu],
    digests: CommandDigests,
) -> None:
    """Add to the identified processes who ends with each, a digest of what is shown, and why one cannot be acted on."""
    processes = snapshot.processes if snapshot is not None else ()
    listed = {(each.gpu_uuid, each.gpu_index, each.pid): each for each in processes}
    for row in document["processes"]:
        now = fresh.get(row["pid"])
        is_same = now is not None and now.info.id.start_ticks == row["start_ticks"]
        members = now.ends_with_it if now is not None and is_same else ()
        row["ends_with_it"] = None if members is None else [
            {
                "pid": each.pid, "start_ticks": each.start_ticks, "process": each.names[0], "user": each.user,
                "belongs": each.belongs, "certain": each.certain, "why": each.why,
            }
            for each in members
        ]  # fmt: skip
        row["card"] = ""
        if snapshot is not None and now is not None and is_same:
            row["card"] = card_of(now, gpus_of(snapshot, row["pid"]), digests)
        why = why_not(listed[row["gpu_uuid"], row["gpu"], row["pid"]], fresh)
        if not why and not row["card"]:
            why = f"what pid {row['pid']} is now cannot be read from /proc: a request could not be compared with it"
        row["why_not"] = why
    document["unreadable"] = [
        {"gpu": each.gpu_index, "gpu_uuid": each.gpu_uuid, "text": each.text} for each in unreadable
    ]


def _renewed(process: ProcessReading, fresh: Fresh) -> ProcessReading:
    now = fresh.get(process.pid)
    if now is None or process.info is None or process.info.id != now.info.id:
        return process
    return process._replace(info=now.info)
