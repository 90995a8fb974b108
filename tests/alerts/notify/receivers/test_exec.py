"""A program of the user's own: what it gets, what it lacks, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from gpuagent_alerts.masker import Masker
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, Reason
from gpuagent_alerts.notify.receivers.exec import Exec
from gpuagent_alerts.programs import drop_privileges
from gpuagent_alerts.secret import Secret
from tests.alerts.messages import CONTEXT, message
from tests.alerts.notify.receivers.sink import PATIENCE_SECONDS

_OF_THE_C_LIBRARY = 0b11 << 31
"""Signals 32 and 33: glibc keeps them to itself, so what a test runner was started with stays (signal(7))."""


def run(*command: str, timeout_seconds: float = 20.0) -> DeliveryOutcome:
    """One message to a command."""
    return asyncio.run(Exec(command, timeout_seconds).send(message(name="gpa_1"), CONTEXT))


def python(code: str, *arguments: str, timeout_seconds: float = 20.0) -> DeliveryOutcome:
    """One message to a line of Python."""
    return run(sys.executable, "-c", code, *arguments, timeout_seconds=timeout_seconds)


def test_it_gets_the_message_on_its_standard_input(tmp_path: Path) -> None:
    """JSON as a webhook gets it, and the id by which a repeat is known."""
    outcome = run("/bin/sh", "-c", f"cat > {tmp_path}/got")
    document = json.loads((tmp_path / "got").read_text())

    assert outcome.ok
    assert (document["id"], document["version"], document["status"]) == ("gpa_1", "4", "firing")


def test_no_shell_reads_its_arguments(tmp_path: Path) -> None:
    """Arguments arrive as they are, whatever a shell would make of them."""
    odd = ["$(touch pwned)", "a b", "", ";", "*", "é"]
    code = "import json, sys; json.dump(sys.argv[2:], open(sys.argv[1], 'w'))"
    outcome = python(code, str(tmp_path / "got"), *odd)

    assert outcome.ok
    assert json.loads((tmp_path / "got").read_text()) == odd


def test_it_can_do_no_more_than_its_user(tmp_path: Path) -> None:
    """No capability in any set, none to be gained by a setuid program, as root too; and no signal is ignored."""
    assert run("/bin/sh", "-c", f"cat /proc/self/status > {tmp_path}/got").ok
    lines = (tmp_path / "got").read_text().splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    assert status["NoNewPrivs"] == "1"
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0
    # Signals as a program expects them: Python ignores SIGPIPE, and a shell's pipes must not.
    for name in ("SigBlk", "SigIgn"):
        assert int(status[name], 16) & ~_OF_THE_C_LIBRARY == 0


def test_its_environment_is_empty_but_for_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the agent's environment holds, tokens for example, is not for it; nor are its open files."""
    monkeypatch.setenv("SECRET_TOKEN", "tops3cret")
    held, other = os.pipe()
    try:
        os.set_inheritable(held, True)
        seen = "[dict(os.environ), os.getcwd(), os.listdir('/proc/self/fd')]"
        code = f"import json, os, sys; json.dump({seen}, open(sys.argv[1], 'w'))"
        assert python(code, str(tmp_path / "got")).ok
    finally:
        os.close(held)
        os.close(other)
    environment, folder, files = json.loads((tmp_path / "got").read_text())

    assert environment.keys() - {"LC_CTYPE"} == {"PATH", "LANG"}
    assert folder == "/"
    assert len(files) <= 4  # the three, and the listing's own


@pytest.mark.slow
def test_it_ends_with_all_that_it_started(tmp_path: Path) -> None:
    """What takes too long is killed, its children too: nothing is left behind."""
    script = f"sleep 1000 & echo $! > {tmp_path}/child; wait"
    outcome = run("/bin/sh", "-c", script, timeout_seconds=2.0)
    child = int((tmp_path / "child").read_text())

    assert (outcome.reason, outcome.retry) == (Reason.TIMED_OUT, True)
    assert _is_gone(child)


def _is_gone(pid: int) -> bool:
    """Not there, or ended within the time that a busy machine takes for it."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], PATIENCE_SECONDS)[0])
    finally:
        os.close(handle)


def test_what_it_leaves_behind_is_not_waited_for() -> None:
    """A child that keeps standard error open does not hold up the next message."""
    outcome = run("/bin/sh", "-c", "sleep 3 & exit 0", timeout_seconds=2.9)

    assert outcome.ok


def test_an_attempt_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    """The agent stops: what it started is killed with it."""
    os.mkfifo(tmp_path / "pid")

    async def cancel() -> int:
        program = Exec(("/bin/sh", "-c", f"echo $$ > {tmp_path}/pid; sleep 1000"))
        task = asyncio.create_task(program.send(message(), CONTEXT))
        pid = await asyncio.to_thread((tmp_path / "pid").read_text)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return int(pid)

    assert _is_gone(asyncio.run(cancel()))


@pytest.mark.parametrize(
    ("script", "reason", "detail"),
    [
        ("exit 0", Reason.DELIVERED, ""),
        ("exit 75", Reason.FAILED, "the program ended with status 75"),
        ("echo first >&2; echo no route >&2; exit 1", Reason.FAILED, "the program ended with status 1: no route"),
        ("kill -TERM $$", Reason.FAILED, "the program ended with signal 15"),
        (
            "echo curl https://hooks.example/tops3cret failed >&2; exit 6",
            Reason.FAILED,
            "status 6: curl <hidden> failed",
        ),
        ("yes | head -c 10000000 >&2; exit 1", Reason.FAILED, "status 1: y"),
        ("yes | head -c 10000000; exit 0", Reason.DELIVERED, ""),
    ],
)
def test_its_exit_status_is_the_outcome(script: str, reason: Reason, detail: str) -> None:
    """0 is delivered, anything else is tried again; the end of its standard error explains, without addresses."""
    outcome = run("/bin/sh", "-c", script)

    assert outcome.reason is reason
    assert detail in outcome.detail


@pytest.mark.parametrize("command", ["/no/such/program", "/etc/passwd", "/"])
def test_a_program_that_is_none_is_said_to_be(command: str) -> None:
    """It may be installed later: tried again, with the reason."""
    outcome = run(command)

    assert outcome.reason is Reason.FAILED
    assert f"status {drop_privileges.CANNOT_RUN}: cannot be run" in outcome.detail


def test_it_need_not_read_its_input() -> None:
    """A large message to a program that does not look at it is no failure."""
    big = message(*(message().alerts * 5000))

    assert asyncio.run(Exec(("/bin/true",)).send(big, CONTEXT)).ok


def test_where_nothing_can_be_taken_away_nothing_is_run() -> None:
    """The wrapper judges by what the kernel says, not by what it asked for: this process is not confined."""
    judge = (
        "from gpuagent_alerts.programs.drop_privileges import *; "
        "print(is_confined()); drop_everything(); print(is_confined())"
    )
    done = subprocess.run([sys.executable, "-c", judge], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("cannot post with abc-def-123", "cannot post with <hidden>"),
        ("joe@h3: t0k3n-of-another refused", "joe@h3: <hidden> refused"),
        ("x" * 5000 + "end of a token refused", "of a token refused"),
    ],
    ids=["its own argument", "another receiver's secret", "the word at the cut"],
)
def test_what_it_writes_is_shown_without_secrets(said: str, shown: str) -> None:
    """ALERT-07: neither its own arguments nor another receiver's secret nor half a word of a long line is shown."""
    command = (sys.executable, "-c", f"import sys; sys.stderr.write({said!r}); sys.exit(1)", "X-Api-Key: abc-def-123")
    program = Exec(command, masker=Masker([Secret("key", "t0k3n-of-another")]))
    outcome = asyncio.run(program.send(message(), CONTEXT))

    assert outcome.detail == f"the program ended with status 1: {shown}"
