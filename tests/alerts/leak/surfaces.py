"""What every surface says of growth at one tick, in a form in which they can be compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpuagent.cli.cells import Paint
from gpuagent.cli.check import judge
from gpuagent.cli.ps import process_table
from gpuagent.cli.status import status_screen
from gpuagent.core.growth import MemoryKey
from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import Snapshot
from gpuagent.core.units import format_bytes
from gpuagent.core.wording import since_words, state_words
from gpuagent_alerts.alert import CauseKind
from gpuagent_alerts.messages.snapshot_inputs import subjects_of
from gpuagent_alerts.states.engine import RuleEngine
from gpuagent_alerts.states.instance import Instance, State
from gpuagent_exporters.page import page
from gpuagent_exporters.status.document import processes_document, status_document
from tests.alerts.leak.node import ToldIncident

PLAIN = Paint()
_RATE = re.compile(r"(\d+(?:\.\d)? (?:[KMGT]i)?B)/h")
_FULL = re.compile(r"full (?:in (\d[^,;:(\n]*?(?:min|ms|s|h|d|y))\b(?! \d)|(now))")
_ROW = re.compile(r'<tr data-key="([^"]*)">(.*?)</tr>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_BEGAN = re.compile(r"(?:has been leaking memory for|began to leak memory) (.*?)(?= ago|, \d|:| \(evidence|$)")
_MUST_NOT_BE_SAID = ("+0 B/h", "about 0 s", "0 B an hour", "GiB an hour")


class Told(NamedTuple):
    """Everything that is shown at one tick."""

    status: dict[str, Any]
    processes: dict[str, Any]
    screen: str
    table: str
    html: str
    check: tuple[int, str]
    firing: tuple[Instance, ...]
    figures: dict[tuple[str, str, str, str], dict[tuple[str, ...], float]]
    """Of the metrics about growth: by name, GPU, instance and pid, values by what other labels they have."""
    incidents: tuple[ToldIncident, ...]


def firing_of(engine: RuleEngine) -> Iterator[Instance]:
    """What fires, and is true now."""
    for running in engine.rules():
        for instance in running.states.instances if running.states is not None else ():
            if instance.state is State.FIRING and instance.ceased_at is None:
                yield instance


def told(snapshot: Snapshot, engine: RuleEngine, now: float, incidents: Iterable[ToldIncident] = ()) -> Told:
    """Ask every surface about this snapshot."""
    firing = tuple(subjects_of(engine))
    arguments: dict[str, Any] = {"now_seconds": now, "poll_interval_seconds": 15.0, "firing": firing}
    status = status_document(
        snapshot, version="1", pid=1, uptime_seconds=1.0, history={}, history_interval_seconds=10.0, **arguments
    )
    document = json.loads(json.dumps(status))
    table = json.loads(json.dumps(processes_document(snapshot, **arguments)))
    return Told(
        document,
        table,
        "\n".join(status_screen(document, 160, PLAIN)),
        "\n".join(process_table(table["processes"], 300, PLAIN)) if table["processes"] else "",
        page.render(page.PageData(document)).decode(),
        judge(document, 0.9, 0.98)[:2],
        tuple(firing_of(engine)),
        _figures(snapshot, now),
        tuple(incidents),
    )


def _figures(snapshot: Snapshot, now: float) -> dict[tuple[str, str, str, str], dict[tuple[str, ...], float]]:
    names = re.compile(r"gpuagent_(process|gpu|mig)_memory_(verdict|growth_|leak_|exhaustion_|fast_exhaustion_)")
    found: dict[tuple[str, str, str, str], dict[tuple[str, ...], float]] = {}
    for family, samples in series(snapshot, now):
        if not names.match(family.name):
            continue
        for sample in samples:
            labels = dict(zip(family.labels, sample.labels, strict=True))
            key = tuple(str(labels.get(name) or "") for name in ("gpu", "gpu_instance_id", "pid"))
            others = tuple(str(labels[name]) for name in ("verdict", "evidence") if name in labels)
            short = family.name.partition("_memory_")[2]
            found.setdefault((short, key[0], key[1], key[2]), {})[others] = sample.value
    return found


def disagreements(said: Told, snapshot: Snapshot) -> list[str]:
    """Wherever two surfaces differ, or one says what cannot be."""
    found = [f"{text!r} is said" for text in _MUST_NOT_BE_SAID if text in said.screen + said.table + said.html]
    parts = [(part, str(part["gpu"]), part["pid"]) for part in said.status["processes"]]
    parts += [(part, str(part["index"]), 0) for part in said.status["gpus"]]
    parts += [(one, str(part["index"]), 0) for part in said.status["gpus"] for one in part["mig"]]
    for part, gpu, pid in parts:
        who = f"GPU {gpu} pid {pid}: "
        found += [who + text for text in (*_contradictions(part), *_metrics(said, part, gpu, pid))]
    if said.status["processes"] != said.processes["processes"]:
        found.append("/api/v1/status and /api/v1/processes differ")
    found += differing_forecasts(said)
    for part, shown in zip(said.status["processes"], _shown(said), strict=True):
        wrong = (
            *_in_words(shown, part), *_graveness(shown, part), *_alerts(said, part, snapshot),
            *_durations(said, shown, part),
        )  # fmt: skip
        found += [f"pid {part['pid']}: {text}" for text in wrong]
    return [*found, *_severities(said), *_incidents(said, snapshot)]


def _contradictions(part: dict[str, Any]) -> Iterator[str]:
    verdict, growth, forecast = part["verdict"], part["growth_bytes_per_second"], part["exhaustion_seconds"]
    if verdict in {"steady", "learning", "levelled off"} and growth:
        yield f"{verdict} beside growth of {growth} B/s"
    if verdict in {"leaking", "growing"} and (not growth or part["growth_state"] is None):
        yield f"{verdict} without growth"
    if verdict not in {"leaking", "growing"} and (forecast is not None or part["growth_state"] is not None):
        yield f"{verdict} and full in {forecast} s"
    if (part["evidence"] is not None) is not (verdict == "leaking"):
        yield f"{verdict} by {part['evidence']}"
    if part["growth_state"] == "stopped: GPU full" and forecast != 0 and "mig" not in part:
        yield f"full, and {forecast} s left"
    fast = part["fast_exhaustion_seconds"]
    if fast is not None and fast != forecast:
        yield f"two forecasts: {fast} s and {forecast} s"


def differing_forecasts(said: Told) -> Iterator[str]:
    """Each GPU and MIG instance has one forecast, whoever it is told with; a process' own is never told as that."""
    gpus = said.status["gpus"]
    wholes = {(gpu["uuid"], None): gpu for gpu in gpus if gpu["verdict"]}
    wholes |= {(gpu["uuid"], one["gpu_instance_id"]): one for gpu in gpus for one in gpu["mig"] if one["verdict"]}
    for part in said.status["processes"]:
        whole = wholes.get((part["gpu_uuid"], part["gpu_instance_id"]), part)
        of_gpu = expected = whole["exhaustion_seconds"]
        if part["exhaustion_seconds"] is not None and part["gpu_exhaustion_seconds"] != expected:
            yield f"pid {part['pid']}: its GPU is full in {part['gpu_exhaustion_seconds']} s, told of the GPU {of_gpu}"


def _metrics(said: Told, part: dict[str, Any], gpu: str, pid: int) -> Iterator[str]:
    instance = part.get("gpu_instance_id")
    key = (gpu, "" if instance is None else str(instance), str(pid) if pid else "")

    def of(name: str) -> float | None:
        return said.figures.get((name, *key), {}).get(())

    words = said.figures.get(("verdict", *key), {})
    verdict = next((labels[0].replace("_", " ") for labels in words), None)
    if verdict != part["verdict"]:
        yield f"verdict {part['verdict']}, metric {verdict}"
    for name, value in (
        ("growth_bytes_per_second", part["growth_bytes_per_second"]),
        ("leak_since_seconds", part["leak_since_seconds"]),
        ("fast_exhaustion_seconds", part["fast_exhaustion_seconds"]),
    ):
        if of(name) != value:
            yield f"{name} {value}, metric {of(name)}"
    slow, fast = of("exhaustion_seconds"), of("fast_exhaustion_seconds")
    if (fast if slow is None else slow) != part["exhaustion_seconds"]:
        yield f"forecast {part['exhaustion_seconds']}, metrics {slow} and {fast}"
    if part["evidence"] and pid and (part["evidence"],) not in said.figures.get(("leak_evidence", *key), {}):
        yield f"evidence {part['evidence']} is no metric"


_OF_MEMORY = {"GpuProcessMemoryLeak", "GpuMemoryExhaustionSoon", "GpuMemoryFull", "GpuInstanceMemoryFull"}


def _incidents(said: Told, snapshot: Snapshot) -> Iterator[str]:
    """An incident is as severe as the process that it is about, and its line has the same pace and forecast."""
    infos = {each.key: each.info for each in snapshot.processes if each.info is not None}
    parts = {
        f"process:{info.id.boot_id}:{info.id.pid}:{info.id.start_ticks}": part
        for part in said.status["processes"]
        if (info := infos.get(MemoryKey(part["gpu_uuid"], part["pid"], part["gpu_instance_id"] or -1))) is not None
    }
    for record, alerts, line in said.incidents:
        unmeasured = [alert.unmeasured_seconds for alert in alerts if alert.holds]
        is_of_process = record.kind in {CauseKind.PROCESS, CauseKind.GROUP}
        if is_of_process and unmeasured and (" (last known " in line) != all(unmeasured):
            yield f"incident {line!r}, not measured for {unmeasured} s"
        own = [part for name, part in parts.items() if name in record.identities and part["severity"]]
        own = [part for part in own if part["verdict"] in {"leaking", "growing"}]
        names = {alert.name for alert in alerts if alert.holds}
        if not own or not names & _OF_MEMORY:
            continue
        worst = next(each for each in ("critical", "warning", "info") if any(part["severity"] == each for part in own))
        if record.severity != worst:
            yield f"incident {line!r} is {record.severity}, its processes {worst}"
        if not line.startswith(record.severity.upper()):
            yield f"incident {line!r} is {record.severity}"
        if "last known" not in line:
            yield from _line_of(line, own)


def _line_of(line: str, own: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what a headline says of a pace or of a forecast that no process of it has."""
    rising = [part for part in own if part["growth_state"] == "rising"]
    if rising and " full now" not in line:
        pace = sum(part["growth_bytes_per_second"] for part in rising) * 3600
        if (told := _RATE.search(line)) is not None and told[1] != format_bytes(pace):
            yield f"incident {line!r} tells of {told[1]}/h, its processes of {format_bytes(pace)}/h"
    if all(part["growth_state"] == "stopped" for part in own) and _FULL.search(line):
        yield f"incident {line!r} has a forecast, and has stopped"


class Shown(NamedTuple):
    """One process, where a person reads of it."""

    ps: str
    page: str
    problems: tuple[dict[str, Any], ...]

    @property
    def texts(self) -> dict[str, str]:
        """All of it, by where it is."""
        return {"ps": self.ps, "page": self.page, **{one["kind"]: one["text"] for one in self.problems}}


def _shown(said: Told) -> Iterator[Shown]:
    """For each process of the status document, in its order."""
    rows = {tuple(key.split("/")): _TAG.sub(" ", row) for key, row in _ROW.findall(said.html)}
    about = [one for one in said.status["problems"] if one["kind"] in _ABOUT_GROWTH]
    for part, line in zip(said.status["processes"], said.table.splitlines()[1:], strict=True):
        key = (part["gpu_uuid"], str(part["gpu"]), str(part["gpu_instance_id"]), str(part["pid"]))
        its = tuple(one for one in about if (one["pid"], one["gpu"]) == (part["pid"], part["gpu"]))
        yield Shown(line, rows.get(key, line), its)


def _in_words(shown: Shown, part: dict[str, Any]) -> Iterator[str]:
    """The same figures, read back from what is shown."""
    rates = {where: set(_RATE.findall(text)) - {"0 B"} for where, text in shown.texts.items()}
    if part["growth_state"] == "rising" or part["verdict"] == "cached":
        if len(set().union(*rates.values())) != 1 or not rates["ps"] or not rates["page"]:
            yield f"the pace: {rates}"
    elif rates["ps"] or rates["page"]:
        yield f"a pace that is over: {rates}"
    if part["verdict"] in {"leaking", "growing"}:
        evidence = [f"({part['evidence']})"] if part["evidence"] else []
        state = [state_words(part)] if part["growth_state"] != "rising" else []
        for where in ("ps", "page"):
            missing = [word for word in (part["verdict"], *evidence, *state) if word not in shown.texts[where]]
            if missing:
                yield f"{where} does not say {missing}: {shown.texts[where]}"
    for where, text in shown.texts.items():
        when = _FULL.search(text)
        words = "" if when is None else when.group(1) or "full now"
        if not all(words in other for other in (shown.ps, shown.page)):
            yield f"{where} says {words}: {shown.ps} / {shown.page}"


def _durations(said: Told, shown: Shown, part: dict[str, Any]) -> Iterator[str]:
    """How long it has been going on: never before it could have, never after now, and the same in words."""
    now, since, age = said.status["time_seconds"], part["growth_since_seconds"], part["age_seconds"]
    if age is not None and age < 0:
        yield f"{age} s old"
    if since is None:
        return
    if since > now:
        yield f"grows since {since - now} s from now"
    for where, text in shown.texts.items():
        told = _BEGAN.search(text)
        if told is not None and told[1] != since_words(part, now):
            yield f"{where} says for {told[1]}, and it is {since_words(part, now)}"


def _graveness(shown: Shown, part: dict[str, Any]) -> Iterator[str]:
    for one in shown.problems:
        if one["severity"] != part["severity"]:
            yield f"severity {part['severity']}, told as {one['severity']}"
    if part["severity"] and not shown.problems and part["fast_exhaustion_seconds"] is None:
        yield f"{part['severity']}, and no problem"


_ABOUT_GROWTH = {"leak", "growth", "cached"}
_RULES_ON_GROWTH = {"GpuProcessMemoryLeak", "GpuMemoryLeak", "GpuMemoryExhaustionSoon"}


def _alerts(said: Told, part: dict[str, Any], snapshot: Snapshot) -> Iterator[str]:
    """An alert that names a process says the same of it, and as grave."""
    for alert in said.firing:
        labels = alert.labels
        if labels.get("pid") != str(part["pid"]) or labels["alertname"] != "GpuProcessMemoryLeak":
            continue
        if alert.kept_clock is not None or alert.frozen:  # it holds on for a while, by its rule
            continue
        growth = snapshot.growth.get(MemoryKey(part["gpu_uuid"], part["pid"], part["gpu_instance_id"] or -1))
        if part["verdict"] != "leaking":
            yield f"{part['verdict']}, and its alert fires"
        elif growth is not None and labels["evidence"] not in map(str, growth.evidence_told):
            yield f"evidence {labels['evidence']} in the alert, {growth.evidence_told} in the snapshot"
    worst = _worst_alert(said, part)
    if worst and part["verdict"] in {"leaking", "growing"} and part["severity"] != worst:
        yield f"severity {part['severity']}, of its alerts {worst}"


def _worst_alert(said: Told, part: dict[str, Any]) -> str | None:
    """Of those about the growth of the process, or of the GPU or instance that it grows in."""
    instance = "" if part["gpu_instance_id"] is None else str(part["gpu_instance_id"])
    found = {
        alert.labels["severity"]
        for alert in said.firing
        if alert.labels["alertname"] in _RULES_ON_GROWTH
        and alert.labels["uuid"] == part["gpu_uuid"]
        and alert.labels.get("gpu_instance_id", "") == instance
        and alert.labels.get("pid", str(part["pid"])) == str(part["pid"])
        and ("pid" in alert.labels or part["growth_state"] != "stopped")  # what has stopped fills nothing
    }
    if part["verdict"] == "leaking" and part["exhaustion_seconds"] == 0:
        found.add("critical")
    return next((severity for severity in ("critical", "warning", "info") if severity in found), None)


def _severities(said: Told) -> Iterator[str]:
    """The line of a GPU, its card, the problems and the exit status agree."""
    ranks = {"critical": 2, "warning": 1, "info": 0, None: 0}
    worst = max((ranks[one["severity"]] for one in said.status["problems"]), default=0)
    if not said.status["stale"] and said.status["age_seconds"] is not None and said.check[0] != worst:
        yield f"check exits with {said.check[0]}, the worst problem is of {worst}: {said.check[1]}"
    for gpu in said.status["gpus"]:
        of_it = max(
            (ranks[one["severity"]] for one in said.status["problems"] if one["gpu"] == gpu["index"]), default=0
        )
        if ranks[gpu["severity"]] != of_it:
            yield f"GPU {gpu['index']} is {gpu['severity']}, its problems are of {of_it}"
        line = next(line for line in said.screen.splitlines() if line.startswith(f"GPU {gpu['index']}  "))
        if line.endswith(" ok") and (of_it or (gpu["memory_used_ratio"] or 0) > 0.98):
            yield f"{line!r}, and a problem of {of_it}"
