"""What rules and incidents are given of a snapshot: series, reasons for alerts, and facts about causes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from gpuagent.core.displaced import displaced_gpu, rename_in
from gpuagent.core.growth import Growth, GrowthState, MemoryKey, Verdict
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.metrics.alerting import AlertingFigures, FiringAlert
from gpuagent.core.metrics.family import SampleCache
from gpuagent.core.metrics.series import ExtraFamilies, series
from gpuagent.core.process_labels import alert_labels
from gpuagent.core.snapshot import GpuState, NvmlState, ProcessInfo, ProcessReading, ProcessState, Snapshot
from gpuagent_alerts.alert import SUMMARY, Alert, Status, fingerprint, shown_annotations
from gpuagent_alerts.leak.lives import service_of
from gpuagent_alerts.messages.end_facts import memory_of
from gpuagent_alerts.notify.cause import CauseProcess, shares_command, shares_owner
from gpuagent_alerts.notify.silenced import Silencing
from gpuagent_alerts.notify.succession import PLACE_LABELS, OwnerFacts, Successor
from gpuagent_alerts.notify.urgency import did_nothing, is_remedy_that_helped
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.remedies.candidates import counts_towards
from gpuagent_alerts.remedies.safeguards.rule_sampling import GROWTH
from gpuagent_alerts.remedies.settings import MemoryBudget
from gpuagent_alerts.states.engine import RuleEngine
from gpuagent_alerts.states.instance import Instance, State

_MOST_KEPT = 8

Names = frozenset[str] | None


class RuleSeries:
    """Groups of rules come at intervals of their own, and each reads other metrics: one memory for each such choice."""

    def __init__(self, simulated: str) -> None:
        self._simulated = simulated
        self._kept: dict[Names, tuple[SampleCache, SeriesIndex | None]] = {}

    def index(
        self, snapshot: Snapshot, now_seconds: float, names: Names,
        *, alerting: AlertingFigures | None, preallocates: tuple[str, ...], further: Sequence[ExtraFamilies],
    ) -> SeriesIndex:  # fmt: skip
        """Return the series of these names (None: all) at a tick."""
        if names not in self._kept and len(self._kept) >= _MOST_KEPT:  # other rules were loaded, again and again
            self._kept.clear()
        memo, before = self._kept.get(names) or (SampleCache(), None)
        made = series(
            snapshot, now_seconds, simulated=self._simulated, alerting=alerting, preallocates=preallocates,
            extra_families=further, only=names, memo=memo,
        )  # fmt: skip
        index = SeriesIndex.of(made, before)
        self._kept[names] = memo, index
        return index


REMEDY_ANNOTATION = "remedy"
_LEAK = "GpuProcessMemoryLeak"
_MINUTES_SECONDS = 1800.0
"""Forecast below which memory is full in minutes, as for the critical tier of `GpuMemoryExhaustionSoon`."""
_SEVERITIES = frozenset({"critical", "warning", "info"})
_MOST_DIGITS = 10


def with_remedy(alert: Alert, done: str) -> Alert:
    """Return the alert, and what a remedy did about it, if one did."""
    return replace(alert, annotations={**alert.annotations, REMEDY_ANNOTATION: done}) if done else alert


def with_place(alert: Alert, snapshot: Snapshot | None) -> Alert:
    """Return the alert with texts in which the index of its GPU does not mean another one that has it now."""
    gpu = displaced_gpu(alert.labels, snapshot)
    return alert if gpu is None else replace(alert, annotations=rename_in(alert.annotations, gpu))


def explainer(snapshot: Snapshot) -> Callable[[Mapping[str, str]], str]:
    """Return the reasons for the process that an alert's labels name, else for the GPU, as a function of the labels."""
    return partial(_explain, snapshot.growth)


def subjects_of(
    engine: RuleEngine,
    silencing: Callable[[Alert], Silencing] = lambda _: Silencing(),
    snapshot: Snapshot | None = None,
    severity_of: Callable[[Alert], str] = lambda alert: alert.labels.get("severity", ""),
) -> Iterator[FiringAlert]:
    """Return what each alert that fires, and whose condition is true now, is about.

    `snapshot` is the one that its rule was evaluated over. `severity_of` says how grave an alert is in its incident.
    """
    for running in engine.rules():
        about_growth = bool(running.rule.expression.metric_names & GROWTH)
        for instance in running.states.instances if running.states is not None else ():
            if instance.state is State.FIRING and not instance.is_kept:
                subject = subject_of(instance.labels, about_growth=about_growth)
                alert = instance.as_alert(Status.FIRING)
                # What was refused or only tried is no trouble of the node, nor is what has helped.
                if did_nothing(instance.labels) or is_remedy_that_helped(instance.labels):
                    continue
                severity = severity_of(alert)
                quiet = silencing(alert)
                yield subject._replace(
                    severity=severity if severity in _SEVERITIES else None,
                    summary=shown_annotations(alert).get(SUMMARY, ""),
                    silenced=quiet.is_silenced,
                    incident_silenced=quiet.by_incident,
                    incident_pids=quiet.pids,
                    unmeasured_seconds=unmeasured_seconds(instance, snapshot),
                    began_at=instance.began_at,
                    used_bytes=_used_by(instance.labels, snapshot),
                )


def silenced_processes(
    snapshot: Snapshot, is_silenced: Callable[[Mapping[str, str], str], bool]
) -> frozenset[tuple[int, int]]:
    """Return the index of the GPU and the pid of each process that grows, and whose leak is silenced.

    `is_silenced` is asked with the labels that the alert on its leak would have, and with its identity in incidents.
    """
    found = set()
    for each in snapshot.processes:
        growth = snapshot.growth.get(each.key)
        if each.info is not None and growth is not None and growth.verdict in (Verdict.GROWING, Verdict.LEAKING):
            program = _program(each, each.info)
            if is_silenced({"alertname": _LEAK, **(program.labels or {})}, f"process:{program.identity}"):
                found.add((each.gpu_index, each.pid))
    return frozenset(found)


def unmeasured_seconds(instance: Instance, snapshot: Snapshot | None) -> float:
    """Return how long ago what an alert is about was last measured, 0 while it is.

    A GPU that does not answer is waited for, with its last figures: what it tells is as old as these.
    """
    uuid = instance.labels.get("uuid", "")
    gpu = None if snapshot is None else next((one for one in snapshot.gpus if one.identity.uuid == uuid), None)
    if snapshot is None or gpu is None or not instance.frozen_seconds or gpu.measured_seconds is None:
        return instance.frozen_seconds
    return max(instance.frozen_seconds, snapshot.clock_seconds - gpu.read_seconds)


def _used_by(labels: Mapping[str, str], snapshot: Snapshot | None) -> int | None:
    memory = None if snapshot is None else memory_of(labels, snapshot)
    return None if memory is None else memory.used_bytes


def subject_of(labels: Mapping[str, str], *, about_growth: bool) -> FiringAlert:
    """Return what an alert with these labels is about. A rule may set any label to any text: that names nobody."""
    severity = labels.get("severity")
    pid, instance, gpu = labels.get("pid", ""), labels.get("gpu_instance_id", ""), labels.get("gpu", "")
    xid = labels.get("xid", "")
    return FiringAlert(
        labels.get("alertname", ""),
        severity if severity in _SEVERITIES else None,
        about_growth,
        labels.get("uuid", ""),
        int(pid) if _is_number(pid) else 0,
        int(instance) if _is_number(instance) else NO_INSTANCE,
        int(gpu) if _is_number(gpu) else None,
        xid=int(xid) if _is_number(xid) else None,
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def _explain(growth: Mapping[MemoryKey, Growth], labels: Mapping[str, str]) -> str:
    pid, instance = labels.get("pid", "0"), labels.get("gpu_instance_id", str(NO_INSTANCE))
    try:
        key = MemoryKey(labels.get("uuid", ""), int(pid), int(instance))
    except ValueError:  # a rule may set any label to any text
        return ""
    said = growth.get(key)
    return "; ".join(said.reasons) if said is not None else ""


_SAFE = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX = re.compile(rf"(.+?)(?:-[{_SAFE}]{{8,10}})?-[{_SAFE}]{{5}}")
"""Suffix that Kubernetes appends to names of pods that it makes (`SafeEncodeString` in apimachinery, `util/rand`)."""
_SERVICE = ".service"
_SESSIONS = "user@"
_TRANSIENT = re.compile(r"run-(?:u\d+|r[0-9a-f]+|p\d+-i\d+)\.service")
"""Names that `systemd-run` makes up."""
_MADE_UP = re.compile(r"[a-z]+_[a-z]+\d?")
"""Names that Docker and Podman make up (`moby/moby`, `pkg/namesgenerator`)."""
_INIT = 1
_MOST = 0.5
"""Share of what is used on a GPU that makes its memory somebody's, or nobody's."""
_UNREADABLE = frozenset({GpuState.BLIND, GpuState.FAILED})
_GONE = frozenset({GpuState.LOST, GpuState.GONE})
_UNLISTED = frozenset({GpuState.BLIND, GpuState.FAILED, GpuState.STARTING})


class SnapshotFacts:
    """Looks into one snapshot, and only for what alerts name."""

    def __init__(
        self, snapshot: Snapshot, under_way: Collection[tuple[str, str]] = (), freed: Mapping[str, float] | None = None,
        budgets: Sequence[MemoryBudget] = (),
    ) -> None:  # fmt: skip
        """`under_way` are UUID and pid of the processes on which a remedy acts.

        `freed` has the Unix time at which a remedy that helped ended, by the pid of its process.
        """
        self._snapshot = snapshot
        self._budgets = budgets
        self._freed = {} if freed is None else freed
        self._acted_on = {name for uuid, pid in under_way for name in (f"pid:{pid}", f"memory:{uuid}")}

    def program(self, uuid: str, pid: int) -> CauseProcess | None:
        """Return a live process of the driver's list; None if it is not there."""
        found = self._processes.get((uuid, pid))
        return None if found is None or found.info is None else _program(found, found.info)

    def grower(self, uuid: str, *, leaking: bool, instance: str = "") -> CauseProcess | None:
        """Return the process that grows most on a GPU or in a MIG instance, before all that have stopped.

        With `leaking` one that leaks, or fills it within minutes.
        """
        growing = [
            (growth.slope.value if growth.slope is not None else 0.0, pid)
            for pid, growth in self._growing(uuid, instance, leaking=leaking)
        ]
        return self.program(uuid, max(growing)[1]) if growing else None

    def growers(self, uuid: str, instance: str = "") -> Sequence[CauseProcess]:
        """Return every process that grows on a GPU or in a MIG instance; those that have stopped only if all have."""
        found = (self.program(uuid, pid) for pid, _ in self._growing(uuid, instance, leaking=False))
        return [one for one in found if one is not None]

    def spender(self, uuid: str, budget: str) -> CauseProcess | None:
        """Return who makes a budget exceeded on a GPU: of its processes the one that grows most, else the only one."""
        known = [one for one in self._budgets if one.label == budget]
        pids = {each.pid for each in self._snapshot.processes if each.gpu_uuid == uuid
                for one in known if counts_towards(one, each, self._snapshot)}  # fmt: skip
        growing = [(_pace(said), pid) for pid, said in self._growing(uuid, "", leaking=False) if pid in pids]
        pid = max(growing)[1] if growing else next(iter(pids)) if len(pids) == 1 else 0
        return self.program(uuid, pid) if pid else None

    def _growing(self, uuid: str, instance: str, *, leaking: bool) -> list[tuple[int, Growth]]:
        """Return pid and growth of each: what has stopped fills nothing while another one grows."""
        found = [
            (key.pid, growth)
            for key, growth in self._snapshot.growth.items()
            if key.gpu_uuid == uuid and key.pid and instance in {"", str(key.gpu_instance_id)}
            and _counts(growth, leaking=leaking)
        ]  # fmt: skip
        return [each for each in found if each[1].state is not GrowthState.STOPPED] or found

    def has_filled(self, identities: Collection[str], pace: float = 0.0) -> bool:
        """Return whether a leak of these identities has left no room, or so many bytes a second do in minutes.

        Where it is not known how much room there is, as in a MIG instance, any pace does.
        """
        if pace > 0:
            names = [name.removeprefix("memory:") for name in identities if name.startswith("memory:")]
            free = {gpu.identity.uuid: gpu.memory.free_bytes for gpu in self._snapshot.gpus if gpu.memory is not None}
            room = [free.get(name) for name in names]
            if not room or any(each is None or each < pace * _MINUTES_SECONDS for each in room):
                return True
        full = (self.program(key.gpu_uuid, key.pid) for key, growth in self._snapshot.growth.items()
                if key.pid and growth.verdict is Verdict.LEAKING and growth.forecast_seconds == 0)  # fmt: skip
        return any(one is not None and f"process:{one.identity}" in identities for one in full)

    def owner_of(self, identities: Collection[str]) -> OwnerFacts:
        """Return what runs of the owner of these identities."""
        runs, pace = False, 0.0
        grow_on: set[str] = set()
        growing: set[str] = set()
        found: dict[str, Successor] = {}
        for each in self._snapshot.processes:
            if each.info is None:
                continue
            program = _program(each, each.info)
            if f"process:{program.identity}" in identities:
                runs = True
                said = self._snapshot.growth.get(each.key)
                pace += _pace(said)
                if said is not None and _counts(said, leaking=False):
                    grow_on.add(each.gpu_uuid)
                    growing.add(program.identity)
                continue
            is_owned = shares_owner(program, identities)
            if is_owned or shares_command(program, identities):
                growth, known = self._snapshot.growth.get(each.key), found.get(program.identity)
                grows = growth is not None and _counts(growth, leaking=False)
                if grows and is_owned:
                    grow_on.add(each.gpu_uuid)
                    growing.add(program.identity)
                is_judged = growth is not None and growth.verdict is not Verdict.LEARNING
                labels = dict(program.labels or {})
                if known is not None and known.labels.get("uuid") != each.gpu_uuid:
                    labels |= dict.fromkeys(PLACE_LABELS, "")
                found[program.identity] = Successor(
                    program.identity, each.info.start_time_seconds,
                    grows=grows or (known is not None and known.grows),
                    is_judged=is_judged and (known is None or known.is_judged), is_owned=is_owned,
                    used_bytes=(each.used_bytes or 0) + (0 if known is None else known.used_bytes),
                    labels=labels,
                )  # fmt: skip
        others = tuple(sorted(found.values(), key=lambda one: (one.started_at, one.identity)))
        is_readable = self._are_listed(identities)
        return OwnerFacts(runs, others, pace, is_readable, grow_on=tuple(sorted(grow_on)), growing=len(growing))

    def _are_listed(self, identities: Collection[str]) -> bool:
        """Return whether the processes of all GPUs of whose memory these identities tell can be listed."""
        snapshot = self._snapshot
        own = [gpu for gpu in snapshot.gpus if f"memory:{gpu.identity.uuid}" in identities]
        if snapshot.node.nvml_state is not NvmlState.READY:
            return False
        return all(gpu.state not in _UNLISTED and (gpu.processes_known or gpu.state is not GpuState.OK) for gpu in own)

    def is_acted_on(self, identities: Collection[str]) -> bool:
        """Return whether a remedy is under way, or has just ended, for a process or the memory of these identities."""
        return not self._acted_on.isdisjoint(identities)

    def freed_at(self, identities: Collection[str]) -> float | None:
        """Return the Unix time at which a remedy gave the memory of one of these processes back; None if none."""
        return max((time for pid, time in self._freed.items() if f"pid:{pid}" in identities), default=None)

    def is_nobodys(self, uuid: str, instance: str = "") -> bool:
        """Return whether it is memory of no process that grows on a GPU or in a MIG instance.

        Of a GPU also whether most of what is used there is such.
        """
        if self.growers(uuid, instance):
            return False
        number = int(instance) if instance.isdecimal() else NO_INSTANCE
        whole = self._snapshot.growth.get(MemoryKey(uuid, 0, number))
        if whole is not None and _counts(whole, leaking=False):
            return not whole.group
        if number != NO_INSTANCE:
            return False
        gpu = next((one for one in self._snapshot.gpus if one.identity.uuid == uuid), None)
        if gpu is None or gpu.reconciliation is None or gpu.memory is None or not gpu.memory.used_bytes:
            return False
        return gpu.reconciliation.unattributed_bytes >= _MOST * gpu.memory.used_bytes

    def dead_processes(self, uuid: str) -> Sequence[CauseProcess]:
        """Return the processes that have ended and hold memory of a GPU, with the groups that they were of."""
        return [CauseProcess("", each.pid) if each.former is None else _program(each, each.former)
                for each in self._snapshot.processes
                if each.gpu_uuid == uuid and each.state is ProcessState.DEAD]  # fmt: skip

    def lost_gpus(self) -> Sequence[Mapping[str, str]]:
        """Return the labels `gpu` and `uuid` of the GPUs that are lost or gone."""
        lost = (gpu.identity for gpu in self._snapshot.gpus if gpu.state in _GONE)
        return [{"gpu": str(identity.index), "uuid": identity.uuid} for identity in lost]

    def are_all_lost(self) -> bool:
        """Return whether the node has GPUs, and every one of them is lost or gone."""
        gpus = self._snapshot.gpus
        return bool(gpus) and all(gpu.state in _GONE for gpu in gpus)

    def is_blind(self) -> bool:
        """Return whether no GPU of the node can be read."""
        gpus = self._snapshot.gpus
        is_away = self._snapshot.node.nvml_state is not NvmlState.READY
        return is_away or (bool(gpus) and all(gpu.state in _UNREADABLE for gpu in gpus))

    @cached_property
    def _processes(self) -> dict[tuple[str, int], ProcessReading]:
        found: defaultdict[tuple[str, int], list[ProcessReading]] = defaultdict(list)
        for each in self._snapshot.processes:
            found[each.gpu_uuid, each.pid].append(each)
        return {key: next((one for one in those if one.info is not None), those[0]) for key, those in found.items()}


def _pace(growth: Growth | None) -> float:
    return 0.0 if growth is None or growth.slope is None else max(growth.slope.value, 0.0)


def _counts(growth: Growth, *, leaking: bool) -> bool:
    grows = growth.verdict is Verdict.GROWING and not growth.held_before
    return growth.verdict is Verdict.LEAKING or growth.fast or (not leaking and grows)


def _program(reading: ProcessReading, info: ProcessInfo) -> CauseProcess:
    labels = {
        "gpu": str(reading.gpu_index), "uuid": reading.gpu_uuid, "pid": str(reading.pid), "process": info.name,
        "user": info.user, **alert_labels(info),
    }  # fmt: skip
    identity = f"{info.id.boot_id}:{info.id.pid}:{info.id.start_ticks}"
    known = {name: value for name, value in labels.items() if value}
    service = service_of(info)
    return CauseProcess(
        identity, reading.pid, tuple(groups_of(info)), known, _command_of(info), _container_of(info),
        f"{info.uid} {info.slurm_job} {service.replicas}" if service is not None and service.replicas else "",
    )  # fmt: skip


def groups_of(info: ProcessInfo) -> Iterator[str]:
    """Yield what the process shares with others of its program.

    Each has the user: nobody joins another's incident. Processes of different jobs, containers or units are never of
    one program, whatever started them.
    """
    owner = _owner_of(info)
    if info.slurm_job:
        yield f"job:{info.slurm_job}:{info.uid}"
    if info.namespace and info.pod and "pod" in info.proven_names:
        # Another container, and often another pod: the program is the same.
        yield f"pod:{info.namespace}/{program_of_pod(info.pod)}:{info.uid}"
    if info.pod_uid:
        yield f"pod-uid:{info.pod_uid}:{info.uid}"
    if info.container_id:
        yield f"container:{info.container_id}:{info.uid}"
    elif _is_service(info.unit):
        yield f"unit:{info.unit}:{info.uid}"
        if template := template_of(info.unit):  # instances run one program, as ranks do
            yield f"template:{template}:{info.uid}:{info.name}"
    boot = info.id.boot_id
    if info.process_group:
        yield f"process-group:{boot}:{info.process_group}:{info.uid}{owner}"
    if info.parent_pid > _INIT:
        # Launchers such as torchrun give each rank a process group of its own.
        yield f"siblings:{boot}:{info.parent_pid}:{info.uid}:{info.name}{owner}"


def _owner_of(info: ProcessInfo) -> str:
    """Return a suffix that stands for the job, container or service that a process is of; "" for none."""
    if info.slurm_job:
        return f":job-{info.slurm_job}"
    if info.container_id:
        return f":container-{info.container_id}"
    return f":unit-{info.unit}" if _is_service(info.unit) else ""


def _command_of(info: ProcessInfo) -> str:
    """Return what stands for a process that no job or lasting service owns, and for one that is started in its place.

    A container is re-created under another id, and `systemd-run` makes up a name: neither says who runs there.
    """
    if info.slurm_job or not info.command:
        return ""
    if not (info.container_id or info.pod_uid) and _is_service(info.unit) and not _TRANSIENT.fullmatch(info.unit):
        return ""
    return f"{info.id.boot_id}:{info.uid}:{fingerprint({'name': info.name, 'command': info.command})}"


def _container_of(info: ProcessInfo) -> str:
    """Return what the container of a process is called, the same when it is re-created; "" where that is not known.

    A name that the runtime made up (`focused_turing`) is none: the next container has another one.
    """
    if info.pod:
        namespace, pod, container = info.namespace, info.pod, info.container_name.rpartition("/")[2]
    else:
        namespace, slash, rest = info.container_name.partition("/")
        pod, _, container = rest.partition("/")
        if not slash:
            return "" if _MADE_UP.fullmatch(namespace) else namespace
    return f"{namespace}/{program_of_pod(pod)}/{container}"


_INSTANCE = re.compile(r"((?:[^/@]+/)?[^/@]+@)[^/@]+(\.service)")


def template_of(unit: str) -> str:
    """Return the template of which a unit is an instance, `whisper@.service`; "" of any other.

    >>> template_of("whisper@0.service"), template_of("whisper.service"), template_of("user@1000.service/a@b.service")
    ('whisper@.service', '', '')
    """
    found = _INSTANCE.fullmatch(unit)
    return "" if found is None or not _is_service(unit) else f"{found[1]}{found[2]}"


def _is_service(unit: str) -> bool:
    return unit.endswith(_SERVICE) and not unit.startswith(_SESSIONS)


def program_of_pod(name: str) -> str:
    """Return a pod's name without what Kubernetes appends to it: `api-7d9f8c6b5d-x2kqz` is of `api`."""
    found = _SUFFIX.fullmatch(name)
    return name if found is None else found[1]
