"""Environments side by side, and two links that say which of them serves and which did before.

    /opt/gpuagent/versions/0.1.0-20260102T030405Z
    /opt/gpuagent/current  -> versions/...
    /opt/gpuagent/previous -> versions/...

An environment cannot be moved: its programs name it by its path. So a new one is made where it stays, and a link is all
that changes. Whoever runs the old one keeps its files until the next upgrade.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from gpuagent.install.layout import HOME, Layout
from gpuagent.install.placing import link


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

    def use(self, environment: Path) -> None:
        """Have this one serve from the next start on; the one before can be gone back to."""
        old = self.current
        if old == environment:
            return
        if old is not None:
            self._point(self._previous, old)
        self._point(self._current, environment)

    def take_back(self, current: Path, previous: Path | None) -> None:
        """As it was before `use`, for one that does not start."""
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
        """None where the link is not there, or leads nowhere."""
        return which.resolve() if which.exists() else None

    def _point(self, which: Path, environment: Path) -> None:
        """By a relative path where it can be: a staging folder is not where it is going to be."""
        if environment.is_relative_to(self.home):
            link(which, str(environment.relative_to(self.home)))
        else:
            link(which, str(environment))
