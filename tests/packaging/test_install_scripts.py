"""The scripts behind `make install`, as far as they go without root: the rest is tests/systemd/test_installed.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    path for path in sorted((ROOT / "scripts").iterdir()) if path.is_file() and path.read_text().startswith("#!/bin/sh")
]


def find_python(*candidates: str, python: str = "") -> subprocess.CompletedProcess[str]:
    """Run it, with PYTHON in the environment or without."""
    environ = {"PATH": os.environ["PATH"], **({"PYTHON": python} if python else {})}
    return subprocess.run(
        [ROOT / "scripts/find-python", *candidates], capture_output=True, text=True, check=False, env=environ
    )


def test_the_first_candidate_that_will_do(tmp_path: Path) -> None:
    """The distribution's goes before another on the PATH; one that is not there, or too old, is passed over."""
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    found = find_python("/nowhere/python3", str(old), sys.executable)
    assert (found.returncode, found.stdout) == (0, f"{sys.executable}\n")


def test_a_python_that_is_named_is_that_or_none() -> None:
    """`make install PYTHON=...` never takes another one in silence."""
    assert find_python("/usr/bin/false", python=sys.executable).stdout == f"{sys.executable}\n"
    refused = find_python(sys.executable, python="/bin/false")
    assert refused.returncode == 1
    assert "PYTHON=/bin/false is no Python 3.11 or newer" in refused.stderr


def test_a_wheelhouse_without_our_wheel(tmp_path: Path) -> None:
    """Told before anything is made, with the command that makes one."""
    script = ROOT / "scripts/install"
    done = subprocess.run(
        [script, tmp_path / "package", tmp_path], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 1
    assert "make wheelhouse" in done.stderr
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_shell_and_can_be_run(script: Path) -> None:
    """POSIX sh reads each without a fault, and git keeps it executable."""
    subprocess.run(["sh", "-n", script], check=True)
    assert os.access(script, os.X_OK)
