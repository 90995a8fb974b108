"""Reasons for the end of an alert: one function for each kind of condition, each over what was and what is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpuagent.core.growth import GrowthState, Verdict
from gpuagent.core.snapshot import GpuIdentity, GpuState, NvmlState, ProcessReading, ProcessState
from gpuagent.core.units import format_bytes, format_duration, format_ratio
from gpuagent_alerts.alert import PROCESS_ENDED, UNKNOWN_END, clock_time
from gpuagent_alerts.leak.reasons import GAVE_BACK, NO_NEW_HIGH
from gpuagent_alerts.messages.end_facts import EndedAlert, has_instance, holders_of, since_initialized, since_repaired
from gpuagent_alerts.remedies.outcome import RemedyEnding

_XID_SECONDS = 900.0
_MOST_CAME_BACK = 0.9
"""Share of what a process held: less is not called the return of its memory."""
_FELL = 0.95
"""Below this share of what was used, memory has come back; above it, growth has merely stopped."""
_SPARING = frozenset({"release_cache", "drop_caches", "limit"})
"""Steps after which the process goes on."""
_ABOUT_A_REMEDY = frozenset({"GpuRemedy", "GpuRemedyAnnounced"})
"""Alerts that name a process and tell of a remedy, which is over when it is, whatever became of the process."""


_ABOUT_READING = frozenset({"GpuMonitorBlind", "GpuCountDropped"})
_OF_MEMORY = frozenset({
    "GpuMemoryHigh", "GpuMemoryFull", "GpuInstanceMemoryFull", "GpuMemoryLeak", "GpuMemoryExhaustionSoon",
})  # fmt: skip
LEFT = "the process left the GPU"
WHILE_PAUSED = "while measuring was paused"
_BACK = " came back"
_NAMED_END = re.compile(r"\(pid (\d+)\) (?:ended|left the GPU)")
_LEAST_OF_HELD = 0.75
"""Share of what processes held that is in use no more, of which others took the rest at once."""
_MOST_OF_THE_FALL = 0.5
"""The share of the memory that came back: processes that held less of it than this did not end the alert by ending."""


class EndReason(NamedTuple):
    """Why an alert's condition ceased to hold."""

    text: str = ""
    """In the past tense; "" where the measurements do not show it."""
    is_certain: bool = False
    """Whether it is a fact that does not undo itself, and not a level that may rise again."""


_OF_A_LEVEL = ("growth stopped", GAVE_BACK, "memory back to", "its memory is back to")
_UNKNOWN = EndReason()


def reason_of_process(case: EndedAlert, remedy: RemedyEnding | None) -> EndReason:
    """Return what became of the process that the alert names; nothing while it is there, and where it names none."""
    gpu, before = case.gpu, None if case.before is None else case.before.process
    if case.alert.name in _ABOUT_A_REMEDY:
        return _UNKNOWN
    if not case.alert.labels.get("pid") or gpu is None or gpu.state is not GpuState.OK or not gpu.processes_known:
        return _UNKNOWN
    now = case.process
    if now is not None and not _is_other(before, now):
        if now.state is ProcessState.DEAD and (before is None or before.state is not ProcessState.DEAD):
            return EndReason(f"{PROCESS_ENDED}{_still_held(now)}")
        return EndReason(str(remedy)) if remedy is not None and remedy.step in _SPARING else _UNKNOWN
    back = _came_back(case, before)
    if remedy is not None and remedy.step not in _SPARING:
        text = str(remedy) if remedy.released_bytes else f"{remedy.act}{back}"
        return EndReason(text, is_certain=bool(remedy.released_bytes) or back.endswith(_BACK))
    unseen = f" {WHILE_PAUSED}" if case.was_paused else ""
    return EndReason(f"{_how_it_left(case, before)}{unseen}{back}", is_certain=back.endswith(_BACK))


def reason_by_name(case: EndedAlert) -> EndReason:
    """Return why a shipped rule's condition ended; nothing of other rules, and what the measurements do not show."""
    gpu, name = case.gpu, case.alert.name
    if case.alert.labels.get("uuid") and (gpu is None or gpu.state is GpuState.GONE):
        return EndReason("the driver no longer lists the GPU") if case.successor is None else _replaced(case.successor)
    has_memory = gpu is None or gpu.state is not GpuState.OK or has_instance(case.alert.labels, gpu)
    if name in _OF_MEMORY and not has_memory and not _is_former_gone(case):
        return EndReason("the MIG instance no longer exists")
    if name in _OF_MEMORY and (left := _who_left(case)):
        return EndReason(left, is_certain=True)
    text = next((reason(case) for names, reason in _REASONS.items() if name in names), "")
    if not text and case.unwatched and name in _OF_MEMORY:
        return EndReason(_former_left(case))
    is_back = name in _ABOUT_READING or (name == "GpuLost" and bool(since_repaired(case)))
    return EndReason(text, is_certain=bool(text) and is_back)


def _replaced(by: GpuIdentity) -> EndReason:
    return EndReason(f"it was replaced by {by.name or 'a GPU'} ({by.uuid}) at its PCI address", is_certain=True)


def tells_of_a_level(reason: EndReason) -> bool:
    """Return whether a reason tells at what memory stopped, or came back to: figures of that moment."""
    return reason.text.startswith(_OF_A_LEVEL)


def with_remedies(reason: str, uuid: str, remedy_of: Callable[[str, str], RemedyEnding | None]) -> str:
    """Return the reason with the processes on a GPU that remedies ended told as that."""

    def replaced(found: re.Match[str]) -> str:
        remedy = remedy_of(found[1], uuid)
        if remedy is None or remedy.step in _SPARING:
            return found[0]
        return f"(pid {found[1]}) was {remedy.participle}"

    return _NAMED_END.sub(replaced, reason)


def _still_held(dead: ProcessReading) -> str:
    zombie = " (a zombie)" if dead.is_zombie else ""
    if not dead.used_bytes:
        return zombie
    held = format_bytes(dead.used_bytes)
    return f"{zombie}: its {held} have not come back" if zombie else f": the driver went on counting {held} for it"


def _how_it_left(case: EndedAlert, before: ProcessReading | None) -> str:
    if before is not None and before.state is ProcessState.DEAD:
        return "the driver no longer lists the ended process"
    if before is None and case.unwatched:
        return _how_it_left_unwatched(case)
    alive = None if before is None or before.info is None else case.is_alive(before.info.id)
    return PROCESS_ENDED if alive is False else LEFT


def _how_it_left_unwatched(case: EndedAlert) -> str:
    """Return what is known of a process that was gone when the agent looked again: that it is, and not how."""
    identity = case.former_id
    if identity is not None and identity.boot_id != case.snapshot.node.boot_id:
        return f"{PROCESS_ENDED} before the node was booted again"
    alive = None if identity is None else case.is_alive(identity)
    return f"{PROCESS_ENDED if alive is False else LEFT} while {case.unwatched}"


def _former_left(case: EndedAlert) -> str:
    """Return that the process of an alert's incident is gone, where it is; else no more than that it is not so now."""
    identity = case.former_id
    if identity is None or not _is_former_gone(case):
        return f"{UNKNOWN_END}, as measured since gpuagent was started again"
    how = _how_it_left_unwatched(case).removeprefix("the process ")
    return f"{case.former_name} (pid {identity.pid}) {how}"


def _is_former_gone(case: EndedAlert) -> bool:
    """Return whether the process of its incident is not listed, of an alert that this agent never saw true."""
    listed = {one.info.id for one in case.snapshot.processes if one.info is not None}
    return case.before is None and bool(case.former_name) and case.former_id not in {None, *listed}


def _came_back(case: EndedAlert, before: ProcessReading | None) -> str:
    if before is None or not before.used_bytes or case.before is None:
        return ""
    held = format_bytes(before.used_bytes)
    was, now = case.before.memory, case.memory
    if was is None or now is None or was.used_bytes is None or now.used_bytes is None:
        return f"; it held {held}"
    if back := _bytes_back(case, before.used_bytes, was.used_bytes - now.used_bytes):
        return f"; {format_bytes(back)}{_BACK}"
    return f"; it held {held}, and {format_bytes(now.used_bytes)} is in use now"


def _memory_level(case: EndedAlert) -> str:
    was, now = None if case.before is None else case.before.memory, case.memory
    if now is None or now.used_bytes is None or not now.total_bytes:
        return ""
    if was is not None and was.used_bytes is not None and now.used_bytes >= was.used_bytes:
        return ""
    return f"memory back to {format_bytes(now.used_bytes)} ({format_ratio(now.used_bytes / now.total_bytes)})"


def _process_memory_level(case: EndedAlert) -> str:
    now = case.process
    was = None if case.before is None or case.before.process is None else case.before.process.used_bytes
    if now is None or now.used_bytes is None or (was is not None and now.used_bytes >= was):
        return ""
    return f"its memory is back to {format_bytes(now.used_bytes)}"


def _growth(case: EndedAlert) -> str:
    memory, used, was = case.memory, _used(case), _used_before(case)
    if memory is None or used is None or memory.used_bytes is None or not memory.total_bytes or _is_former_gone(case):
        return ""
    fell = f"memory back to {format_bytes(used)}" if was is not None and used < _FELL * was else ""
    if told := _what_became_of_grower(case) or _how_it_levelled_off(case) or fell:
        return told
    is_full_soon = case.growth is not None and case.growth.exhaustion is not None and case.growth.exhaustion.value < 1
    if memory.is_full or is_full_soon:
        instance = case.alert.labels.get("gpu_instance_id", "")
        return "the MIG instance became full" if instance.isdecimal() else "the GPU became full"
    growth = case.growth
    rises = growth is not None and growth.suspected and growth.state is GrowthState.RISING
    if case.alert.name == "GpuProcessMemoryLeak" and rises:
        return "it still grows, and is no leak by the sensitivity that now holds for it"
    free = memory.free_bytes if memory.free_bytes is not None else memory.total_bytes - memory.used_bytes
    return _growth_now(case, used, max(0, free))


def _how_it_levelled_off(case: EndedAlert) -> str:
    """Return the detector's own words for the end of a leak: at what it stopped, or what it gave back.

    Of an alert that names no process they are of memory that nobody owns: of a GPU nothing else levels off.
    """
    growth = case.growth
    if growth is None or growth.verdict is not Verdict.LEVELLED_OFF:
        return ""
    told = growth.reasons[0].partition(NO_NEW_HIGH)[0] if growth.reasons else ""
    if case.alert.labels.get("pid"):
        if told.startswith("growth stopped at "):
            # The verdict needed half an hour and more without a high: the end has the time of the last one.
            stopped = growth.stopped_seconds
            return told if stopped is None else f"{told} ({clock_time(stopped)} UTC)"
        return told if told.startswith(GAVE_BACK) else ""
    back = told.removeprefix(GAVE_BACK).partition(",")[0] if told.startswith(GAVE_BACK) else ""
    return f"{back} of memory assigned to no process{_BACK}" if back else ""


def _who_left(case: EndedAlert) -> str:
    """Return which processes have gone, where most of what came back was theirs, or was the grower's; "" else."""
    before, gpu, memory = case.before, case.gpu, case.memory
    if before is None or gpu is None or gpu.state is not GpuState.OK or not gpu.processes_known:
        return ""
    was, now = before.memory, memory
    if was is None or now is None or was.used_bytes is None or now.used_bytes is None:
        return ""
    listed = {one.pid for one in case.snapshot.processes if one.gpu_uuid == gpu.identity.uuid}
    gone = [one for one in before.processes if one.pid not in listed]
    held, fell = sum(one.used_bytes or 0 for one in gone), was.used_bytes - now.used_bytes
    did_grow = before.grower is not None and before.grower.pid in {one.pid for one in gone}
    back = _bytes_back(case, held, fell)
    if not back or (held < _MOST_OF_THE_FALL * fell and not did_grow):
        return ""
    most = max(gone, key=lambda one: one.used_bytes or 0)
    others = len({one.pid for one in gone}) - 1
    more = f" and {others} more" if others else ""
    if all(one.state is ProcessState.DEAD for one in gone):
        return f"the driver no longer lists {_name(most)}{more}, which had ended; {format_bytes(back)}{_BACK}"
    return f"{_name(most)}{more} {_left_how(case, gone)}; {format_bytes(back)}{_BACK}"


def _bytes_back(case: EndedAlert, held: int, fell: int) -> int:
    """Return how much came back of what processes held that have left, where less by `fell` is in use; 0 if little.

    Who had no room takes a part of it at once: what is in use no more is told then, with what was started since.
    """
    used = {one.key: one.used_bytes or 0 for one in (() if case.before is None else case.before.processes)}
    listed = list(holders_of(case.alert.labels, case.snapshot)) if used else []
    if not held or fell >= _MOST_CAME_BACK * held:
        return held
    taken = sum(max(0, (one.used_bytes or 0) - used.get(one.key, 0)) for one in listed)
    started = sum(one.used_bytes or 0 for one in listed if one.key not in used)
    is_back = fell + taken >= _MOST_CAME_BACK * held and fell >= _LEAST_OF_HELD * held
    return min(held, fell + started) if is_back else 0


def _gone_grower(case: EndedAlert) -> ProcessReading | None:
    """Return the process that grew most on the GPU of an alert that names none, if the driver lists it no more."""
    gpu, grower = case.gpu, None if case.before is None else case.before.grower
    if grower is None or gpu is None or gpu.state is not GpuState.OK or not gpu.processes_known:
        return None
    is_listed = any(
        one.pid == grower.pid and one.gpu_uuid == grower.gpu_uuid and not _is_other(grower, one)
        for one in case.snapshot.processes
    )
    return None if is_listed else grower


def _name(process: ProcessReading) -> str:
    known = process.info or process.former
    return f"{'a process' if known is None else known.name} (pid {process.pid})"


def _left_how(case: EndedAlert, gone: Sequence[ProcessReading]) -> str:
    return "ended" if all(_how_it_left(case, one) != LEFT for one in gone) else "left the GPU"


def _growth_now(case: EndedAlert, used: int, free: int) -> str:
    growth = case.growth
    if growth is None:
        return ""
    names_one = bool(case.alert.labels.get("pid"))
    grower = None if names_one or case.before is None else _now(case, case.before.grower)
    if growth.exhaustion is not None:
        # The pace is that of the last minutes, in which it was faster than it is now.
        pace = "" if growth.slope is None else f" to {format_bytes(3600 * growth.slope.value)}/h at most"
        now = None if names_one else case.grower  # who grew fastest before may have stopped
        goes_on = "it goes on" if now is None else f"{_name(now)} goes on growing"
        full = f"full in {format_duration(growth.exhaustion.value)} at the earliest"
        return f"it slowed down{pace}, and {goes_on}, {full}"
    if growth.verdict is Verdict.CACHED:
        return "its tensors stopped growing: what it held beyond them was cache"
    has_stopped = growth.state is GrowthState.STOPPED
    if not has_stopped and growth.verdict not in {Verdict.STEADY, Verdict.LEVELLED_OFF}:
        return ""
    if grower is not None and grower.used_bytes is not None:
        # It is told minutes later: in the past tense it stays true.
        return f"growth stopped: {_name(grower)} had {format_bytes(grower.used_bytes)}, with {format_bytes(free)} free"
    return f"growth stopped at {format_bytes(used)} with {format_bytes(free)} free"


def _what_became_of_grower(case: EndedAlert) -> str:
    """Return how the process has ended that grew most, of an alert that names none; "" while it goes on."""
    if (grower := _gone_grower(case)) is not None:
        return f"{_name(grower)} {_left_how(case, [grower])}{_came_back(case, grower)}"
    dead = _dead_grower(case)
    return "" if dead is None else f"{_name(dead)} ended{_still_held(dead)}"


def _dead_grower(case: EndedAlert) -> ProcessReading | None:
    """Return the process that grew most, of an alert that names none, where it has ended and its memory stays."""
    was = None if case.before is None else case.before.grower
    now = _now(case, was)
    is_news = was is not None and was.state is not ProcessState.DEAD
    return now if is_news and now is not None and now.state is ProcessState.DEAD else None


def _now(case: EndedAlert, process: ProcessReading | None) -> ProcessReading | None:
    """Return the reading of today of a process; None where it is gone."""
    if process is None:
        return None
    return next(
        (one for one in case.snapshot.processes if one.key == process.key and not _is_other(process, one)), None
    )


def _idle(case: EndedAlert) -> str:
    now = case.process
    if now is not None and now.utilization is not None and any(ratio > 0 for ratio in now.utilization):
        return "it is computing again"
    return _process_memory_level(case)


def _dead(case: EndedAlert) -> str:
    gpu, labels = case.gpu, case.alert.labels
    if gpu is None or gpu.state is not GpuState.OK or not gpu.processes_known:
        return ""
    if any(str(one.pid) == labels.get("pid") and one.gpu_uuid == labels.get("uuid") for one in case.snapshot.processes):
        return ""
    held = f"; {format_bytes(case.alert.value)} came back" if case.alert.value > 0 and _memory_level(case) else ""
    return f"the driver no longer counts memory for it{held}"


def _repaired(case: EndedAlert) -> str:
    gpu = case.gpu
    if gpu is None or gpu.state is not GpuState.OK:
        return ""
    if any(str(one.xid) == case.alert.labels.get("xid") for one in gpu.unrepaired_xids):
        return ""
    if since := since_initialized(case):
        return "the node was rebooted" if "reboot" in since else gpu.repair or f"the GPU answers {since}"
    return "the driver no longer shows it as open; a reset or a reload was not seen"


def _xid(case: EndedAlert) -> str:
    labels = case.alert.labels
    last = max(
        (
            one.last_time_seconds
            for one in case.snapshot.xids
            if one.gpu_uuid == labels.get("uuid") and str(one.xid) == labels.get("xid")
        ),
        default=None,
    )
    since = since_initialized(case)
    if last is None or case.wall_seconds - last < _XID_SECONDS:
        is_back = since and case.gpu is not None and case.gpu.state is GpuState.OK
        return f"nothing more of it {since}" if is_back else ""
    quiet = f"no new Xid {labels.get('xid')} for {format_duration(_XID_SECONDS)}"
    return quiet if since or case.before is None else f"{quiet}; the GPU was not repaired"


def _lost(case: EndedAlert) -> str:
    if not case.alert.labels.get("uuid"):
        found = (gpu.identity for gpu in case.snapshot.gpus if str(gpu.identity.index) == case.alert.labels.get("gpu"))
        is_back = any(identity.uuid for identity in found)
        return f"the GPU answers again {since_repaired(case)}".strip() if is_back else ""
    gpu = case.gpu
    if gpu is None or gpu.state is not GpuState.OK:
        return ""
    return f"the GPU answers again {since_repaired(case)}".strip()


def _blind(case: EndedAlert) -> str:
    if case.alert.labels.get("uuid"):
        gpu = case.gpu
        if gpu is None or gpu.state is not GpuState.OK:
            return ""
        if case.alert.labels.get("scope") == "processes":
            return "the agent can read them again" if gpu.processes_known else ""
        return "the agent can read it again"
    is_ready = case.snapshot.node.nvml_state is NvmlState.READY
    readable = any(gpu.state is GpuState.OK for gpu in case.snapshot.gpus)
    if not (is_ready and readable):
        return ""
    pause = "" if case.before is None else case.before.pause
    again = "the agent can read the GPUs again"
    if not pause:
        return again
    is_told = bool(case.alert.labels.get("by"))  # its own text says that it was paused, and by whom
    return "it has resumed" if is_told else f"measuring was paused ({pause}), and has resumed"


def _count(case: EndedAlert) -> str:
    listed = sum(gpu.state is not GpuState.GONE for gpu in case.snapshot.gpus)
    expected = case.snapshot.node.gpus_expected
    return f"the driver lists all {expected} GPUs again" if listed >= expected > case.alert.value else ""


def _uncorrectable(case: EndedAlert) -> str:
    gpu = case.gpu
    if gpu is None or gpu.ecc is None or gpu.ecc.volatile_uncorrected != 0:
        return ""
    return "the driver's count began anew, as it does after a reset or a reboot"


def _remap_pending(case: EndedAlert) -> str:
    gpu = case.gpu
    ecc = None if gpu is None else gpu.ecc
    if ecc is None or ecc.remap_pending or ecc.retired_pages_pending:
        return ""
    return "no replacement is pending any more"


def _remap_failed(case: EndedAlert) -> str:
    gpu = case.gpu
    if gpu is None or gpu.ecc is None or gpu.ecc.remap_failed is not False:
        return ""
    return f"the driver reports no failed row remapping any more {since_initialized(case)}".strip()


def _recovery(case: EndedAlert) -> str:
    gpu = case.gpu
    return "the driver no longer asks for one" if gpu is not None and gpu.ecc and gpu.ecc.recovery_action == 0 else ""


def _throttled(case: EndedAlert) -> str:
    gpu = case.gpu
    return "its clocks are no longer limited by it" if gpu is not None and gpu.clocks is not None else ""


def _constant(text: str) -> Callable[[EndedAlert], str]:
    return lambda _: text


_REASONS: dict[frozenset[str], Callable[[EndedAlert], str]] = {
    frozenset({"GpuMemoryHigh", "GpuMemoryFull", "GpuInstanceMemoryFull"}): _memory_level,
    frozenset({"AppAboveDeclaredMemory"}): _process_memory_level,
    frozenset({"GpuProcessMemoryLeak", "GpuMemoryLeak", "GpuMemoryExhaustionSoon"}): _growth,
    frozenset({"GpuProcessIdleHoldingMemory"}): _idle,
    frozenset({"GpuDeadProcessesHoldMemory"}): _dead,
    frozenset({"GpuXidCritical"}): _repaired,
    frozenset({"GpuXidWarning"}): _xid,
    frozenset({"GpuLost"}): _lost,
    frozenset({"GpuMonitorBlind"}): _blind,
    frozenset({"GpuCountDropped"}): _count,
    frozenset({"GpuEccUncorrectable"}): _uncorrectable,
    frozenset({"GpuRowRemapPending"}): _remap_pending,
    frozenset({"GpuRowRemapFailed"}): _remap_failed,
    frozenset({"GpuRecoveryAction"}): _recovery,
    frozenset({"GpuThrottledThermal", "GpuThrottledPower"}): _throttled,
    frozenset({"GpuRemedy"}): _constant("that was 15 min ago"),
    frozenset({"GpuRemedyAnnounced"}): _constant("the remedy acted, or was called off"),
    frozenset({"GpuProcessUnkillable"}): _constant("the process has ended"),
    frozenset({"GpuRemediesStopped"}): _constant("remedies go on"),
}


def _is_other(before: ProcessReading | None, now: ProcessReading) -> bool:
    """Return whether a pid belongs to another process now."""
    return before is not None and before.info is not None and now.info is not None and before.info.id != now.info.id


def _used(case: EndedAlert) -> int | None:
    if case.alert.labels.get("pid"):
        return None if case.process is None else case.process.used_bytes
    return None if case.memory is None else case.memory.used_bytes


def _used_before(case: EndedAlert) -> int | None:
    before = case.before
    if before is None:
        return None
    if case.alert.labels.get("pid"):
        return None if before.process is None else before.process.used_bytes
    return None if before.memory is None else max(before.memory.used_bytes or 0, before.peak_bytes)
