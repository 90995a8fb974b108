"""A copy of the agent's packages with an example applied to it, which other Pythons find before the installed ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PACKAGES = (
    "agent/gpuagent",
    "exporters/gpuagent_exporters",
    "alerts/gpuagent_alerts",
    "simulator/gpuagent_simulator",
)


def steps(name: str) -> dict[str, Any]:
    """What an example's `example.toml` says: files to copy, and lines to add."""
    return tomllib.loads((EXAMPLES / name / "example.toml").read_text(encoding="utf-8"))


def apply(name: str, tree: Path) -> list[Path]:
    """Copy the example's files into the tree and add its lines; the files that were touched."""
    said = steps(name)
    touched = []
    for file in said.get("file", ()):
        target = tree / file["to"]
        assert not target.exists(), f"{file['to']} is there already"
        shutil.copy(EXAMPLES / name / file["copy"], target)
        touched.append(target)
    for line in said.get("line", ()):
        target = tree / line["file"]
        lines = target.read_text(encoding="utf-8").splitlines()
        found = [number for number, text in enumerate(lines) if line["below"] in text]
        assert found, f"{line['file']} has no line with {line['below']!r}"
        lines.insert(found[0] + 1, line["add"].strip("\n"))
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")
        touched.append(target)
    return touched


class Overlay:
    """Packages with an example in them, and the environment of programs that use these."""

    def __init__(self, name: str, folder: Path) -> None:
        for package in PACKAGES:
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        self.touched = apply(name, folder)
        self.folder = folder
        roots = [str((folder / package).parent) for package in PACKAGES]
        self.environment = {"PYTHONPATH": os.pathsep.join(roots)}

    def run(self, *words: str) -> str:
        """What `python ...` prints. Raises CalledProcessError."""
        return subprocess.run(
            [sys.executable, *words], env={**os.environ, **self.environment}, check=True, text=True,
            stdout=subprocess.PIPE, timeout=50,
        ).stdout  # fmt: skip
