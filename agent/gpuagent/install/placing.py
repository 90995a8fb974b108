"""Writing files so that each is whole, and remembering which they were."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gpuagent.install.layout import Layout

_MANIFEST = "installed.json"


class Placed(NamedTuple):
    """A file of an installation."""

    path: Path
    """Absolute, as it is once installed."""
    text: str
    mode: int = 0o644


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Whole or not at all: systemd and shells may read it at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.write_text(text, encoding="utf-8")
    new.chmod(mode)
    new.replace(path)


def link(path: Path, target: str) -> None:
    """Point a symbolic link elsewhere, in one step: there is no moment without it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(path)


class Manifest:
    """The list of files that an installation has placed: what an upgrade may replace, and an end of it takes away."""

    def __init__(self, home: Path) -> None:
        self._file = home / _MANIFEST

    @property
    def exists(self) -> bool:
        """Something was installed before."""
        return self._file.exists()

    def read(self) -> list[Path]:
        """Nothing where there is no list, or none that can be read."""
        try:
            listed = json.loads(self._file.read_text(encoding="utf-8"))
            return [Path(path) for path in listed["files"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def add(self, paths: Iterable[Path]) -> None:
        """Before they are placed: what is interrupted can still be taken away."""
        self._write({*self.read(), *paths})

    def keep(self, paths: Iterable[Path]) -> list[Path]:
        """These are all: gives those that were listed and no longer belong to it."""
        wanted = set(paths)
        stale = [path for path in self.read() if path not in wanted]
        self._write(wanted)
        return stale

    def _write(self, paths: set[Path]) -> None:
        write(self._file, json.dumps({"files": sorted(map(str, paths))}, indent=1) + "\n")


def remove(layout: Layout, paths: Iterable[Path]) -> None:
    """Take files away, and folders of ours that are empty then."""
    for path in paths:
        layout.at(path).unlink(missing_ok=True)
        for folder in path.parents:
            if "gpuagent" not in folder.parts:
                break
            with contextlib.suppress(OSError):  # it holds something, or has gone
                layout.at(folder).rmdir()
