"""The tests that need a machine booted by systemd, run inside of one: wherever root may boot it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.systemd.machine import booted, require

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(300), pytest.mark.needs("systemd-nspawn")]

ROOT = Path(__file__).parents[2]
MODULES = ("test_drop_ins.py", "test_exec_steps.py", "test_restart_unit.py", "test_unit_ends.py")
PROGRAMS = r"no program|polkit is not installed"
"""What may be missing inside as it may be outside."""


def test_what_needs_systemd(tmp_path: Path) -> None:
    """None of them fails there, and none is left out but for a program that is not installed."""
    require()
    with booted(tmp_path, binds=(f"{ROOT}:{ROOT}",)) as machine:
        if machine.try_run(sys.executable, "--version").returncode:
            pytest.skip(f"{sys.executable} is on a file system that the machine does not see")
        modules = " ".join(f"tests/systemd/{name}" for name in MODULES)
        tests = f"cd {ROOT} && {sys.executable} -m pytest -q -rs -p no:cacheprovider {modules}"
        done = machine.try_run("sh", "-c", tests, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = re.findall(r"^SKIPPED .*$", done.stdout, re.MULTILINE)
    assert [line for line in skipped if not re.search(PROGRAMS, line)] == []
    assert re.search(r"\d+ passed", done.stdout)
