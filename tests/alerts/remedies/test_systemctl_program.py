"""Which `systemctl` is run: one that only root and the agent's user can change, wherever PATH leads."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

from gpuagent_alerts.remedies.execution.units import Systemctl
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.observation import UnitPermission
from tests.alerts.remedies.trees import ALICE, give, make_directory, make_file, needs_root, replaced, tree
from tests.fakes.cgroups import CgroupTree, unit_target

pytestmark = needs_root
__all__ = ["tree"]


def refusal(tree: Path, search_path: str) -> str:
    """Why the unit must not be restarted, by the systemctl of this search path."""
    systemctl = Systemctl(UnitProcesses(CgroupTree(Path(tempfile.mkdtemp(dir=tree))).proc), search_path=search_path)
    return asyncio.run(systemctl.refusal(unit_target(), UnitPermission()))


def systemctl_in(folder: Path, ran: Path) -> Path:
    """A systemctl that leaves a trace, and fails."""
    return make_file(folder / "systemctl", f"#!/bin/sh\necho run >>{ran}\nexit 7\n", 0o755)


def test_a_systemctl_of_somebody_else(tree: Path) -> None:
    """A file or a directory that others can write is not run from, and the refusal says so; root's own is run."""
    folder, ran = make_directory(tree / "bin"), tree / "ran"
    program = systemctl_in(folder, ran)
    assert "systemctl failed with status 7" in refusal(tree, str(folder))
    assert ran.read_text() == "run\n"
    give(program, ALICE)
    fault = f"systemctl is not run: {program} belongs to uid {ALICE}: {replaced(program)}"
    assert fault in refusal(tree, str(folder))
    give(program, 0)
    folder.chmod(0o757)
    assert f"{folder} is writable by everybody" in refusal(tree, str(folder))
    assert ran.read_text() == "run\n"


def test_the_agents_path_is_searched_and_examined(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the agent's own PATH decides, and what is found there is examined like any program."""
    ran = tree / "ran"
    program = systemctl_in(make_directory(tree / "bin"), ran)
    monkeypatch.setenv("PATH", f"{tree / 'bin'}:/usr/bin:/bin")
    refusal(tree, "")
    assert ran.read_text() == "run\n"
    give(program, ALICE)
    assert "systemctl is not run" in refusal(tree, "")
    assert f"there is no systemctl in {tree}/none" in refusal(tree, f"{tree}/none")
