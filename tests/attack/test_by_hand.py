"""A person ends a process: the one that was shown, and no other that has its number since."""

from __future__ import annotations

import json
import os

import pytest

from gpuagent.core.api_client import request
from tests.attack.arena import Arena
from tests.attack.driver import ListedGpu
from tests.attack.processes import a_tick_later
from tests.integration.terminal import read_until, terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


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
    assert arena.agent is not None
    with terminal(arena.agent, "kill", str(shown.pid), "--force") as (ours, process):
        read_until(ours, b"[y/N]")
        number = shown.pid
        shown.end()
        arena.let_decide()
        a_tick_later()
        heir = arena.innocent(arena.crowd.given(number, other))
        arena.driver.hold(heir.pid, 10, gpu=1)
        arena.sees(heir.pid)
        arena.let_decide()
        os.write(ours, b"y\n")
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
