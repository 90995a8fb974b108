"""Which sensitivity holds for a process: that of the node, or that of the first override that matches it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gpuagent.core.snapshot import ClientReading, ProcessInfo
from gpuagent_alerts.leak.settings import DIALS, Dial, Sensitivity
from gpuagent_alerts.remedies.target import names_container


class Match(Protocol):
    """What must hold of a process, all of what is given; `config.leaks.OverrideMatch` is one."""

    @property
    def app(self) -> str | None: ...

    @property
    def unit(self) -> str | None: ...

    @property
    def user(self) -> str | None: ...

    @property
    def process_name(self) -> str | None: ...

    @property
    def container(self) -> str | None: ...


class Override(Protocol):
    """Another sensitivity for some processes; `config.leaks.LeakOverride` is one."""

    @property
    def match(self) -> Match: ...

    @property
    def sensitivity(self) -> Dial: ...


class Choice(NamedTuple):
    """The sensitivity that holds for a process, and why."""

    sensitivity: Dial
    override: int | None = None
    """The place of the override that says so; None: it is the node's."""


def choose(
    overrides: Sequence[Override], default: Sensitivity, info: ProcessInfo | None, client: ClientReading | None
) -> Choice:
    """Return what holds for a process: the first override that matches.

    What an app says of itself only lowers the sensitivity: an override that names an app holds where it is less
    sensitive than what would hold if there were none that names one.
    """
    found = _first(overrides, info, client, by_app=True) or Choice(default)
    if found.override is None or overrides[found.override].match.app is None:
        return found
    without = _first(overrides, info, client, by_app=False) or Choice(default)
    return found if DIALS.index(found.sensitivity) < DIALS.index(without.sensitivity) else without


def matches(match: Match, info: ProcessInfo | None, client: ClientReading | None) -> bool:
    """Return whether all that is given holds of a process.

    A unit and a container count where only root can have chosen them, a user outside of containers. A client that is
    another process, whose pid was used again, says nothing.
    """
    if info is None:
        return False
    return (
        (match.unit is None or (info.unit == match.unit and "unit" in info.proven_names))
        and (
            match.container is None
            or (
                "container" in info.proven_names
                and names_container(match.container, info.container_id, info.container_name)
            )
        )
        and (match.user is None or (info.user == match.user and not info.container_id))
        and (match.process_name is None or info.name == match.process_name)
        and (match.app is None or (client is not None and client.id == info.id and client.app == match.app))
    )


def _first(
    overrides: Sequence[Override], info: ProcessInfo | None, client: ClientReading | None, *, by_app: bool
) -> Choice | None:
    for place, override in enumerate(overrides):
        if (by_app or override.match.app is None) and matches(override.match, info, client):
            return Choice(override.sensitivity, place)
    return None
