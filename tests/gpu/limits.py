"""Memory limits of cgroups, as the driver keeps them: what counts against one, what is refused, and what is left."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuagent.core.memory_limits import CGROUP_ROOT, FIRST_DRIVER, LimitHolder, LimitRefused
from gpuagent.core.units import format_bytes
from gpuagent.driver.memory_limits.folders import CgroupFolders
from gpuagent.driver.memory_limits.ledger import LimitLedger
from gpuagent.driver.memory_limits.nvml import NvmlMemoryLimits
from gpuagent.driver.memory_limits.setter import MemoryLimitSetter
from gpuagent.driver.nvml.library import Library
from gpuagent_alerts.remedies.execution.limiter import COUNTED_SHARE
from tests.gpu.report import CannotRun, Report
from tests.gpu.setting import GIB, Program, Setting, listed
from tests.integration.waiting import until

HELD_BYTES = 2 * GIB
HEADROOM_BYTES = 1 * GIB
_OWNER = "test"


@contextmanager
def own_cgroup(program: Program) -> Iterator[str]:
    """Move a program into a cgroup of its own, as systemd would; remove that in the end."""
    root = Path(CGROUP_ROOT)
    for place in (root, root / "system.slice"):
        control = place / "cgroup.subtree_control"
        if place.is_dir() and "dmem" in (place / "cgroup.controllers").read_text().split():
            control.write_text("+dmem")  # with that controller a limit is a file of the cgroup
    path = f"system.slice/gpuagent-test-{secrets.token_hex(4)}.service"
    folder = root / path
    folder.mkdir(parents=True)
    try:
        (folder / "cgroup.procs").write_text(str(program.pid))
        yield f"/{path}"
    finally:
        program.process.kill()
        program.process.wait()
        until(lambda: not (folder / "cgroup.procs").read_text().strip(), "an empty cgroup", 10)
        folder.rmdir()


def cap(setting: Setting, report: Report) -> None:
    """Cap one of two programs, and have both ask for more."""
    if os.geteuid() != 0:
        raise CannotRun("only root may set a memory limit")
    if refusal := CgroupFolders(CGROUP_ROOT).refusal():
        raise CannotRun(refusal)
    driver = setting.smi("gpu", "driver_version")[0][0]
    if int(driver.partition(".")[0]) < FIRST_DRIVER:
        raise CannotRun(f"driver {driver} keeps no memory limits: {FIRST_DRIVER} or newer does")
    uuid = setting.smi("gpu", "uuid")[0][0]
    driver_limits = NvmlMemoryLimits(Library())
    setter = MemoryLimitSetter(driver_limits, LimitLedger(None, "test"), CgroupFolders(CGROUP_ROOT))
    with setting.program("hold", HELD_BYTES) as capped, setting.program("hold", HELD_BYTES) as neighbor:
        for each in (capped, neighbor):
            each.wait_until_ready()
        with own_cgroup(capped) as cgroup, report.part("count", "refused", "lifted"):
            _cap(setting, report, setter, uuid, cgroup, capped, neighbor)


def _cap(
    setting: Setting, report: Report, setter: MemoryLimitSetter, uuid: str, cgroup: str, capped: Program,
    neighbor: Program,
) -> None:  # fmt: skip
    with setting.agent(capped, neighbor) as agent:
        held = int(listed(agent, capped)["used_bytes"])
    inode = Path(CGROUP_ROOT, cgroup.lstrip("/")).lstat().st_ino
    try:
        done = setter.set(uuid, cgroup, inode, held + HEADROOM_BYTES, LimitHolder("test", owner=_OWNER))
    except LimitRefused as refusal:
        raise CannotRun(str(refusal)) from None
    try:
        hard, counted = done.limit.hard_bytes, done.used_bytes
        text = f"limit {format_bytes(hard)}; counted {format_bytes(counted)}, listed with {format_bytes(held)}"
        is_told = COUNTED_SHARE * held <= counted <= hard
        report.agrees("count", is_told, text, hard_bytes=hard, counted_bytes=counted, listed_bytes=held)
        ours, theirs = capped.ask("grow", 2 * HEADROOM_BYTES), neighbor.ask("grow", 2 * HEADROOM_BYTES)
        text = f"capped: {ours['error'] or 'no error'}; neighbor: {theirs['error'] or 'no error'}"
        report.agrees("refused", bool(ours["error"]) and not theirs["error"], text)
    finally:
        lifted = setter.lift(uuid, cgroup, _OWNER)
    again = capped.ask("grow", 2 * HEADROOM_BYTES)
    report.agrees("lifted", not again["error"], f"{lifted}; then {again['error'] or 'no error'}")
