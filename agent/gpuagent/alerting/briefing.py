"""What a person is told of an incident: one headline, and what helps to decide what to do.

Made when a message is made, of the last snapshot. A forecast stands only while it is true, and nothing of a firing
alert is said of one that has ended.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from gpuagent.alerting.headline import BriefingInputs, headline_of, main_alert
from gpuagent.growth import MemoryKey
from gpuagent.reading import GpuReading, ProcessReading, Snapshot
from gpuagent.units import format_bytes, format_ratio
from gpuagent_alerts.alert import UNKNOWN_END, Alert, Briefing, CauseKind, Holder, Incident
from gpuagent_exporters.xids import explain_xid

if TYPE_CHECKING:
    from gpuagent.config.models import Config

_MOST_HOLDERS = 3
_DEAD = "[dead]"
_XIDS = frozenset({"GpuXidCritical", "GpuXidWarning"})
_KERNEL_LOG = "dmesg | grep -i xid"
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


@dataclass(slots=True)
class BriefingWriter:
    """Writes briefings from the snapshot that it was shown last."""

    node: str
    links: Links = field(default_factory=Links)
    snapshot: Snapshot | None = None

    def write(self, incident: Incident, alerts: Sequence[Alert]) -> Briefing:
        """Return what is said of an incident in a message with these alerts."""
        over = incident.is_over
        present = tuple(one for one in alerts if one.holds)
        seen = BriefingInputs(incident, tuple(alerts) if over or not present else present, self.snapshot)
        main = main_alert(seen)
        reason = "" if not over else (main.end_reason if main is not None else "") or UNKNOWN_END
        return Briefing(
            headline=headline_of(seen, main, self.node),
            numbers=_numbers(seen, main),
            holders=() if over else tuple(_holders(seen)[:_MOST_HOLDERS]),
            culprit="" if over else _culprit(seen),
            remedies=tuple(dict.fromkeys(text for one in alerts if (text := one.annotations.get("remedy", "")))),
            next_command="" if over else _next_command(seen, main),
            links=self._links(seen, main),
            silence_command="" if over else _silence_command(seen, main),
            end_reason=reason,
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
        runbook = "" if main is None else main.annotations.get("runbook_url", "")
        found = {"page": self.links.page, "grafana": board, "runbook": runbook}
        return {name: url for name, url in found.items() if url}


def _numbers(seen: BriefingInputs, main: Alert | None) -> str:
    if main is not None and (needed := _what_is_needed(seen, main)):
        return needed
    parts = []
    processes = seen.processes
    if not seen.incident.is_over and processes:
        held = sum(process.used_bytes or 0 for process in processes)
        who = f"{len(processes)} processes hold" if len(processes) > 1 else "process holds"
        parts += [f"{who} {format_bytes(held)}"] if held else []
    memory = _memory(seen.gpus)
    if memory:
        parts.append(memory)
    grower = seen.grower
    pace = seen.pace or (0.0 if grower is None else grower[2])
    if pace and not seen.incident.is_over and not seen.is_full:
        parts.append(f"+{format_bytes(pace)}/h")
    return " · ".join(parts)


def _memory(gpus: Sequence[GpuReading]) -> str:
    found = [gpu.memory for gpu in gpus if gpu.memory is not None]
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
    """Return who holds memory of the incident's GPUs, the largest first."""
    if seen.snapshot is None:
        return []
    uuids = {gpu.identity.uuid for gpu in seen.gpus}
    held: dict[int, list[ProcessReading]] = {}
    for process in seen.snapshot.processes:
        if process.gpu_uuid in uuids and process.used_bytes:
            held.setdefault(process.pid, []).append(process)
    found = [
        Holder(
            pid,
            parts[0].info.name if parts[0].info is not None else _DEAD,
            parts[0].info.user if parts[0].info is not None else "",
            sum(part.used_bytes or 0 for part in parts),
        )
        for pid, parts in held.items()
    ]
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
    if main is not None and main.name in _COMMANDS:
        return _COMMANDS[main.name]
    pids = seen.pids
    if len(pids) == 1 and main is not None and seen.can_blame(next(iter(pids))):
        return f"gpuagent blame {next(iter(pids))}"
    indices = sorted({gpu.identity.index for gpu in seen.gpus})
    if not indices:
        return "gpuagent alerts"
    return f"gpuagent ps --gpu {indices[0]}" if len(indices) == 1 else "gpuagent ps"


def _silence_command(seen: BriefingInputs, main: Alert | None) -> str:
    labels = seen.incident.labels
    chosen: Iterable[tuple[str, str]] = ()
    if seen.incident.kind in {CauseKind.PROCESS, CauseKind.GROUP}:
        names = ("gpu", "pid") if labels.get("pid") else ("slurm_job", "pod_name", "unit", "container_id", "process")
        given = [(name, labels[name]) for name in names if labels.get(name)]
        chosen = given if labels.get("pid") else given[:1]
    elif labels.get("gpu"):
        chosen = [("gpu", labels["gpu"])]
    if not chosen:
        if main is None:
            return ""
        chosen = [("alertname", main.name)]
    matchers = " ".join(shlex.quote(f"{name}={_quoted(value)}") for name, value in chosen)
    return f"gpuagent silence add {matchers} --for 2h --comment 'being looked at'"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def links_of(config: Config, own_url: str) -> Links:
    """Return the links by the configuration; `own_url` is the agent's address where none is configured."""
    return Links(_folder(config.external_url or own_url), config.links.grafana or "")


def _folder(url: str) -> str:
    return url if not url or url.endswith("/") else f"{url}/"
