"""Problems of the node, in words: what they mean, and what to do next.

This reads one snapshot and the alerts that fire, and remembers nothing. It explains the present on a screen; rules
with hold times decide what somebody is woken for. To the problems of the snapshot come receivers that are not told
what they should be, and alerts that no other problem stands for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpuagent.core.displaced import displaced_gpus, rename_displaced
from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.metrics.alerting import FiringAlert, Undelivered, UndeliveredReason
from gpuagent.core.metrics.preallocation import full_by_design
from gpuagent.core.metrics.process import framework_recognizer
from gpuagent.core.snapshot import (
    GpuIdentity,
    GpuReading,
    GpuState,
    NvmlState,
    ProcessReading,
    Snapshot,
    pause_overrun_seconds,
)
from gpuagent.core.units import format_duration
from gpuagent.core.wording import WITHHELD
from gpuagent.core.xids import Severity, explain_xid
from gpuagent_exporters.status import gpu_problems
from gpuagent_exporters.status.gpu_problems import dead_process_problems
from gpuagent_exporters.status.growth_problems import growth_problems
from gpuagent_exporters.status.severity import Assessments, Problem, gravest, joined, most_severe_first
from gpuagent_exporters.status.silencing import KINDS, is_silenced

_XID_SECONDS = 900.0
"""An event is no state: after this long it is history, as for its alert. One that takes a repair is a problem until
that was done."""

_TOLD_ALWAYS = (GpuState.LOST, GpuState.BLIND, GpuState.GONE)
_NOT_OK = (GpuState.LOST, GpuState.BLIND, GpuState.GONE, GpuState.FAILED, GpuState.STARTING)


def stale_after_seconds(poll_interval_seconds: float) -> float:
    """Return the age from which a measurement no longer shows the node as it is. One late tick is not enough."""
    return max(3 * poll_interval_seconds, 5.0)


def find_problems(
    snapshot: Snapshot | None,
    now_seconds: float,
    *,
    poll_interval_seconds: float = 1.0,
    preallocates: tuple[str, ...] = (),
    state_problem: str = "",
    left_alone: int = 0,
    undelivered: Sequence[Undelivered] = (),
    firing: Sequence[FiringAlert] = (),
    silenced_processes: Collection[tuple[int, int]] = frozenset(),
) -> list[Problem]:
    """Everything that is wrong, gravest first.

    `now_seconds` is CLOCK_BOOTTIME, as in the snapshot; `preallocates` are patterns as for the status document;
    `state_problem` is what is wrong with the agent's state file, in words; `left_alone` are users, units and containers
    whose processes rules leave alone until a person has looked; `undelivered` are receivers that are not told what they
    should be; `firing` are the alerts that fire; `silenced_processes` are processes, by the index of their GPU and by
    pid, whose growth nobody wants to hear of.
    """
    state = [*_state(state_problem), *_left_alone(left_alone), *undelivered_problems(undelivered, now_seconds)]
    if snapshot is None:
        text = "nothing has been measured yet: the agent has just started"
        return [*state, Problem(Severity.INFO, "not_measured", text, "The first figures come in a few seconds.")]
    current = [one for one in firing if not _is_outdated(one, snapshot)]
    recognize = framework_recognizer(preallocates)
    growth = growth_problems(snapshot, recognize, Assessments(snapshot.growth, firing))
    every = (
        *_nvml(snapshot, now_seconds),
        *_count(snapshot),
        *_stale(snapshot, now_seconds, stale_after_seconds(poll_interval_seconds)),
        *_namespace(snapshot),
        *_gpus(snapshot, now_seconds, full_by_design(snapshot, recognize)),
        *(one for one in growth if not _is_told_by_incident(one, current)),
        *_xids(snapshot),
        *_collectors(snapshot),
        *state,
    )
    found = [one for one in every if not is_silenced(one, current, silenced_processes)]
    displaced = displaced_gpus(snapshot)
    return most_severe_first(_without_index(one, displaced) for one in (*found, *alert_problems(current, found)))


def _without_index(problem: Problem, displaced: Mapping[str, GpuIdentity]) -> Problem:
    """Return the problem of a GPU whose index another one has now without that index: nobody is to reset the other."""
    gpu = displaced.get(problem.uuid)
    if gpu is None:
        return problem
    return replace(
        problem,
        gpu=None,
        displaced=gpu,
        text=rename_displaced(problem.text, gpu),
        advice=rename_displaced(problem.advice, gpu),
    )


def _state(problem: str) -> Iterator[Problem]:
    if problem:
        yield Problem(
            Severity.WARNING,
            "state",
            f"the agent's state: {problem}",
            "Alerts go on. docs/troubleshooting.md says what is kept aside and where.",
        )


def _left_alone(owners: int) -> Iterator[Problem]:
    """Yield that the breaker spares somebody: not whom, as the status may be open to everybody."""
    if owners:
        who = "1 user, unit or container" if owners == 1 else f"{owners} users, units or containers"
        yield Problem(
            Severity.WARNING,
            "remedies_left_alone",
            f"rules leave the processes of {who} alone: the last actions on them gave no memory back",
            "`gpuagent remedies` says whose. After a look, `gpuagent remedies reset` lets rules act on them again.",
        )


def _nvml(snapshot: Snapshot, now_seconds: float) -> Iterator[Problem]:
    node = snapshot.node
    reason = node.nvml_reason or "no reason is known"
    if node.nvml_state is NvmlState.FAILED and not node.gpus_expected and node.pci_gpus == 0:
        yield Problem(Severity.INFO, "no_gpu", f"no GPU on this node ({reason})")
    elif node.nvml_state is NvmlState.FAILED:
        yield Problem(
            Severity.CRITICAL,
            "nvml_failed",
            f"no GPU can be read: {reason}",
            "It is tried again by itself. Does `nvidia-smi` work? `gpuagent doctor` says more.",
        )
    elif node.nvml_state is NvmlState.PAUSED:
        if late := pause_overrun_seconds(node, now_seconds):
            text = f"{node.why_unread}, and should have begun again {format_duration(late)} ago"
            yield Problem(Severity.CRITICAL, "nvml_paused", text, "`gpuagent resume` ends it.")
            return
        yield Problem(
            Severity.WARNING,
            "nvml_paused",
            node.why_unread,
            "Nothing is watched until `gpuagent resume`, or until the pause ends by itself.",
        )
    elif node.nvml_state is NvmlState.STARTING:
        text = "the driver's library (NVML) has not answered yet"
        yield Problem(Severity.INFO, "nvml_starting", text, "This takes a few seconds after a start.")
    elif not snapshot.gpus and not node.gpus_expected:
        yield Problem(Severity.INFO, "no_gpu", "no GPU on this node")


def _count(snapshot: Snapshot) -> Iterator[Problem]:
    """GPUs that are missing without being known by name: those that are gone tell it themselves."""
    node = snapshot.node
    missing = node.gpus_expected - len(snapshot.gpus)
    if node.nvml_state is NvmlState.READY and missing > 0:
        seen = sum(gpu.state is not GpuState.GONE for gpu in snapshot.gpus)
        yield Problem(
            Severity.CRITICAL,
            "gpu_missing",
            f"the driver shows {seen} of {node.gpus_expected} GPUs",
            "Compare `nvidia-smi -L` with `lspci -d 10de:`; the kernel log (dmesg) names the one that failed.",
        )


def _stale(snapshot: Snapshot, now_seconds: float, limit_seconds: float) -> Iterator[Problem]:
    """Only where nothing else explains it: a GPU or library that is in trouble says so itself."""
    tick_age = now_seconds - snapshot.clock_seconds
    explained = snapshot.node.nvml_state is not NvmlState.READY or any(gpu.state in _NOT_OK for gpu in snapshot.gpus)
    measured = snapshot.measured_seconds
    age = tick_age if explained or measured is None else now_seconds - measured
    if age > limit_seconds:
        yield Problem(
            Severity.CRITICAL,
            "stale",
            f"the last measurement is {format_duration(age)} old: these figures may no longer be so",
            "Look at the agent's log (journalctl -u gpuagent) and at the load of the node.",
        )


def _namespace(snapshot: Snapshot) -> Iterator[Problem]:
    if not snapshot.node.host_pid_namespace:
        yield Problem(
            Severity.WARNING,
            "pid_namespace",
            "the agent has a pid namespace of its own: processes have no name, user or container here",
            "Run it on the host, or in a container with the host's pids (--pid=host, hostPID: true).",
        )


def _gpus(snapshot: Snapshot, now_seconds: float, by_design: Mapping[MemoryKey, bool]) -> Iterator[Problem]:
    """Yield the problems of GPUs. What the library as a whole is to blame for is told once, not for each GPU."""
    by_gpu: dict[tuple[int, str], list[ProcessReading]] = defaultdict(list)
    for process in snapshot.processes:
        by_gpu[process.gpu_index, process.gpu_uuid].append(process)
    ready = snapshot.node.nvml_state is NvmlState.READY
    answering = {(gpu.identity.index, gpu.identity.uuid) for gpu in snapshot.gpus if gpu.state is GpuState.OK}
    yield from dead_process_problems(
        process for key, processes in by_gpu.items() if key in answering for process in processes
    )
    for gpu in snapshot.gpus:
        processes = by_gpu[gpu.identity.index, gpu.identity.uuid]
        if gpu.state is GpuState.OK:
            yield from gpu_problems.of_reading(gpu, processes, now_seconds, by_design)
        elif gpu.state is not GpuState.ASLEEP and (ready or gpu.state in _TOLD_ALWAYS):
            yield gpu_problems.of_state(gpu, now_seconds)


def _xids(snapshot: Snapshot) -> Iterator[Problem]:
    unrepaired = {
        (gpu.identity.uuid or gpu.identity.index, xid.xid) for gpu in snapshot.gpus for xid in gpu.unrepaired_xids
    }
    for event in snapshot.xids:
        xid = explain_xid(event.xid)
        age = event.age_seconds(snapshot.clock_seconds, snapshot.time_seconds)
        is_open = (event.gpu_uuid or event.gpu_index, event.xid) in unrepaired
        if is_open or (age <= _XID_SECONDS and not xid.action.repair):
            times = "" if event.count <= 1 else f", {event.count} times since the agent started"
            repair = "; it was not repaired since" if is_open else ""
            yield Problem(
                xid.severity,
                "xid",
                f"Xid {event.xid} {format_duration(age)} ago{times}: {xid.meaning}{repair}",
                xid.advice,
                gpu=event.gpu_index,
                uuid=event.gpu_uuid,
                xid=event.xid,
            )


def _collectors(snapshot: Snapshot) -> Iterator[Problem]:
    """One problem for each reason: eight GPUs that lack the same are one finding."""
    if snapshot.node.nvml_state is not NvmlState.READY:
        return
    by_reason: dict[str, list[tuple[str, GpuReading | None]]] = defaultdict(list)
    for run in snapshot.runs:
        if not run.ok:
            by_reason[run.reason].append((run.collector, None))
    for gpu in snapshot.gpus:
        if gpu.state is GpuState.OK:
            for run in gpu.runs:
                if not run.ok and not (gpu.act_refusal and WITHHELD in run.reason):  # told as `figures_untrusted`
                    by_reason[run.reason].append((run.collector, gpu))
    for reason, failures in by_reason.items():
        names = joined(dict.fromkeys(name for name, _ in failures))
        yield Problem(
            Severity.WARNING,
            "collector",
            f"could not be read: {names}{_on(gpu for _, gpu in failures)}: {reason or 'no reason is known'}",
            "These figures are missing, the others are not. `gpuagent doctor` says more.",
        )


def _on(gpus: Iterable[GpuReading | None]) -> str:
    indices = dict.fromkeys(gpu.identity.index for gpu in gpus if gpu is not None)
    return f" on GPU {joined(indices, most=8)}" if indices else ""


_GRAVITY = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
_TOLD = frozenset(_GRAVITY)
_NOTES = frozenset({"GpuRemedy", "GpuRemedyAnnounced"})
"""Alerts on what a remedy does: they are told with what it is done about."""
_ALERT_ADVICE = "`gpuagent alerts` shows it, and who is told."
_STALL_ADVICE = (
    "End what can be spared now, the largest first: `gpuagent ps --gpu {gpu}` lists it, `gpuagent kill PID` ends it."
)


_CAME_BACK = 0.9
"""Share of the memory that was in use below which some has come back."""


def _is_outdated(alert: FiringAlert, snapshot: Snapshot) -> bool:
    """Return whether the memory that an alert is about came back after its rule was evaluated, or its process left.

    The rule is evaluated in a moment; until then it would say that the memory is full beside what is in use.
    """
    gpu = next((one for one in snapshot.gpus if alert.uuid and one.identity.uuid == alert.uuid), None)
    if gpu is None or gpu.state is not GpuState.OK or "memory_full" not in KINDS.get(alert.name, frozenset()):
        return False
    if alert.pid:
        listed = {one.pid for one in snapshot.processes if one.gpu_uuid == alert.uuid and one.info is not None}
        return gpu.processes_known and alert.pid not in listed
    instance = (one.memory for one in gpu.mig if one.gpu_instance_id == alert.gpu_instance_id)
    memory = gpu.memory if alert.gpu_instance_id == NO_INSTANCE else next(instance, None)
    if memory is None or memory.used_bytes is None or alert.used_bytes is None:
        return False
    return memory.used_bytes < _CAME_BACK * alert.used_bytes


def alert_problems(firing: Iterable[FiringAlert], others: Sequence[Problem]) -> Iterator[Problem]:
    """Yield a problem for each alert that fires, is not silenced, and that none of the others stands for.

    What could not be measured any more is told as it was known last: a check does not get better because less is known.
    Of several tiers of one alert the gravest is told.
    """
    told: set[tuple[str, int | None, int, int]] = set()
    firing = sorted(firing, key=lambda one: _GRAVITY.index(one.severity) if one.severity in _TOLD else len(_GRAVITY))
    for alert in firing:
        severity = _severity(alert, firing)
        about = alert.name, alert.gpu, alert.gpu_instance_id, alert.pid
        if severity is None or alert.silenced or about in told or _is_told(alert, severity, others):
            continue
        told.add(about)
        yield Problem(
            severity, "alert", _text(alert), _alert_advice(alert), gpu=alert.gpu, pid=alert.pid or None, uuid=alert.uuid
        )


def _alert_advice(alert: FiringAlert) -> str:
    is_stall = alert.name == "GpuMemoryStallImminent" and alert.gpu is not None and not alert.is_ending
    return _STALL_ADVICE.format(gpu=alert.gpu) if is_stall else _ALERT_ADVICE


def _severity(alert: FiringAlert, firing: Iterable[FiringAlert]) -> Severity | None:
    """Return how grave an alert is; of a process, what was known last of the memory in which it grew counts too."""
    if alert.is_ending:
        return Severity.INFO
    about = [alert]
    if alert.pid and alert.about_growth and alert.unmeasured_seconds:
        place = alert.uuid, alert.gpu_instance_id
        about += [
            one for one in firing if one.about_growth and not one.pid and (one.uuid, one.gpu_instance_id) == place
        ]
    told = gravest(Severity(one.severity) for one in about if one.severity in _TOLD)
    return None if told is Severity.INFO and alert.name in _NOTES else told


def _is_told(alert: FiringAlert, severity: Severity, others: Sequence[Problem]) -> bool:
    kinds = KINDS.get(alert.name, frozenset())
    return any(
        problem.kind in kinds
        and problem.gpu in {None, alert.gpu}
        and (not alert.pid or problem.pid in {None, alert.pid})
        and gravest((problem.severity, severity)) is problem.severity
        for problem in others
    )


def _is_told_by_incident(growth: Problem, firing: Iterable[FiringAlert]) -> bool:
    """Return whether an incident that goes on says of a process that it was started again and grows."""
    return growth.kind == "growth" and any(
        growth.pid in one.grows_again
        and one.severity in _TOLD
        and not one.silenced
        and gravest((Severity(one.severity), growth.severity)) is Severity(one.severity)
        for one in firing
    )


def _text(alert: FiringAlert) -> str:
    place = "" if alert.gpu is None else f"GPU {alert.gpu}"
    text = alert.summary.removeprefix(f"{place}: ").removeprefix(f"{place}, ") if place else alert.summary
    text = text or f"the alert {alert.name} fires"
    if not alert.unmeasured_seconds:
        return text
    return f"last known {format_duration(alert.unmeasured_seconds)} ago: {text}"


_TRY_NOW = "`gpuagent receivers list` shows what waits, `gpuagent receivers test {name}` tries it now."
_UNDELIVERED_ADVICE = {
    UndeliveredReason.FAILING: _TRY_NOW,
    UndeliveredReason.OFF: "Put its address right, then `gpuagent receivers test {name}` switches it on.",
    UndeliveredReason.WAITING: _TRY_NOW,
    UndeliveredReason.DEAD: "`gpuagent alerts --dead` shows them, `gpuagent receivers replay` queues them again.",
}


def undelivered_problems(undelivered: Iterable[Undelivered], now_seconds: float) -> Iterator[Problem]:
    """Yield one problem for each; `now_seconds` is CLOCK_BOOTTIME."""
    for one in undelivered:
        severity = Severity.WARNING if one.why is UndeliveredReason.DEAD else Severity.CRITICAL
        yield Problem(
            severity, "undelivered", describe(one, now_seconds), _UNDELIVERED_ADVICE[one.why].format(name=one.receiver)
        )


def describe(one: Undelivered, now_seconds: float) -> str:
    """Return it as one line: who is not told, since when and why."""
    name, reason = f"receiver {one.receiver}", f": {one.reason}" if one.reason else ""
    since = "" if one.since_seconds is None else f" for {format_duration(max(0.0, now_seconds - one.since_seconds))}"
    waiting = f", {_messages(one.messages)} waiting" if one.messages else ""
    if one.why is UndeliveredReason.FAILING:
        return f"{name} has been failing{since}{waiting}{reason}"
    if one.why is UndeliveredReason.OFF:
        return f"{name} is switched off{waiting}{reason}"
    if one.why is UndeliveredReason.WAITING:
        return f"{name} has not been told{since}{waiting}{reason}"
    return f"{name}: {_messages(one.messages)} could not be delivered"


def _messages(number: int) -> str:
    return f"{number} message{'' if number == 1 else 's'}"
