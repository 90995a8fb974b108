"""Since when each process has held the memory that it has now, on each GPU, as this agent has seen without a gap.

That a GPU has been full for five minutes says nothing of a process that came a second ago, or one that was there with
little and has just taken what another one left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import NO_INSTANCE, ProcessId
from gpuagent.core.snapshot import GpuReading, GpuState, Snapshot
from gpuagent.core.units import format_duration
from gpuagent_alerts.remedies.target import Target

_GROWTH = 2
"""Who has more than so many times what it held at the least has not held it for all of that time."""


class _Stay(NamedTuple):
    since_seconds: float
    least_bytes: int


def _measured_instances(gpu: GpuReading) -> frozenset[int]:
    return frozenset(each.gpu_instance_id for each in gpu.mig if each.memory.used_bytes is not None)


class Presence:
    """Fed with every snapshot, by one thread. All times are CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self._stays: dict[tuple[ProcessId, MemoryKey], _Stay] = {}
        self._read_at: dict[str, float] = {}
        self._instances: dict[str, frozenset[int]] = {}

    def see(self, snapshot: Snapshot, longest_gap_seconds: float) -> None:
        """Take in the lists of a tick. The time of everybody on a GPU whose list is missing, or late, begins anew.

        So it does where a MIG instance has come or gone since: what it holds was not measured in between.
        """
        read_at = {
            gpu.identity.uuid: gpu.read_seconds
            for gpu in snapshot.gpus
            if gpu.state is GpuState.OK and gpu.processes_known
        }
        instances = {gpu.identity.uuid: _measured_instances(gpu) for gpu in snapshot.gpus}
        seamless = {
            uuid
            for uuid, at in read_at.items()
            if uuid in self._read_at
            and at - self._read_at[uuid] <= longest_gap_seconds
            and instances[uuid] == self._instances.get(uuid)
        }
        stays: dict[tuple[ProcessId, MemoryKey], _Stay] = {}
        for process in snapshot.processes:
            at, held = read_at.get(process.gpu_uuid), process.used_bytes
            if process.info is None or at is None or held is None or process.holder_unproven:
                continue
            if process.gpu_instance_id != NO_INSTANCE and process.gpu_instance_id not in instances[process.gpu_uuid]:
                continue  # its instance could not be read
            name = process.info.id, process.key
            before = self._stays.get(name) if process.gpu_uuid in seamless else None
            if before is None or held > _GROWTH * before.least_bytes:
                stays[name] = _Stay(at, held)
            else:
                stays[name] = before if held >= before.least_bytes else _Stay(before.since_seconds, held)
        self._stays, self._read_at, self._instances = stays, read_at, instances

    def newcomers(self, targets: Iterable[Target], wanted_seconds: float, now_seconds: float) -> dict[ProcessId, str]:
        """Return those that have not held their memory for so long, each with the reason in words."""
        if wanted_seconds <= 0:
            return {}
        found: dict[ProcessId, str] = {}
        for target in targets:
            stay = self._stays.get((target.id, target.key))
            held = max(now_seconds - stay.since_seconds, 0.0) if stay is not None else 0.0
            if held < wanted_seconds:
                found[target.id] = (
                    f"pid {target.pid} ({target.name}) has held the memory that it has now for "
                    f"{format_duration(held)}, as far as this agent has seen, and the rule asks for "
                    f"{format_duration(wanted_seconds)} (`for`): it can be chosen in "
                    f"{format_duration(wanted_seconds - held)}"
                )
        return found
