"""Processes that a cgroup freezes: they look asleep, and a signal waits for them to go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.facts.process_facts import frozen_by, held_by
from tests.alerts.remedies.processes import PLAIN, refusals_of, running
from tests.attack.cgroups import Cgroups
from tests.integration.waiting import until


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    """Cgroups of the machine's own hierarchy."""
    made = Cgroups()
    yield made
    made.close()


@pytest.mark.parametrize("frozen", ["freezer-test.slice", "freezer-test.slice/docker-1.scope"], ids=["above", "own"])
def test_a_process_that_its_cgroup_freezes(cgroups: Cgroups, frozen: str) -> None:
    """PROC-02: a frozen process is told from one that sleeps, whichever cgroup above it is frozen."""
    own = cgroups.make("freezer-test.slice/docker-1.scope")
    freeze = cgroups.root / frozen / "cgroup.freeze"
    if not freeze.exists():
        pytest.skip("this kernel has no freezer of version 2")
    with running(PLAIN) as process:
        (own / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
        place = RealProc().read(process.pid, "cgroup")
        assert frozen_by(place, "") == ""
        freeze.write_text("1", encoding="ascii")
        assert frozen_by(place, "") == f"/{frozen}"
        until(lambda: "frozen 1" in (own / "cgroup.events").read_text(encoding="ascii"), "it is frozen")
        assert frozen_by(place, "") == f"/{frozen}"
        freeze.write_text("0", encoding="ascii")
        until(lambda: "frozen 0" in (own / "cgroup.events").read_text(encoding="ascii"), "it has been thawed")
        assert frozen_by(place, "") == ""


def test_a_hierarchy_that_cannot_be_seen(tmp_path: Path) -> None:
    """PROC-02: where cgroups are not mounted, the place in the kernel tells of a frozen process."""
    nothing = tmp_path / "mountinfo"
    nothing.write_bytes(b"")
    for place in (b"0::/a\n", b"0::/../../a\n", b""):
        assert frozen_by(place, "hrtimer_nanosleep", nothing) == ""
        assert frozen_by(place, "do_freezer_trap", nothing) != ""


def test_a_freezer_of_version_1() -> None:
    """PROC-02: where the freezer is one of version 1, no signal reaches the process until it is thawed."""
    above = Path("/sys/fs/cgroup/freezer") / f"gpuagent-test-{os.getpid()}"
    own = above / "own"
    try:
        own.mkdir(parents=True)
    except OSError:
        pytest.skip("needs a writable freezer of version 1 (run as root)")
    try:
        with running(PLAIN) as process:
            (own / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
            place = RealProc().read(process.pid, "cgroup")
            assert held_by(place, "") == ""
            for frozen in (own, above):
                (frozen / "freezer.state").write_text("FROZEN", encoding="ascii")
                assert held_by(place, "") == f"/{above.name}/own"
                assert held_by(place, "", Path("/dev/null")) == ""
                assert held_by(place, "__refrigerator", Path("/dev/null")) != ""
                assert any("of version 1" in each for each in refusals_of(process.pid))
                (frozen / "freezer.state").write_text("THAWED", encoding="ascii")
                assert held_by(place, "") == ""
            assert not any("of version 1" in each for each in refusals_of(process.pid))
    finally:
        until(lambda: not (own / "tasks").read_text(encoding="ascii"), "it is empty")
        own.rmdir()
        above.rmdir()
