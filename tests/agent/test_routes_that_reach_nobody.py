"""What the notes say of routes is what routing does."""

from __future__ import annotations

from itertools import product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuagent.config.alerting import Receiver, Route
from gpuagent.config.models import Config
from gpuagent.config.rules import load_rules
from gpuagent.config_notes.notes import route_notes
from gpuagent.core.matchers import Matcher, MatchOperator
from gpuagent_alerts.notify.routes import Recipient, Routes
from gpuagent_alerts.rules.alert_labels import AlertLabels, labels_of_rules

VALUES = {
    "alertname": ["GpuLost", "GpuMemoryFull", "GpuLots", "GpuLost|GpuMemoryHigh", "Gpu.*"],
    "severity": ["critical", "warning", "critical|info", "fatal", ""],
    "severty": ["critical"],
    "tier": ["hours", "minutes", "minute", ""],
    "gpu": ["0", "1", ""],
    "user": ["alice", ""],
    "unit": ["a.service", ""],
}
MATCHERS = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.builds(Matcher, st.just(name), st.sampled_from(MatchOperator), st.sampled_from(VALUES[name]))
)
ROUTES = st.lists(st.lists(MATCHERS, max_size=2).map(tuple), min_size=1, max_size=3)
RULES = load_rules(Config())


def config_with(routes: list[tuple[Matcher, ...]]) -> Config:
    """One receiver, which these routes name."""
    return Config(
        receivers=(Receiver(name="ops"),),
        routes=tuple(Route(match=match, receivers=("ops",)) for match in routes),
        disabled_rules=(),
    )


def label_sets(alert: AlertLabels) -> list[dict[str, str]]:
    """Labels that an alert may have, of those that the routes here look at."""
    tried: dict[str, list[str]] = {}
    for name in VALUES:
        values = alert.values(name)
        open_values = ["0", "1", "7"] if name == "gpu" else ["alice", "a.service", "other", ""]
        tried[name] = open_values if values is None else sorted(values)
    return [
        {name: value for name, value in zip(tried, values, strict=True) if value} for values in product(*tried.values())
    ]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
@given(ROUTES)
def test_nobody_is_told_of_what_the_notes_name(routes: list[tuple[Matcher, ...]]) -> None:
    """CONF-09: for every shipped rule: all of its alerts are told, some, or none, as the notes say."""
    config = config_with(routes)
    alerts = labels_of_rules(RULES)
    routing = Routes(config.routes, [Recipient("ops")])
    taken: dict[str, set[bool]] = {}
    for alert in alerts:
        if alert.values("severity") != frozenset({"none"}):
            taken.setdefault(alert.name, set()).update(bool(routing.of(labels)) for labels in label_sets(alert))
    text = "\n".join(route_notes(config, alerts, {}, most_named=100))
    for name, outcomes in taken.items():
        told = name not in _named(text, "nobody is told of some alerts of ") | _named(text, "nobody is told of ")
        assert told == (outcomes == {True}), (name, outcomes, text)
    for name in _named(text, "nobody is told of "):
        assert False in taken[name]


def _named(text: str, head: str) -> set[str]:
    for line in text.splitlines():
        _, found, rest = line.partition(f"routes: {head}")
        if found and not rest.startswith("some alerts"):
            return set(rest.partition(": no route")[0].partition(", such as")[0].split(", "))
    return set()
