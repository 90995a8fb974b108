"""Where the parts of an installed service go, and how files and environments are put there whole.

    /opt/gpuagent/versions/0.1.0-20260102T030405Z
    /opt/gpuagent/current  -> versions/...
    /opt/gpuagent/previous -> versions/...

An environment cannot be moved: its programs name it by its path. So a new one is made where it stays, and a link is all
that changes. Whoever runs the old one keeps its files until the next upgrade.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class InstallFault(Exception):
    """The text says what to do, and what has been left as it was."""


HOME = Path("/opt/gpuagent")
"""Environments of the service, side by side, and which of them runs."""
CONFIGURATION = Path("/etc/gpuagent")
STATE = Path("/var/lib/gpuagent")
DROP_INS = Path("/etc/systemd/system/gpuagent.service.d")
POLKIT_RULES = Path("/etc/polkit-1/rules.d/50-gpuagent.rules")
UNIT = "gpuagent.service"
USER = "gpuagent"


@dataclass(frozen=True, slots=True)
class Layout:
    """`prefix` is /usr/local for an administrator, and /usr for a package.

    What an administrator changes in /etc/systemd/system wins over both (systemd.unit(5)), and no upgrade touches it.
    """

    root: Path = Path("/")
    """Under which all of it is written; another one than / is a packager's staging folder."""
    prefix: Path = Path("/usr/local")

    def at(self, path: Path) -> Path:
        """Return where an absolute path is written."""
        return self.root / path.relative_to("/")

    @property
    def staged(self) -> bool:
        """Nothing of this machine is touched but the folder."""
        return self.root != Path("/")

    @property
    def units(self) -> Path:
        """Systemd's folder of units, below the prefix."""
        return self.prefix / "lib/systemd/system"

    @property
    def sysusers(self) -> Path:
        """What systemd-sysusers reads."""
        return self.prefix / "lib/sysusers.d/gpuagent.conf"

    @property
    def tmpfiles(self) -> Path:
        """What systemd-tmpfiles reads."""
        return self.prefix / "lib/tmpfiles.d/gpuagent.conf"

    @property
    def examples(self) -> Path:
        """Drop-ins and rules that an administrator may want: nothing reads them here."""
        return self.prefix / "share/doc/gpuagent/examples"

    @property
    def command(self) -> Path:
        """What is on everybody's PATH."""
        return self.prefix / "bin/gpuagent"


_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  by ProtectHome= and PrivateTmp=
_ADVICE = "Take the distribution's Python, and a folder such as /opt/gpuagent."


def check_environment(prefix: Path, base_prefix: Path) -> None:
    """Check that the environment and the Python it was made of are within the service's reach. Raises InstallFault.

    Raises:
        InstallFault: it is no environment of its own, or the service could not read it.
    """
    if prefix == base_prefix:
        raise InstallFault(f"gpuagent is not in an environment of its own, but in {prefix}. {_ADVICE}")
    for path in (prefix, base_prefix):
        check_reach(path)


def check_reach(path: Path) -> None:
    """Check that everybody can enter every folder on the way, and that the unit hides none. Raises InstallFault.

    Raises:
        InstallFault: the service would end with 203/EXEC.
    """
    resolved = path.resolve()
    for hidden in _HIDDEN:
        if resolved.is_relative_to(hidden):
            raise InstallFault(f"{resolved} is below {hidden}, which the unit hides from the service. {_ADVICE}")
    for folder in (resolved, *resolved.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            raise InstallFault(f"{folder} cannot be entered by the service's user: chmod o+x {folder}")


_MANIFEST = "installed.json"


def check_not_packaged(layout: Layout) -> None:
    """Check that no .deb or .rpm has brought the service: its files are the package manager's. Raises InstallFault.

    Raises:
        InstallFault: one has; nothing was changed.
    """
    unit = layout.at(Layout(prefix=Path("/usr")).units / UNIT)
    if unit.exists() and not Manifest(layout.at(HOME)).exists:
        raise InstallFault(
            f"{unit} is of a package: upgrade, go back and take away with apt or dnf, such as `apt remove gpuagent`.\n"
            "Nothing was changed."
        )


class Placed(NamedTuple):
    """A file of an installation."""

    path: Path
    """Absolute, as it is once installed."""
    text: str
    mode: int = 0o644


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file whole or not at all: systemd and shells may read it at any moment."""
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
        """Return the listed paths; none where there is no list, or none that can be read."""
        try:
            listed = json.loads(self._file.read_text(encoding="utf-8"))
            return [Path(path) for path in listed["files"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def add(self, paths: Iterable[Path]) -> None:
        """Add paths before they are placed, so that what is interrupted can still be taken away."""
        self._write({*self.read(), *paths})

    def keep(self, paths: Iterable[Path]) -> list[Path]:
        """Keep these paths alone; return those that were listed and no longer belong to it."""
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


class Releases:
    """The environments below one layout's /opt/gpuagent."""

    def __init__(self, layout: Layout) -> None:
        self.home = layout.at(HOME).resolve()
        self._current, self._previous = self.home / "current", self.home / "previous"

    @property
    def current(self) -> Path | None:
        """The one that serves."""
        return self._target(self._current)

    @property
    def previous(self) -> Path | None:
        """The one to go back to."""
        return self._target(self._previous)

    def activate(self, environment: Path) -> None:
        """Have this one serve from the next start on; the one before can be gone back to."""
        old = self.current
        if old == environment:
            return
        if old is not None:
            self._point(self._previous, old)
        self._point(self._current, environment)

    def take_back(self, current: Path, previous: Path | None) -> None:
        """Restore what was before `use`, for an environment that does not start."""
        self._point(self._current, current)
        if previous is None:
            self._previous.unlink(missing_ok=True)
        else:
            self._point(self._previous, previous)

    def forget(self, environment: Path | None) -> None:
        """Remove one that neither serves nor is gone back to. One that was not made in here is not ours to remove."""
        if environment in {None, self.current, self.previous}:
            return
        if environment is not None and environment.parent == self.home / "versions":
            shutil.rmtree(environment, ignore_errors=True)

    def _target(self, which: Path) -> Path | None:
        """Return where a link leads; None where it is not there, or leads nowhere."""
        return which.resolve() if which.exists() else None

    def _point(self, which: Path, environment: Path) -> None:
        """Point a link, by a relative path where possible: a staging folder is not where it is going to be."""
        if environment.is_relative_to(self.home):
            link(which, str(environment.relative_to(self.home)))
        else:
            link(which, str(environment))
