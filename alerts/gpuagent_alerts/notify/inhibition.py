"""Built-in inhibition: a lost GPU suppresses its dependent alerts, and what says more of one cause what says less.

A GPU that is lost, or that the monitor cannot see, has one alert that says so; where only its processes cannot be read,
that is so of what names one of them. Others about the same GPU were true
before or are consequences; they are sent if they still fire when it is back. Where the monitor is blind on the whole
node, one alert says that for all GPUs. What caused the loss, an Xid for example, is sent all the same, and so is the
loss.

Higher tiers of one cause suppress lower ones on routes that group by labels; the messages of an incident have all its
alerts. The same rules are shipped in the form of Alertmanager's `inhibit_rules` (`alertmanager_rules`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpuagent.core.matchers import Matchers, parse_matcher
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.notify.urgency import is_at_lower_threshold

LOST = "GpuLost"
BLIND = "GpuMonitorBlind"
_LISTS = f"{BLIND}, processes"
"""The monitor sees a GPU, and not its processes."""
CAUSES = ("GpuXid", "GpuEccUncorrectable", "GpuRowRemap", "GpuRecoveryAction")
"""Prefixes of the names of alerts that tell of a cause."""
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


TIER_RULES: tuple[InhibitRule, ...] = (
    InhibitRule(('alertname="GpuMemoryFull"',), ('alertname=~"GpuMemoryHigh|GpuMemoryExhaustionSoon"',), _GPU),
    InhibitRule((_SOON,), ('alertname="GpuMemoryHigh"',), _GPU),
    InhibitRule((_SOON, 'tier=~"minutes|seconds"'), (_SOON, 'tier="hours"'), _GPU),
    InhibitRule((_LEAK, 'evidence="confirmed"'), (_LEAK, 'evidence=~"allocator|strict"'), _PROCESS),
    InhibitRule((_LEAK, 'evidence="allocator"'), (_LEAK, 'evidence="strict"'), _PROCESS),
    InhibitRule((_LEAK, 'evidence=~"confirmed|allocator|strict"'), (_LEAK, 'evidence="balanced"'), _PROCESS),
    InhibitRule((_LEAK, 'evidence=~"confirmed|allocator|strict|balanced"'), (_LEAK, 'evidence="sensitive"'), _PROCESS),
    InhibitRule(('alertname="GpuLost"',), ('alertname="GpuCountDropped"',), _NODE),
)
"""Higher tiers of one incident over lower ones."""

LOSS_RULES: tuple[InhibitRule, ...] = (
    InhibitRule((f'alertname="{LOST}"',), (_NOT_A_CAUSE, 'uuid!=""'), _GPU),
    InhibitRule((f'alertname="{BLIND}"', 'scope="gpu"'), (f'alertname!="{BLIND}"', _NOT_A_CAUSE, 'uuid!=""'), _GPU),
    InhibitRule(
        (f'alertname="{BLIND}"', 'scope="processes"'),
        (f'alertname!="{BLIND}"', _NOT_A_CAUSE, 'pid!=""', 'uuid!=""'),
        _GPU,
    ),
    InhibitRule((f'alertname="{BLIND}"', 'scope="node"'), (_NOT_A_CAUSE, 'uuid!=""'), _NODE),
)
"""What takes the data of others away, over those."""


def alertmanager_rules() -> list[dict[str, list[str]]]:
    """Return all of them as `inhibit_rules` of an Alertmanager's configuration."""
    return [
        {"source_matchers": list(rule.source), "target_matchers": list(rule.target), "equal": list(rule.equal)}
        for rule in (*LOSS_RULES, *TIER_RULES)
    ]


class _Compiled(NamedTuple):
    source: Matchers
    target: Matchers
    equal: tuple[str, ...]


_COMPILED_TIERS = tuple(
    _Compiled(
        Matchers(parse_matcher(text) for text in rule.source), Matchers(parse_matcher(text) for text in rule.target),
        rule.equal,
    )
    for rule in TIER_RULES
)  # fmt: skip


def inhibited_by_loss(alerts: Iterable[Alert]) -> Callable[[Mapping[str, str]], str]:
    """Return a function from an alert's labels to the name of the alert that inhibits it, "" if none does."""
    sources: dict[str, set[str]] = {LOST: set(), BLIND: set(), _LISTS: set()}
    node_is_blind = False
    for alert in alerts:
        if alert.status is Status.FIRING and alert.name in sources:
            gpus = _gpus(alert.labels)
            only_processes = alert.labels.get("scope") == "processes"
            sources[_LISTS if only_processes else alert.name].update(gpus)
            node_is_blind |= alert.name == BLIND and not gpus

    def inhibited(labels: Mapping[str, str]) -> str:
        name, gpus = labels.get("alertname", ""), _gpus(labels)
        if not gpus or name == LOST or name.startswith(CAUSES):
            return ""
        if gpus[0] in sources[LOST]:
            return LOST
        is_blinded = gpus[0] in sources[BLIND] or (bool(labels.get("pid")) and gpus[0] in sources[_LISTS])
        return BLIND if node_is_blind or (name != BLIND and is_blinded) else ""

    return inhibited


def _gpus(labels: Mapping[str, str]) -> list[str]:
    """Return the names that labels have for a GPU, the one that is its own everywhere first; none for the node."""
    return [name for label in ("uuid", "gpu") if (name := labels.get(label, ""))]


def inhibited_by_tier(alerts: Iterable[Alert]) -> Callable[[Mapping[str, str]], str]:
    """Return likewise a function from labels to the name of the alert of a higher tier, "" if there is none."""
    sources: defaultdict[int, dict[tuple[str, ...], str]] = defaultdict(dict)
    for alert in alerts:
        if alert.status is Status.FIRING and not is_at_lower_threshold(alert):
            for place, rule in enumerate(_COMPILED_TIERS):
                if rule.source(alert.labels):
                    sources[place][_values(rule, alert.labels)] = alert.name

    def inhibited(labels: Mapping[str, str]) -> str:
        for place, found in sources.items():
            rule = _COMPILED_TIERS[place]
            if rule.target(labels) and (name := found.get(_values(rule, labels))):
                return name
        return ""

    return inhibited


def _values(rule: _Compiled, labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in rule.equal)
