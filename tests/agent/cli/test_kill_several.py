"""Several pids at once: one question, one request for each with its own identity, and one answer for each."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuagent.cli.app import app
from tests.fakes.answering import Answer, answering, read_request
from tests.fakes.identified import identified, identity, row

ANSWER: dict[str, Any] = {
    "gpu": 0, "name": "python3", "result": "released", "detail": "", "released_bytes": 2**30, "seconds": 2.0,
    "dry_run": False, "advice": [],
}  # fmt: skip


CTRL_C = "\x03"


class FakeAgent:
    """Shows processes, and answers each request for a kill by the pid in its path."""

    def __init__(self, document: dict[str, Any], answers: dict[int, tuple[str, dict[str, Any]]]) -> None:
        self.document = document
        self.answers = answers
        self.killed: dict[int, dict[str, Any]] = {}
        self.lock = threading.Lock()

    def __call__(self, connection: socket.socket, _: threading.Event) -> None:
        request = read_request(connection)
        found = re.match(rb"POST /api/v1/processes/(\d+)/kill ", request)
        if found:
            pid = int(found[1])
            with self.lock:
                self.killed[pid] = json.loads(request.partition(b"\r\n\r\n")[2])
            status, answer = self.answers.get(pid, ("200 OK", {}))
            answer = {**ANSWER, "pid": pid, **answer} if status == "200 OK" else answer
        elif request.startswith(b"GET /api/v1/processes/identified "):
            status, answer = "200 OK", self.document
        else:
            status, answer = "200 OK", {"schema": 1, "remedies": [], "look_seconds": 1.0, "proof_seconds": 1.0}
        data = json.dumps(answer).encode()
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


def asked(agent: Answer, *words: str) -> tuple[int, str, str]:
    """Exit status and both outputs."""
    with answering(agent) as place:
        result = CliRunner().invoke(app, ["kill", *words, "--socket", str(place)])
    return result.exit_code, result.stdout, result.stderr


def test_each_with_its_own_identity() -> None:
    """Eight ranks: eight requests, eight lines; a pid that is named twice is meant once."""
    ranks = list(range(100, 108))
    agent = FakeAgent(identified(*(row(pid) for pid in ranks)), {})
    code, output, errors = asked(agent, *map(str, ranks), "100", "--yes")
    assert (code, errors) == (0, "")
    assert {pid: {key: body[key] for key in identity()} for pid, body in agent.killed.items()} == {
        pid: identity(pid) for pid in ranks
    }
    assert sorted(line.split()[1] for line in output.splitlines()) == [str(pid) for pid in ranks]


def test_zero_only_if_all_succeeded() -> None:
    """One refused, one that is another process by now, one that is not there: each is told, the others are done."""
    refused = {
        "result": "refused",
        "detail": "svc-ml is not in remedies.allow.users",
        "released_bytes": None,
        "seconds": None,
        "advice": ["Say --force, or add it to remedies.allow.users in /etc/gpuagent/x.yaml."],
    }
    other = {"error": "not done", "message": "pid 8 is another process now\x1b[2J; nothing was done"}
    agent = FakeAgent(identified(row(7), row(8), row(9)), {7: ("200 OK", refused), 8: ("409 Conflict", other)})
    code, output, errors = asked(agent, "7", "8", "9", "10", "--yes")
    assert code == 1
    assert output.count("released, 1.0 GiB came back in 2 s") == 1
    assert "  what to do: Say --force, or add it to remedies.allow.users in /etc/gpuagent/x.yaml." in output
    assert "pid 8: The agent refused: pid 8 is another process now; nothing was done" in errors
    assert "no process with pid 10 is on a GPU" in errors
    assert set(agent.killed) == {7, 8, 9}
    assert asked(FakeAgent(identified(row(7), row(9)), {}), "7", "9", "--yes")[0] == 0
    assert asked(FakeAgent(identified(row(7)), {}), "7", "9", "--yes")[0] == 1


def test_verdicts_of_a_dry_run_are_output() -> None:
    """Whatever is said of a pid in a dry run was asked for: it is on standard output, and nothing else of it is not."""
    other = {"error": "not done", "message": "gone"}
    dry = {"result": "dry_run", "dry_run": True, "released_bytes": None, "seconds": None}
    agent = FakeAgent(identified(row(7), row(8)), {7: ("200 OK", dry), 8: ("409 Conflict", other)})
    code, output, errors = asked(agent, "7", "8", "9", "--dry-run")
    assert (code, errors) == (1, "")
    assert sorted(line.split(":")[0].split(" (")[0] for line in output.splitlines() if line.startswith("pid")) == [
        "pid 7", "pid 8", "pid 9",
    ]  # fmt: skip
    assert json.loads(asked(agent, "7", "8", "9", "--dry-run", "--json")[1])[1]["pid"] == 8


def test_as_json() -> None:
    """One document for one, a list for several; a refused request has its reason in its place."""
    agent = FakeAgent(identified(row(7), row(8)), {8: ("409 Conflict", {"error": "not done", "message": "gone"})})
    code, output, _ = asked(agent, "7", "8", "--yes", "--json")
    assert (code, json.loads(output)) == (1, [{**ANSWER, "pid": 7}, {"pid": 8, "error": "The agent refused: gone"}])
    assert json.loads(asked(agent, "7", "--yes", "--json")[1]) == {**ANSWER, "pid": 7}


def test_a_unit_is_restarted_once() -> None:
    """Two processes of one unit are one restart; the second is told with which it goes."""
    agent = FakeAgent(identified(row(7, unit="a.service"), row(8, unit="a.service"), row(9, unit="b.service")), {})
    code, _, errors = asked(agent, "7", "8", "9", "--yes", "--restart-unit")
    assert (code, set(agent.killed)) == (0, {7, 9})
    assert "pid 8 is restarted with pid 7: both are of a.service" in errors


@pytest.mark.parametrize("namespace", [0, 4026532999])
def test_another_pid_namespace(namespace: int) -> None:
    """A number that means another process to the agent, or may, is sent by no command: also with --yes and --force."""
    for command in ("kill", "release"):
        agent = FakeAgent(identified(row(7), namespace=namespace), {})
        with answering(agent) as place:
            words = [command, "7", "--force", *(["--yes"] if command == "kill" else []), "--socket", str(place)]
            result = CliRunner().invoke(app, words)
        assert (result.exit_code, agent.killed) == (1, {})
        assert "pid namespace" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("typed", ["1_0", "\u0663", "+7", " 7", "7.0", "0x7"])
def test_a_pid_is_ascii_digits(typed: str) -> None:
    """What Python takes for a number, and `ps` never prints, names nobody."""
    agent = FakeAgent(identified(row(7), row(10), row(3)), {})
    for command in ("kill", "release"):
        with answering(agent) as place:
            words = [command, "--socket", str(place), *(["--yes"] if command == "kill" else []), "--", typed]
            result = CliRunner().invoke(app, words)
        assert (result.exit_code, agent.killed) == (2, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "status", "killed"),
    [("y\n", 0, {7, 8}), ("n\n", 1, set()), ("\x04", 1, set()), (CTRL_C, 130, set())],
)
def test_one_question(typed: str, status: int, killed: set[int]) -> None:
    """On a terminal, after all that there is to see; anything but yes ends nobody."""
    agent = FakeAgent(identified(row(7), row(8), row(9, user="alice")), {})
    with answering(agent) as place:
        command = [sys.executable, "-m", "gpuagent", "kill", "7", "8", "--socket", str(place)]
        seen, code = on_terminal(command, "End all 2 of them?", typed)
    assert (code, set(agent.killed)) == (status, killed)
    assert seen.count("[y/N]") == 1
    assert "pid 9  alice" in seen


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_each_request_names_the_others(option: str) -> None:
    """Several that are asked for at once are judged together, in a dry run too: each request names the others."""
    agent = FakeAgent(identified(row(7), row(8), row(9)), {})
    asked(agent, "7", "8", option)
    starts = {pid: agent.killed[pid]["start_ticks"] for pid in (7, 8)}
    assert agent.killed[7]["together"] == [[8, starts[8]]]
    assert agent.killed[8]["together"] == [[7, starts[7]]]
    asked(agent, "9", option)
    assert "together" not in agent.killed[9]


CROWD: list[dict[str, Any]] = [
    {"pid": 70, "start_ticks": 700, "process": "sleep", "user": "svc-ml", "belongs": True, "certain": True},
    {
        "pid": 71,
        "start_ticks": 710,
        "process": "sh\x1b",
        "user": "bob",
        "belongs": False,
        "certain": False,
        "why": "traced by pid 7\x1b",
    },
]
"""Whom the end of a container's first process ends as well."""


@pytest.mark.slow
def test_who_ends_with_it_is_shown_and_named_in_the_request() -> None:
    """At the prompt, with --yes and in a dry run; the request carries those that were shown, and nobody else."""
    agent = FakeAgent(identified(row(7, ends_with_it=CROWD), row(8)), {})
    wanted = ("pid 70 (sleep of svc-ml)", "perhaps pid 71 (sh? of bob, traced by pid 7?), not of its own")
    with answering(agent) as place:
        command = [sys.executable, "-m", "gpuagent", "kill", "7", "8", "--force", "--socket", str(place)]
        seen, code = on_terminal(command, "End all 2 of them?", "y\n")
    assert code == 0
    assert all(text in seen.partition("[y/N]")[0] for text in wanted)
    assert agent.killed[7]["ends_with_it"] == [[70, 700], [71, 710]]
    assert "ends_with_it" not in agent.killed[8]
    for option in ("--yes", "--dry-run"):
        _, _, errors = asked(agent, "7", option)
        assert all(f"Ending pid 7 also ends {text}" in errors for text in wanted)
    unknown = FakeAgent(identified(row(7, ends_with_it=None)), {})
    assert "whom its end would end as well cannot be told" in asked(unknown, "7", "--yes")[2]


def test_who_ends_with_its_unit_is_shown_where_a_person_answers_for_that() -> None:
    """KILL-03: with --force alone, for the service that may fail with it; not where that is restarted anyway."""
    at_risk = [{"unit": "cel.service", "ends_with_it": [{**CROWD[1], "pid": each} for each in (7, 71, 72)]}]
    own = row(7, ends_with_it=CROWD, unit_at_risk="cel.service")
    agent = FakeAgent(identified(own, row(8, unit_at_risk="")) | {"units_at_risk": at_risk}, {})
    for options, shown in (
        (["--force"], [70, 71, 72]), ([], [70, 71]), (["--force", "--restart-unit"], [70, 71]),
    ):  # fmt: skip
        _, _, errors = asked(agent, "7", "8", "--yes", *options)
        assert [pid for pid, _ in agent.killed[7]["ends_with_it"]] == shown
        assert ("Ending pid 7 also ends perhaps pid 72 (" in errors) is (72 in shown)
        assert "ends_with_it" not in agent.killed[8]


def test_why_a_process_cannot_be_named() -> None:
    """A GPU that cannot be read, and a number whose holder has ended, are said; nothing is asked for."""
    blind = {"gpu": 1, "gpu_uuid": "GPU-1", "text": "GPU 1 has not been readable for 12 s: hung"}
    agent = FakeAgent(identified(row(7, why_not="the process that held it has ended"), unreadable=[blind]), {})
    for words, says in (
        (("9",), "whether pid 9 is on a GPU is not known: GPU 1 has not been readable for 12 s: hung"),
        (("9", "--gpu", "0"), "no process with pid 9 is on GPU 0"),
        (("7",), "the process that held it has ended"),
    ):
        code, _, errors = asked(agent, *words, "--yes")
        assert (code, agent.killed) == (1, {})
        assert says in errors


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C until something comes of it: one that comes right before Python reads is noticed after that.

    It is sent as a signal: the terminal is not the one that controls the process.
    """
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)


def on_terminal(command: list[str], question: str, typed: str) -> tuple[str, int]:
    """Run a command on a terminal of its own, and type when the question is there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen = b""
    try:
        while True:
            try:
                seen += os.read(ours, 4096)
            except OSError:  # EIO: the other end is closed
                break
            if typed and question.encode() in seen:
                if typed == CTRL_C:
                    interrupt(process)
                else:
                    os.write(ours, typed.encode())
                typed = ""
        return seen.decode(), process.wait(30)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
