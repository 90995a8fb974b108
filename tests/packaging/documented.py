"""Command lines of the documentation: what stands in its indented blocks and begins with a program's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RUNBOOKS = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
PAGES = sorted([
    ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "client" / "README.md",
    *(ROOT / "docs").glob("*.md"), *RUNBOOKS,
])  # fmt: skip
PROGRAMS = frozenset({
    "apt-get", "cp", "curl", "docker", "git", "gpuagent", "helm", "install", "journalctl", "kubectl", "make",
    "nvidia-smi", "pip", "podman", "promtool", "python", "python3", "sbatch", "scontrol", "scp", "ssh", "sudo",
    "systemctl", "systemd-analyze", "tar", "usermod", "/usr/bin/python3", "rsync", "mkdir", "ansible", "pdsh",
})  # fmt: skip
"""What a line must begin with to be a command, and not an example of what one prints."""


class Command(NamedTuple):
    """A line, without its comment."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def commands(page: Path) -> Iterator[Command]:
    """In the order of the page; a line that ends with a backslash goes on."""
    text = re.sub(r" *\\\n\s+", " ", page.read_text())
    for line in _lines(text):
        command = re.split(r"\s+# | {3,}", line)[0].strip()
        word = re.sub(r"^(?:[A-Z_]+=\S* +)*(?:\.venv/bin/)?", "", command).partition(" ")[0]
        if word in PROGRAMS:
            yield Command(str(page.relative_to(ROOT)), command)


def _lines(text: str) -> Iterator[str]:
    """Of indented blocks, and of fenced ones that are for a shell."""
    fence = None
    for line in text.splitlines():
        if line.startswith("```"):
            fence = None if fence is not None else line.removeprefix("```")
        elif fence in {"sh", "bash", "shell", "console"}:
            yield line.removeprefix("$ ")
        elif fence is None and re.match(r" {4}(?: {3})?\S", line):  # seven: below an item of a list
            yield line.lstrip()


def all_commands() -> list[Command]:
    """Each once, by the first page that has it."""
    found: dict[str, Command] = {}
    for page in PAGES:
        for command in commands(page):
            found.setdefault(command.text, command)
    return list(found.values())
