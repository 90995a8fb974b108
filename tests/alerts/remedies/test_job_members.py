"""`scope: job` without a scheduler: who shows that they are one job falls together, and nobody else does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.identity import JobSign, SignKind
from gpuagent_alerts.remedies.plan import intent_note
from gpuagent_alerts.remedies.snapshot_targets import job_members, lookalikes_outside, members, unjoined_lookalikes
from gpuagent_alerts.remedies.target import Target
from tests.alerts.remedies.processes import as_target, reader

FOR_EVER = r"import os, signal; os.write(1, b'ready\n'); signal.pause()"


def target(pid: int) -> Target:
    """A process as a reading has it: with what shows that it is part of a job."""
    info = reader().read(pid).info
    return replace(as_target(pid), parent_pid=info.parent_pid, job_signs=info.job_signs)


def children(pid: int) -> list[int]:
    """Those of its first thread, the first one first."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


@contextmanager
def parent(*command: str, ready: int, **environment: str) -> Iterator[int]:
    """A process that starts others; each of these says that it is ready. All of its session end with it."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, **environment}
    )
    try:
        assert process.stdout is not None
        for _ in range(ready):
            assert process.stdout.readline().strip() == "ready"
        yield process.pid
    finally:
        family = {pid for child in children(process.pid) for pid in (child, *children(child))}
        process.kill()
        for pid in family:
            os.kill(pid, 9)
        process.communicate()


def fall_together(pids: list[int], never: tuple[str, ...] = ()) -> list[list[int]]:
    """For each process, who falls with it, as places in the list."""
    everybody = [target(pid) for pid in pids]
    return [sorted(pids.index(each.pid) for each in members(one, everybody, "job", never)) for one in everybody]


ALONE: list[list[int]] = [[], []]
BOTH = [[1], [0]]


def launching(folder: Path, name: str, code: str) -> list[str]:
    """A command of a Python program that is called so."""
    script = folder / name
    script.write_text(code, encoding="utf-8")
    return [sys.executable, str(script)]


SPAWNS = """
import subprocess, sys, signal
for number in (0, 1):
    subprocess.Popen([sys.executable, "-c", {code!r}, f"--port={{9000 + number}}"], **{more!r})
signal.pause()
"""
FORKS = """
import os, signal
for number in (0, 1):
    if not os.fork():
        os.write(1, b"ready\\n")
        signal.pause()
signal.pause()
"""
WORKERS = """
import multiprocessing, os, signal
def work():
    os.write(1, b"ready\\n")
    signal.pause()
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    for _ in (0, 1):
        context.Process(target=work).start()
    signal.pause()
"""


@pytest.mark.parametrize("name", ["prefect", "celery", "supervisor.py"])
@pytest.mark.parametrize("more", [{}, {"start_new_session": True}], ids=["one group", "sessions"])
def test_a_supervisor_has_no_job(tmp_path: Path, name: str, more: dict[str, bool]) -> None:
    """KILL-03: children of one parent, in one group, with commands that differ in a number, are no job."""
    with parent(*launching(tmp_path, name, SPAWNS.format(code=FOR_EVER, more=more)), ready=2) as pid:
        assert fall_together(children(pid)) == ALONE


def test_a_loop_in_a_shell(tmp_path: Path) -> None:
    """KILL-03: what a script starts one after the other is a sweep, also by GNU parallel or xargs."""
    loop = f'for rate in 1 2; do "{sys.executable}" -c "{FOR_EVER}" --rate=$rate & done; wait'
    with parent("sh", "-c", loop, ready=2) as pid:
        assert fall_together(children(pid)) == ALONE
    if shutil.which("xargs"):
        sweep = f'printf \'1\\0002\\0\' | xargs -0 -n 1 -P 2 "{sys.executable}" -c "{FOR_EVER}"'
        with parent("bash", "-c", f"{sweep}; true", ready=2) as pid:
            (xargs,) = children(pid)
            assert fall_together(children(xargs)) == ALONE


def test_a_server_that_forks(tmp_path: Path) -> None:
    """KILL-03: copies of one program serve whoever calls (Celery, gunicorn): alone unless the parent computes too."""
    with parent(*launching(tmp_path, "serve", FORKS), ready=2) as pid:
        assert fall_together(children(pid)) == ALONE
        assert fall_together([pid, *children(pid)]) == [[1, 2], [0, 2], [0, 1]]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_multiprocessing(tmp_path: Path, method: str) -> None:
    """The workers of one program fall together, and not with those of another run of it."""
    command = launching(tmp_path, "train.py", WORKERS.format(method=method))
    with ExitStack() as stack:
        pids = []
        for _ in (0, 1):
            pid = stack.enter_context(parent(*command, ready=2))
            direct = [each for each in children(pid) if target(each).job_signs]
            pids += direct or [each for child in children(pid) for each in children(child)]
        assert len(pids) == 4
        assert fall_together(pids) == [[1], [0], [3], [2]]


def test_a_parent_on_the_never_list(tmp_path: Path) -> None:
    """KILL-03: who runs work of others has no job: its children fall alone."""
    command = launching(tmp_path, "pool_server.py", WORKERS.format(method="spawn"))
    with parent(*command, ready=2) as pid:
        pids = [each for each in children(pid) if target(each).job_signs]
        assert fall_together(pids) == BOTH
        for entry in (
            "pool_server.py",
            f"{tmp_path}/pool_server.py",
            f"{tmp_path}/*",
            os.path.realpath(sys.executable),
        ):
            assert fall_together(pids, (entry,)) == ALONE, entry


@pytest.mark.parametrize("name", ["torchrun", "mpirun"])
def test_what_a_launcher_starts(tmp_path: Path, name: str) -> None:
    """A launcher starts the ranks of one job, each in a session of its own: they fall together."""
    code = SPAWNS.format(code=FOR_EVER, more={"start_new_session": True})
    with parent(*launching(tmp_path, name, code), ready=2) as pid:
        assert fall_together(children(pid)) == BOTH


def counted(folder: Path, *environments: dict[str, str]) -> list[str]:
    """A program that starts the same command with each of these environments."""
    code = (
        "import os, subprocess, sys, signal\n"
        f"for each in {environments!r}: subprocess.Popen([sys.executable, '-c', {FOR_EVER!r}], env=os.environ | each)\n"
        "signal.pause()\n"
    )
    return launching(folder, "start.py", code)


def rank(number: int, world: int = 2, port: int = 29500) -> dict[str, str]:
    """What a launcher tells a rank."""
    return {"RANK": str(number), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.parametrize(
    ("environments", "expected"),
    [
        ((rank(0), rank(1)), BOTH),
        ((rank(0), rank(1, port=29501)), ALONE),
        ((rank(0), rank(1, world=3)), ALONE),
        ((rank(0), rank(2)), ALONE),
        ((rank(0), {}), ALONE),
        ((rank(0), {**rank(1), "MASTER_ADDR": ""}), ALONE),
        ((rank(0), {**rank(1), "RANK": "1" * 5000, "WORLD_SIZE": "2" * 5000}), ALONE),
        # A rank that is there twice was set for all: nobody has counted them.
        ((rank(0), rank(0)), ALONE),
        ((rank(0), rank(1), rank(1)), [[], [], []]),
        ((rank(0, 1), rank(0, 1)), ALONE),
    ],
)
def test_ranks_that_are_counted(
    tmp_path: Path, environments: tuple[dict[str, str], ...], expected: list[list[int]]
) -> None:
    """Their environments have to agree on the job, and to tell them apart."""
    with parent(*counted(tmp_path, *environments), ready=len(environments)) as pid:
        assert fall_together(children(pid)) == expected


SIGN = JobSign(SignKind.WORKERS, "50:1")


def test_of_one_user_and_container_alone() -> None:
    """KILL-03: a sign that another user or container shows joins nobody."""
    one = replace(target(os.getpid()), job_signs=(SIGN,))
    other = replace(one, id=one.id._replace(pid=7), key=one.key._replace(pid=7))
    assert list(job_members(one, [one, other])) == [one.id, other.id]
    for stranger in (replace(other, uid=other.uid + 1), replace(other, container_id="c"), replace(other, command="x")):
        assert list(job_members(one, [one, stranger])) == [one.id]


def test_a_rank_of_the_job_before() -> None:
    """KILL-03: what a job has left behind is no rank of the next one, which has the same address."""
    one = replace(target(os.getpid()), job_signs=(JobSign(SignKind.RANK, "a", 0),))
    ticks = os.sysconf("SC_CLK_TCK")
    for seconds, ids in ((59, 2), (61, 1)):
        later = one.id._replace(pid=7, start_ticks=one.id.start_ticks + seconds * ticks)
        other = replace(one, id=later, key=one.key._replace(pid=7), job_signs=(JobSign(SignKind.RANK, "a", 1),))
        assert len(job_members(one, [one, other])) == ids


def test_who_does_not_fall_is_named() -> None:
    """The record names who has the parent or the group of the target and is not joined."""
    one = replace(target(os.getpid()), parent_pid=50, process_group=40)
    other = replace(one, id=one.id._replace(pid=7), key=one.key._replace(pid=7), name="tenant")
    stranger = replace(other, id=one.id._replace(pid=8), parent_pid=51, process_group=41)
    assert unjoined_lookalikes(one, [one, other, stranger], "job") == (other,)
    assert unjoined_lookalikes(one, [one, other, stranger], "process") == ()
    assert lookalikes_outside(one, [one, other], {one.id: one, other.id: other}) == ()
    assert intent_note([other], useless=False) == (
        "pid 7 (tenant) does not fall with it: nothing shows that they are one job"
    )
    assert intent_note([], useless=False) == ""
