"""The floor: a C program that makes the agent's NVML calls and does nothing with the answers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("floor.c")


class NoFloor(Exception):
    """It cannot be built here; the text says why."""


def build(folder: Path, compiler: str = "cc") -> Path:
    """The program.

    Raises:
        NoFloor: there is no C compiler, or it refused.
    """
    found = shutil.which(compiler)
    if found is None:
        raise NoFloor(f"no C compiler ({compiler})")
    program = folder / "floor"
    words = [found, "-O2", "-std=gnu11", "-o", str(program), str(_SOURCE), "-ldl", "-pthread"]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    if built.returncode:
        raise NoFloor(built.stderr.strip()[-300:])
    return program


def start(program: Path, environment: Mapping[str, str], *, events: bool) -> subprocess.Popen[bytes]:
    """It runs until it is killed. `events`: a thread of it waits for Xid events, as one of the agent's does."""
    return subprocess.Popen([str(program), str(int(events))], env=environment)
