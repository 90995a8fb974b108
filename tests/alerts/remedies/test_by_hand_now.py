"""A request by hand is about what is so now: who has moved since the first reading can be ended, and is told apart."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.identity import SHOWN_FIELDS
from gpuagent.core.snapshot import GpuState, NvmlState, ProcessState, Snapshot
from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.execution.pidfd import PidfdProcess
from gpuagent_alerts.remedies.facts.fresh_lookup import FreshProcess, ProcessLookup, look_up
from gpuagent_alerts.remedies.manual_requests import (
    AnotherProcess,
    NoSuchProcess,
    cannot_act_reason,
    find_shown_target,
    gpus_of,
    identity_card,
    read_identified,
)
from gpuagent_alerts.remedies.observation import NotPermitted
from gpuagent_alerts.remedies.unreadable_gpus import UnreadableGpus
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.processes import PLAIN, as_target, reader, running
from tests.alerts.remedies.staging import DIGESTS, Stage, config, stage

pytestmark = pytest.mark.slow

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
CGROUPS = next((path for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
                if (path / "cgroup.procs").exists()), Path("/nowhere"))  # fmt: skip
BECOMES = "import os, sys; print('ready', flush=True); sys.stdin.readline(); os.setgid(4001); os.setuid(4001);" + PLAIN


@contextmanager
def cgroup(name: str) -> Iterator[Path]:
    """A cgroup of root's, beside all others."""
    folder = CGROUPS / name
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("cgroups cannot be made here")
    try:
        yield folder
    finally:
        folder.rmdir()


def steps_of(one: Stage) -> list[Any]:
    """The ladder of the only rule."""
    return list(one.service.settings.ladders[0].steps)


async def kill(one: Stage, pid: int) -> dict[str, Any]:
    """Ask for it as a person who was shown it just now."""
    asked = read_identified(one.shown(pid))
    task = asyncio.create_task(one.service.kill(pid, steps_of(one), asked, uid=0, force=False, dry_run=False))
    await one.until(task.done)
    return await task


@needs_root
def test_moved_to_another_cgroup(tmp_path: Path) -> None:
    """Whoever was moved after the first reading is shown where it is, and can be ended."""

    async def story(pid: int, folder: Path) -> None:
        settings = config(as_target(pid).user, dry_run=True, allow={})
        async with stage(settings, Store(tmp_path / "state.db"), {"leaker": pid}) as one:
            (folder / "cgroup.procs").write_text(str(pid))
            assert (await kill(one, pid))["result"] == "released"

    with cgroup("gpuagent-test.slice") as folder, running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid, folder))
        assert leaker.wait(10) == -15


@needs_root
def test_moved_within_a_run_of_a_rule(tmp_path: Path) -> None:
    """What a rule has chosen and what was moved since is left alone: the choice was made of another place."""

    async def story(pid: int, folder: Path) -> None:
        async with stage(config(as_target(pid).user), Store(tmp_path / "state.db"), {"leaker": pid}) as one:
            one.fires(pid)
            (folder / "cgroup.procs").write_text(str(pid))
            await one.until(lambda: one.ended() == ["refused"])
            (run,) = (await one.service.document())["remedies"]
            assert "its cgroup has changed" in run["end"]["detail"]

    with cgroup("gpuagent-test2.slice") as folder, running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid, folder))
        assert leaker.poll() is None


def test_another_program_between_the_comparison_and_the_pidfd(tmp_path: Path) -> None:
    """KILL-01: what was compared with what was shown is compared again with what is held: an exec in between counts."""
    again = "import signal; print('ready', flush=True); signal.pause()"
    code = (
        "import os, signal, sys; signal.signal(signal.SIGUSR1, lambda *_: "
        f'os.execv(sys.executable, [sys.executable, "-c", "{again}"])); print("ready", flush=True); signal.pause()'
    )

    async def story(leaker: subprocess.Popen[str], *, changes: bool) -> str:
        async with stage(config(as_target(leaker.pid).user), Store(tmp_path / "s.db"), {"leaker": leaker.pid}) as one:
            table = one.service._lookup

            class ThenExecutes(ProcessLookup):
                def look_up(self, pids: Iterable[int]) -> Mapping[int, FreshProcess | None]:
                    found = table.look_up(pids)
                    if changes:
                        leaker.send_signal(signal.SIGUSR1)
                        assert leaker.stdout is not None
                        assert leaker.stdout.readline() == "ready\n"
                    return found

            one.service._lookup = ThenExecutes()
            done = await kill(one, leaker.pid)
            return f"{done['result']}: {done['detail']}"

    for changes, says in ((True, "refused: its command line has changed"), (False, "released")):
        with running(code) as leaker:
            assert asyncio.run(story(leaker, changes=changes)).startswith(says)
            assert (leaker.poll() is None) is changes


@pytest.fixture
def seen(tmp_path: Path) -> Snapshot:
    """A snapshot with this process on GPU 0."""
    found: list[Snapshot] = []

    async def story() -> None:
        async with stage(config("x"), Store(tmp_path / "state.db"), {"leaker": os.getpid()}) as one:
            assert one.snapshot is not None
            found.append(one.snapshot)

    asyncio.run(story())
    return found[0]


def test_the_number_went_over_between_the_question_and_yes(seen: Snapshot) -> None:
    """Another process that has the number is said to be one, and an ended process to have ended."""
    pid = os.getpid()
    here = next(each.info for each in seen.processes if each.pid == pid)
    assert here is not None
    shown = read_identified({"start_ticks": 7, "boot_id": here.id.boot_id, "pid_namespace": None, "card": "x"})
    now = look_up(RealProc(), reader(), [pid], DIGESTS)[pid]
    dead = seen.processes[0]._replace(pid=pid, state=ProcessState.DEAD, info=None)
    gone = _with(seen, dead)
    with pytest.raises(AnotherProcess, match=f"pid {pid} is another process now"):
        find_shown_target(gone, pid, "", shown, {pid: now}, DIGESTS)
    with pytest.raises(AnotherProcess, match="has ended since"):
        find_shown_target(gone, pid, "", shown, {pid: None}, DIGESTS)
    with pytest.raises(AnotherProcess, match="cannot be read from /proc, so it cannot be compared"):
        find_shown_target(gone, pid, "", shown, {}, DIGESTS)
    text = cannot_act_reason(dead, {pid: now})
    assert "is not known to have had it when the driver first listed it: the memory may be that of an earlier" in text
    assert f"{here.name} of {here.user} has that number now" in text
    assert "has ended, there is nobody" not in text
    assert "--force does not lift this" in text
    assert "does not tell how much memory" in cannot_act_reason(
        dead._replace(state=ProcessState.LIVE, info=here, used_bytes=None), {}
    )


def _with(snapshot: Snapshot, process: Any) -> Snapshot:
    return replace(snapshot, processes=(process,))


def test_a_gpu_that_cannot_be_read_is_said_to_be_none(seen: Snapshot) -> None:
    """Hung, lost, paused or with impossible figures: not "no such process", but what cannot be read and since when."""
    clock = ManualClock(seen.gpus[0].read_seconds)
    gpus = UnreadableGpus(clock)
    gpus.update_snapshot(seen)
    assert gpus.now() == []
    clock.advance(12.0)
    blind = replace(seen.gpus[0], processes_known=False, act_refusal="figures that cannot be true")
    paused = replace(seen, gpus=(), processes=(), node=replace(seen.node, nvml_state=NvmlState.PAUSED))
    for now, why in (
        (replace(seen, gpus=(blind,), processes=()), "figures that cannot be true"),
        (paused, "is paused"),
    ):
        gpus.update_snapshot(now)
        (told,) = gpus.now()
        assert told.text.startswith("GPU 0 has not been readable for 12 s: ")
        assert why in told.text
        shown = read_identified({"start_ticks": 7, "boot_id": "b", "pid_namespace": None, "card": "x"})
        with pytest.raises(NoSuchProcess, match="whether pid 7 is on a GPU is not known: GPU 0 has not been readable"):
            find_shown_target(now, 7, "", shown, {}, DIGESTS, gpus.now())


def test_a_gpu_that_told_its_uuid_late_is_no_second_gpu(seen: Snapshot) -> None:
    """Before its first answer a GPU is an index without a UUID; once it is read, nothing is missing."""
    gpus = UnreadableGpus(ManualClock(seen.gpus[0].read_seconds))
    nameless = replace(seen.gpus[0], identity=replace(seen.gpus[0].identity, uuid=""), processes_known=False)
    gpus.update_snapshot(replace(seen, gpus=(nameless,), processes=()))
    assert "has not been readable since the agent started" in gpus.now()[0].text
    gpus.update_snapshot(seen)
    assert gpus.now() == []


@pytest.mark.parametrize(
    ("state", "refusal", "nvml", "named"),
    [
        (GpuState.LOST, "", NvmlState.READY, True),
        (GpuState.BLIND, "", NvmlState.READY, True),
        (GpuState.OK, "", NvmlState.READY, True),
        (GpuState.OK, "figures that cannot be true", NvmlState.READY, False),
        (GpuState.LOST, "", NvmlState.PAUSED, False),
    ],
)
def test_whom_the_last_list_names(seen: Snapshot, state: GpuState, refusal: str, nvml: NvmlState, named: bool) -> None:
    """Who was there when the GPU was last read and still runs, where it is the GPU that does not answer."""
    pid, gpus = os.getpid(), UnreadableGpus(ManualClock(seen.gpus[0].read_seconds))
    gpus.update_snapshot(seen)
    blind = replace(seen.gpus[0], state=state, processes_known=False, act_refusal=refusal)
    lost = replace(seen, gpus=(blind,), processes=(), node=replace(seen.node, nvml_state=nvml))
    gpus.update_snapshot(lost)
    now = look_up(RealProc(), reader(), [pid], DIGESTS)[pid]
    assert now is not None
    shown = read_identified(
        {"start_ticks": now.info.id.start_ticks, "boot_id": now.info.id.boot_id,
         "pid_namespace": now.info.pid_namespace, "card": identity_card(now, gpus_of(seen, pid), DIGESTS)}
    )  # fmt: skip
    if not named:
        with pytest.raises(NoSuchProcess):
            find_shown_target(lost, pid, "", shown, {pid: now}, DIGESTS, gpus.now())
        return
    target = find_shown_target(lost, pid, "", shown, {pid: now}, DIGESTS, gpus.now())
    assert (target.id, target.identity) == (now.info.id, now.identity)
    assert gpus.find(target) is not None
    for ended in (None, now._replace(info=replace(now.info, id=now.info.id._replace(start_ticks=1)))):
        with pytest.raises(NoSuchProcess, match="it was not there at the last reading"):
            find_shown_target(lost, pid, "", shown, {pid: ended}, DIGESTS, gpus.now())
    gpus.update_snapshot(seen)
    assert gpus.find(target) is None


def _lost(snapshot: Snapshot) -> Snapshot:
    gpus = tuple(replace(each, state=GpuState.LOST, reason="fell off", processes_known=False) for each in snapshot.gpus)
    return replace(snapshot, gpus=gpus, processes=())


@pytest.mark.parametrize(
    ("never", "force", "result", "detail"),
    [
        ([], False, "refused", "GPU 0 has not been readable for"),
        ([], True, "unreadable", "whether its memory came back cannot be told: GPU 0 has not been readable for"),
        (["python*"], True, "refused", "is on the never-list"),
    ],
)
def test_a_process_on_a_lost_gpu(tmp_path: Path, never: list[str], force: bool, result: str, detail: str) -> None:
    """GPU-03: it can be ended with --force, which lifts no other safeguard; without it the refusal says so."""

    async def story(pid: int) -> None:
        settings = config("nobody-else", never=never)
        async with stage(settings, Store(tmp_path / "state.db"), {"leaker": pid}) as one:
            one.change = _lost
            await one.tick()
            row = next(each for each in (await one.service.identified())["processes"] if each["pid"] == pid)
            assert row["why_not"] == ""
            assert row["unreadable"].endswith(": fell off")
            shown = read_identified({name: row[name] for name in SHOWN_FIELDS})
            kill = one.service.kill(pid, steps_of(one), shown, uid=0, force=force, dry_run=False)
            task = asyncio.create_task(kill)
            await one.until(task.done)
            answer = await task
            assert answer["result"] == result
            assert detail in answer["detail"]
            assert any("--force" in each for each in answer["advice"]) is not force

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid))
        assert (leaker.poll() is None) is (result == "refused")


@pytest.mark.parametrize(
    ("changes", "fresh", "way_out"),
    [
        ({"state": ProcessState.UNRESOLVED}, {}, "run the agent on the host"),
        ({"state": ProcessState.DEAD, "info": None}, {os.getpid(): None}, "has ended, there is nobody to end, and the"),
        ({"state": ProcessState.DEAD, "info": None}, {}, "cannot be read from /proc: ask again in a few seconds"),
        ({"used_bytes": None}, {}, "end it with what started it"),
        ({"info": None}, {os.getpid(): None}, "there is nobody to end"),
    ],
)
def test_what_cannot_be_acted_on_has_a_way_out(
    seen: Snapshot, changes: dict[str, Any], fresh: dict[int, None], way_out: str
) -> None:
    """What a person does instead, or that there is nothing to do; that somebody has ended is said where it is known."""
    one = next(each for each in seen.processes if each.pid == os.getpid())
    assert way_out in cannot_act_reason(one._replace(**changes), fresh)


def test_numbers_that_no_process_has() -> None:
    """A request about a number beyond all pids finds nobody, also beyond what the kernel can be asked about."""
    for pid in (2**31, 2**63, 4_194_305):
        assert look_up(RealProc(), reader(), [pid], DIGESTS) == {pid: None}


def test_the_first_process_of_the_system() -> None:
    """Pid 1 is refused as what it is, and not as one that a scenario has made up."""
    with pytest.raises(NotPermitted, match="first process of the system"):
        PidfdProcess(as_target(1), RealProc(), reader())
