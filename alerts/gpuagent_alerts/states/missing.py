"""Which series are missing in a tick - not measured, as opposed to not there - and which rules depend on them.

A series is missing while the collector behind it fails, for the GPU or for the node. What is absent although its
collector has succeeded has gone, or never was: that is an ordinary "not true". A rule depends on the metrics that it
selects, through recording rules down to what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpuagent.core.metrics.clients import TORCH_FAMILIES
from gpuagent.core.metrics.family import Family
from gpuagent.core.metrics.gpu import GPU_FAMILIES, MIG_FAMILIES
from gpuagent.core.metrics.growth import GPU_GROWTH_FAMILIES, GROWTH_FAMILIES, MIG_GROWTH_FAMILIES
from gpuagent.core.metrics.node import NODE_FAMILIES
from gpuagent.core.metrics.process import PROCESS_FAMILIES
from gpuagent.core.metrics.remedies import REMEDY_FAMILIES
from gpuagent.core.metrics.usage import USAGE_FAMILIES
from gpuagent.core.snapshot import GpuReading, GpuState, NvmlState, Snapshot
from gpuagent_alerts.promql.series import value_test
from gpuagent_alerts.promql.syntax import Selector
from gpuagent_alerts.promql.values import METRIC_NAME
from gpuagent_alerts.rules.model import RecordRule, Rule
from gpuagent_alerts.states.group import GroupRunner, RuleKey

FAMILIES: tuple[Family[Any], ...] = (
    *NODE_FAMILIES, *GPU_FAMILIES, *MIG_FAMILIES, *PROCESS_FAMILIES, *GPU_GROWTH_FAMILIES, *GROWTH_FAMILIES,
    *MIG_GROWTH_FAMILIES, *TORCH_FAMILIES, *REMEDY_FAMILIES,
    *USAGE_FAMILIES,
)  # fmt: skip

_TELL_OF_FAILURE = frozenset({
    "gpuagent_build_info", "gpuagent_simulated", "gpuagent_snapshot_age_seconds",
    "gpuagent_snapshot_timestamp_seconds", "gpuagent_gpu_reading_age_seconds", "gpuagent_collector_success",
    "gpuagent_collector_duration_seconds", "gpuagent_nvml_up", "gpuagent_nvml_initializations_total",
    "gpuagent_pause_remaining_seconds",
    "gpuagent_gpus_readable", "gpuagent_gpus_expected", "gpuagent_pci_gpus", "gpuagent_host_pid_namespace",
    "gpuagent_processes_seen_total", "gpuagent_ticks_total", "gpuagent_ticks_late_total", "gpuagent_gpu_info",
    "gpuagent_gpu_lost", "gpuagent_gpu_lost_timestamp_seconds", "gpuagent_gpu_xid_unrepaired_timestamp_seconds",
    "gpuagent_gpu_blind", "gpuagent_gpu_figures_trusted",
})  # fmt: skip
"""Metrics that are there whatever fails, or say that it does: rules on them go on."""
_KNOWN = frozenset(family.name for family in FAMILIES if family.collector in {"xid_events", "remedies"})
"""Xids that were seen, and what was done, are known, whether or not the driver is there."""
_LOST = "gpuagent_gpu_lost"
_NODE_COLLECTORS = frozenset({"nvml", "procfs", "xid_events", "pci", "identity", "remedies"})
_GPU_COLLECTORS = frozenset(family.collector for family in FAMILIES if "gpu" in family.labels) - _NODE_COLLECTORS
_NEEDS = {"processes": ("memory",)}
"""Collectors that need another's data: the processes' share of the memory."""
_PROCESS_NAMES = frozenset(family.name for family in PROCESS_FAMILIES)
_SAYS_LOST = frozenset({GpuState.OK, GpuState.LOST, GpuState.GONE, GpuState.ASLEEP})
_NOT_READ = frozenset({GpuState.STARTING, GpuState.LOST, GpuState.BLIND, GpuState.GONE, GpuState.ASLEEP})


class Selection(NamedTuple):
    """A metric that a rule selects, and which of the values of `gpu` and `uuid` it takes."""

    metric: str
    takes: Callable[[Mapping[str, str]], bool]


class _Place(NamedTuple):
    """A GPU for which something is missing; None stands for all of them, and for the node."""

    gpu: str | None
    uuid: str | None

    @property
    def labels(self) -> dict[str, str] | None:
        """Labels that a series of this GPU has; None where that cannot be said."""
        return None if self.gpu is None else {"gpu": self.gpu, "uuid": self.uuid or ""}

    def concerns(self, labels: Mapping[str, str]) -> bool:
        """Return whether an instance with these labels may be of this GPU; one that names no GPU may be of any.

        The UUID decides where both have one: the index may be another since the driver was reloaded.
        """
        uuid = labels.get("uuid", "")
        if self.uuid is not None and uuid:
            return uuid == self.uuid
        return self.gpu is None or labels.get("gpu") in {None, "", self.gpu}


class _Unlisted(NamedTuple):
    """Every GPU but these: while the driver is away, others may be there that the agent has not seen yet."""

    known: frozenset[str]
    """Their indices."""
    uuids: frozenset[str]

    @property
    def labels(self) -> None:
        """Labels to test a selector with: it has none."""
        return

    def concerns(self, labels: Mapping[str, str]) -> bool:
        """Return whether an instance is of such a GPU."""
        if uuid := labels.get("uuid", ""):
            return uuid not in self.uuids
        return bool(labels.get("gpu")) and labels["gpu"] not in self.known


_Where = _Place | _Unlisted
_EVERYWHERE = _Place(None, None)


def _nothing(_: Mapping[str, str]) -> bool:
    return False


class Missing:
    """What could not be measured in one tick: GPUs by metric name."""

    def __init__(
        self, places: Mapping[str, Collection[_Where]] | None = None, *, doubtful: Collection[_Where] = ()
    ) -> None:
        self._places = dict(places or {})
        self._doubtful = tuple(doubtful)
        """GPUs of which it cannot be said whether they are lost."""
        self.is_unproven: Callable[[Mapping[str, str]], bool] = _nothing
        """Whether an alert with these labels is about growth that has not been measured since a restart."""

    def __bool__(self) -> bool:
        return bool(self._places or self._doubtful or self.is_unproven is not _nothing)

    def frozen(self, selections: Iterable[Selection]) -> Callable[[Mapping[str, str]], bool]:
        """Return a test of an instance's labels for a rule that selects these: whether data behind it is missing."""
        relevant: list[_Where] = []
        metrics: set[str] = set()
        for selection in selections:
            metrics.add(selection.metric)
            relevant += [
                place
                for place in self._places.get(selection.metric, ())
                if place.labels is None or selection.takes(place.labels)
            ]
        # A rule on nothing but gpuagent_gpu_lost has nothing to go by; one that also looks elsewhere has.
        if metrics == {_LOST}:
            relevant += self._doubtful
        if not relevant:
            return _nothing
        return lambda labels: any(place.concerns(labels) for place in relevant)


def find_missing(snapshot: Snapshot | None, is_unproven: Callable[[Mapping[str, str]], bool] = _nothing) -> Missing:
    """Return what is missing in a snapshot; before the first one, everything is.

    `is_unproven` tells of an alert's labels whether it is about growth that has not been measured yet since a restart.
    """
    found = _find_missing(snapshot)
    found.is_unproven = is_unproven
    return found


def _find_missing(snapshot: Snapshot | None) -> Missing:
    places: dict[str, list[_Where]] = {}
    if snapshot is None:
        return Missing({family.name: [_EVERYWHERE] for family in FAMILIES}, doubtful=[_EVERYWHERE])
    if snapshot.node.nvml_state is not NvmlState.READY:
        # Not even the GPUs are known: restored alerts of any GPU stay.
        identities = [gpu.identity for gpu in snapshot.gpus]
        unlisted = _Unlisted(frozenset(str(one.index) for one in identities), frozenset(one.uuid for one in identities))
        for family in FAMILIES:
            if family.name not in _TELL_OF_FAILURE and family.name not in _KNOWN:
                places[family.name] = [_EVERYWHERE]
            elif "gpu" in family.labels and family.name not in _KNOWN:
                places[family.name] = [unlisted]
        _add_node(places, snapshot)
        return Missing(places, doubtful=[_EVERYWHERE])
    _add_node(places, snapshot)
    for gpu in snapshot.gpus:
        failed = _failed(gpu)
        if failed:
            place = _place(gpu)
            for family in FAMILIES:
                if "gpu" in family.labels and _is_missing(family, failed):
                    places.setdefault(family.name, []).append(place)
    return Missing(places, doubtful=[_place(gpu) for gpu in snapshot.gpus if gpu.state not in _SAYS_LOST])


def _add_node(places: dict[str, list[_Where]], snapshot: Snapshot) -> None:
    """Add collectors of the node itself, whose series may name GPUs all the same (Xid)."""
    failed = {run.collector for run in snapshot.runs if not run.ok}
    if not failed:
        return
    for family in FAMILIES:
        if family.collector in failed and family.name not in _TELL_OF_FAILURE:
            places[family.name] = [_EVERYWHERE]


def _failed(gpu: GpuReading) -> frozenset[str]:
    """Return collectors that have told nothing of this GPU, or not all."""
    ran = {run.collector for run in gpu.runs if run.ok}
    if gpu.state in _NOT_READ:
        ran = set()
    known = _GPU_COLLECTORS & {run.collector for run in gpu.runs} if ran else _GPU_COLLECTORS
    return frozenset(name for name in known if name not in ran or any(need not in ran for need in _NEEDS.get(name, ())))


def _is_missing(family: Family[Any], failed: frozenset[str]) -> bool:
    if family.name in _TELL_OF_FAILURE:
        return False
    # A process is known by the driver's list: without it, what /proc has to say of it is missing too.
    return family.collector in failed or (family.name in _PROCESS_NAMES and "processes" in failed)


def _place(gpu: GpuReading) -> _Place:
    return _Place(str(gpu.identity.index), gpu.identity.uuid or None)


ALERT_SERIES = ("ALERTS", "ALERTS_FOR_STATE")
"""Metrics that alert rules write, as in Prometheus."""
_GPU_LABELS = frozenset({"gpu", "uuid"})


def select(runners: Iterable[GroupRunner]) -> dict[RuleKey, Sequence[Selection]]:
    """Return the selections of every rule."""
    rules = {running.key: running.rule for runner in runners for running in runner.rules}
    recorded: dict[str, list[Rule]] = {}
    for rule in rules.values():
        if isinstance(rule, RecordRule):
            recorded.setdefault(rule.name, []).append(rule)
    return {key: tuple(_selections(rule, recorded, frozenset())) for key, rule in rules.items()}


def _selections(rule: Rule, recorded: Mapping[str, list[Rule]], above: frozenset[str]) -> Iterable[Selection]:
    for selector in rule.expression.selectors:
        for name in _names(selector, recorded):
            if name in recorded and name not in above:
                for source in recorded[name]:
                    yield from _selections(source, recorded, above | {name})
            elif name not in recorded:
                yield Selection(name, _takes(selector))


def _names(selector: Selector, recorded: Mapping[str, list[Rule]]) -> Iterable[str]:
    if selector.name is not None:
        return (selector.name,)
    tests = [value_test(matcher) for matcher in selector.matchers if matcher.name == METRIC_NAME]
    known = dict.fromkeys((*(family.name for family in FAMILIES), *recorded, *ALERT_SERIES))
    return [name for name in known if all(test(name) for test in tests)]


def _takes(selector: Selector) -> Callable[[Mapping[str, str]], bool]:
    tests = [(matcher.name, value_test(matcher)) for matcher in selector.matchers if matcher.name in _GPU_LABELS]
    return lambda labels: all(test(labels.get(name, "")) for name, test in tests)
