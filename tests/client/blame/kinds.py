"""Runs the app of holders, and reads from the documentation what the census should say about it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.client.conftest import ROOT, Apps

HERE = Path(__file__).parent / "apps"
HOLDERS = HERE / "holders.py"
SHAPES = HERE / "shapes.py"
MORE_SHAPES = HERE / "more_shapes.py"
PROGRAMS = (HOLDERS, SHAPES, MORE_SHAPES)
BOUNDED = "bounded_"
DOCS = ROOT / "docs" / "blame.md"
MARK = "# leak: "


class Row(NamedTuple):
    """One line of the table in the documentation."""

    kind: str
    named: str
    cause: str


def marked_lines(source: Path, mark: str = MARK) -> dict[str, int]:
    """The line of each leak: the one that is marked, or that many lines away from the mark."""
    found = {}
    for number, line in enumerate(source.read_text().splitlines(), start=1):
        if mark in line:
            kind, _, distance = line.partition(mark)[2].partition(" ")
            found[kind] = number + int(distance or 0)
    return found


def program_of(kind: str) -> Path:
    """The app that has this kind."""
    return next(program for program in PROGRAMS if f"\ndef {kind}(" in program.read_text())


def healthy_kinds() -> list[str]:
    """The kinds of the other apps in which nothing leaks."""
    others = (program.read_text() for program in PROGRAMS if program != HOLDERS)
    return [kind for text in others for kind in re.findall(rf"^def ({BOUNDED}\w+)", text, re.MULTILINE)]


def rows() -> list[Row]:
    """The table of holders, as documented."""
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [Row(one[0].strip("` "), one[2].strip("` "), one[3].strip()) for one in cells if len(one) == 4]


def name_of(group: dict[str, Any]) -> str:
    """The holder of a group, without line numbers."""
    return re.sub(r":\d+", "", group["container"] or group["path"])


def ask(apps: Apps, python: Path, program: Path, *args: str) -> dict[str, Any]:
    """The answer of a census in this app."""
    run = subprocess.run(
        [python, "-W", "ignore", program, *args],
        env=apps.environment(GPUAGENT_DISABLE="1"),
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer
