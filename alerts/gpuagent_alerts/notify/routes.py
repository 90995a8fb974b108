"""Which receivers are told of an alert.

Every route whose matchers hold names receivers. An alert that no route takes goes to the default: the receivers that no
route names, all of them where there are no routes. So with one receiver and no routes everything is told; with
`severity="critical"` routed to the pager, everything else goes to the others, as with Alertmanager's root route. Where
every receiver is named by some route, what no route takes is told to nobody: the routes say it all.

An alert with `severity="none"`, such as a watchdog, is not for people: it goes to an Alertmanager, and otherwise only
where a route with matchers takes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuagent.core.matchers import Matcher, Matchers

DEFAULT_REPEAT_SECONDS = 4 * 3600.0
DEFAULT_WAIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Recipient:
    """What routing has to know of a receiver."""

    name: str
    send_resolved: bool = True
    one_by_one: bool = False
    """Whether each alert is a group of its own, whatever a route says: the receiver groups by itself."""
    everything: bool = False
    """Whether it also takes alerts that are not for people."""
    repeat_seconds: float | None = None
    """Overrides the routes'."""
    resolved_for_seconds: float = 0.0
    """Time for which the end of an alert is repeated."""
    max_messages_per_hour: int | None = None
    """More than this is held back; None: nothing is."""
    updates_quietly: bool = False
    """Whether it can rewrite what it said of an incident without calling anybody."""
    digests: bool = True
    """One message may tell of what was held back. False where a message is the state of one incident."""

    @property
    def has_to_be_refreshed(self) -> bool:
        """Whether it takes an alert for ended that it does not hear of for a while, and tells others so."""
        return self.resolved_for_seconds > 0


class RouteConfig(Protocol):
    """A route as the configuration has it."""

    @property
    def match(self) -> tuple[Matcher, ...]: ...

    @property
    def receivers(self) -> tuple[str, ...]: ...

    @property
    def group_by(self) -> tuple[str, ...]: ...

    @property
    def repeat_interval(self) -> float: ...

    @property
    def group_wait(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Destination:
    """One receiver of an alert, and how it is told."""

    recipient: Recipient
    group_by: tuple[str, ...]
    """Empty: alerts of one incident are a group."""
    repeat_seconds: float
    wait_seconds: float = DEFAULT_WAIT_SECONDS
    """Time for which what begins or worsens waits for others of its incident."""


@dataclass(frozen=True, slots=True)
class _Route:
    matches: Matchers
    receivers: tuple[str, ...]
    group_by: tuple[str, ...]
    repeat_seconds: float
    wait_seconds: float


class Routes:
    """The routes in force."""

    def __init__(self, routes: Sequence[RouteConfig], recipients: Iterable[Recipient]) -> None:
        """Compile the routes. Raises ValueError with every regular expression that RE2 does not take."""
        self.recipients: Mapping[str, Recipient] = {recipient.name: recipient for recipient in recipients}
        self._routes: list[_Route] = []
        faults = []
        for place, route in enumerate(routes):
            try:
                matches = Matchers(route.match)
            except ValueError as error:
                faults.append(f"routes[{place}].match: {error}")
            else:
                self._routes.append(
                    _Route(matches, route.receivers, route.group_by, route.repeat_interval, route.group_wait)
                )
        if faults:
            raise ValueError("; ".join(faults))
        named = {name for route in self._routes for name in route.receivers}
        self._default = tuple(recipient for name, recipient in self.recipients.items() if name not in named)

    def of(self, labels: Mapping[str, str]) -> list[Destination]:
        """Return who is told of an alert with these labels; each receiver once, by the first route that names it."""
        taking = [route for route in self._routes if route.matches(labels)]
        found: dict[str, Destination] = {}
        for recipient, route in self._taken_by(taking) if taking else ((r, None) for r in self._default):
            if labels.get("severity") == "none" and not (recipient.everything or (route and route.matches)):
                continue
            found.setdefault(recipient.name, _destination(recipient, route))
        return list(found.values())

    def _taken_by(self, routes: Iterable[_Route]) -> Iterator[tuple[Recipient, _Route | None]]:
        for route in routes:
            for name in route.receivers:
                if name in self.recipients:  # a heartbeat takes no alerts
                    yield self.recipients[name], route


def _destination(recipient: Recipient, route: _Route | None) -> Destination:
    group_by = () if route is None or recipient.one_by_one else route.group_by
    repeat = DEFAULT_REPEAT_SECONDS if route is None else route.repeat_seconds
    wait = DEFAULT_WAIT_SECONDS if route is None else route.wait_seconds
    return Destination(recipient, group_by, recipient.repeat_seconds or repeat, wait)
