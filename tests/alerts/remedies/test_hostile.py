"""Processes that do not do as they are told, through the whole chain: real ones, with simulated GPU memory."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from gpuagent_alerts.remedies.manual_requests import read_identified
from gpuagent_alerts.remedies.target import KILL_BIT
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.processes import IGNORES_TERM, PLAIN, ZOMBIE_LEADER, as_target, running
from tests.alerts.remedies.staging import config, stage

TWO_GPUS = """
description: one process on each of two GPUs
gpus:
  - model: h100
    processes:
      - {name: leaker, bind: leaker, memory: {shape: constant, value: 4GiB}}
  - model: h100
    processes:
      - {name: neighbor, bind: neighbor, memory: {shape: constant, value: 8GiB}}
"""
STOPPED = "import os, signal; print('ready', flush=True); os.kill(os.getpid(), signal.SIGSTOP); signal.pause()"
LEADER = (
    "import subprocess, sys, signal; child = subprocess.Popen(['sleep', '1000']); print('ready', flush=True);"
    "print(child.pid, flush=True); signal.pause()"
)
RESPAWNS = (
    "import subprocess, sys, os\n"
    "print('ready', flush=True)\n"
    "while True:\n"
    "    child = subprocess.Popen(['sleep', '1000'])\n"
    "    print(child.pid, flush=True)\n"
    "    child.wait()\n"
)
INIT = ("unshare", "--fork", "--pid", "--kill-child")
EXECS = (
    "import os, sys, signal; print('ready', flush=True); sys.stdin.readline(); os.execvp('sleep', ['sleep', '1000'])"
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """On the disk, as the agent has it."""
    return Store(tmp_path / "state.db")


def line(process: subprocess.Popen[str]) -> int:
    """A pid that it tells."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def until_named(pid: int, name: str) -> None:
    """Until the kernel knows it by this name."""
    while Path(f"/proc/{pid}/comm").read_text() != f"{name}\n":
        pass


def user_of(pid: int) -> str:
    """Whose it is."""
    return as_target(pid).user


def outcome_of(store: Store, pid: int, **settings: object) -> str:
    """What a remedy on this process comes to."""

    async def story() -> str:
        async with stage(config(user_of(pid), **settings), store, {"leaker": pid}) as one:
            one.fires(pid)
            await one.until(lambda: bool(one.ended()))
            return one.ended()[0]

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("code", "state", "number"), [(STOPPED, "T", signal.SIGKILL), (ZOMBIE_LEADER, "Z", signal.SIGTERM)]
)
def test_stopped_or_headless(store: Store, code: str, state: str, number: int) -> None:
    """PROC-02: a stopped process, and one whose leader is a zombie, are alive and hold their memory: both are ended."""
    with running(code) as process:
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
            pass
        assert outcome_of(store, process.pid) == "released"
        assert process.wait(10) == -number


@contextmanager
def container_init() -> Iterator[int]:
    """The first process of a pid namespace, as a container's main process is."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a pid namespace")
    shell = subprocess.Popen(
        [*INIT, sys.executable, "-c", PLAIN], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert shell.stdout is not None
        if shell.stdout.readline().strip() != "ready":
            pytest.skip("pid namespaces are not permitted here")
        (child,) = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
        yield int(child)
    finally:
        shell.kill()
        shell.communicate()


def test_a_pid_namespace_is_a_container(store: Store) -> None:
    """PROC-04: `allow.users` does not reach into a container, whatever its cgroup is called."""
    with container_init() as pid:

        async def story() -> None:
            async with stage(config(user_of(pid)), store, {"leaker": pid}) as one:
                one.fires(pid)
                await one.until(lambda: one.ended() == ["refused"])
                (run,) = (await one.service.document())["remedies"]
                assert "allow.users does not reach into it" in run["end"]["detail"]

        asyncio.run(story())
        assert (Path("/proc") / str(pid)).exists()


def test_the_init_of_a_container(store: Store) -> None:
    """PROC-02: the kernel throws SIGTERM to it away: that is seen, written down and not waited for; SIGKILL works."""
    with container_init() as pid:
        descriptor = os.pidfd_open(pid)

        async def story() -> None:
            async with stage(config("nobody-else"), store, {"leaker": pid}) as one:
                steps = list(one.service.settings.ladders[0].steps)
                kill = asyncio.create_task(
                    one.service.kill(pid, steps, read_identified(one.shown(pid)), uid=0, force=True, dry_run=False)
                )
                await one.until(kill.done)
                assert (await kill)["result"] == "released"
                (run,) = (await one.service.document())["remedies"]
                intents = [step for step in run["steps"] if step["kind"] == "intent"]
                assert [step["step"] for step in intents] == ["SIGTERM", "SIGKILL"]
                assert "ignores" in intents[0]["note"]

        asyncio.run(story())
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, 0)
        os.close(descriptor)


def test_an_orphan_keeps_the_gpu(store: Store) -> None:
    """The leader of a group is killed, its child lives on and holds the GPU: named, and left alone."""
    with running(LEADER) as leader:
        child = line(leader)
        try:

            async def story() -> None:
                pids = {"leaker": leader.pid, "neighbor": child}
                async with stage(config(user_of(child), proof=3), store, pids) as one:
                    one.fires(leader.pid)
                    await one.until(lambda: bool(one.ended()))
                    (run,) = (await one.service.document())["remedies"]
                    told = run["end"]["detail"]
                    assert f"pid {child} (sleep)" in told

            asyncio.run(story())
            assert leader.wait(10) == -signal.SIGTERM
            assert Path(f"/proc/{child}/comm").read_text() == "sleep\n"
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_respawning_parent_is_not_chased(store: Store) -> None:
    """A new worker takes the place of the one that was ended, as with gunicorn: it cools down, and lives."""
    with running(RESPAWNS) as parent:
        first = line(parent)
        second = 0
        try:

            async def story() -> None:
                nonlocal second
                async with stage(config(user_of(first)), store, {"leaker": first}) as one:
                    one.fires(first)
                    await one.until(lambda: one.ended() == ["released"])
                    second = line(parent)
                    one.rig.node.bind("leaker", second)
                    one.rig.clock.advance(100)  # beyond the pause
                    await one.tick()
                    one.fires(second)
                    await one.until(lambda: len(one.ended()) == 2)
                    assert one.ended() == ["released", "refused"]
                    run = (await one.service.document())["remedies"][-1]
                    assert (run["pid"], "cools down" in run["end"]["detail"]) == (second, True)

            asyncio.run(story())
            assert Path(f"/proc/{second}/comm").read_text() == "sleep\n"
        finally:
            parent.kill()
            os.kill(second or first, signal.SIGKILL)


def test_exec_after_selection(store: Store) -> None:
    """KILL-01: it runs another program once the ladder has begun: pid and start time are the same, and it lives."""
    process = subprocess.Popen([sys.executable, "-c", EXECS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()

        async def story(stdin: IO[str]) -> None:
            ladder = {
                "match": ['alertname="GpuProcessMemoryLeak"'],
                "steps": [{"notify": {"wait": 20}}, {"terminate": {"wait": 5}}],
            }
            async with stage(config(user_of(process.pid), ladders=[ladder]), store, {"leaker": process.pid}) as one:
                one.fires(process.pid)
                await one.until(lambda: bool(one.service.figures().announced))
                stdin.write("go\n")
                stdin.flush()
                await asyncio.to_thread(until_named, process.pid, "sleep")
                await one.until(lambda: one.ended() == ["refused"])
                assert one.service.figures().announced == ()  # the warning is called off

        asyncio.run(story(process.stdin))
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_two_gpus_at_once(store: Store) -> None:
    """KILL-05, KILL-06: two alerts on two GPUs: one action, and the other one after the pause."""

    async def story(pids: dict[str, int]) -> None:
        settings = config(user_of(pids["leaker"]), limits={"cooldown": 0, "per_hour": 9, "per_day": 9, "pause": 60})
        async with stage(settings, store, pids, TWO_GPUS) as one:
            one.fires(*pids.values())
            await one.until(lambda: len(one.ended()) == 2)
            assert sorted(one.ended()) == ["refused", "released"]
            await one.until(lambda: sorted(one.ended()) == ["refused", "released", "released"])

    with running(PLAIN) as leaker, running(PLAIN) as neighbor:
        asyncio.run(story({"leaker": leaker.pid, "neighbor": neighbor.pid}))
        assert (leaker.wait(10), neighbor.wait(10)) == (-signal.SIGTERM, -signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("jump", [-1e7, 1e7])
def test_the_wall_clock_jumps(store: Store, jump: float) -> None:
    """A clock that is set in the middle ends nothing, repeats nothing and gives no budget back."""

    async def story(pid: int) -> None:
        async with stage(config(user_of(pid)), store, {"leaker": pid}) as one:
            one.fires(pid)
            await one.until(lambda: any(run.id for run in one.service.remedies.running))
            one.rig.clock._wall += jump
            await one.until(lambda: one.ended() == ["released"])
            (past,) = one.service.audit.past(dry_run=False)
            assert 0 <= past.age_seconds < 60
            await one.tick()
            assert one.ended() == ["released"]  # still told, for its quarter of an hour

    with running(IGNORES_TERM) as process:
        asyncio.run(story(process.pid))
        assert process.wait(10) == -signal.SIGKILL


WRITES = (
    "import sys; file = open(sys.argv[1], 'wb', buffering=0); file.write(b'x'); print('ready', flush=True);"
    "sys.stdin.readline(); file.write(b'x' * 4096); import signal; signal.pause()"
)


@contextmanager
def frozen(folder: Path) -> Iterator[Path]:
    """A file system of its own on a loop device, to be frozen; thawed and unmounted in every case."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")
    image, mounted = folder / "d.img", folder / "m"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * 2**20)
    commands = (["mkfs.ext4", "-qF", str(image)], ["mount", "-o", "loop", str(image), str(mounted)])
    for command in commands:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no loop device here: {made.stderr.strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["fsfreeze", "-u", str(mounted)], capture_output=True, check=False)
        subprocess.run(["umount", "-l", str(mounted)], check=True)


def write_into_ice(process: subprocess.Popen[str], mounted: Path) -> None:
    """Freeze the file system once the process is up, and have it write there."""
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    subprocess.run(["fsfreeze", "-f", str(mounted)], check=True)
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.slow
@pytest.mark.needs("fsfreeze")
@pytest.mark.needs("mkfs.ext4")
def test_uninterruptible_sleep(store: Store, tmp_path: Path) -> None:
    """PROC-02: a process in state D gets SIGKILL alone; where even that does not end it, it says where it waits."""
    with frozen(tmp_path) as mounted:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITES, str(mounted / "x")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            write_into_ice(process, mounted)
            while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "D":
                pass

            async def story() -> None:
                async with stage(config(user_of(process.pid)), store, {"leaker": process.pid}) as one:
                    one.fires(process.pid)
                    await one.until(lambda: one.ended() == ["unkillable"])
                    (run,) = (await one.service.document())["remedies"]
                    assert "is in state D, waiting in " in run["end"]["detail"]
                    passed_over, *_ = run["steps"]
                    assert "only SIGKILL may reach it now, and not SIGTERM" in passed_over["note"]

            asyncio.run(story())
            assert f"ShdPnd:\t{KILL_BIT:016x}" in Path(f"/proc/{process.pid}/status").read_text()
        finally:
            subprocess.run(["fsfreeze", "-u", str(mounted)], check=False)
            process.kill()
            process.communicate()


WRITES_IN_A_THREAD = (
    "import sys, threading, signal\n"
    "file = open(sys.argv[1], 'wb', buffering=0); file.write(b'x'); print('ready', flush=True); sys.stdin.readline()\n"
    "threading.Thread(target=file.write, args=(b'x' * 4096,)).start()\n"
    "signal.pause()"
)


@pytest.mark.slow
@pytest.mark.needs("fsfreeze")
@pytest.mark.needs("mkfs.ext4")
def test_what_cannot_be_killed(store: Store, tmp_path: Path) -> None:
    """PROC-02: a thread waits in the kernel: one SIGKILL, `unkillable`, no second try, and none else on that GPU."""
    with frozen(tmp_path) as mounted, running(PLAIN) as neighbor:
        command = [sys.executable, "-c", WRITES_IN_A_THREAD, str(mounted / "x")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            write_into_ice(process, mounted)
            until_stuck(process.pid)

            async def story() -> None:
                ladder = {"match": ['alertname="GpuProcessMemoryLeak"'], "steps": [{"kill": {"wait": 5}}]}
                limits = {"pause": 0, "cooldown": 0, "per_hour": 9, "per_day": 9}
                settings = config(user_of(process.pid), ladders=[ladder], limits=limits)
                pids = {"leaker": process.pid, "neighbor": neighbor.pid}
                async with stage(settings, store, pids) as one:
                    one.fires(process.pid)
                    await one.until(lambda: one.ended() == ["unkillable"])
                    (run,) = (await one.service.document())["remedies"]
                    assert "percpu_rwsem_wait" in run["end"]["detail"]
                    one.fires(process.pid, neighbor.pid)
                    for _ in range(1000):  # of the story: longer than any try would wait
                        await one.tick()
                    assert one.ended() in ([], ["unkillable"])
                    assert len((await one.service.document())["remedies"]) == 1
                async with stage(settings, store, pids) as later:  # the next agent knows it too
                    later.fires(neighbor.pid)
                    for _ in range(50):
                        await later.tick()
                    assert len((await later.service.document())["remedies"]) == 1
                    await asyncio.to_thread(subprocess.run, ["fsfreeze", "-u", str(mounted)], check=True)
                    assert process.wait(10) == -signal.SIGKILL
                    await later.until(lambda: later.ended()[-1:] == ["released"])

            asyncio.run(story())
            assert neighbor.wait(10) == -signal.SIGKILL
        finally:
            subprocess.run(["fsfreeze", "-u", str(mounted)], capture_output=True, check=False)
            process.kill()
            process.communicate()


def until_stuck(pid: int) -> None:
    """Until one of its threads is in state D."""
    while not any(
        path.read_text().rpartition(")")[2].split()[0] == "D" for path in Path(f"/proc/{pid}/task").glob("*/stat")
    ):
        pass
