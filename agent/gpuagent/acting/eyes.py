"""What a remedy sees: the newest snapshot, and whether the alert behind it still fires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from gpuagent.acting.targets import all_targets, left_apart, members, relatives, successors
from gpuagent.core.clock import Clock
from gpuagent.core.snapshot import GpuReading, GpuState, Snapshot
from gpuagent_alerts.remedies.judged import DATA_MISSING, ONLY_KEPT, Judged
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.victim import Choice
from gpuagent_alerts.remedies.world import Condition, Sight

Choose = Callable[[Judged, Snapshot], Choice | None]
"""Return whom an alert would choose on a snapshot; None where the alert names its process."""


class SnapshotEyes:
    """Fed by the loop; asked by the runs of ladders."""

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
        self._snapshot: Snapshot | None = None
        self._firing: Mapping[str, Judged] = {}
        self._news = asyncio.Condition()

    async def see(self, snapshot: Snapshot) -> None:
        """Take in the snapshot of a new tick."""
        self._snapshot = snapshot
        await self._tell()

    async def judge(self, judged: Iterable[Judged]) -> None:
        """Take in all alerts that fire after an evaluation of the rules."""
        self._firing = {each.alert.fingerprint: each for each in judged}
        await self._tell()

    def look(self, target: Target, alert: str, scope: str = "process") -> Sight:
        """See `gpuagent_alerts.remedies.world.Eyes`."""
        snapshot = self._snapshot
        gpus = _gpus(snapshot, target)
        gpu = gpus[0] if len(gpus) == 1 else None
        if doubt := _another_gpu(gpus, target):
            return Sight(self._clock.now(), Condition.UNKNOWN, doubt)
        if snapshot is None or gpu is None or gpu.state is not GpuState.OK or not gpu.processes_known:
            if gpu is not None and gpu.state is GpuState.OK and gpu.act_refusal:  # the figures are withheld
                return Sight(self._clock.now(), Condition.UNKNOWN, gpu.act_refusal)
            state = gpu.reason or gpu.state if gpu is not None else "gone"
            return Sight(self._clock.now(), Condition.UNKNOWN, f"GPU {target.gpu_index} cannot be read ({state})")
        condition, reason = self._condition(alert)
        listed = [each for each in snapshot.processes if each.key == target.key]
        everybody = list(all_targets(snapshot))
        seen = next((each for each in everybody if each.key == target.key), None)
        on_it = [each for each in everybody if each.key.gpu_uuid == target.key.gpu_uuid]
        reconciled = gpu.reconciliation
        # Also who holds an amount that the driver does not tell: all fall, or none is touched.
        all_there, never = list(all_targets(snapshot, unknown_memory=True)), tuple(self._never())
        fall_too = members(target, all_there, scope, never)
        judged = self._firing.get(alert)
        return Sight(
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
            relatives=relatives(target, on_it),
            successors=successors(target, on_it),
            members=fall_too,
            apart=left_apart(target, all_there, scope, never),
            present=frozenset(each.id for each in on_it),
            choice=self._choose(judged, snapshot) if judged is not None else None,
            act_refusal=_act_refusal(snapshot, {target.key.gpu_uuid, *(each.key.gpu_uuid for each in fall_too)}),
        )

    async def next_sight(
        self,
        target: Target,
        alert: str,
        after: float,
        deadline_seconds: float,
        *,
        judged: bool = True,
        scope: str = "process",
    ) -> Sight | None:
        """See `gpuagent_alerts.remedies.world.Eyes`."""
        found: list[Sight] = []

        def has_come() -> bool:
            firing = self._firing.get(alert) if judged else None
            seen = firing.seen_seconds(target.key.gpu_uuid) if firing is not None else 0.0
            if firing is not None and seen <= after:
                return False
            sight = self.look(target, alert, scope)
            # What is seen of the process must not be newer than what the rule has seen: it may have complied since.
            if firing is not None and sight.condition is Condition.HOLDS and sight.clock_seconds > seen:
                return False
            readable = not sight.reason or sight.condition is not Condition.UNKNOWN
            if readable and sight.clock_seconds > after:
                found.append(sight)
            return bool(found)

        if judged and alert in self._firing:
            deadline_seconds = max(deadline_seconds, 2 * self._firing[alert].interval_seconds)
        try:
            async with asyncio.timeout(max(deadline_seconds, 0.0) / self._clock.speed), self._news:
                await self._news.wait_for(has_come)
        except TimeoutError:
            # Blind all the time: the one who asks is told why, rather than nothing.
            blind = self.look(target, alert, scope)
            return blind if judged and blind.condition is Condition.UNKNOWN else None
        return found[-1]

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
