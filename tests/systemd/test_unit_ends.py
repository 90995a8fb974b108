"""What a unit may do once a process of it has ended, by the real systemd: where that has booted."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.execution.unit_ends import UnitEnds
from gpuagent_alerts.remedies.facts.job_starters import SupervisorUnits
from gpuagent_alerts.remedies.facts.ties import read_ties
from gpuagent_alerts.remedies.facts.unit_ties import SystemdTieFinder
from gpuagent_alerts.remedies.target import Ties
from tests.alerts.remedies.processes import reader
from tests.integration.waiting import until
from tests.systemd.test_restart_unit import run, service, show

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def _booted() -> None:
    """What cannot be tried here says why."""
    if not Path("/run/systemd/system").is_dir():
        pytest.skip("systemd has not booted this machine: there is no /run/systemd/system")
    if os.geteuid() != 0:
        pytest.skip("needs root to start units")


@pytest.mark.parametrize(
    ("properties", "listens"),
    [([], False), (["NotifyAccess=main"], False), (["NotifyAccess=all", "WatchdogSec=60"], True)],
)
def test_whom_a_unit_listens_to(properties: list[str], *, listens: bool) -> None:
    """Systemd says whether any process of a unit may keep its watchdog quiet, and whether the unit runs."""
    with service(*properties) as unit:
        until(lambda: UnitEnds().runs(unit), "it runs")
        assert UnitEnds().may_fail_by_any(unit) is listens
    assert not UnitEnds().runs(unit)


def test_everybody_beside_a_process_of_a_unit() -> None:
    """KILL-03: by systemd's own word, all in a service may end with one of its processes, and its main one ends it."""
    with service(command=("/bin/sh", "-c", "sleep 1000 & sleep 1001 & wait")) as unit:
        main = int(show(unit, "MainPID"))
        pids = Path(f"/sys/fs/cgroup{show(unit, 'ControlGroup')}/cgroup.procs")
        until(lambda: len(pids.read_text().split()) == 3, "all of it runs")
        inside = {int(each) for each in pids.read_text().split()}
        one = max(inside - {main})
        files, finder = RealProc(), SystemdTieFinder(RealProc())
        assert not finder.find([one])
        ties = read_ties(files, reader(), [one], finder=finder, with_units=True)
        assert ({each.pid for each in ties.processes}, set(ties.units)) == (inside - {one}, {unit})
        assert not any(each.belongs for each in ties.processes)
        unseen = read_ties(files, reader(), [main], finder=finder, with_units=True).unseen
        assert f"is the main process of {unit}" in unseen
        named = SystemdTieFinder(files, supervisors=SupervisorUnits([unit]))
        assert read_ties(files, reader(), [one], finder=named, with_units=True) == Ties()
        assert {each.pid for each in read_ties(files, reader(), [main], finder=named).processes} == inside - {main}


@pytest.mark.parametrize("below_shell", [False, True])
def test_a_script_with_the_name_of_a_starter(tmp_path: Path, *, below_shell: bool) -> None:
    """KILL-03: a unit whose main process is root's script `containerd` may end with a job in another unit."""
    script = tmp_path / "containerd"
    job = f"gpuagent-test-{uuid.uuid4().hex[:8]}"
    script.write_text(f"#!/bin/sh\nsystemd-run --quiet --scope --unit={job} sleep 1000\nexit 0\n")
    script.chmod(0o755)
    command = ("/bin/sh", "-c", f"{script}; exit 0") if below_shell else (str(script),)
    with service(command=command) as unit:
        pids = Path(f"/sys/fs/cgroup{until(lambda: show(f'{job}.scope', 'ControlGroup'), 'a job')}/cgroup.procs")
        main = int(show(unit, "MainPID"))
        with service(f"BindsTo={unit}", f"After={unit}") as bound:
            tied = SystemdTieFinder(RealProc()).find([int(pids.read_text())])
            assert int(show(bound, "MainPID")) in tied
            assert main not in tied  # it descends from that, which ends by itself
        run("systemctl", "stop", f"{job}.scope")
