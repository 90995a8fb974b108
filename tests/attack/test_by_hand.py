"""A person ends a process: the one that was shown, and no other that has its number since."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuagent.ask import request
from tests.attack.arena import Arena
from tests.attack.driver import ListedGpu
from tests.attack.processes import a_tick_later
from tests.integration.agent import GPUAGENT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@contextmanager
def at_a_terminal(arena: Arena, *words: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a command on a terminal; the descriptor is the person's end of it."""
    assert arena.agent is not None
    ours, theirs = pty.openpty()
    command = [*GPUAGENT, *words, "--socket", str(arena.agent.control_socket)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        yield ours, process
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def until_asked(terminal: int) -> None:
    """Read what is shown up to the question."""
    seen = b""
    while b"[y/N]" not in seen:
        seen += os.read(terminal, 4096)


def end_by_hand(arena: Arena, uid: int) -> None:
    """End a process in the way that is meant, and judge."""
    assert arena.agent is not None
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 10)
    arena.sees(guilty.pid)
    done = arena.agent.command("kill", str(guilty.pid), "--force", "--yes")
    assert done.returncode == 0, done
    arena.judge()


def test_between_the_question_and_yes(arena: Arena) -> None:
    """KILL-01: the process that was shown ends, and its number goes to one that holds memory of another GPU."""
    arena.gpus(ListedGpu("GPU-0"), ListedGpu("GPU-1"))
    uid, other = next(arena.uids), next(arena.uids)
    shown = arena.crowd.start(uid)
    arena.driver.hold(shown.pid, 10)
    arena.start(users=["nobody-yet"])
    arena.sees(shown.pid)
    with at_a_terminal(arena, "kill", str(shown.pid), "--force") as (terminal, process):
        until_asked(terminal)
        number = shown.pid
        shown.end()
        arena.let_decide()
        a_tick_later()
        heir = arena.innocent(arena.crowd.given(number, other))
        arena.driver.hold(heir.pid, 10, gpu=1)
        arena.sees(heir.pid)
        arena.let_decide()
        os.write(terminal, b"y\n")
        assert process.wait(60) == 1
    end_by_hand(arena, uid)


@pytest.mark.parametrize("body", [{}, {"force": True}, {"force": True, "steps": ["kill"]}], ids=["", "force", "kill"])
def test_a_request_that_names_a_number_only(arena: Arena, body: dict[str, object]) -> None:
    """KILL-01: whoever asks over the control socket says which process is meant; a number is not enough."""
    uid = next(arena.uids)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 10)
    agent = arena.start(users=[str(uid)])
    arena.sees(innocent.pid)
    for path in ("kill", "reset"):
        given = body if path == "kill" else {key: value for key, value in body.items() if key == "force"}
        where = f"/api/v1/processes/{innocent.pid}/{path}"
        status, answer = request(agent.control_socket, "POST", where, 60.0, body=given)
        assert 400 <= status < 500, json.loads(answer)
    end_by_hand(arena, uid)
