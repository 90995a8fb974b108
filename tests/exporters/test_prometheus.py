"""The body of `/metrics`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuagent.core.metrics.family import Family, MetricType, Sample
from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import Snapshot
from gpuagent_exporters.exposition import MetricsPage, Series
from tests.fakes.snapshots import full_snapshot

NOW = 100.0
FORMATS = pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])


def of(snapshot: Snapshot | None) -> Callable[[], Series]:
    """The series of one snapshot."""
    return lambda: series(snapshot, NOW)


def read(body: bytes, *, openmetrics: bool) -> list[Metric]:
    """As Prometheus would."""
    return list((parse_openmetrics if openmetrics else parse_text)(body.decode()))


@FORMATS
def test_the_page_is_one_exposition(openmetrics: bool) -> None:
    """EXP-04: the node's series and the agent's own process together: no family twice, one end."""
    body = MetricsPage(of(full_snapshot())).render(openmetrics=openmetrics)
    names = [family.name for family in read(body, openmetrics=openmetrics)]

    assert len(set(names)) == len(names)
    assert {"gpuagent_gpu_memory_used_bytes", "process_resident_memory_bytes", "process_open_fds"} <= set(names)
    assert body.count(b"# EOF") == (1 if openmetrics else 0)
    assert body.endswith(b"# EOF\n" if openmetrics else b"\n")


@FORMATS
def test_before_the_first_poll(openmetrics: bool) -> None:
    """EXP-06: the body is not empty: it says what runs, and is no error."""
    body = MetricsPage(of(None)).render(openmetrics=openmetrics)

    assert "gpuagent_build_info" in {family.name for family in read(body, openmetrics=openmetrics)}


def test_what_is_gone_is_gone_at_the_next_scrape() -> None:
    """EXP-03: nothing is kept between two scrapes."""
    shown: list[Snapshot | None] = [full_snapshot(), None]
    page = MetricsPage(lambda: series(shown.pop(0), NOW))

    assert b'pid="10"' in page.render()
    assert b'pid="10"' not in page.render()


def test_a_letter_that_is_none() -> None:
    """PROC-07: half a surrogate pair, which is no UTF-8, costs that letter and not the scrape."""
    family: Family[Any] = Family("gpuagent_x", MetricType.GAUGE, "X.", "memory", ("a",), lambda _: ())
    body = MetricsPage(lambda: [(family, [Sample(("b\udcffb",), 1.0)])]).render()

    assert b'gpuagent_x{a="b?b"} 1' in body
