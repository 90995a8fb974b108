"""Processes that have ended are called what they were."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.collector.holders import UNLISTED_SECONDS, LastHolders
from gpuagent.core.clock import ManualClock
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import ProcessInfo, ProcessReading, ProcessState
from gpuagent.core.units import GIB
from gpuagent.procfs.machine import PidMark, PidSpace
from tests.fakes.rig import rig
from tests.integration.waiting import until

UUID = "GPU-a"
INFO = ProcessInfo(
    ProcessId("boot", 7, 42), "python3", 1000, "alice", command="python3 serve.py", unit="whisper.service",
    container_id="c" * 64, container_name="web", slurm_job="12", start_time_seconds=5.0,
)  # fmt: skip


class Wrapped(PidSpace):
    """A space in which every number may have been given twice."""

    def may_have_wrapped(self, since: PidMark) -> bool:
        return True


def live(info: ProcessInfo = INFO, *, unproven: bool = False) -> ProcessReading:
    """A process that is there."""
    return ProcessReading(
        0, UUID, info.id.pid, ProcessState.LIVE, info, 10, "C", None, holder_unproven=unproven
    )  # fmt: skip


def dead(pid: int = 7, uuid: str = UUID) -> ProcessReading:
    """An entry of the driver's list without a process."""
    return ProcessReading(0, uuid, pid, ProcessState.DEAD, None, 10, "C", None)


def former(holders: LastHolders, reading: ProcessReading) -> ProcessInfo | None:
    """Who held what is listed now."""
    (named,) = holders.name(reading.gpu_uuid, [reading], complete=True)
    return named.former


def test_it_is_called_what_it_was() -> None:
    """PROC-01: all that was known of it; a live process has no former one, and nothing makes a dead one live."""
    holders = LastHolders(ManualClock())
    assert holders.name(UUID, [live()], complete=True) == [live()]
    (named,) = holders.name(UUID, [dead()], complete=True)
    assert (named.state, named.info, named.former) == (ProcessState.DEAD, None, INFO)


@pytest.mark.parametrize(
    "seen", [[], [live(unproven=True)], [live(INFO.__class__(ProcessId("boot", 7, 0), "?", 0, ""))]],
    ids=["never", "unproven", "hidden"],
)  # fmt: skip
def test_who_is_not_known_has_no_name(seen: list[ProcessReading]) -> None:
    """PROC-01: what was never seen to hold this memory does not give its name to it."""
    holders = LastHolders(ManualClock())
    holders.name(UUID, seen, complete=True)
    assert former(holders, dead()) is None


def test_each_gpu_has_its_own_entry() -> None:
    """PROC-03: a stranger with the number on another GPU does not rename the one that has ended here."""
    holders = LastHolders(ManualClock())
    holders.name(UUID, [live()], complete=True)
    other = ProcessInfo(ProcessId("boot", 7, 99), "node", 1001, "bob")
    holders.name("GPU-b", [live(other)._replace(gpu_uuid="GPU-b")], complete=True)
    assert former(holders, dead()) == INFO
    assert former(holders, dead(uuid="GPU-b")) == other


def test_a_number_that_was_off_the_list_is_another() -> None:
    """PROC-03: after a minute without it, whatever is listed under the number later has no name."""
    clock = ManualClock()
    holders = LastHolders(clock)
    holders.name(UUID, [live()], complete=True)
    holders.name(UUID, [], complete=True)
    clock.advance(UNLISTED_SECONDS - 1)
    assert former(holders, dead()) == INFO
    holders.name(UUID, [], complete=True)
    clock.advance(UNLISTED_SECONDS)
    assert former(holders, dead()) is None


def test_a_list_that_is_not_complete_forgets_nobody() -> None:
    """PROC-01: it says nothing of the entries that it lacks."""
    clock = ManualClock()
    holders = LastHolders(clock)
    holders.name(UUID, [live()], complete=True)
    holders.name(UUID, [], complete=False)
    clock.advance(10 * UNLISTED_SECONDS)
    assert former(holders, dead()) == INFO


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that an agent has left with one process in it."""
    file = tmp_path / "holders.json"
    LastHolders(ManualClock(), file, "boot", PidSpace()).name(UUID, [live()], complete=True)
    until(file.exists, "the processes are written")
    return file


def test_a_restart_in_between(path: Path) -> None:
    """PROC-01: a process that ended while no agent ran has its name all the same."""
    assert former(LastHolders(ManualClock(), path, "boot", PidSpace()), dead()) == INFO


def test_what_another_boot_or_a_full_round_of_numbers_has_left(path: Path) -> None:
    """PROC-03: numbers may belong to others by now."""
    assert former(LastHolders(ManualClock(), path, "another", PidSpace()), dead()) is None
    assert former(LastHolders(ManualClock(), path, "boot", Wrapped()), dead()) is None


@pytest.mark.parametrize("key", ["pid", "start_ticks", "name", "uid", "start_time", "instance"])
@pytest.mark.parametrize("value", [None, {}, [1]])
def test_a_damaged_file_is_no_reason_not_to_start(path: Path, key: str, value: object) -> None:
    """STATE-02: it is started anew."""
    document = json.loads(path.read_text())
    document["processes"][0][key] = value
    path.write_text(json.dumps(document))
    assert former(LastHolders(ManualClock(), path, "boot", PidSpace()), dead()) is None


def test_from_the_driver_to_the_series() -> None:
    """PROC-01: the process is killed and its memory stays: one series for it, under its own name."""

    async def run() -> None:
        async with rig("dead-process", events=False) as stage:
            await stage.tick()
            assert stage.value("gpuagent_dead_process_memory_used_bytes", user="alice") is None
            await stage.tick(10)
            found = stage.value(
                "gpuagent_dead_process_memory_used_bytes", gpu="0", process="python3", user="alice", slurm_job="48213"
            )
            assert found == 38 * GIB

    asyncio.run(run())


def test_a_zombie_is_a_dead_process_with_what_it_was() -> None:
    """PROC-01: /proc lists a zombie without its command; what was known while it lived stays, with that it is one."""
    holders = LastHolders(ManualClock())
    alive = replace(INFO, command="python3 train.py")
    holders.name(UUID, [live()._replace(info=alive)], complete=True)
    seen = replace(INFO, command="", state="Z", resident_bytes=0)
    (one,) = holders.name(UUID, [dead()._replace(former=seen)], complete=True)
    assert one.is_zombie
    assert one.former == replace(alive, state="Z", resident_bytes=0)
    other = replace(seen, id=ProcessId(seen.id.boot_id, seen.id.pid, seen.id.start_ticks + 1))
    assert former(holders, dead()._replace(former=other)) == other


def test_a_first_thread_that_has_ended_is_no_zombie() -> None:
    """PROC-02: others of the process live and hold its memory: its host memory says so."""
    assert not replace(INFO, state="Z", resident_bytes=4096).is_zombie
    assert not replace(INFO, state="Z", resident_bytes=None).is_zombie
    assert replace(INFO, state="Z", resident_bytes=0).is_zombie
