"""A person ends the program that was shown, in the place where it was: whatever has the number by the time of yes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpuagent.core.api_client import request
from gpuagent.core.identity import SHOWN_FIELDS
from gpuagent.procfs.files import READ_LIMIT_BYTES
from tests.attack.arena import Arena
from tests.attack.driver import ListedGpu
from tests.attack.processes import Living
from tests.integration.terminal import read_until, terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = 'echo ready; read -r _ && exec "$PROGRAM" -c "$SCRIPT" job "$FILL" "$LAST"'
"""Becomes another program, or the same with other arguments, when it gets a line."""


class Case(NamedTuple):
    """How the program before and the one after differ."""

    first: str = "sh"
    """What the first one is called by its own arguments: "" as the second one is."""
    other: bool = False
    """Whether the second one is another file."""
    fill: str = "-"
    last: tuple[str, str] = ("a", "a")
    settings: dict[str, Any] = {}  # noqa: RUF012  it is only read


CASES = {
    "commands are not shown": Case(other=True, last=("train", "db"), settings={"processes": {"command": False}}),
    "another file, the same arguments": Case(first="", other=True),
    "beyond the cut": Case(first="", fill="x" * 2 * READ_LIMIT_BYTES, last=("--job-A", "--job-B")),
    "redacted": Case(first="", last=("--token=AAAAAAAAAAAA", "--token=BBBBBBBBBBBB")),
}


def started(arena: Arena, case: Case, uid: int) -> Living:
    """Start the first program as an ordinary user, ready to be another."""
    shell = Path("/bin/sh").resolve()
    program = shell
    if case.other:
        program = arena.folder / "other" / shell.name
        program.parent.mkdir(exist_ok=True)
        shutil.copy(shell, program)
    environment = {"PROGRAM": str(program), "SCRIPT": SCRIPT, "FILL": case.fill, "LAST": case.last[1]}
    process = subprocess.Popen(
        [case.first or str(program), "-c", SCRIPT, "job", case.fill, case.last[0]], executable=shell, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=uid, group=uid, extra_groups=[],
    )  # fmt: skip
    living = arena.crowd.adopt(process)
    ready(living)
    return living


def ready(living: Living) -> None:
    """Wait until a program has begun."""
    assert living.starter.stdout is not None
    assert living.starter.stdout.readline() == b"ready\n"


def identity_of(arena: Arena, living: Living) -> dict[str, Any]:
    """What a request has to carry, as it is shown now."""
    assert arena.agent is not None
    _, data = request(arena.agent.control_socket, "GET", "/api/v1/processes/identified", 60.0)
    (row,) = [each for each in json.loads(data)["processes"] if each["pid"] == living.pid]
    return {name: row[name] for name in SHOWN_FIELDS}


def judge(arena: Arena, guilty: Living, innocent: Living, change: Callable[[], None]) -> None:
    """End both by hand on a terminal: the one that is as it was shown, and not the one that has changed before yes."""
    agent = arena.agent
    assert agent is not None
    arena.culprit(guilty)
    arena.innocent(innocent)
    for gpu, living in enumerate((guilty, innocent)):
        arena.driver.hold(living.pid, 10, gpu=gpu)
        arena.sees(living.pid)
    shown = identity_of(arena, innocent)
    with terminal(agent, "kill", str(guilty.pid)) as (sure, first), terminal(agent, "kill", str(innocent.pid)) as (
        ours, second,
    ):  # fmt: skip
        for person in (sure, ours):
            read_until(person, b"[y/N]")
        change()
        for person in (sure, ours):
            os.write(person, b"y\n")
        told = read_until(ours, b"nothing was done")
        assert b"is not what was shown any more" in told
        assert second.wait(60) == 1
        read_until(sure, b"")
        assert first.wait(60) == 0
    for body in ({"dry_run": True}, {"force": True}, {"steps": ["kill"]}):
        where = f"/api/v1/processes/{innocent.pid}/kill"
        status, answer = request(agent.control_socket, "POST", where, 60.0, body={**shown, **body})
        assert status == 409, answer
    arena.judge()
    arena.innocents.remove(arena.culprit(innocent))  # what is shown now may be ended now
    assert agent.command("kill", str(innocent.pid), "--yes").returncode == 0
    arena.judge()


@pytest.mark.parametrize("name", CASES)
def test_another_program_by_the_time_of_yes(arena: Arena, name: str) -> None:
    """KILL-01: an exec between the question and yes, of another file or with arguments that nobody saw, is refused."""
    case, uid = CASES[name], next(arena.uids)
    arena.gpus(ListedGpu("GPU-0"), ListedGpu("GPU-1"))
    arena.start(remedies={"top": case.settings}, users=[str(uid)])
    guilty, innocent = started(arena, case, uid), started(arena, case, uid)

    def change() -> None:
        innocent.say()
        ready(innocent)

    judge(arena, guilty, innocent, change)


def test_another_place_by_the_time_of_yes(arena: Arena) -> None:
    """KILL-01: a process that is moved to another cgroup, of no unit, container or job, is not where it was shown."""
    uid, cgroups = next(arena.uids), arena.cgroups
    here, there = (cgroups.make(f"gpuagent-shown-{name}") for name in ("here", "there"))
    arena.gpus(ListedGpu("GPU-0"), ListedGpu("GPU-1"))
    arena.start(users=[str(uid)])
    guilty, innocent = (started(arena, Case(), uid) for _ in range(2))
    for living in (guilty, innocent):
        (here / "cgroup.procs").write_text(str(living.pid), encoding="ascii")

    def move() -> None:
        (there / "cgroup.procs").write_text(str(innocent.pid), encoding="ascii")

    judge(arena, guilty, innocent, move)
