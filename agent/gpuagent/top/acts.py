"""What a key asks of the agent: the very requests of `gpuagent kill`, `release`, `blame`, `silence` and `ack`.

Nothing here decides whether an act is allowed: the agent checks, refuses and records, as it does for the commands.
All of it blocks, and is called from a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuagent.cli.agent import Refused, answer_of, answer_of_app
from gpuagent.cli.alerts import ACKS_PATH, SILENCES_PATH, incident_matcher, report_ack, silence_body
from gpuagent.cli.apps import (
    DEFAULT_MAX_PAUSE,
    RELEASE_WAIT_SECONDS,
    blame_args,
    blame_timeout_seconds,
    refusal,
    release_request,
    report_blame,
    report_release,
)
from gpuagent.cli.cells import clean, wrap
from gpuagent.cli.kill import WAITS_SECONDS, advice, kill_request, question, report
from gpuagent.cli.pause import predict_pause
from gpuagent.cli.remedy_requests import Chosen, Request, Unidentified, attend, choose, identified_processes
from gpuagent.core.units import format_duration

Document = dict[str, Any]
Say = Callable[[str], None]

BLAME_WINDOW = "60s"
SILENCE_SECONDS = 2 * 3600.0


@dataclass(frozen=True, slots=True)
class ProcessAct:
    """One act on a process."""

    name: str
    title: str
    steps: Sequence[str] = ()
    """Steps of the ladder; none for acts that only ask the app."""


PROCESS_ACTS = {
    "terminate": ProcessAct("terminate", "Send SIGTERM", ("terminate",)),
    "kill": ProcessAct("kill", "End it: SIGTERM, then SIGKILL after 30 s", ("terminate", "kill")),
    "restart_unit": ProcessAct("restart_unit", "Restart its systemd unit", ("restart_unit",)),
    "release": ProcessAct("release", "Ask the app to release its cached memory"),
    "blame": ProcessAct("blame", "Find the code that holds growing memory"),
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """An act that only waits for a yes: what is asked, and what was shown of the process."""

    act: ProcessAct
    chosen: Chosen
    lines: Sequence[str]


def prepare(act: ProcessAct, process: Document, socket: Path | None, width: int) -> Prepared:
    """Identify the process as the agent knows it now, and return the question in lines of at most `width` cells.

    Raises:
        Refused: with the reason, where the process cannot be identified or no agent answers.
    """
    document = identified_processes(socket)
    try:
        chosen = choose(document, process["pid"], str(process["gpu_uuid"]))
    except Unidentified as error:
        raise Refused(str(error), heard=True) from None
    lines = question([chosen], document, width, restart_unit=act.name == "restart_unit")
    if act.name == "release":
        lines += ["", *wrap("Memory held by tensors stays. The app does it between requests.", width)]
    if act.name == "blame":
        pause = predict_pause(chosen.pid)
        lines += ["", *wrap(f"The app is watched for {BLAME_WINDOW}{pause}. It must be under load meanwhile.", width)]
    return Prepared(act, chosen, lines)


def perform(prepared: Prepared, socket: Path | None, say: Say) -> list[str]:
    """Ask the agent, tell its steps, and return what came of it, a line each. Raises Refused."""
    act, chosen = prepared.act, prepared.chosen
    if act.name == "blame":
        args = blame_args(BLAME_WINDOW, DEFAULT_MAX_PAUSE, census=True, lines=True, show_keys=False)
        answer = answer_of_app(chosen.pid, "blame", args, socket, timeout_seconds=blame_timeout_seconds(args))
        return report_blame(answer)
    if act.name == "release":
        answer = _ask(release_request(chosen), socket, [RELEASE_WAIT_SECONDS], say)
        why = refusal(answer, socket)
        return report_release(answer) if why is None else [*why.splitlines(), *advice(answer)]
    waits = [WAITS_SECONDS[step] for step in act.steps]
    return report(_ask(kill_request(chosen, act.steps), socket, waits, say)).splitlines()


def _ask(request: Request, socket: Path | None, waits: Sequence[float], say: Say) -> Document:
    (answer,) = attend([request], socket, waits, say=lambda text: say(f"pid {request.pid}: {text}"))
    if isinstance(answer, Refused):
        raise answer
    return answer


@dataclass(frozen=True, slots=True)
class AlertTarget:
    """What can be silenced or acknowledged: an incident, or an alert that belongs to none."""

    key: str
    text: str
    matchers: Sequence[str]
    about_process: bool
    """It is about the process, or the GPU, under the cursor."""


def alert_targets(alerts: Document | None, process: Document | None) -> list[AlertTarget]:
    """Return what fires, that of the process under the cursor first."""
    found = []
    known: set[str] = set()
    for incident in (alerts or {}).get("incidents", ()):
        known.update(incident["alerts"])
        if incident["ends_at_seconds"] is None and incident["severity"] != "none":
            text = incident_words(incident)
            about = _is_about(incident["labels"], process)
            found.append(AlertTarget(incident["key"], clean(text), [incident_matcher(incident["key"])], about))
    for alert in (alerts or {}).get("alerts", ()):
        if alert["state"] == "firing" and alert["fingerprint"] not in known and alert["severity"] != "none":
            summary = (alert.get("annotations") or {}).get("summary") or ""
            matchers = [f'{name}="{value}"' for name, value in alert["labels"].items() if '"' not in value]
            about = _is_about(alert["labels"], process)
            text = f"{str(alert['severity']).upper()} {alert['name']}: {summary}"
            found.append(AlertTarget(alert["fingerprint"], clean(text), matchers, about))
    return sorted(found, key=lambda target: not target.about_process)


def incident_words(incident: Document) -> str:
    """Return an incident in one line, which begins with how grave it is."""
    severity, said = str(incident["severity"]).upper(), str(incident.get("headline") or incident["kind"])
    if incident.get("ending"):
        return f"ENDING {said.removeprefix(f'{severity} ')}"
    return said if said.startswith(severity) else f"{severity} {said}"


def _is_about(labels: Document, process: Document | None) -> bool:
    if process is None:
        return False
    if labels.get("pid"):
        return bool(labels["pid"] == str(process["pid"]))
    return labels.get("uuid") == process["gpu_uuid"] or labels.get("gpu") == str(process["gpu"])


def acknowledge(target: AlertTarget, socket: Path | None) -> str:
    """Stop repeat notifications, and return what the agent says. Raises Refused."""
    return report_ack(target.key, answer_of("POST", ACKS_PATH, socket, {"alert": target.key, "comment": ""}))


def silence(target: AlertTarget, socket: Path | None) -> str:
    """Silence it for two hours, and return what the agent says. Raises Refused."""
    body = silence_body(list(target.matchers), SILENCE_SECONDS, "")
    answer = answer_of("POST", SILENCES_PATH, socket, body)
    note = f" {clean(answer['note'])}" if answer.get("note") else ""
    ends = f"To end it earlier: gpuagent silence expire {clean(answer['id'])}"
    return f"Silenced for {format_duration(SILENCE_SECONDS)}. {ends}.{note}"
