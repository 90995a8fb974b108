"""Built-in inhibition as rules of Alertmanager's form: what says more of one cause suppresses what says less.

The agent applies them to routes that group by labels; the messages of an incident have all its alerts. The same rules,
and those of `mute` as Alertmanager would write them, are shipped for an Alertmanager (`alertmanager_rules`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpuagent.core.matchers import parse_matcher
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.routing.match import Matchers
from gpuagent_alerts.routing.mute import BLIND, CAUSES, LOST

_NODE = ("job", "instance", "node")
_GPU = (*_NODE, "uuid")
_PROCESS = (*_GPU, "pid", "gpu_instance_id")
_LEAK = 'alertname="GpuProcessMemoryLeak"'
_SOON = 'alertname="GpuMemoryExhaustionSoon"'
_NOT_A_CAUSE = f'alertname!~"{LOST}|{"|".join(f"{name}.*" for name in CAUSES)}"'


class InhibitRule(NamedTuple):
    """While an alert of the source fires, alerts of the target that agree with it in some labels are not sent."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    equal: tuple[str, ...]


OUTRANKING: tuple[InhibitRule, ...] = (
    InhibitRule(('alertname="GpuMemoryFull"',), ('alertname=~"GpuMemoryHigh|GpuMemoryExhaustionSoon"',), _GPU),
    InhibitRule((_SOON,), ('alertname="GpuMemoryHigh"',), _GPU),
    InhibitRule((_SOON, 'tier=~"minutes|seconds"'), (_SOON, 'tier="hours"'), _GPU),
    InhibitRule((_LEAK, 'evidence="allocator"'), (_LEAK, 'evidence="strict"'), _PROCESS),
    InhibitRule((_LEAK, 'evidence=~"allocator|strict"'), (_LEAK, 'evidence="balanced"'), _PROCESS),
    InhibitRule((_LEAK, 'evidence=~"allocator|strict|balanced"'), (_LEAK, 'evidence="sensitive"'), _PROCESS),
    InhibitRule(('alertname="GpuLost"',), ('alertname="GpuCountDropped"',), _NODE),
)
"""Higher tiers of one incident over lower ones."""

_IMPLIED: tuple[InhibitRule, ...] = (
    InhibitRule((f'alertname="{LOST}"',), (_NOT_A_CAUSE, 'uuid!=""'), _GPU),
    InhibitRule((f'alertname="{BLIND}"', 'scope="gpu"'), (f'alertname!="{BLIND}"', _NOT_A_CAUSE, 'uuid!=""'), _GPU),
    InhibitRule((f'alertname="{BLIND}"', 'scope="node"'), (_NOT_A_CAUSE, 'uuid!=""'), _NODE),
)


def alertmanager_rules() -> list[dict[str, list[str]]]:
    """Return all of them as `inhibit_rules` of an Alertmanager's configuration."""
    return [
        {"source_matchers": list(rule.source), "target_matchers": list(rule.target), "equal": list(rule.equal)}
        for rule in (*_IMPLIED, *OUTRANKING)
    ]


class _Compiled(NamedTuple):
    source: Matchers
    target: Matchers
    equal: tuple[str, ...]


_COMPILED = tuple(
    _Compiled(
        Matchers(parse_matcher(text) for text in rule.source), Matchers(parse_matcher(text) for text in rule.target),
        rule.equal,
    )
    for rule in OUTRANKING
)  # fmt: skip


def outranked_by(alerts: Iterable[Alert]) -> Callable[[Mapping[str, str]], str]:
    """Return a function from an alert's labels to the name of the alert that outranks it, "" if none does."""
    sources: defaultdict[int, dict[tuple[str, ...], str]] = defaultdict(dict)
    for alert in alerts:
        if alert.status is Status.FIRING:
            for place, rule in enumerate(_COMPILED):
                if rule.source(alert.labels):
                    sources[place][_values(rule, alert.labels)] = alert.name

    def outranked(labels: Mapping[str, str]) -> str:
        for place, found in sources.items():
            rule = _COMPILED[place]
            if rule.target(labels) and (name := found.get(_values(rule, labels))):
                return name
        return ""

    return outranked


def _values(rule: _Compiled, labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in rule.equal)
