"""What the catalogue promises of every metric, present and future."""

from __future__ import annotations

import re

import pytest

from gpuagent.core.growth import DetectorLoad
from gpuagent.core.metrics import FAMILIES
from gpuagent.core.metrics.clients import CLIENT_FAMILIES, SOURCE_FAMILIES
from gpuagent.core.metrics.family import MetricType
from gpuagent.core.metrics.growth import DETECTOR_FAMILIES
from gpuagent.core.metrics.process import PROCESS_LABELS, USED
from gpuagent.core.metrics.remedies import REMEDY_FAMILIES
from gpuagent.core.metrics.series import ExtraFamilies, series
from gpuagent.core.metrics.usage import USAGE_FAMILIES
from gpuagent.driver.nvml.driver import COLLECTORS
from tests.fakes.remedies import full_remedies
from tests.fakes.snapshots import full_alerting, full_clients, full_servers, full_snapshot
from tests.fakes.usage import full_usage

BY_NAME = {family.name: family for family in FAMILIES}
BASE_UNITS = {"bytes", "bytes_per_second", "celsius", "hertz", "joules", "ratio", "seconds", "watts"}
NOT_BASE_UNITS = re.compile(
    r"_(milli|micro|kilo|mega|giga|kibi|mebi|gibi)|_(kb|mb|gb|kib|mib|gib|ms|mhz|ghz|mw|bit|bits|percent|minutes|hours)(_|$)"
)
UNTYPED_COLLECTORS = {"alerting", "clients", "identity", "nvml", "pci", "procfs", "remedies", "sources", "xid_events"}
"""Behind families of the node, and what is known of a GPU without asking it."""


def test_names_are_unique() -> None:
    """EXP-04: in both formats: OpenMetrics names a counter's family without its suffix."""
    names = [family.name for family in FAMILIES]

    assert len(set(names)) == len(names)
    assert len({name.removesuffix("_total") for name in names}) == len(names)


def test_a_name_follows_the_conventions() -> None:
    """EXP-09: prefix, base units, `_total` for counters and for nothing else (prometheus.io/docs/practices/naming)."""
    for name, family in BY_NAME.items():
        assert re.fullmatch(r"gpuagent(_[a-z0-9]+)+", name), name
        assert name.endswith("_total") == (family.kind is MetricType.COUNTER), name
        assert not NOT_BASE_UNITS.search(name), name
        assert not name.endswith(("_count", "_sum", "_bucket", "_created")), name


def test_labels_are_legal() -> None:
    """EXP-04: no reserved name, none twice, none that a scrape would rename, and no unit of a reading in any."""
    for name, family in BY_NAME.items():
        labels = family.labels
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) and "__" not in label for label in labels), name
        assert len(set(labels)) == len(labels), name
        assert not {"job", "instance", "le", "quantile", "pod", "namespace", "container"} & set(labels), name
        assert not any(re.search(rf"_({'|'.join(BASE_UNITS)})$", label) for label in labels), name


def test_help_is_one_sentence_in_one_line() -> None:
    """EXP-09: what a reader of `/metrics` sees."""
    for name, family in BY_NAME.items():
        assert family.help.endswith("."), name
        assert "\n" not in family.help, name
        assert family.help[0].isupper() or family.help[0].isdigit(), name


def test_the_collector_behind_a_family_exists() -> None:
    """EXP-05: whether a series is missing or gone is told by its collector, which therefore has to be one."""
    assert {family.collector for family in FAMILIES} <= {*COLLECTORS, *UNTYPED_COLLECTORS}


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("gpuagent_gpu_memory_used_bytes", "bytes"),
        ("gpuagent_gpu_energy_joules_total", "joules"),
        ("gpuagent_gpu_profile_pcie_transmit_bytes_per_second", "bytes/s"),
        ("gpuagent_gpu_utilization_ratio", "ratio"),
        ("gpuagent_gpu_clock_throttled_seconds_total", "seconds"),
        ("gpuagent_processes", ""),
        ("gpuagent_gpu_info", ""),
    ],
)
def test_the_unit_is_in_the_name(name: str, unit: str) -> None:
    """EXP-09: and told from it."""
    assert BY_NAME[name].unit == unit


def test_no_family_is_dead() -> None:
    """EXP-09: a snapshot that has everything, and rules that fire, fill every family."""
    further: list[ExtraFamilies] = [
        (CLIENT_FAMILIES, full_clients()),
        (REMEDY_FAMILIES, full_remedies()),
        (USAGE_FAMILIES, full_usage()),
        (SOURCE_FAMILIES, full_servers()),
        (DETECTOR_FAMILIES, DetectorLoad(2, 0)),
    ]
    filled = {
        family.name for family, _ in series(full_snapshot(), 100.0, alerting=full_alerting(), extra_families=further)
    }

    assert BY_NAME.keys() - filled == set(), "full_snapshot of tests/fakes/snapshots.py has no value for these"


def test_info_is_always_1() -> None:
    """EXP-04: so that it can be multiplied in."""
    for family, samples in series(full_snapshot(), 100.0):
        if family.name.endswith("_info"):
            assert {sample.value for sample in samples} == {1.0}


def test_process_series_share_their_labels() -> None:
    """EXP-04: they can be joined; what changes while the process lives is in info, and where a state is the label."""
    of_processes = [family for family in FAMILIES if family.name.startswith("gpuagent_process_")]

    assert USED in of_processes
    own = {f.name.removeprefix("gpuagent_process_"): f.labels[len(PROCESS_LABELS) :] for f in of_processes}
    assert all(f.labels[: len(PROCESS_LABELS)] == PROCESS_LABELS for f in of_processes)
    assert {name: labels for name, labels in own.items() if labels and name != "info"} == {
        "memory_verdict": ("verdict",),
        "memory_leak_evidence": ("evidence",),
        "preallocates": ("framework",),
    }
