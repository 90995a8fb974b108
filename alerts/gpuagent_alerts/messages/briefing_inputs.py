"""The facts that headline and briefing are made of: the GPUs, memory and processes that an incident is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from gpuagent.core.displaced import displaced_gpu
from gpuagent.core.growth import Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.hardware import Memory
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.process_labels import alert_labels
from gpuagent.core.snapshot import GpuIdentity, GpuReading, GpuState, NvmlState, ProcessInfo, ProcessReading, Snapshot
from gpuagent.core.units import format_duration
from gpuagent_alerts.alert import Alert, CauseKind, Incident
from gpuagent_alerts.leak.device import is_readable
from gpuagent_alerts.messages.snapshot_inputs import groups_of
from gpuagent_alerts.notify.urgency import FULL_ALERTS, is_at_lower_threshold, is_remedy_note

LEAK = "GpuProcessMemoryLeak"
FULL = FULL_ALERTS
SOON = "GpuMemoryExhaustionSoon"
HIGH = "GpuMemoryHigh"
BLIND = "GpuMonitorBlind"
DEAD = "GpuDeadProcessesHoldMemory"
_CAN_BLAME = frozenset({"census", "lines"})
_ABOUT_PROCESSES = frozenset({CauseKind.PROCESS, CauseKind.GROUP})
_OVER = frozenset({GrowthState.FULL, GrowthState.STOPPED})
"""States of growth that has no pace now."""


class Successors(NamedTuple):
    """What was started in place of what ended."""

    pids: tuple[int, ...]
    used_bytes: int
    """What all of them hold, on all GPUs."""
    gpus: tuple[int, ...]
    """Indices of the GPUs that they are on."""
    origin: Mapping[str, str] = MappingProxyType({})
    """Where the first of them comes from, by label: unit, container and pod of it."""
    bytes_per_hour: float = 0.0
    """Pace of all of them by the leak detector; 0 where it has none for one of them."""
    full_in: float | None = None
    """Seconds until the first of their GPUs, or MIG instances, is full; None where there is no forecast."""
    started_at: float | None = None
    """Unix time at which the first of them was started; None where that is not known."""


class Grower(NamedTuple):
    """A process that grows, or whose leak has stopped for want of room."""

    process: ProcessReading
    growth: Growth
    bytes_per_hour: float
    """0 where the pace is not known; of a leak that has stopped, the pace that it had."""


@dataclass(frozen=True, slots=True)
class BriefingInputs:
    """Facts known of an incident when a message about it is made."""

    incident: Incident
    alerts: tuple[Alert, ...]
    snapshot: Snapshot | None
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Bytes that each budget allows, by its label."""
    beside_before: frozenset[MemoryKey] = frozenset()
    """Who was named beside its own processes in its last headline, as those that grow there too."""

    @property
    def conditions(self) -> tuple[Alert, ...]:
        """Its alerts but those that report a remedy: a neighbor that was ended is none of those that grow."""
        return tuple(one for one in self.alerts if not is_remedy_note(one.labels))

    @property
    def now(self) -> float | None:
        """Unix time of the last snapshot; None before the first."""
        return None if self.snapshot is None else self.snapshot.time_seconds

    @property
    def gpus(self) -> list[GpuReading]:
        """The GPUs that it happened on, as they were read last, by index; those of others in its job too."""
        uuids = self._uuids | {each.process.gpu_uuid for each in self.members} | self._grew_on
        return self._gpus_of(uuids)

    @property
    def indices(self) -> list[str]:
        """Indices of its GPUs in order, as they are now; of a GPU that is not there, as the labels have it."""
        listed = () if self.snapshot is None else self.snapshot.gpus
        now = {one.identity.uuid: str(one.identity.index) for one in listed if one.identity.uuid}
        found = {now.get(labels.get("uuid", ""), labels.get("gpu", "")) for labels in self._labels}
        found |= {str(each.process.gpu_index) for each in self.members}
        found |= {now[uuid] for uuid in self._grew_on if uuid in now}
        return _in_order(found)

    @property
    def displaced(self) -> list[GpuIdentity]:
        """The GPUs of it whose index another GPU has now."""
        found = (displaced_gpu(labels, self.snapshot) for labels in self._labels)
        return list({gpu.uuid: gpu for gpu in found if gpu is not None}.values())

    @property
    def instance(self) -> int | None:
        """The MIG instance that all of it is about; None without one."""
        found = {text for labels in self._labels if (text := labels.get("gpu_instance_id", ""))}
        text = found.pop() if len(found) == 1 else ""
        return int(text) if text.isdecimal() and len(self._gpus_of(self._uuids)) == 1 else None

    @property
    def memories(self) -> list[Memory]:
        """Memory of its GPUs, or of its MIG instance, as far as it could be read."""
        instance = self.instance
        if instance is None:
            return [gpu.memory for gpu in self.gpus if gpu.memory is not None]
        return [one.memory for gpu in self.gpus for one in gpu.mig if one.gpu_instance_id == instance][:1]

    @property
    def pids(self) -> set[int]:
        """Processes that its alerts name, and those of the same program that grow."""
        texts = {labels.get("pid", "") for labels in self._labels}
        named = {int(text) for text in texts if text.isdecimal()}
        return named | {each.process.pid for each in self.members} if named or self._is_about_processes else named

    @property
    def processes(self) -> list[ProcessReading]:
        """Those processes, as the driver lists them on its GPUs."""
        pids = self.pids
        return [process for process in self.listed if process.pid in pids]

    @property
    def listed(self) -> list[ProcessReading]:
        """All processes on its GPUs, or in its MIG instance."""
        uuids, instance = {gpu.identity.uuid for gpu in self.gpus}, self.instance
        processes = () if self.snapshot is None else self.snapshot.processes
        return [
            process
            for process in processes
            if process.gpu_uuid in uuids and (instance is None or process.gpu_instance_id == instance)
        ]

    @property
    def is_paused(self) -> bool:
        """Whether a person paused the agent: it measures nothing until that ends."""
        return self.snapshot is not None and self.snapshot.node.nvml_state is NvmlState.PAUSED

    @property
    def not_measured(self) -> str:
        """How long ago all that is said of it was measured last, and why it is not any more; "" while it is.

        A GPU that is lost, and what is wrong with measuring itself, are known all the same.
        """
        snapshot, present = self.snapshot, [one for one in self.alerts if one.holds]
        if snapshot is None or self.incident.is_over or any(one.name in _KNOWN_UNREAD for one in present):
            return ""
        states = {gpu.state for gpu in self.gpus}
        seconds = min((one.unmeasured_seconds for one in present), default=0.0)
        if states and states <= _UNREAD and not (seconds and all(gpu.measured_seconds is None for gpu in self.gpus)):
            # The age that the GPU's figures have everywhere: it is waited for before anything is missing.
            seconds = max(seconds, snapshot.clock_seconds - max(gpu.read_seconds for gpu in self.gpus))
        elif not seconds:
            return ""
        why = why_not_measured(snapshot)
        if not why and states and states <= _UNREAD:
            why = "the GPU is lost" if states <= {GpuState.LOST, GpuState.GONE} else "the GPU cannot be read"
        elif not why and self._uuids and not self.gpus:
            lost = {gpu.identity.index for gpu in snapshot.gpus if not gpu.identity.uuid and gpu.state in _UNREAD}
            is_lost = any(labels.get("gpu", "") in map(str, lost) for labels in self._labels)
            why = "the GPU is lost" if is_lost else "the driver does not list the GPU"
        elif not why and self.gpus and all(is_readable(gpu) for gpu in self.gpus):
            if self._is_told_anew:
                return ""
            why = "gpuagent was started again and is measuring its growth anew"
        return f"last known {format_duration(seconds)} ago: {why or 'its processes cannot be read'}"

    @property
    def _is_told_anew(self) -> bool:
        """Whether the detector tells a pace of its processes, or a forecast of its GPUs, at this tick."""
        return any(each.bytes_per_hour for each in self.members) or any(
            self.snapshot is not None
            and (whole := self.snapshot.growth.get(place)) is not None
            and whole.forecast_seconds is not None
            for place in self.places
        )

    @property
    def unattributed_bytes(self) -> int:
        """Memory of no process that the driver lists, on all its GPUs; 0 for a MIG instance, and where unknown."""
        if self.instance is not None:
            return 0
        return sum(0 if gpu.reconciliation is None else gpu.reconciliation.unattributed_bytes for gpu in self.gpus)

    @property
    def xids(self) -> list[int]:
        """Codes of the Xids that its alerts name."""
        return sorted({int(text) for one in self.alerts if (text := one.labels.get("xid", "")).isdecimal()})

    @property
    def pace(self) -> float:
        """Bytes an hour by which its processes grow together; 0 where nothing that is true says so."""
        paces = {each.process.key: each.bytes_per_hour for each in self.members if each.growth.state not in _OVER}
        stopped = {each.process.key for each in self.members} - set(paces)
        for alert in self.alerts:  # what the detector does not tell any more
            if alert.name == LEAK and alert.holds:
                key = _key(alert.labels)
                if key not in stopped and not paces.get(key):
                    paces[key] = alert.value  # one alert for each standard, with one pace
        return sum(value for value in paces.values() if value > 0)

    @property
    def members(self) -> list[Grower]:
        """Its processes that grow, and others of the same program that do, wherever they are; the fastest first.

        Where no leak is told of, and none of the processes in its labels grows, the program of the one that grows most.
        """
        if self.snapshot is None or self.incident.is_over or not self._is_about_memory:
            return []
        growers, uuids = _growers(self.snapshot), self._uuids
        texts = {labels.get("pid", "") for labels in self._labels} - {""}
        here = [each for each in growers if each.process.gpu_uuid in uuids and self._is_inside(each.process)]
        seeds = [each for each in here if str(each.process.pid) in texts]
        if not seeds and all(one.name != LEAK for one in self.alerts):
            seeds = here[:1]
        shared = {group for each in seeds for group in _groups(each.process)}
        pids = {each.process.pid for each in seeds}
        return [each for each in growers if each.process.pid in pids or shared & _groups(each.process)]

    @property
    def successors(self) -> Successors | None:
        """The processes that were started in place of those that the incident names; None if there is none.

        Those that are known to be, or else the largest one of the same program that has been started since.
        """
        listed = [one for one in (() if self.snapshot is None else self.snapshot.processes) if one.info is not None]
        found = [one for one in listed if one.pid in self.incident.restarted_pids]
        if not found:
            labels = next((one.labels for one in self.alerts if one.labels.get("pid")), self.incident.labels)
            named = {one.labels.get("pid", "") for one in self.alerts}
            alike = [
                one for one in listed
                if one.info is not None and one.info.start_time_seconds >= self.incident.starts_at
                and str(one.pid) not in named and one.info.user == labels.get("user", "")
                and _is_same_program(one.info, labels)
            ]  # fmt: skip
            found = sorted(alike, key=lambda one: -(one.used_bytes or 0))[:1]
        if not found:
            return None
        pids = tuple(dict.fromkeys(one.pid for one in found))
        gpus = tuple(sorted({one.gpu_index for one in found}))
        first = found[0].info
        origin = {} if first is None else alert_labels(first)
        used = sum(one.used_bytes or 0 for one in found)
        started = min((one.info.start_time_seconds for one in found if one.info is not None), default=0.0) or None
        return Successors(pids, used, gpus, origin, self._pace_of(found), self._forecast_of(found), started)

    def _forecast_of(self, processes: Sequence[ProcessReading]) -> float | None:
        growth = {} if self.snapshot is None else self.snapshot.growth
        found = [growth.get(MemoryKey(one.gpu_uuid, 0, one.gpu_instance_id)) for one in processes]
        return min((one.forecast_seconds for one in found if one and one.forecast_seconds is not None), default=None)

    def _pace_of(self, processes: Sequence[ProcessReading]) -> float:
        """Return by how many bytes an hour they grow by the leak detector; 0 where one of them has no pace."""
        said = [None if self.snapshot is None else self.snapshot.growth.get(one.key) for one in processes]
        paces = [0.0 if one is None or one.slope is None else one.slope.value * 3600 for one in said]
        return sum(paces) if min(paces, default=0.0) > 0 else 0.0

    @property
    def others(self) -> list[Grower]:
        """Processes of other programs that grow on the same GPUs, or in the same MIG instance; the fastest first."""
        return [each for each in self._other_growers if each.growth.state not in _OVER]

    @property
    def left_behind(self) -> list[Grower]:
        """Those that were named beside an incident's own processes, and grow on although it is over."""
        if self.snapshot is None or not self.incident.is_over:
            return []
        return [
            each for each in _growers(self.snapshot)
            if each.process.key in self.beside_before and each.growth.state not in _OVER
        ]  # fmt: skip

    @property
    def is_outpaced(self) -> bool:
        """Whether another process there grows faster than its own together, or did until there was no room."""
        own = max(self.pace, sum(each.bytes_per_hour for each in self.members))
        others = [each for each in self._other_growers if each.growth.state is not GrowthState.STOPPED]
        return any(each.bytes_per_hour > own for each in others)

    @property
    def _other_growers(self) -> list[Grower]:
        if self.snapshot is None or self.incident.is_over:
            return []
        own, uuids = {each.process.key for each in self.members}, {gpu.identity.uuid for gpu in self.gpus}
        return [
            each for each in _growers(self.snapshot)
            if each.process.key not in own and each.process.gpu_uuid in uuids and self._is_inside(each.process)
        ]  # fmt: skip

    @property
    def is_full(self) -> bool:
        """Whether one of its GPUs, or its MIG instance, has no room."""
        return bool(self.full_instances or (self.instance is None and self.full_indices))

    @property
    def _full_alerts(self) -> list[Alert]:
        """Its alerts that say of some memory that it is full now."""
        return [one for one in self.alerts if one.name in FULL and one.holds and not is_at_lower_threshold(one)]

    def _is_forecast(self, *places: MemoryKey) -> bool:
        """Return whether one of these is said to be full later, as on every screen: a reading alone is no state yet."""
        growth = {} if self.snapshot is None else self.snapshot.growth
        found = [whole.forecast_seconds for place in places if (whole := growth.get(place)) is not None]
        return any(seconds is not None and seconds >= 1 for seconds in found)

    @property
    def full_instances(self) -> list[str]:
        """Numbers of the MIG instances of it that have no room, whatever their GPUs have."""
        told = {one.labels.get("gpu_instance_id", "") for one in self._full_alerts}
        full = (
            self.instance is not None
            and any(one.is_full for one in self.memories)
            and not self._is_forecast(*self.places)
        )
        return _in_order(told - {"-1"} | ({str(self.instance)} if full else set()))

    @property
    def full_indices(self) -> list[str]:
        """Indices of those of its GPUs that have no room; one that is full in a MIG instance alone is none of them."""
        if self.instance is not None:
            return []
        told = {one.labels.get("uuid", ""): one.labels.get("gpu", "") for one in self._full_alerts
                if one.labels.get("gpu_instance_id", "") in {"", "-1"}}  # fmt: skip
        full = {
            str(gpu.identity.index) for gpu in self.gpus
            if gpu.identity.uuid in told
            or (gpu.memory and gpu.state is GpuState.OK and gpu.memory.is_full
                and not self._is_forecast(MemoryKey(gpu.identity.uuid)))
        }  # fmt: skip
        known = {gpu.identity.uuid for gpu in self.gpus}
        return _in_order(full | {index for uuid, index in told.items() if uuid not in known})

    @property
    def seconds_to_full(self) -> float | None:
        """Seconds until the first of its GPUs, or its MIG instance, is full; None where no forecast is true now."""
        found = [] if self.snapshot is None else [self.snapshot.growth.get(place) for place in self.places]
        seconds = [whole.forecast_seconds for whole in found if whole is not None]
        growth = {} if self.snapshot is None else self.snapshot.growth
        for alert in self.alerts:
            if alert.name == SOON and alert.holds and alert.value >= 0:  # what was told last, where nothing is told now
                whole = growth.get(_key(alert.labels))
                seconds.append(alert.value if whole is None else whole.forecast_seconds)
        return min((each for each in seconds if each is not None), default=None)

    def range_to_full(self, seconds: float, places: Sequence[MemoryKey] = ()) -> Range | None:
        """Return the range of so many seconds until one of these, or of its places, is full; None if none is told."""
        growth = {} if self.snapshot is None else self.snapshot.growth
        found = [whole.exhaustion for place in places or self.places if (whole := growth.get(place)) is not None]
        return next((each for each in found if each is not None and each.value == seconds), None)

    @property
    def places(self) -> list[MemoryKey]:
        """Its GPUs, or the MIG instance that all of it is about, as the detector knows them."""
        instance = self.instance
        return [MemoryKey(gpu.identity.uuid, 0, NO_INSTANCE if instance is None else instance) for gpu in self.gpus]

    @property
    def group_growth(self) -> Growth | None:
        """What is said of the first of its GPUs that fills up by ever more processes of one owner; None without one."""
        found = [] if self.snapshot is None else [self.snapshot.growth.get(place) for place in self.places]
        return next((whole for whole in found if whole is not None and whole.group), None)

    def can_blame(self, pid: int) -> bool:
        """Return whether the app of this process can be asked which line of Python holds its memory."""
        client = None if self.snapshot is None else self.snapshot.clients.get(pid)
        return client is not None and bool(_CAN_BLAME & set(client.capabilities))

    @property
    def _labels(self) -> Iterable[Mapping[str, str]]:
        return (self.incident.labels, *(one.labels for one in self.conditions))

    @property
    def _grew_on(self) -> set[str]:
        """UUIDs of the GPUs on which its processes grew, at its end: until then those count on which they do."""
        return set(self.incident.grew_on) if self.incident.is_over else set()

    @property
    def _uuids(self) -> set[str]:
        return {uuid for labels in self._labels if (uuid := labels.get("uuid", ""))}

    @property
    def _is_about_processes(self) -> bool:
        return self.incident.kind in _ABOUT_PROCESSES

    @property
    def _is_about_memory(self) -> bool:
        names = {one.name for one in self.alerts}
        return bool(names & {LEAK, SOON}) or (self._is_about_processes and bool(names & {*FULL, HIGH}))

    def _gpus_of(self, uuids: set[str]) -> list[GpuReading]:
        listed = () if self.snapshot is None else self.snapshot.gpus
        found = (gpu for gpu in listed if gpu.identity.uuid in uuids)
        return sorted(found, key=lambda gpu: gpu.identity.index)

    def _is_inside(self, process: ProcessReading) -> bool:
        instance = self.instance
        return instance is None or process.gpu_instance_id == instance


def _is_same_program(info: ProcessInfo, labels: Mapping[str, str]) -> bool:
    """Return whether a process is of the unit, pod, container or job of these labels, and has the same name."""
    owners = (
        (info.slurm_job, "slurm_job"), (info.pod, "pod_name"), (info.container_id, "container_id"), (info.unit, "unit"),
    )  # fmt: skip
    own = next(((text, name) for text, name in owners if labels.get(name)), ("", ""))
    return bool(own[0]) and own[0] == labels.get(own[1]) and info.name == labels.get("process", "")


_UNREAD = frozenset({GpuState.BLIND, GpuState.FAILED, GpuState.STARTING, GpuState.LOST, GpuState.GONE})
_KNOWN_UNREAD = frozenset({BLIND, "GpuLost", "GpuCountDropped", "GpuXidCritical", "GpuXidWarning"})
"""Alerts that tell what is known of a GPU that cannot be read."""


def why_not_measured(snapshot: Snapshot | None) -> str:
    """Return why no GPU of the node is measured now, and who paused that; "" while some are."""
    if snapshot is None or snapshot.node.nvml_state is NvmlState.READY:
        return ""
    reason = snapshot.node.why_unread
    if snapshot.node.nvml_state is NvmlState.PAUSED:
        return reason
    return f"no GPU can be read: {reason}" if reason else "no GPU can be read"


def _in_order(indices: set[str]) -> list[str]:
    return sorted(indices - {""}, key=lambda text: (not text.isdecimal(), len(text), text))


def _growers(snapshot: Snapshot) -> list[Grower]:
    found = []
    for process in snapshot.processes:
        growth = snapshot.growth.get(process.key)
        if growth is None or growth.held_before or growth.verdict not in {Verdict.GROWING, Verdict.LEAKING}:
            continue
        pace = 0.0 if growth.slope is None else max(growth.slope.value, 0.0) * 3600
        if pace or growth.verdict is Verdict.LEAKING:
            found.append(Grower(process, growth, pace))
    return sorted(found, key=lambda one: -one.bytes_per_hour)


def _groups(process: ProcessReading) -> set[str]:
    return set() if process.info is None else set(groups_of(process.info))


def _key(labels: Mapping[str, str]) -> MemoryKey:
    pid, instance = labels.get("pid", ""), labels.get("gpu_instance_id", "")
    number = int(instance) if instance.isdecimal() else NO_INSTANCE
    return MemoryKey(labels.get("uuid", ""), int(pid) if pid.isdecimal() else 0, number)
