"""`kill` and `remedies` as they are typed, against an agent that answers as it is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuagent.cli.app import app
from tests.fakes.answering import answering, says
from tests.fakes.golden import assert_golden
from tests.fakes.identified import identified, identity, row, shows

GIB = 2**30
TIME = 1_764_000_000.0
ANSWER: dict[str, Any] = {
    "pid": 7, "gpu": 0, "name": "python\x1b[2J", "result": "released", "detail": "", "released_bytes": 5 * GIB,
    "seconds": 9.0, "dry_run": False,
}  # fmt: skip
RUN: dict[str, Any] = {
    "id": "r1", "time_seconds": TIME, "pid": 4242, "name": "python3", "gpu": 0, "used_bytes": 21 * GIB, "unit": "",
    "alertname": "GpuProcessMemoryLeak", "asked_by": "rule", "dry_run": False, "user": "svc-ml",
    "steps": [
        {"kind": "intent", "step": "release_cache", "note": ""},
        {"kind": "result", "step": "release_cache", "ok": False, "detail": "the app has no embedded client"},
        {"kind": "intent", "step": "SIGTERM", "note": "the process ignores this signal: there is no use in waiting"},
        {"kind": "result", "step": "SIGTERM", "ok": True, "detail": ""},
        {"kind": "intent", "step": "SIGKILL", "note": ""},
        {"kind": "result", "step": "SIGKILL", "ok": True, "detail": ""},
    ],
    "end": {"result": "released", "detail": "", "released_bytes": 21 * GIB, "seconds": 4.0, "acted": True},
}  # fmt: skip
BY_HAND: dict[str, Any] = RUN | {
    "id": "r2", "alertname": "", "asked_by": "alice (uid 1000)", "dry_run": True, "steps": [],
    "end": {
        "result": "refused", "released_bytes": None, "seconds": None, "acted": False,
        "detail": "systemd supervises it (whisper.service): a bare SIGTERM could leave it down; use restart_unit; "
        "svc-ml is not in remedies.allow.users",
    },
}  # fmt: skip
CLIMBING: dict[str, Any] = RUN | {"id": "r3", "steps": RUN["steps"][:1]} | {"end": None}
DOCUMENT = {"schema": 1, "stopped": "the last 3 actions gave no memory back", "dry_run": True,
            "remedies": [RUN, BY_HAND, CLIMBING]}  # fmt: skip


WITHHELD: dict[str, Any] = {
    "fingerprint": "f", "alertname": "GpuMemoryHigh", "labels": {"gpu": "3"}, "since_seconds": TIME,
    "reason": "pid 7 (\x1b[2J) has held the memory that it has now for 2 s: it can be chosen in 4 min 58 s",
}  # fmt: skip


def asked(answer: Any, *words: str, status: str = "200 OK", typed: str = "") -> tuple[int, str, str, bytes]:
    """Exit status, both outputs, and what the agent was asked last."""
    requests: list[bytes] = []
    is_kill = words[0] == "kill"
    agent = shows(identified(row(7)), answer, status, requests) if is_kill else says(answer, status, requests)
    with answering(agent) as place:
        result = CliRunner().invoke(
            app, [*words, "--socket", str(place)], input=typed, env={"TZ": "UTC", "COLUMNS": "80"}
        )
    return result.exit_code, result.stdout, result.stderr, requests[-1] if requests else b""


def test_kill_says_what_came_back() -> None:
    """One line, exit status 0, and nothing that the name of a process could do to a terminal."""
    code, output, errors, request = asked(ANSWER, "kill", "7", "--yes")
    assert (code, errors) == (0, "")
    assert request.startswith(b"POST /api/v1/processes/7/kill ")
    body = json.loads(request.partition(b"\r\n\r\n")[2])
    assert body == {"dry_run": False, "force": False, "steps": ["terminate", "kill"], "gpu": "", **identity(7)}
    assert "released, 5.0 GiB came back in 9 s" in output
    assert "\x1b" not in output


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--restart-unit",), {"steps": ["restart_unit"]}),
        (("--force",), {"force": True}),
        (("--gpu", "0"), {"gpu": "0"}),
        (("--dry-run",), {"dry_run": True}),
    ],
)
def test_what_kill_asks_for(words: tuple[str, ...], part: dict[str, Any]) -> None:
    """Each option is one part of the request."""
    *_, request = asked(ANSWER, "kill", "7", "--yes", *words)
    body = json.loads(request.partition(b"\r\n\r\n")[2])
    assert body | part == body


@pytest.mark.parametrize(
    ("words", "steps"),
    [((), ["SIGTERM, and waited for, up to 30 s", "SIGKILL, and waited for, up to 1 min"]),
     (("--restart-unit",), ["restart of its unit, and waited for, up to 1 min"])],
)  # fmt: skip
def test_a_dry_run_lists_what_it_would_do(words: tuple[str, ...], steps: list[str]) -> None:
    """Each step with its wait, however fast the agent answers; nothing of the kind where it refuses."""
    would = [f"  would be done: {step}" for step in steps]
    dry = ANSWER | {"result": "dry_run", "detail": "dry run: nothing was done", "released_bytes": None}
    _, output, _, _ = asked(dry, "kill", "7", "--dry-run", *words)
    assert [line for line in output.splitlines() if "would" in line] == would
    _, output, _, _ = asked(dry | {"result": "refused"}, "kill", "7", "--dry-run", *words)
    assert "would be done" not in output


@pytest.mark.parametrize(("result", "status"), [("dry_run", 0), ("exited", 0), ("refused", 1), ("unkillable", 1)])
def test_exit_status(result: str, status: int) -> None:
    """0 where the memory is back or nothing was to be done, 1 where it is not; the reason is said."""
    code, output, _, _ = asked(
        ANSWER | {"result": result, "detail": "because", "released_bytes": None}, "kill", "7", "-y"
    )
    assert code == status
    assert result.replace("_", " ") in output
    assert "because" in output


def test_nobody_to_ask() -> None:
    """Without a terminal nobody can say yes: nothing is asked of the agent, and --yes is named."""
    code, _, errors, request = asked(ANSWER, "kill", "7", typed="y\n")
    assert (code, request) == (2, b"")
    assert "--yes" in errors


def test_kill_as_json() -> None:
    """The agent's document."""
    assert json.loads(asked(ANSWER, "kill", "7", "--yes", "--json")[1]) == ANSWER


def test_kill_of_what_is_not_there() -> None:
    """Said, exit status 1, whether the agent or the command finds out; the agent is not asked about nobody."""
    answer = {"error": "not done", "message": "no process with pid 7 is on a GPU"}
    code, _, errors, _ = asked(answer, "kill", "7", "--yes", status="404 Not Found")
    assert (code, "no process with pid 7 is on a GPU" in errors) == (1, True)
    code, _, errors, request = asked(answer, "kill", "8", "--yes")
    assert (code, "no process with pid 8 is on a GPU" in errors) == (1, True)
    assert request.startswith(b"GET /api/v1/processes/identified ")


def test_the_screen_of_remedies() -> None:
    """Who, why, each step and the end, in 80 columns; that all of it has stopped comes first."""
    code, output, errors, _ = asked(DOCUMENT, "remedies")
    assert code == 0
    assert max(map(len, output.splitlines())) <= 80
    assert_golden("remedies.txt", errors + re.sub(r"(?m)^[-\d]{10} [:\d]{8} ", "2025-11-24 16:00:00 ", output))


def test_made_up_remedies_say_so() -> None:
    """The record of a simulated node begins with that word; a real node's never has it."""
    assert asked(DOCUMENT | {"simulated": True}, "remedies")[2].startswith("SIMULATED: ")
    assert "SIMULATED" not in asked(DOCUMENT, "remedies")[2]


def test_remedies_as_json() -> None:
    """The agent's document, cut to the newest."""
    document = json.loads(asked(DOCUMENT, "remedies", "--json", "-n", "1")[1])
    assert [run["id"] for run in document["remedies"]] == ["r3"]


def test_no_remedies() -> None:
    """Said, on standard error: a script that counts lines counts none."""
    code, output, errors, _ = asked(DOCUMENT | {"remedies": [], "stopped": ""}, "remedies")
    assert (code, output) == (0, "")
    assert "No remedy was run or refused." in errors
    refused = {"since_seconds": 0.0, "alertname": "GpuMemoryFull", "labels": {}, "reason": "pid 7 was tried: refused"}
    _, output, errors, _ = asked(DOCUMENT | {"remedies": [], "stopped": "", "withheld": [refused]}, "remedies")
    assert "pid 7 was tried: refused" in output
    assert "or refused" not in errors
    alone = {"remedies": [], "stopped": "", "left_alone": ["uid 7", "a.service"]}
    _, _, errors, _ = asked(DOCUMENT | alone, "remedies")
    assert "Rules leave the processes of uid 7, a.service alone" in errors


def test_lift() -> None:
    """What was lifted is told; one that could not be lifted is an error, and the exit status says so."""
    code, output, errors, request = asked({"lifted": ["it is lifted"], "failed": []}, "remedies", "lift")
    assert (code, output, errors) == (0, "it is lifted\n", "")
    assert request.startswith(b"POST /api/v1/remedies/lift ")
    code, output, errors, _ = asked({"lifted": [], "failed": ["the driver hangs"]}, "remedies", "lift")
    assert (code, output) == (1, "")
    assert "the driver hangs" in errors
    assert asked({"lifted": [], "failed": []}, "remedies", "lift")[1] == "No memory limit was set by a remedy.\n"


@pytest.mark.parametrize(
    ("is_set", "is_own", "words"),
    [
        (True, True, "is limited to 6.0 GiB"), (True, True, "gpuagent remedies lift"),
        (False, True, "the driver has not confirmed it"), (True, False, "the agent that has set it"),
    ],
)  # fmt: skip
def test_limits_are_told_as_far_as_they_are_known(is_set: bool, is_own: bool, words: str) -> None:
    """One that nobody has confirmed is not told as set, and for another agent's there is another way out."""
    limit = {
        "gpu_uuid": "GPU-0", "cgroup": "/a.service", "hard_bytes": 6 * GIB, "set_seconds": TIME, "run": "r",
        "alert": "", "pid": 7, "is_set": is_set, "is_own": is_own,
    }  # fmt: skip
    document = DOCUMENT | {"remedies": [], "stopped": "", "limits": [limit]}
    _, output, errors, _ = asked(document, "remedies")
    assert words in " ".join((output + errors).split())


def test_stop() -> None:
    """One request, and a line; where it is not on record that is said, with a status that a script sees."""
    code, output, errors, request = asked({"stopped": True, "recorded": True, "message": ""}, "remedies", "stop")
    assert (code, errors) == (0, "")
    assert request.startswith(b"POST /api/v1/remedies/stop ")
    assert "Remedies are stopped." in output
    code, output, errors, _ = asked({"stopped": True, "recorded": False, "message": "disk full"}, "remedies", "stop")
    assert (code, "Remedies are stopped." in output) == (1, True)
    assert "The stop could not be recorded, so a restart of the agent would end it: disk full" in errors


def test_who_has_stopped_remedies_and_when() -> None:
    """The next person sees whom to ask."""
    stopped = {"stopped": "a person has stopped them", "stopped_by": "bob (uid 7)", "stopped_seconds": 1795000000.0}
    errors = asked(DOCUMENT | stopped, "remedies")[2]
    assert errors.startswith("Remedies are stopped: bob (uid 7) has stopped them on 2026-11-18 11:06 UTC. To resume")
    errors = asked(DOCUMENT | stopped | {"stopped_seconds": None}, "remedies")[2]
    assert errors.startswith("Remedies are stopped: bob (uid 7) has stopped them. To resume")


def test_reset() -> None:
    """One request, and a line."""
    code, output, _, request = asked({"reset": True}, "remedies", "reset")
    assert code == 0
    assert request.startswith(b"POST /api/v1/remedies/reset ")
    assert "may act again" in output


def test_no_agent(tmp_path: Path) -> None:
    """Exit status 3 for what only looks."""
    result = CliRunner().invoke(app, ["remedies", "--socket", str(tmp_path / "none")])
    assert result.exit_code == 3


def test_what_fires_and_is_not_acted_on() -> None:
    """Each alert whose ladder is not begun is shown with the reason, also where nothing was done yet."""
    document = {"schema": 1, "stopped": "", "withheld": [WITHHELD, {"alertname": "Other", "since_seconds": TIME}]}
    status, out, _, _ = asked(document | {"remedies": []}, "remedies")
    assert status == 0
    assert "\x1b" not in out
    text = " ".join(out.split())
    assert "2025-11-24 16:00:00 GpuMemoryHigh on GPU 3 fires nothing is done: pid 7" in text
    assert "it can be chosen in 4 min 58 s 2025-11-24 16:00:00 Other fires nothing is done" in text
