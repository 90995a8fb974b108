"""What the step `limit` sets, and what it takes for no limit: by what is known of everybody in the cgroup."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.memory_limits import LimitHolder, LimitRefused, LimitUnknown, MemoryLimit, SetLimit
from gpuagent_alerts.remedies.execution.limiter import MemoryLimiter
from gpuagent_alerts.remedies.facts.limited_cgroup import LimitedCgroup, LimitedCgroups
from gpuagent_alerts.remedies.observation import ActionResult, LimitAsk, NotPossibleHere, UnitPermission
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Target
from tests.alerts.remedies.world import BOOT, GIB, target

LIMIT = RemedyStep(StepKind.LIMIT, 30.0, headroom_bytes=2 * GIB)
HOLDER = LimitHolder("run", "alert", "key-state", 100, 1000)
INODE = 77
UNIT = "/system.slice/whisper.service"


class Driver:
    """Sets a limit, and counts against it what it is told to."""

    def __init__(self, used_bytes: int = 4 * GIB, problem: Exception | None = None) -> None:
        self.used_bytes = used_bytes
        self.problem = problem
        self.rows: dict[str, MemoryLimit] = {}

    def refusal(self) -> str:
        return ""

    def set(
        self, gpu_uuid: str, cgroup: str, inode: int, hard_bytes: int, holder: LimitHolder, *, rehearse: bool = False
    ) -> SetLimit:
        if self.problem is not None:
            raise self.problem
        assert inode == INODE
        self.rows[cgroup] = MemoryLimit(gpu_uuid, cgroup, inode, hard_bytes, BOOT, 1.0, holder)
        return SetLimit(self.rows[cgroup], self.used_bytes)

    def lift(self, gpu_uuid: str, cgroup: str, owner: str) -> str:
        assert owner == HOLDER.owner
        del self.rows[cgroup]
        return "it is lifted"

    def is_there(self, limit: MemoryLimit) -> bool:
        return True

    def limits(self) -> tuple[MemoryLimit, ...]:
        return tuple(self.rows.values())


class Cgroup(LimitedCgroups):
    """One cgroup in a folder of the test, with these processes inside."""

    def __init__(self, folder: Path, *pids: int, refusal: str = "") -> None:
        super().__init__(None, None, None, root=str(folder))  # type: ignore[arg-type]
        self.refusal = refusal
        (folder / UNIT.lstrip("/")).mkdir(parents=True)
        self.move(folder, *pids)

    def move(self, folder: Path, *pids: int) -> None:
        """Have these processes in the cgroup."""
        procs = folder / UNIT.lstrip("/") / "cgroup.procs"
        procs.write_text("".join(f"{pid}\n" for pid in pids))

    def find(self, target: Target, permission: UnitPermission) -> LimitedCgroup:
        return LimitedCgroup(UNIT, "whisper.service", INODE, self.refusal)


def limit(folder: Path, driver: Driver, *everybody: Target, pids: tuple[int, ...] = (100, 101), **cgroup: Any) -> Any:
    """Take the step."""
    made = MemoryLimiter(None, None, None, driver)  # type: ignore[arg-type]
    made._cgroups = Cgroup(folder, *pids, **cgroup)
    ask = LimitAsk(everybody or (target(100),), HOLDER, rehearse=False)
    return asyncio.run(made.limit(LIMIT, target(100), UnitPermission(), ask))


def test_everybody_inside_counts(tmp_path: Path) -> None:
    """The limit is what all in the cgroup hold together, and the headroom."""
    driver = Driver(6 * GIB)
    both = (target(100, used_bytes=4 * GIB), target(101, used_bytes=2 * GIB), target(102, used_bytes=9 * GIB))
    assert limit(tmp_path, driver, *both).ok
    assert driver.rows[UNIT].hard_bytes == 8 * GIB


def test_an_unknown_amount_withholds(tmp_path: Path) -> None:
    """Where the driver does not tell what one of them holds, a limit would eat the headroom of the others."""
    driver = Driver()
    done = limit(tmp_path, driver, target(100, used_bytes=4 * GIB), target(101, used_bytes=0))
    assert (done.ok, done.taken, driver.rows) == (False, False, {})
    assert "cannot be seen how much" in done.detail


@pytest.mark.parametrize(("used_gib", "ok"), [(4.0, True), (4.4, True), (4.6, False), (5.9, False), (2.9, False)])
def test_what_the_driver_counts(tmp_path: Path, used_gib: float, ok: bool) -> None:
    """More than is listed leaves others no headroom, less is managed memory: lifted at once, and nothing was done."""
    driver = Driver(int(used_gib * GIB))
    done = limit(tmp_path, driver, target(100, used_bytes=4 * GIB))
    assert (done.ok, bool(driver.rows)) == (ok, ok)
    assert done.taken is ok


def test_a_process_that_has_left_meanwhile(tmp_path: Path) -> None:
    """Where the process is not in the cgroup any more after the call, the limit is somebody else's burden: lifted."""
    driver = Driver()
    made = MemoryLimiter(None, None, None, driver)  # type: ignore[arg-type]
    cgroup = made._cgroups = Cgroup(tmp_path, 100)
    setting = driver.set

    def slow(*asked: Any, **named: Any) -> SetLimit:
        cgroup.move(tmp_path, 101)
        return setting(*asked, **named)

    driver.set = slow  # type: ignore[method-assign]
    ask = LimitAsk((target(100, used_bytes=4 * GIB),), HOLDER, rehearse=False)
    done = asyncio.run(made.limit(LIMIT, target(100), UnitPermission(), ask))
    assert (done.ok, done.taken, driver.rows) == (False, False, {})


@pytest.mark.parametrize(
    ("problem", "taken"), [(LimitRefused("the driver refuses"), False), (LimitUnknown("timed out"), True)]
)
def test_a_timeout_is_no_refusal(tmp_path: Path, problem: Exception, taken: bool) -> None:
    """What was refused was not done; of what was not answered nobody knows."""
    done: ActionResult = limit(tmp_path, Driver(problem=problem), target(100, used_bytes=4 * GIB))
    assert (done.ok, done.taken) == (False, taken)
    assert ("not known" in done.detail) is taken


def test_a_machine_that_has_no_limits(tmp_path: Path) -> None:
    """Version 1 of cgroups is nobody's fault: not done, and no refusal of the process."""
    why = NotPossibleHere("memory limits need version 2")
    done = limit(tmp_path, Driver(), target(100), refusal=why)
    assert (done.ok, done.taken, done.detail) == (False, False, why)


@pytest.mark.parametrize(("is_set", "word"), [(True, "has limited"), (False, "may have limited")])
def test_a_limit_of_ours_is_told_as_far_as_it_is_known(tmp_path: Path, is_set: bool, word: str) -> None:
    """Before the step is begun: one that is set already, or may be."""
    driver = Driver()
    row = MemoryLimit(target(100).key.gpu_uuid, UNIT, INODE, 6 * GIB, BOOT, 1.0, HOLDER)
    driver.rows[UNIT] = replace(row, is_set=is_set)
    made = MemoryLimiter(None, None, None, driver)  # type: ignore[arg-type]
    made._cgroups = Cgroup(tmp_path, 100)
    refusal = asyncio.run(made.refusal(target(100), UnitPermission()))
    assert isinstance(refusal, NotPossibleHere)
    assert word in refusal
