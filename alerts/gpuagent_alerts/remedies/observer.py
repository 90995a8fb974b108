"""Observe targets on the newest snapshot, and whether the alert behind a run still fires.

`MemoryHoldTimes` tells since when each process has held its memory on each GPU, as this agent has seen without a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpuagent.core.clock import Clock
from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import NO_INSTANCE, ProcessId
from gpuagent.core.snapshot import GpuReading, GpuState, Snapshot
from gpuagent.core.units import format_duration
from gpuagent_alerts.remedies.alert_evaluation import DATA_MISSING, ONLY_KEPT, AlertEvaluation
from gpuagent_alerts.remedies.observation import Condition, Observation, UnlistedGpu
from gpuagent_alerts.remedies.resumed import ResumedProcesses
from gpuagent_alerts.remedies.safeguards.refusals import UNPROVEN_HOLDER
from gpuagent_alerts.remedies.safeguards.victim import VictimChoice
from gpuagent_alerts.remedies.snapshot_targets import all_targets, members, relatives, successors, unjoined_lookalikes
from gpuagent_alerts.remedies.target import Target

Choose = Callable[[AlertEvaluation, Snapshot], VictimChoice | None]
"""Return whom an alert would choose on a snapshot; None where the alert names its process."""
_GROWTH = 2
"""Who has more than so many times what it held at the least has not held it for all of that time."""


class SnapshotObserver:
    """Observer over snapshots: updated by the loop, asked by runs."""

    def __init__(
        self,
        clock: Clock,
        choose: Choose = lambda _judged, _snapshot: None,
        never: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`choose` tells whom an alert would choose now, `never` whom nobody may: by the configuration in force."""
        self._never = never
        self._clock = clock
        self._choose = choose
        self._resumed = ResumedProcesses()
        self._snapshot: Snapshot | None = None
        self._last_good: dict[str, Snapshot] = {}
        """The last snapshot that had the processes of a GPU, by UUID."""
        self._firing: Mapping[str, AlertEvaluation] = {}
        self._news = asyncio.Condition()

    async def update_snapshot(self, snapshot: Snapshot) -> None:
        """Take in the snapshot of a tick."""
        self._snapshot = snapshot
        self._resumed.update(snapshot)
        for gpu in snapshot.gpus:
            if gpu.processes_read:
                self._last_good[gpu.identity.uuid] = snapshot
        await self._tell()

    async def update_alerts(self, evaluations: Iterable[AlertEvaluation]) -> None:
        """Take in an evaluation of the rules: all that fires."""
        self._firing = {each.alert.fingerprint: each for each in evaluations}
        await self._tell()

    def observe(self, target: Target, alert: str, scope: str = "process") -> Observation:
        """See `gpuagent_alerts.remedies.observation.Observer`."""
        snapshot = self._snapshot
        gpus = _gpus(snapshot, target)
        gpu = gpus[0] if len(gpus) == 1 else None
        if doubt := _another_gpu(gpus, target):
            return Observation(self._clock.now(), Condition.UNKNOWN, doubt)
        if snapshot is None or gpu is None or not gpu.processes_read:
            if gpu is not None and gpu.state is GpuState.OK and gpu.act_refusal:  # the figures are withheld
                return Observation(self._clock.now(), Condition.UNKNOWN, gpu.act_refusal)
            if gpu is not None and gpu.state is GpuState.OK:
                reason = f"GPU {target.gpu_index} cannot be read (the driver gave no list of its processes)"
                return Observation(self._clock.now(), Condition.UNKNOWN, reason)
            state = gpu.reason or gpu.state if gpu is not None else "gone"
            return Observation(self._clock.now(), Condition.UNKNOWN, f"GPU {target.gpu_index} cannot be read ({state})")
        condition, reason = self._condition(alert)
        listed = [each for each in snapshot.processes if each.key == target.key]
        everybody = list(all_targets(snapshot))
        seen = next((each for each in everybody if each.key == target.key), None)
        on_it = [each for each in everybody if each.key.gpu_uuid == target.key.gpu_uuid]
        reconciled = gpu.reconciliation
        # Also who holds an amount that the driver does not tell: all fall, or none is touched.
        all_there, never = list(all_targets(snapshot, unknown_memory=True)), tuple(self._never())
        fall_too = members(target, all_there, scope, never)
        evaluation = self._firing.get(alert)
        return Observation(
            clock_seconds=gpu.read_seconds,
            condition=condition,
            reason=reason,
            target=seen if seen is not None and seen.id == target.id else None,
            target_listed=any(process.info is None or process.info.id == target.id for process in listed),
            gpu_used_bytes=gpu.memory.used_bytes if gpu.memory else None,
            gpu_unattributed_bytes=reconciled.unattributed_bytes if reconciled else None,
            trusted=gpu.processes_trusted,
            gpu_index_certain=not snapshot.node.gpus_doubt
            and len(snapshot.gpus) >= snapshot.node.gpus_expected
            and not any(each.state is GpuState.GONE for each in snapshot.gpus),
            host_pid_namespace=snapshot.node.host_pid_namespace,
            unified_memory=gpu.identity.unified_memory,
            relatives=relatives(target, on_it),
            successors=successors(target, on_it),
            members=fall_too,
            everybody=(*all_there, *self._last_on_unread()),
            act_refusals={each.identity.uuid: each.act_refusal for each in snapshot.gpus if each.act_refusal},
            unlisted_gpus=self.unlisted_gpus(),
            resumed=self._resumed.processes,
            apart=unjoined_lookalikes(target, all_there, scope, never),
            present=frozenset(each.id for each in on_it),
            choice=self._choose(evaluation, snapshot) if evaluation is not None else None,
            act_refusal=_act_refusal(snapshot, {target.key.gpu_uuid, *(each.key.gpu_uuid for each in fall_too)}),
        )

    def everybody(self) -> tuple[Target, ...]:
        """Return every process on every GPU, by the last good list of those that cannot be read now."""
        read = () if self._snapshot is None else all_targets(self._snapshot, unknown_memory=True)
        return (*read, *self._last_on_unread())

    def unlisted_gpus(self) -> tuple[UnlistedGpu, ...]:
        """Return the GPUs that cannot be read now, and of which no list was ever read: anybody may be on them."""
        return tuple(
            UnlistedGpu(
                gpu.identity.index,
                gpu.identity.uuid,
                f"GPU {gpu.identity.index} has not been readable since the agent started ({_why_unread(gpu)})",
            )
            for gpu in (self._snapshot.gpus if self._snapshot is not None else ())
            if not gpu.processes_read and gpu.identity.uuid not in self._last_good
        )

    def _last_on_unread(self) -> Iterator[Target]:
        """Yield who was on GPUs that cannot be read now: nobody knows that they have left, or whether they are idle."""
        for uuid, last in self._last_good.items():
            if last is not self._snapshot:
                for each in all_targets(last, unknown_memory=True):
                    if each.key.gpu_uuid == uuid:
                        yield replace(each, idle_seconds=None)

    async def next_observation(
        self,
        target: Target,
        alert: str,
        after: float,
        deadline_seconds: float,
        *,
        evaluated: bool = True,
        scope: str = "process",
    ) -> Observation | None:
        """See `gpuagent_alerts.remedies.observation.Observer`."""
        found: list[Observation] = []

        def has_come() -> bool:
            firing = self._firing.get(alert) if evaluated else None
            seen = firing.seen_seconds(target.key.gpu_uuid) if firing is not None else 0.0
            if firing is not None and seen <= after:
                return False
            observation = self.observe(target, alert, scope)
            # What is seen of the process must not be newer than what the rule has seen: it may have complied since.
            if firing is not None and observation.condition is Condition.HOLDS and observation.clock_seconds > seen:
                return False
            readable = not observation.reason or observation.condition is not Condition.UNKNOWN
            if readable and observation.clock_seconds > after:
                found.append(observation)
            return bool(found)

        if evaluated and alert in self._firing:
            deadline_seconds = max(deadline_seconds, 2 * self._firing[alert].interval_seconds)
        try:
            async with asyncio.timeout(max(deadline_seconds, 0.0) / self._clock.speed), self._news:
                await self._news.wait_for(has_come)
        except TimeoutError:
            # Blind all the time: the one who asks is told why, rather than nothing.
            blind = self.observe(target, alert, scope)
            return blind if evaluated and blind.condition is Condition.UNKNOWN else None
        return found[-1]

    async def next_tick(self, deadline_seconds: float) -> bool:
        """Wait for the next snapshot or evaluation; return False where none came in time."""
        try:
            async with asyncio.timeout(max(deadline_seconds, 0.0) / self._clock.speed), self._news:
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _condition(self, alert: str) -> tuple[Condition, str]:
        if not alert:
            return Condition.HOLDS, ""
        if alert not in self._firing:
            return Condition.OVER, "the alert has ended"
        if not self._firing[alert].measured:
            return Condition.UNKNOWN, DATA_MISSING
        if not self._firing[alert].holds:
            return Condition.OVER, ONLY_KEPT
        if too_short := self._firing[alert].too_short:
            return Condition.UNKNOWN, too_short
        return Condition.HOLDS, ""

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


def _why_unread(gpu: GpuReading) -> str:
    if gpu.state is GpuState.OK:
        return gpu.act_refusal or "its list of processes cannot be read"
    return gpu.reason or str(gpu.state)


def _gpus(snapshot: Snapshot | None, target: Target) -> list[GpuReading]:
    """Return every GPU with the target's UUID: there should be one."""
    gpus = snapshot.gpus if snapshot is not None else ()
    return [gpu for gpu in gpus if gpu.identity.uuid == target.key.gpu_uuid]


def _another_gpu(gpus: list[GpuReading], target: Target) -> str:
    """Say why it is not certain that this is the GPU that the target was measured on; "" if it is."""
    if len(gpus) > 1:
        indices = " and ".join(str(gpu.identity.index) for gpu in gpus)
        return f"GPUs {indices} have the same UUID {target.key.gpu_uuid}: the process may be on either"
    if gpus and target.gpu_pci and gpus[0].identity.pci_bus_id != target.gpu_pci:
        now = gpus[0].identity.pci_bus_id or "unknown"
        return f"the GPU with UUID {target.key.gpu_uuid} was at PCI address {target.gpu_pci}, which is {now} now"
    return ""


def _act_refusal(snapshot: Snapshot, uuids: set[str]) -> str:
    """Return the first reason that a GPU has against acting on whoever holds its memory."""
    return next((gpu.act_refusal for gpu in snapshot.gpus if gpu.act_refusal and gpu.identity.uuid in uuids), "")


class _Stay(NamedTuple):
    since_seconds: float
    least_bytes: int


def _measured_instances(gpu: GpuReading) -> frozenset[int]:
    return frozenset(each.gpu_instance_id for each in gpu.mig if each.memory.used_bytes is not None)


class MemoryHoldTimes:
    """Since when each process has held its memory; updated with every snapshot. All times are CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self._stays: dict[tuple[ProcessId, MemoryKey], _Stay] = {}
        self._read_at: dict[str, float] = {}
        self._instances: dict[str, frozenset[int]] = {}

    def update_snapshot(self, snapshot: Snapshot, longest_gap_seconds: float) -> None:
        """Take in the lists of a tick. The time of everybody on a GPU whose list is missing, or late, begins anew.

        So it does where a MIG instance has come or gone since: what it holds was not measured in between.
        """
        read_at = {gpu.identity.uuid: gpu.read_seconds for gpu in snapshot.gpus if gpu.processes_read}
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
        """Return those that have not held their memory for so long, or are not known to, each with the reason in words.

        An unproven holder has no time to wait for: the reason says what proves it, and what a person can do.
        """
        if wanted_seconds <= 0:
            return {}
        found: dict[ProcessId, str] = {}
        for target in targets:
            if not target.holder_proven:
                found[target.id] = (
                    f"pid {target.pid} ({target.name}) has not been shown to hold this memory: {UNPROVEN_HOLDER};"
                    f" a person who knows the process can end it: gpuagent kill --force {target.pid}"
                )
                continue
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
