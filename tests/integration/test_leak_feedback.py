"""A false alarm as it is lived with: asked about, exported, labelled, tuned away; over a real agent on a leak."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.openapi import faults_of
from tests.integration.agent import Agent, command, running_agent, write_config
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SPEED = 60


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """An agent that has called a process leaking."""
    with (
        tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder,
        running_agent(Path(folder), "leak", speed=SPEED, poll_interval="5s") as running,
    ):
        running.wait_until_ready()
        until(lambda: "leaking (" in running.command("ps").stdout, "the verdict", 120)
        yield running


def pid_of(agent: Agent, name: str) -> str:
    """Return the pid of a process of the story."""
    return str(next(one["pid"] for one in agent.status()["processes"] if one["process"] == name))


def test_the_evidence_is_explained(agent: Agent) -> None:
    """In words and a plot of at most 80 columns, in ASCII too; as JSON it keeps to its description."""
    pid = pid_of(agent, "embed-server")
    shown = agent.command("leaks", "explain", pid)
    plain = agent.command("leaks", "explain", pid, "--ascii")
    by_url = command("leaks", "explain", pid, "--json", "--url", agent.url)

    assert (shown.returncode, shown.stderr) == (0, "")
    for text in ("leaking (", "sensitivity balanced, that of the node", "strict: met", "forecast", "window", "free"):
        assert text in shown.stdout
    assert plain.stdout.isascii()
    assert "#####" in plain.stdout
    assert max(len(line) for line in (shown.stdout + plain.stdout).splitlines()) <= 80
    document = json.loads(by_url.stdout)
    assert faults_of("LeakEvidence", document) == []
    assert document["standards"][0]["alarm"]


def test_why_there_is_no_verdict(agent: Agent) -> None:
    """Of a process that is steady: what each sensitivity would have needed."""
    shown = agent.command("leaks", "explain", pid_of(agent, "vllm"))
    assert "steady" in shown.stdout
    assert "balanced (the sensitivity that holds): not met; in the nearest window it rose by" in " ".join(
        shown.stdout.split()
    )
    nobody = agent.command("leaks", "explain", "1")
    assert nobody.returncode == 1
    assert "nothing is remembered of a process 1 on a GPU" in nobody.stderr


def test_the_incident_is_replayed(agent: Agent, tmp_path: Path) -> None:
    """The agent's own history as a file: at its sensitivity the alarm is the agent's, and the others are answered."""
    pid, file = pid_of(agent, "embed-server"), tmp_path / "leak.csv"
    written = agent.command("history", "export", pid, "-o", str(file))
    assert (written.returncode, written.stdout) == (0, "")
    again = agent.command("history", "export", pid, "-o", str(file))
    assert (again.returncode, f"{file} exists" in again.stderr) == (1, True)
    told = json.loads(agent.command("leaks", "explain", pid, "--json").stdout)
    standards = {each["sensitivity"]: each for each in told["standards"]}
    for sensitivity in ("strict", "balanced", "sensitive"):
        replayed = command("replay", "--json", "--sensitivity", sensitivity, str(file))
        (alarm,) = json.loads(replayed.stdout)["alarms"]
        assert alarm["alarm_seconds"] == pytest.approx(standards[sensitivity]["alarm_seconds"], abs=20)
    whole = agent.command("history", "export", "--gpu", "0")
    assert {line.split(",")[5] for line in whole.stdout.splitlines()[1:]} == {
        f"embed-server:{pid}/gpu0", f"vllm:{pid_of(agent, 'vllm')}/gpu0",
    }  # fmt: skip
    traces = json.loads(agent.get("/api/v1/leaks/trace?gpu=0").text)
    assert faults_of("LeakTraces", traces) == []


def test_what_people_say_is_kept_and_scored(agent: Agent) -> None:
    """With who said it; listed, scored at each sensitivity, removed; the address that reads takes none of it."""
    leak, healthy = pid_of(agent, "embed-server"), pid_of(agent, "vllm")
    kept = agent.command("leaks", "feedback", leak, "--true", "--note", "tickets 1 to 3")
    assert (kept.returncode, "does not leak" in kept.stderr) == (0, False)
    other = agent.command("leaks", "feedback", healthy, "--false", "--json")
    assert faults_of("LeakFeedbackAdded", json.loads(other.stdout)) == []
    listed = json.loads(agent.command("leaks", "feedback", "--list", "--json").stdout)
    assert faults_of("LeakFeedback", listed) == []
    assert [each["label"] for each in listed["feedback"]] == ["true", "false"]
    assert listed["feedback"][0]["note"] == "tickets 1 to 3"
    assert all(each["by"] and each["simulated"] for each in listed["feedback"])
    entry = json.loads(agent.get(f"/api/v1/leaks/feedback/{kept.stdout.strip()}").text)
    assert faults_of("LeakFeedbackEntry", entry) == []

    scored = agent.command("replay", "--labelled")
    assert scored.returncode == 0
    assert "balanced   1 of 1 leaks found, 0 false alarms of 1" in scored.stdout
    folder = agent.folder / "state" / "feedback"
    offline = command("replay", "--labelled", "--json", *(str(path) for path in sorted(folder.iterdir())))
    assert [each["true_positives"] for each in json.loads(offline.stdout)["scores"]] == [1, 1, 1]

    for each in listed["feedback"]:
        assert agent.command("leaks", "feedback", "--remove", each["id"]).returncode == 0
    empty = agent.command("replay", "--labelled")
    assert (empty.returncode, "no labelled history" in empty.stderr) == (3, True)


@pytest.mark.parametrize("words", [["7"], ["7", "--true", "--false"], ["--true"], ["7", "--list"], []], ids=" ".join)
def test_feedback_that_says_nothing(agent: Agent, words: list[str]) -> None:
    """Wrong usage, told as such: status 2."""
    assert agent.command("leaks", "feedback", *words).returncode == 2


def test_lines_to_copy(agent: Agent) -> None:
    """Where the file is in a form that is not edited, the lines are printed, with whom they are for now."""
    file = agent.folder / "gpuagent.yaml"
    shown = agent.command("leaks", "tune", "strict", "--unit", "embed-server.service", "--config", str(file), "--yes")
    assert shown.returncode == 0
    assert shown.stdout == (
        "leaks:\n  overrides:\n    - match: {unit: embed-server.service}\n      sensitivity: strict\n"
    )
    assert f"embed-server (pid {pid_of(agent, 'embed-server')})" in shown.stderr
    assert "gpuagent config reload" in shown.stderr
    for words, reason in (
        (("sensitive", "--app", "a"), "may only make the detector less sensitive"),
        (("strict", "--unit", "web"), "write web.service"),
    ):
        refused = agent.command("leaks", "tune", *words, "--config", str(file))
        assert (refused.returncode, refused.stdout, reason in refused.stderr) == (1, "", True)


@pytest.mark.extended
def test_a_false_alarm_is_tuned_away(folder: Path) -> None:
    """The file keeps its comments and mode, the agent reloads, and the alarm ends with no history lost."""
    with running_agent(folder, "leak", speed=SPEED, poll_interval="5s") as agent:
        file = folder / "gpuagent.yaml"
        own = json.loads(write_config(folder, agent.port, poll_interval="5s").read_text())
        file.write_text("# mine\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in own.items()))
        file.chmod(0o640)
        agent.wait_until_ready()
        until(lambda: "leaking (" in agent.command("ps").stdout, "the verdict", 120)
        tuned = agent.command("leaks", "tune", "off", "--unit", "embed-server.service", "--config", str(file), "--yes")
        assert tuned.returncode == 0, tuned.stderr
        assert "+    - match: {unit: embed-server.service}" in tuned.stdout
        assert file.read_text().startswith("# mine\n")
        assert file.stat().st_mode & 0o777 == 0o640
        until(lambda: "leaking (" not in agent.command("ps").stdout, "the alarm ends", 60)
        told = json.loads(agent.command("leaks", "explain", pid_of(agent, "embed-server"), "--json").stdout)
        assert told["judged_by"] == {
            "sensitivity": "off", "node_sensitivity": "balanced", "override": 0,
            "match": {"unit": "embed-server.service"},
        }  # fmt: skip
        assert told["verdict"] == "growing"
        assert told["watched_seconds"] > 600
        again = agent.command("leaks", "tune", "off", "--unit", "embed-server.service", "--config", str(file), "--yes")
        assert (again.returncode, "already says so" in again.stderr) == (0, True)
        assert agent.stop() == 0
        assert "Traceback" not in agent.log()
