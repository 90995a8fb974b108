"""What a person is told of an incident: one headline, and what helps to decide what to do.

Made when a message is made, of the last snapshot. A forecast stands only while it is true, and nothing of a firing
alert is said of one that has ended. An incident of which nothing is true now and whose end is held back has a headline
as well: what is waited for. Mostly, a process was started again and may grow again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote

from gpuagent.core.growth import MemoryKey, Verdict
from gpuagent.core.hardware import Memory
from gpuagent.core.holding import count_untold
from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.snapshot import ProcessReading, ProcessState, Snapshot
from gpuagent.core.units import MAX_SECONDS, format_bytes, format_duration, format_forecast, format_ratio
from gpuagent.core.xids import explain_xid
from gpuagent_alerts.alert import (
    PENDING_SUMMARY,
    UNKNOWN_END,
    Alert,
    Briefing,
    CauseKind,
    Holder,
    Incident,
    News,
    Status,
)
from gpuagent_alerts.messages.briefing_inputs import HIGH, LEAK, SOON, BriefingInputs, Successors
from gpuagent_alerts.messages.headline import (
    decisive_alert,
    growing_beside,
    headline_of,
    main_alert,
    place_of,
    says_full,
    summary_of_kept,
)
from gpuagent_alerts.messages.incident_end import end_reason_of, running
from gpuagent_alerts.messages.naming import group_name, labels_of, process_name, times, without_place
from gpuagent_alerts.messages.nobodys_growth import nobodys_bytes_per_hour
from gpuagent_alerts.messages.snapshot_inputs import REMEDY_ANNOTATION, subject_of
from gpuagent_alerts.notify.incident_record import incident_of
from gpuagent_alerts.notify.incidents import is_soon_critical
from gpuagent_alerts.notify.notifier import Notifier
from gpuagent_alerts.notify.succession import Restarts, Watch
from gpuagent_alerts.notify.urgency import is_critical, urgency_of
from gpuagent_alerts.remedies.outcome import NOTHING_DONE

_MOST_HOLDERS = 3
_PID = re.compile(r"\bpid \d+")
_XIDS = frozenset({"GpuXidCritical", "GpuXidWarning"})
_KERNEL_LOG = "sudo dmesg | grep -i xid"
_OPEN_FILES = "sudo fuser -v /dev/nvidia*"
"""Shows who has the GPU open, where the driver's list does not."""
_MOSTLY = 0.5
MINUTES_LEFT_SECONDS = 1800.0
"""Forecast below which somebody has to act now, as for the critical tier of `GpuMemoryExhaustionSoon`."""
_COMMANDS = {
    "GpuLost": _KERNEL_LOG,
    "GpuXidCritical": _KERNEL_LOG,
    "GpuXidWarning": _KERNEL_LOG,
    "GpuCountDropped": "nvidia-smi -L",
    "GpuMonitorBlind": "gpuagent doctor",
    "GpuRemedy": "gpuagent remedies",
    "GpuRemedyAnnounced": "gpuagent remedies",
    "GpuProcessUnkillable": "gpuagent remedies",
    "GpuRemediesStopped": "gpuagent remedies",
    "GpuMemoryLeak": _OPEN_FILES,
    "GpuMemoryUnattributed": _OPEN_FILES,
    "GpuThrottledThermal": "gpuagent status",
    "GpuThrottledPower": "gpuagent status",
}
_LOST = "The driver has lost access to it: whatever ran there is lost. Drain the node, then reset the GPU or reboot."


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses at which a person finds more; "" where there is none."""

    page: str = ""
    """The agent's own page."""
    grafana: str = ""
    """A board. `{node}`, `{gpu}`, `{uuid}` and `{pid}` are filled in."""


_MOST_BESIDE = 256


@dataclass(slots=True)
class BriefingWriter:
    """Writes briefings from the snapshot that it was shown last."""

    node: str
    links: Links = field(default_factory=Links)
    snapshot: Snapshot | None = None
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Bytes that each budget allows, by its label."""

    _beside: dict[str, frozenset[MemoryKey]] = field(default_factory=dict)
    """Who was last named beside the processes of an incident, by its key, the one of longest ago first."""

    def _inputs(self, incident: Incident, alerts: Sequence[Alert]) -> BriefingInputs:
        """Return what is known of an incident, and note who is named in its headline so that this does not flicker."""
        before = self._beside.pop(incident.key, frozenset())
        seen = BriefingInputs(incident, tuple(alerts), self.snapshot, self.budgets, before)
        if beside := growing_beside(seen) if seen.pace else before:
            self._beside[incident.key] = beside
        while len(self._beside) > _MOST_BESIDE:
            del self._beside[next(iter(self._beside))]
        return seen

    def headline(self, incident: Incident, alerts: Sequence[Alert]) -> str:
        """Return the one line that a message about an incident would have now."""
        seen = self._inputs(incident, alerts)
        return headline_of(seen, main_alert(seen), self.node)

    def held(self, incident: Incident, watch: Watch, now: float) -> tuple[str, str]:
        """Return the line of an incident of which nothing is true now, and the same without severity and place."""
        seen = self._inputs(incident, ())
        return held_headline(seen, watch, self.node, now), held_text(seen, watch, now)

    def about_to_fire(self, incident: Incident, alerts: Sequence[Alert]) -> tuple[str, str]:
        """Return the line of an incident of which these alerts are about to fire, and the same without the rest.

        It has no severity: nothing of the incident is true for as long as its rule asks.
        """
        seen = self._inputs(incident, alerts)
        worst = max(alerts, key=urgency_of)
        text = without_place(worst.annotations.get(PENDING_SUMMARY) or worst.name)
        return f"PENDING {place_of(seen, self.node)}: {text}", text

    def still_severe(self, incident: Incident, alerts: Sequence[Alert]) -> tuple[str, str]:
        """Return the line of an incident that stays as severe as these kept alerts, and the same without the rest."""
        live = [replace(one, true_until=None, kept_until=None) for one in alerts]
        seen = self._inputs(incident, live)
        line = headline_of(seen, main_alert(seen), self.node)
        prefix = f"{incident.severity.upper()} {place_of(seen, self.node)}: "
        if not seen.members:  # nothing is measured to grow: what it came to is all that there is to say
            line = prefix + self.ending(incident, [replace(one, kept_until=None) for one in alerts])
        return line, line.removeprefix(prefix)

    def growing_again(self, incident: Incident) -> tuple[str, str]:
        """Return the line of an incident whose memory grows after it had stopped, and the same without the rest."""
        seen, labels = self._inputs(incident, ()), incident.labels
        who = "memory"
        if incident.kind in {CauseKind.PROCESS, CauseKind.GROUP}:
            who = process_name(labels) if labels.get("pid") else group_name(seen, labels)
        text = f"{who} grows again, after it had stopped"
        return f"{(incident.severity or 'firing').upper()} {place_of(seen, self.node)}: {text}", text

    def ending(self, incident: Incident, alerts: Sequence[Alert]) -> str:
        """Return what ended an incident of which these alerts are only kept, and until when that has to last."""
        seen = self._inputs(incident, alerts)
        main = main_alert(seen)
        return "" if main is None else summary_of_kept(seen, main)

    def write(self, incident: Incident, alerts: Sequence[Alert]) -> Briefing:
        """Return what is said of an incident in a message with these alerts."""
        over = incident.is_over
        present = tuple(one for one in alerts if one.holds)
        is_untold = incident.news is News.RESTARTED and not present  # no alert fires of what grows again
        told = () if is_untold else tuple(alerts) if over or not present else present
        seen = self._inputs(incident, told)
        main = main_alert(seen)
        reason = "" if not over else UNKNOWN_END if main is None else end_reason_of(seen, main)
        return Briefing(
            headline=_regrowth(seen, self.node)
            if is_untold
            else headline_of(seen, main, self.node) + _what_stopped(main, alerts),
            numbers=_numbers(seen, main),
            holders=() if over else tuple(_holders(seen)[:_MOST_HOLDERS]),
            culprit="" if over else _culprit(seen),
            remedies=_remedies(alerts),
            next_command="" if over else _next_command(seen, main),
            links=self._links(seen, max(alerts, key=urgency_of, default=None) if is_untold else main),
            silence_command="" if over else f"gpuagent silence add --incident {incident.key} --for 2h",
            end_reason=reason,
            says_full=says_full(seen, main),
        )

    def _links(self, seen: BriefingInputs, main: Alert | None) -> Mapping[str, str]:
        gpu = seen.gpus[0].identity if len(seen.gpus) == 1 else None
        board = self.links.grafana
        for name, text in (
            ("{node}", self.node),
            ("{gpu}", str(gpu.index) if gpu is not None else ""),
            ("{uuid}", gpu.uuid if gpu is not None else ""),
            ("{pid}", str(next(iter(seen.pids))) if len(seen.pids) == 1 else ""),
        ):
            board = board.replace(name, quote(text, safe=""))
        decisive = decisive_alert(seen, main) or main
        runbook = "" if decisive is None else decisive.annotations.get("runbook_url", "")
        runbook = runbook if runbook.startswith(("https://", "http://")) else ""  # a rule may have any text
        found = {"page": self.links.page, "plot": self._plot_link(seen), "grafana": board, "runbook": runbook}
        return {name: url for name, url in found.items() if url}

    def _plot_link(self, seen: BriefingInputs) -> str:
        """Return where the agent draws the memory of the one process that grows; "" where it is not one."""
        if not self.links.page or not seen.pace or seen.incident.is_over or len(seen.pids) != 1 or not seen.gpus:
            return ""
        gpu = quote(seen.gpus[0].identity.uuid, safe="")
        return f"{self.links.page.rstrip('/')}/api/v1/leaks/{next(iter(seen.pids))}/plot.svg?gpu={gpu}"


def _what_stopped(main: Alert | None, alerts: Sequence[Alert]) -> str:
    """Return why the growth ended of which the last message told, where memory is merely in use now."""
    if main is None or main.name != HIGH or not main.holds:
        return ""
    ended = [one for one in alerts if one.status is Status.RESOLVED and one.name in {LEAK, SOON} and one.end_reason]
    last = max(ended, key=lambda one: (one.ends_at or 0.0, one.name == LEAK), default=None)
    return "" if last is None else f"; {last.end_reason}"


def _numbers(seen: BriefingInputs, main: Alert | None) -> str:
    if main is not None and (needed := _what_is_needed(seen, main)):
        return needed
    parts = []
    processes = seen.processes
    if not seen.incident.is_over and processes:
        held = sum(process.used_bytes or 0 for process in processes)
        many = len({process.pid for process in processes})
        who = f"{many} processes hold" if many > 1 else "process holds"
        parts += [f"{who} {format_bytes(held)}"] if held else []
    memory = _memory(seen.memories)
    if memory:
        parts.append(memory)
    if seen.pace and not seen.incident.is_over and not seen.is_full:
        parts.append(f"+{format_bytes(seen.pace)}/h")
    return " · ".join(parts)


def _memory(found: Sequence[Memory]) -> str:
    used = sum(memory.used_bytes or 0 for memory in found)
    total = sum(memory.total_bytes or 0 for memory in found)
    if not total:
        return ""
    where = f"{len(found)} GPUs: " if len(found) > 1 else ""
    return f"{where}{format_bytes(used)} of {format_bytes(total)} in use ({format_ratio(used / total)})"


def _what_is_needed(seen: BriefingInputs, main: Alert) -> str:
    """Return what the driver says of a GPU in words, and what it takes; "" for what is no fault of a GPU."""
    if seen.incident.is_over:
        return ""
    words = []
    for xid in seen.xids:
        known = explain_xid(xid)
        words.append(f"Xid {xid}: {known.meaning}. {known.advice}")
    if main.name == "GpuLost":
        return f"{_LOST} {words[0]}" if words else _LOST
    return " ".join(words) if main.name in _XIDS else ""


def _holders(seen: BriefingInputs) -> list[Holder]:
    """Return who holds memory of the incident's GPUs or of its MIG instance, the largest first."""
    held: dict[int, list[ProcessReading]] = {}
    for process in seen.listed:
        if process.used_bytes:
            held.setdefault(process.pid, []).append(process)
    found = []
    for pid, parts in held.items():
        labels = labels_of(parts[0])
        used = sum(part.used_bytes or 0 for part in parts)
        found.append(Holder(pid, labels["process"], labels.get("user", ""), used))
    return sorted(found, key=lambda one: (-one.used_bytes, one.pid))


def _culprit(seen: BriefingInputs) -> str:
    if seen.snapshot is None:
        return ""
    found = (
        seen.snapshot.growth.get(MemoryKey(process.gpu_uuid, process.pid, process.gpu_instance_id))
        for process in seen.processes
    )
    return next((growth.culprit for growth in found if growth is not None and growth.culprit), "")


def _next_command(seen: BriefingInputs, main: Alert | None) -> str:
    if main is not None and main.name == "GpuMonitorBlind" and seen.is_paused:
        return "gpuagent resume"
    command = "" if main is None else _COMMANDS.get(main.name, "")
    if command and not (command == _OPEN_FILES and count_untold(seen.listed)):
        return command
    again = seen.successors if main is None else None
    if again is not None and (command := _about_successor(seen, again)):
        return command
    pids = seen.pids
    if len(pids) == 1 and main is not None and seen.can_blame(next(iter(pids))):
        return f"gpuagent blame {next(iter(pids))}"
    leaker = _leaker_to_end(seen)
    return _who_holds(seen) if leaker is None else f"gpuagent kill {leaker}"


def _about_successor(seen: BriefingInputs, again: Successors) -> str:
    """Return what helps with one process that was started again and grows; "" where nothing more is known of it."""
    if len(again.pids) != 1:
        return ""
    if seen.can_blame(again.pids[0]):
        return f"gpuagent blame {again.pids[0]}"
    is_urgent = again.full_in is not None and again.full_in < MINUTES_LEFT_SECONDS
    return f"gpuagent kill {again.pids[0]}" if is_urgent else ""


def _who_holds(seen: BriefingInputs) -> str:
    """Return the command that shows who holds the memory of its GPUs."""
    used = sum(memory.used_bytes or 0 for memory in seen.memories)
    is_nobodys = used and seen.unattributed_bytes >= _MOSTLY * used
    grows = not seen.members and nobodys_bytes_per_hour(seen.snapshot, seen.places) > 0
    if not seen.pids and (is_nobodys or grows) and not count_untold(seen.listed):
        return _OPEN_FILES
    indices = sorted({gpu.identity.index for gpu in seen.gpus})
    if not indices:
        return "gpuagent alerts"
    return f"gpuagent ps --gpu {indices[0]}" if len(indices) == 1 else "gpuagent ps"


def _leaker_to_end(seen: BriefingInputs) -> int | None:
    """Return the pid of the one process that leaks and has filled its GPU, or does within minutes; None else.

    It is None too where another one grows faster there: without this one it would be full as soon.
    The command asks before it ends a process.
    """
    leaking = {one.process.pid for one in seen.members if one.growth.verdict is Verdict.LEAKING}
    seconds = seen.seconds_to_full
    is_urgent = seen.is_full or (seconds is not None and seconds < MINUTES_LEFT_SECONDS)
    is_one = is_urgent and not seen.is_outpaced and len(leaking) == 1 and leaking == seen.pids
    return next(iter(leaking)) if is_one else None


def _regrowth(seen: BriefingInputs, node: str) -> str:
    """Return the line of an incident in which what was started again grows, and of which no alert fires yet."""
    incident, again = seen.incident, seen.successors
    who = group_name(seen, incident.labels, again)
    said = f"{who} was restarted {times(incident.restarts)}"
    if again is not None:
        pace = again.bytes_per_hour or incident.grows_by * 3600
        said += f" and {running(again)}{_on_others(seen, again)}, {_grows_again(again, pace)}"
    return f"{(incident.severity or 'firing').upper()} {place_of(seen, node)}: {said}"


def held_headline(seen: BriefingInputs, watch: Watch, node: str, now: float) -> str:
    """Return the line of such an incident. `seen` has no alerts, `now` is Unix time."""
    return f"{(seen.incident.severity or 'firing').upper()} {place_of(seen, node)}: {held_text(seen, watch, now)}"


def held_text(seen: BriefingInputs, watch: Watch, now: float) -> str:
    """Return what has become of the owner of its processes, and what is waited for."""
    restarts, labels = watch.restarts, seen.incident.labels
    age = "" if restarts.since is None else format_duration(max(1.0, now - restarts.since))
    again = seen.successors if restarts.runs_as else None
    who = group_name(seen, labels, again)
    if not watch.holds or restarts.since is None:
        about = f"{who}: " if seen.incident.kind in {CauseKind.PROCESS, CauseKind.GROUP} else ""
        return f"{about}{_NOT_TRUE}"
    if not watch.awaits_restart:
        who = process_name(labels) if labels.get("pid") else who
        waits = "a remedy gave its memory back" if watch.is_freed else "waiting for what a remedy comes to"
        return f"{who} {_left(restarts, age, now)}: {waits}"
    if again is not None:
        if again.started_at is not None and again.started_at < restarts.since:  # while nobody saw it
            age = format_duration(max(1.0, now - again.started_at))
        began = f"{who} was restarted {times(restarts.count)} and {running(again)}" if restarts.count else (
            f"{who} {running(again)}")  # fmt: skip
        return f"{began}{_on_others(seen, again)}, for {age}{_growth(watch, again)}"
    if restarts.count:
        return f"{who} was restarted {times(restarts.count)} and {_left(restarts, age, now)}{_WHETHER_RESTARTED}"
    who = process_name(labels) if labels.get("pid") else who
    held = sum(each.used_bytes or 0 for each in seen.listed
               if each.state is ProcessState.DEAD and str(each.pid) == labels.get("pid"))  # fmt: skip
    left = f"ended {age} ago and still holds {format_bytes(held)}" if held else _left(restarts, age, now)
    return f"{who} {left}{_WHETHER_RESTARTED}"


def _left(restarts: Restarts, age: str, now: float) -> str:
    """Return when the process left the GPU; of one that left unseen, since when that was so."""
    if restarts.unread_since is None:
        return f"left the GPU {age} ago"
    unread = format_duration(max(1.0, now - restarts.unread_since))
    return f"left the GPU in the last {unread}, while its processes could not be read"


def _pids_that_grow(watch: Watch) -> tuple[int, ...]:
    growth = watch.growth
    is_told = growth is not None and watch.shows_growth and growth.bytes_per_second > 0
    return watch.restarts.pids if is_told else ()


_SEVERITIES = frozenset({"critical", "warning", "info"})
_NOT_TRUE = "no alert of it is true now; its end is told if that lasts"
_WHETHER_RESTARTED = ": waiting to see whether it is started again"


def _on_others(seen: BriefingInputs, again: Successors) -> str:
    indices = [str(index) for index in again.gpus]
    if set(indices) <= set(seen.indices):
        return ""
    return f" on GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)}"


def _growth(watch: Watch, again: Successors) -> str:
    """Return whether they grow, as measured, by the pace that the leak detector has for them, as soon as it has one."""
    measured = watch.growth.bytes_per_second if watch.growth is not None and watch.shows_growth else 0.0
    if measured:
        return f", {_grows_again(again, again.bytes_per_hour or measured * 3600)}"
    return ": waiting to see whether it grows again"


def _grows_again(again: Successors, pace: float) -> str:
    forecast = "" if again.full_in is None or again.full_in > MAX_SECONDS else f", {format_forecast(again.full_in)}"
    return f"and grows again: {format_bytes(pace)}/h{forecast}"


class WaitingIncident(NamedTuple):
    """One such incident."""

    key: str
    headline: str
    """One line, as of any incident that goes on."""
    for_restart: bool
    """Whether its end waits for what was, or may be, started in place of its processes."""
    is_ending: bool
    """Whether it ends unless something becomes true: nothing of it is about to fire, and no restart is waited for."""
    is_pending: bool
    """Whether an alert of it is about to fire, and nothing of it is true for as long as its rule asks.

    One that was critical, and of which an alert is critical again in a moment, is so meanwhile.
    """
    subject: FiringAlert
    """What it is about, as severe as the incident; one that only ends, or is about to fire, is no trouble."""


def find_waiting(
    notifier: Notifier,
    briefings: BriefingWriter,
    present: Collection[str],
    now: float,
    known: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    stirring: Mapping[str, Sequence[Alert]] = MappingProxyType({}),
    kept: Mapping[str, Alert] = MappingProxyType({}),
) -> list[WaitingIncident]:
    """Return them by key; `present` are fingerprints of alerts whose conditions are true, `now` is Unix time.

    `known` are labels of alerts that fire, by fingerprint. `stirring` are those that are about to fire, by the key of
    the incident that they belong to: their conditions are true already. `kept` are alerts that are only kept, by
    fingerprint.
    """
    found, records = [], notifier.incidents
    for key, watch in sorted(notifier.owners().items()):
        record = records.get(key)
        if record is None or any(name in present for name, keeps in record.members.items() if keeps):
            continue
        incident = incident_of(record, News.BEGAN)
        headline, text = briefings.held(incident, watch, now)
        for_restart = watch.awaits_restart
        about_to_fire = () if for_restart else stirring.get(key, ())
        grows = not for_restart and not about_to_fire and key in notifier.growing_again
        own = [kept[name] for name, keeps in record.members.items() if keeps and name in kept]
        is_severe = any(is_soon_critical(one, now) for one in about_to_fire) and any(is_critical(one) for one in own)
        if is_severe:
            headline, text = briefings.still_severe(incident, own)
        elif about_to_fire:
            headline, text = briefings.about_to_fire(incident, about_to_fire)
        elif grows:
            headline, text = briefings.growing_again(incident)
        elif own and not for_restart:
            text = briefings.ending(incident, own)
        severity = incident.severity if incident.severity in _SEVERITIES else "warning"
        severity = severity if for_restart or is_severe else "warning" if grows else "info"
        subject = subject_of({**incident.labels, "alertname": key, "severity": severity}, about_growth=False)
        labels = {**{name: one.labels for name, one in record.ended.items()}, **known}
        subject = subject._replace(
            pid=0,
            summary=text,
            grows_again=_pids_that_grow(watch) if for_restart else (),
            silenced=notifier.is_incident_silenced(record, labels),
            is_ending=not for_restart and not grows and not is_severe,
        )
        is_ending = not for_restart and not about_to_fire and not grows
        is_pending = bool(about_to_fire) and not is_severe
        found.append(WaitingIncident(key, headline, for_restart, is_ending, is_pending, subject))
    return found


def _remedies(alerts: Sequence[Alert]) -> tuple[str, ...]:
    """Return what was done about alerts, each once; why nothing is once for each process, by the gravest alert."""
    found: dict[str, str] = {}
    for one in alerts:
        text = one.annotations.get(REMEDY_ANNOTATION, "")
        about = _PID.search(text) if text.startswith(NOTHING_DONE) else None
        if text:
            found.setdefault(text if about is None else about[0], text)
    return tuple(found.values())
