"""What an alert is about: one process, several that run one program, a GPU, the node, a receiver, or its rule.

A cause has identities, which are texts. Two alerts belong to one incident if the one looks for an identity that the
other has brought along. A GPU has three that do not mix: its memory, its health, and each rule that is none of these. A
bad memory row that waits for a reset must not swallow the news that the GPU is full.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpuagent.core.process_labels import ALERT_LABELS
from gpuagent_alerts.alert import CauseKind, fingerprint
from gpuagent_alerts.notify.succession import OwnerFacts
from gpuagent_alerts.notify.urgency import did_nothing, is_remedy_note

_LEAK = "GpuProcessMemoryLeak"
_MEMORY = frozenset({
    "GpuMemoryHigh", "GpuMemoryFull", "GpuInstanceMemoryFull", "GpuMemoryExhaustionSoon", "GpuMemoryStallImminent",
})  # fmt: skip
_FORECAST = "GpuMemoryExhaustionSoon"
_HIGH = "GpuMemoryHigh"
_NOBODYS = frozenset({"GpuMemoryLeak", "GpuMemoryUnattributed"})
"""Memory that no process owns: whoever leaks beside it is no part of that."""
_HEALTH = frozenset({
    "GpuLost", "GpuXidCritical", "GpuXidWarning", "GpuEccUncorrectable", "GpuRowRemapFailed", "GpuRowRemapPending",
    "GpuRecoveryAction", "GpuMonitorBlind", "GpuDeadProcessesHoldMemory",
})  # fmt: skip
_DEAD = "GpuDeadProcessesHoldMemory"
_FROM_OUTSIDE = frozenset({"GpuThrottledThermal", "GpuThrottledPower"})
"""What comes to GPUs from outside, a power supply or the room's air, and so to several of them at one time."""
TOGETHER = "together:"
"""Begin of an identity by which an alert joins an incident that has just begun on another GPU."""
AT_ONCE = "at-once:"
"""The same of hardware that fails on several GPUs within a minute: their power, a switch, the bus."""
_FAILURES = frozenset({"GpuLost", "GpuXidCritical"})
_OFF_THE_BUS = "79"
REPLICAS = "replicas:"
"""The same of what fills memory: the replicas of a service leak alike, and are one incident while that goes on."""
_BUDGET = "GpuBudgetExceeded"
_COUNT = "GpuCountDropped"
_BLIND = "GpuMonitorBlind"
_NODE = frozenset({_COUNT, "GpuMonitorBlind", "GpuRemediesStopped"})
_VARIANTS = frozenset({"severity", "evidence", "tier"})
"""Labels in which alerts about one thing differ as it gets worse."""
_OF_GPU = ("gpu", "uuid", "gpu_instance_id", "profile")
_NAMED = "container-name:"
_OF_PROCESS = (*_OF_GPU, "pid", "process", "user", *(label.name for label in ALERT_LABELS), "app")


@dataclass(frozen=True, slots=True)
class CauseProcess:
    """A process on a GPU, as far as it matters to whom it belongs."""

    identity: str
    """Stands for this very process: boot, pid and start; "" if only the pid is known."""
    pid: int
    groups: tuple[str, ...] = ()
    """Identities shared with others of the same program, narrowest first: job, pod, container, unit, process group."""
    labels: Mapping[str, str] | None = None
    command: str = ""
    """Stands for its user and command line, of one that no service or job owns: one that is started later in its place
    has the same."""
    container: str = ""
    """Name of its container, the same when that is re-created under another id; "" without one, and if unknown."""
    replicas: str = ""
    """Stands for its service in one version, which other processes run too; "" where nobody but itself says so."""


class CauseFacts(Protocol):
    """Facts about processes and GPUs at a tick."""

    def growers(self, uuid: str, instance: str = "") -> Sequence[CauseProcess]:
        """Return every process that grows on a GPU or in a MIG instance; those that have stopped only if all have."""
        ...

    def program(self, uuid: str, pid: int) -> CauseProcess | None:
        """Return a process of the driver's list; None if it is not there."""
        ...

    def grower(self, uuid: str, *, leaking: bool, instance: str = "") -> CauseProcess | None:
        """Return the process that grows most on a GPU or in a MIG instance, before all that have stopped.

        With `leaking` only one whose growth is a verdict.
        """
        ...

    def spender(self, uuid: str, budget: str) -> CauseProcess | None:
        """Return the process that makes a budget exceeded on a GPU; None where it is no single one that is known."""
        ...

    def has_filled(self, identities: Collection[str], pace: float = 0.0) -> bool:
        """Return whether a leak of these identities has left no room, or so many bytes a second do in minutes."""
        ...

    def owner_of(self, identities: Collection[str]) -> OwnerFacts:
        """Return what runs of the owner of these identities."""
        ...

    def is_acted_on(self, identities: Collection[str]) -> bool:
        """Return whether a remedy is under way, or has just ended, for a process or the memory of these identities."""
        ...

    def freed_at(self, identities: Collection[str]) -> float | None:
        """Return the Unix time at which a remedy gave the memory of one of these processes back; None if none."""
        ...

    def is_nobodys(self, uuid: str, instance: str = "") -> bool:
        """Return whether it is memory of no process that grows on a GPU or in a MIG instance.

        Of a GPU also whether most of what is used there is such.
        """
        ...

    def dead_processes(self, uuid: str) -> Sequence[CauseProcess]:
        """Return the processes that have ended and hold memory of a GPU, with the groups that they were of."""
        ...

    def lost_gpus(self) -> Sequence[Mapping[str, str]]:
        """Return the labels `gpu` and `uuid` of the GPUs that are lost or gone; a UUID that is not known is ""."""
        ...

    def are_all_lost(self) -> bool:
        """Return whether the node has GPUs, and every one of them is lost or gone."""
        ...

    def is_blind(self) -> bool:
        """Return whether no GPU of the node can be read: the driver is away, or every call into it hangs."""
        ...


class NoCauseFacts:
    """Knows nothing: causes follow from labels alone."""

    def growers(self, uuid: str, instance: str = "") -> Sequence[CauseProcess]:  # noqa: ARG002
        """Return nothing."""
        return ()

    def program(self, uuid: str, pid: int) -> CauseProcess | None:  # noqa: ARG002
        """Return None."""
        return None

    def grower(self, uuid: str, *, leaking: bool, instance: str = "") -> CauseProcess | None:  # noqa: ARG002
        """Return None."""
        return None

    def spender(self, uuid: str, budget: str) -> CauseProcess | None:  # noqa: ARG002
        """Return None."""
        return None

    def has_filled(self, identities: Collection[str], pace: float = 0.0) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def owner_of(self, identities: Collection[str]) -> OwnerFacts:  # noqa: ARG002
        """Return that nothing is known to run."""
        return OwnerFacts()

    def is_acted_on(self, identities: Collection[str]) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def freed_at(self, identities: Collection[str]) -> float | None:  # noqa: ARG002
        """Return None."""
        return None

    def is_nobodys(self, uuid: str, instance: str = "") -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def dead_processes(self, uuid: str) -> Sequence[CauseProcess]:  # noqa: ARG002
        """Return nothing."""
        return ()

    def lost_gpus(self) -> Sequence[Mapping[str, str]]:
        """Return nothing."""
        return ()

    def are_all_lost(self) -> bool:
        """Return False."""
        return False

    def is_blind(self) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True, slots=True)
class Cause:
    """Cause of one alert."""

    kind: CauseKind
    joins: tuple[str, ...]
    """Identities by which an incident is looked for, the closest first."""
    brings: tuple[str, ...]
    """Identities by which later alerts find the incident."""
    adopts: tuple[str, ...] = ()
    """Identities by which an incident is joined of which no process is known yet."""
    labels: Mapping[str, str] | None = None
    begins: bool = True
    """False: without an incident to join, there is none. A dry run is no incident."""
    replaces: tuple[str, ...] = ()
    """Identities that an incident has no more once this alert has joined it."""
    succeeds: tuple[str, ...] = ()
    """Identities by which an incident is joined of which no process runs any more."""

    @property
    def identity(self) -> str:
        """Identity that the key of an incident is made of, if this alert begins it."""
        return self.joins[0]


def cause_of(labels: Mapping[str, str], facts: CauseFacts) -> Cause:
    """Return what an alert with these labels is about."""
    pid = _number(labels.get("pid", ""))
    if pid:
        return _of_process(labels, facts, pid)
    return _about_gpu(labels, facts) if labels.get("uuid") or labels.get("gpu") else _about_neither(labels, facts)


def shares_owner(program: CauseProcess, identities: Collection[str]) -> bool:
    """Return whether a process has the owner of those that have these identities, such as their unit or job."""
    return not set(_identities(program, program.pid, "memory")[1]).isdisjoint(identities)


def shares_command(program: CauseProcess, identities: Collection[str]) -> bool:
    """Return whether a process has the user and the command line of those with these identities, and is no other's.

    Containers are told apart by name, where both are known: what replaces one has another id.
    """
    if f"command:{program.command}:memory" not in identities:
        return False
    return not is_other_container(_command(program, "memory"), identities)


def is_other_container(brings: Collection[str], identities: Collection[str]) -> bool:
    """Return whether two sets of identities name containers, and no common one."""
    own, others = ({one for one in each if one.startswith(_NAMED)} for each in (brings, identities))
    return bool(own and others) and own.isdisjoint(others)


def is_leak(labels: Mapping[str, str]) -> bool:
    """Return whether an alert tells of a process that leaks."""
    return labels.get("alertname", "") == _LEAK


def is_about_memory(labels: Mapping[str, str]) -> bool:
    """Return whether an alert tells of a leak, or of a GPU that fills up."""
    return is_leak(labels) or labels.get("alertname", "") in _MEMORY


def is_one_course(labels: Mapping[str, str]) -> bool:
    """Return whether an alert tells of memory or health, each of which takes one course through several alerts.

    While one of those is about to fire, the incident that it belongs to is not over.
    """
    name = labels.get("alertname", "")
    return name == _LEAK or name in _MEMORY or name in _HEALTH


def moved_cause(labels: Mapping[str, str], identities: Collection[str], facts: CauseFacts) -> Cause | None:
    """Return the cause of an alert about a GPU's memory that no process of its incident makes grow any more.

    `identities` are those of its incident. None: it stays where it is, also where nothing is known to grow.
    """
    uuid = labels.get("uuid", "")
    if labels.get("pid") or labels.get("alertname", "") not in _MEMORY - {_NOBODYS}:
        return None
    own = {one for one in identities if one.startswith(("process:", "group:"))}
    growers = facts.growers(uuid, _instance(labels)) if own else ()
    if _has_one_of(growers, own):
        return None
    cause = _of_memory(labels, facts)
    if not growers or cause.kind is not CauseKind.PROCESS:
        return None
    memory = _memory(labels)
    return replace(cause, joins=tuple(one for one in cause.joins if one not in memory))


def concerns(labels: Mapping[str, str], identities: Collection[str], facts: CauseFacts) -> bool:
    """Return whether an alert about the memory of a GPU, or of a MIG instance, is as true of an incident's processes.

    One of those with these identities grows there, whichever incident the alert belongs to: all of them run out of
    room at the same time.
    """
    if labels.get("pid") or labels.get("alertname", "") not in _MEMORY - {_HIGH}:
        return False
    own = {one for one in identities if one.startswith("process:")}
    return bool(own) and _has_one_of(facts.growers(labels.get("uuid", ""), _instance(labels)), own)


def _has_one_of(programs: Iterable[CauseProcess], identities: Collection[str]) -> bool:
    known = (_identities(one, one.pid, "memory") for one in programs)
    return any(own in identities or not set(groups).isdisjoint(identities) for own, groups in known)


def _about_gpu(labels: Mapping[str, str], facts: CauseFacts) -> Cause:
    name = labels.get("alertname", "")
    if name in _NOBODYS:
        return _of_nobody(labels)
    if name in _MEMORY:
        return _of_memory(labels, facts)
    if name == _DEAD:
        return _of_dead(labels, facts)
    if name == _BLIND and facts.is_blind():
        return _of_node(name)
    if failure := hardware_failure(labels):
        return _with(_of_gpu(labels, "health"), f"{AT_ONCE}{failure}")
    return _of_gpu(labels, "health") if name in _HEALTH else _of_rule(labels, facts)


def hardware_failure(labels: Mapping[str, str]) -> str:
    """Return what has failed where an alert tells of a GPU's hardware that takes a repair; "" of any other alert."""
    if labels.get("alertname", "") not in _FAILURES:
        return ""
    xid = labels.get("xid", _OFF_THE_BUS)
    return "lost" if xid == _OFF_THE_BUS else f"xid-{xid}"


def _with(cause: Cause, identity: str) -> Cause:
    return replace(cause, joins=(*cause.joins, identity), brings=(*cause.brings, identity))


def _about_neither(labels: Mapping[str, str], facts: CauseFacts) -> Cause:
    name = labels.get("alertname", "")
    lost = facts.lost_gpus() if name == _COUNT or (name == _BLIND and facts.are_all_lost()) else ()
    if lost:
        # Fewer GPUs are what a lost one looks like from the driver's list, and none is what the last one looks like.
        gpus = tuple(_gpu_identities("health", labels)[0] for labels in lost)
        return Cause(CauseKind.GPU, gpus, gpus[:1], labels=_some(lost[0], ("uuid",)))
    if name in _NODE or labels.get("scope") == "node":
        return _of_node(name)
    if receiver := labels.get("receiver", ""):
        return Cause(CauseKind.RECEIVER, (f"receiver:{receiver}",), (f"receiver:{receiver}",),
                     labels={"receiver": receiver})  # fmt: skip
    rule = f"rule:{_rule_identity(labels)}"
    return Cause(CauseKind.RULE, (rule,), (rule,), labels=_without_variants(labels))


def _of_node(name: str) -> Cause:
    return Cause(CauseKind.NODE, (f"node:{name}",), (f"node:{name}",), labels={})


def _of_process(labels: Mapping[str, str], facts: CauseFacts, pid: int) -> Cause:
    uuid, name = labels.get("uuid", ""), labels.get("alertname", "")
    program = facts.program(uuid, pid)
    if program is None and name == _DEAD:
        program = next((one for one in facts.dead_processes(uuid) if one.pid == pid), None)
    what = "memory" if name in {_LEAK, _DEAD} else name
    own, groups = _identities(program, pid, what)
    shown = {**((program.labels or {}) if program is not None else {}), **_some(labels, _OF_PROCESS)}
    memory = _memory(labels)
    by_pid = (f"pid:{pid}",)
    if did_nothing(labels):
        return Cause(CauseKind.PROCESS, (own, *memory), (own,), labels=shown, begins=False)
    # A leak is why the GPU fills up: what has been told of its memory already is the beginning of it.
    leaks = memory if name == _LEAK else ()
    # What a remedy did is told with why it was done: the process, or else the memory of its GPU.
    about = memory if is_remedy_note(labels) else ()
    command = _command(program, what)
    replicas = _replicas(program) if name == _LEAK else ()
    return Cause(
        CauseKind.PROCESS, (own, *groups, *replicas, *about), (own, *by_pid, *groups, *replicas, *command, *leaks),
        adopts=leaks, labels=shown, succeeds=command[:1],
    )  # fmt: skip


def _of_memory(labels: Mapping[str, str], facts: CauseFacts) -> Cause:
    name, uuid = labels.get("alertname", ""), labels.get("uuid", "")
    memory = _memory(labels)
    program = facts.grower(uuid, leaking=name != _FORECAST, instance=_instance(labels))
    if program is None:
        identities = (*memory[:1], *([_unowned(labels)] if facts.is_nobodys(uuid, _instance(labels)) else []))
        return Cause(CauseKind.GPU, identities, identities, labels=_some(labels, _OF_GPU))
    own, groups = _identities(program, program.pid, "memory")
    shown = {**(program.labels or {}), **_some(labels, _OF_GPU)}
    pid = f"pid:{program.pid}"
    command, replicas = _command(program, "memory"), _replicas(program)
    brings = (own, pid, *groups, *replicas, *command, *memory)
    # Two MIG instances are of one GPU, and what fills the one is not what fills the other.
    joins = (own, *groups, *replicas, *memory[:1])
    return Cause(CauseKind.PROCESS, joins, brings, labels=shown, succeeds=command[:1])


def _of_nobody(labels: Mapping[str, str]) -> Cause:
    """Memory without an owner: that there is some, and that it grows, is one thing. It is also why the GPU fills up."""
    unowned = _unowned(labels)
    memory = _memory(labels)[:1] if labels.get("alertname") == "GpuMemoryLeak" else ()
    return Cause(CauseKind.GPU, (unowned, *memory), (unowned, *memory), labels=_some(labels, _OF_GPU))


def _unowned(labels: Mapping[str, str]) -> str:
    return f"unowned:{labels.get('uuid', '') or labels.get('gpu', '')}"


def _of_dead(labels: Mapping[str, str], facts: CauseFacts) -> Cause:
    """Memory that dead processes hold: the incident of one of them if there is one, then that of a job they were of."""
    dead = facts.dead_processes(labels.get("uuid", ""))
    known = [(f"pid:{one.pid}", *_identities(one, one.pid, "memory")) for one in dead]
    own = tuple(dict.fromkeys(one for pid, process, _ in known for one in (process, pid)))
    groups = tuple(dict.fromkeys(group for _, _, groups in known for group in groups))
    identities = (*own, *groups, *_gpu_identities("health", labels))
    return Cause(CauseKind.GPU, identities, identities, labels=_some(labels, _OF_GPU))


def _of_rule(labels: Mapping[str, str], facts: CauseFacts) -> Cause:
    name = labels.get("alertname", "")
    if name == _BUDGET:
        return _of_budget(labels, facts)
    own = _of_gpu(labels, f"rule:{_rule_identity(labels)}")
    return _with(own, f"{TOGETHER}{name}") if name in _FROM_OUTSIDE else own


def _of_budget(labels: Mapping[str, str], facts: CauseFacts) -> Cause:
    """Return the cause of a budget that is exceeded: the process that exceeds it, where that grows.

    Else it is an incident of its own, which becomes that of the process once that leaks.
    """
    own = _of_gpu(labels, f"rule:{_rule_identity(labels)}")
    program = facts.spender(labels.get("uuid", ""), labels.get("budget", ""))
    if program is None or not program.identity:
        return own
    process, groups = _identities(program, program.pid, "memory")
    grows = any(one.identity == program.identity for one in facts.growers(labels.get("uuid", "")))
    joins = (process, *groups, *own.joins) if grows else own.joins
    return replace(own, joins=joins, brings=(*own.brings, process, *groups))


def _of_gpu(labels: Mapping[str, str], what: str) -> Cause:
    """Return the cause of a GPU: one that is lost before it has told its UUID is unnamed."""
    identities = _gpu_identities(what, labels)
    unnamed = (f"{what}:unnamed-{labels.get('gpu', '')}",)
    shown = _some(labels, _OF_GPU)
    if not labels.get("uuid"):
        return Cause(CauseKind.GPU, identities[:1], (*identities, *unnamed), labels=shown)
    return Cause(CauseKind.GPU, (*identities[:1], *unnamed), identities, labels=shown, replaces=unnamed)


def _identities(program: CauseProcess | None, pid: int, what: str) -> tuple[str, tuple[str, ...]]:
    """Return the identity of a process, and those that it shares with others to which the same happens.

    The pid alone stands for one that is not listed any more, or of which nothing else is known.
    """
    if program is None or not program.identity:
        return f"pid:{pid}", ()
    return f"process:{program.identity}", tuple(f"group:{each}:{what}" for each in program.groups)


def _command(program: CauseProcess | None, what: str) -> tuple[str, ...]:
    """Return the identities of a process's user and command line, and of the container that it has, by name.

    Nothing where they do not stand for it.
    """
    if program is None or not program.command:
        return ()
    container = (f"{_NAMED}{program.container}",) if program.container else ()
    return f"command:{program.command}:{what}", *container


def _replicas(program: CauseProcess | None) -> tuple[str, ...]:
    return (f"{REPLICAS}{program.replicas}",) if program is not None and program.replicas else ()


def _memory(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the identities of the memory an alert is about: a MIG instance has its own, and is a part of its GPU."""
    uuid, instance = labels.get("uuid", ""), _instance(labels)
    whole = f"memory:{uuid or labels.get('gpu', '')}"
    return (f"{whole}/{instance}", whole) if instance else (whole,)


def _instance(labels: Mapping[str, str]) -> str:
    """Return the id of the MIG instance that an alert is about; "" for a GPU as a whole."""
    instance = labels.get("gpu_instance_id", "")
    return "" if instance == "-1" else instance


def _gpu_identities(what: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the identity by uuid, and the one by index for alerts that do not know the uuid."""
    found = (("", labels.get("uuid", "")), ("index-", labels.get("gpu", "")))
    return tuple(f"{what}:{mark}{value}" for mark, value in found if value)


def _rule_identity(labels: Mapping[str, str]) -> str:
    return f"{labels.get('alertname', '')}:{fingerprint(_without_variants(labels))}"


def _without_variants(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name not in _VARIANTS}


def _some(labels: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: value for name in names if (value := labels.get(name, ""))}


def _number(text: str) -> int:
    """Return a pid; 0 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
