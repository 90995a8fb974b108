"""Notes on routes: matchers that cannot mean what they say, names of nothing on this machine, and who is never told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuagent_alerts.rules.alert_labels import AlertLabels, literals, untaken_example
from gpuagent_alerts.rules.matcher_notes import label_note, matcher_note

if TYPE_CHECKING:
    from gpuagent.config.models import Config
    from gpuagent.core.matchers import Matcher

_MOST_NAMED = 5
Known = Callable[[Sequence[str]], Mapping[str, str]]
"""By name, why this machine has nothing of that name."""


def route_notes(
    config: Config, alerts: Sequence[AlertLabels], known: Mapping[str, Known], *, most_named: int = _MOST_NAMED
) -> Iterator[str]:
    """Yield the notes; `known` looks up values of some labels (user, unit, gpu, uuid) on this machine."""
    people = {receiver.name for receiver in config.receivers if getattr(receiver, "heartbeat", None) is None}
    if config.receivers and not people:
        yield "receivers: only heartbeats: they take no alerts, so nobody is told of any"
    for index, route in enumerate(config.routes):
        path = f"routes[{index}]"
        if not people & set(route.receivers):
            yield f"{path}.receivers: only heartbeats: they take no alerts, so this route leads nowhere"
        notes = [
            f"{path}.match[{place}]: {note}"
            for place, matcher in enumerate(route.match)
            if (note := matcher_note(matcher, alerts, config.disabled_rules) or _unknown_here(matcher, known))
        ]
        yield from notes
        if not notes and not any(alert.can_match(route.match) for alert in alerts):
            yield f"{path}.match: no rule has alerts of which all of these hold"
        for place, label in enumerate(route.group_by):
            if note := label_note(label, alerts):
                yield f"{path}.group_by[{place}]: {note}"
    yield from _told_to_nobody(config, alerts, people, most_named)


def _unknown_here(matcher: Matcher, known: Mapping[str, Known]) -> str:
    """Return why what a matcher names does not exist on this machine."""
    look_up = known.get(matcher.name)
    values = [value for value in literals(matcher) if value]
    return "; ".join(look_up(values).values()) if look_up is not None and values else ""


def _told_to_nobody(config: Config, alerts: Sequence[AlertLabels], people: set[str], most: int) -> Iterator[str]:
    """Yield the alerts for people that no route takes, while every receiver is named by some route."""
    if not config.routes or people - {name for route in config.routes for name in route.receivers}:
        return
    routes = [route.match for route in config.routes if people & set(route.receivers)]
    lost: dict[str, None] = {}
    partly: dict[str, str] = {}
    for alert in alerts:
        if alert.values("severity") == frozenset({"none"}):
            continue
        if not any(alert.can_match(match) for match in routes):
            lost[alert.name] = None
        elif (example := untaken_example(alert, routes)) is not None:
            partly[alert.name] = ", ".join(
                f'{name}="{value}"' for name, value in example.items() if name != "alertname"
            )
    if lost:
        yield f"routes: nobody is told of {_some(lost, most)}: no route takes them"
    if partly := {name: shown for name, shown in partly.items() if name not in lost}:
        name, shown = next(iter(partly.items()))
        such = f", such as {name} with {shown}" if shown else ""
        yield f"routes: nobody is told of some alerts of {_some(partly, most)}{such}: no route takes those"


def _some(found: Mapping[str, object], most: int) -> str:
    names = list(found)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
