"""The shell scripts of the project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """In the project's folder; programs of the test environment are found first."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )


def scripts() -> list[str]:
    """Files that say in their first line that a shell runs them."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = []
    for name in listed:
        path = ROOT / name
        if path.is_file() and path.suffix in {"", ".sh"}:
            with path.open("rb") as file:
                if file.readline() in {b"#!/bin/sh\n", b"#!/bin/bash\n"}:
                    found.append(name)
    return found


def test_there_are_some() -> None:
    """The test below looks at what it should."""
    assert {".ci/run", "scripts/venv"} <= set(scripts())


@pytest.mark.parametrize("name", scripts())
def test_shellcheck_finds_nothing(name: str) -> None:
    """A script has none of the faults that shellcheck knows."""
    found = run("shellcheck", name)
    assert found.returncode == 0, found.stdout
