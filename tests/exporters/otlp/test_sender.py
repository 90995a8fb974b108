"""The push: what arrives at a collector, and what becomes of a batch that does not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.metrics import FAMILIES
from gpuagent.core.metrics.family import Sample
from gpuagent_exporters.otlp.batch import Batch, IncidentEvent
from gpuagent_exporters.otlp.payload import Exporters
from gpuagent_exporters.otlp.sender import MOST_EVENTS, HeadersRefused, OtlpSender, read_headers
from tests.fakes.otlp_collector import OtlpCollector, attributes
from tests.integration.waiting import until
from tests.tables import table

USED = next(family for family in FAMILIES if family.name == "gpuagent_gpu_memory_used_bytes")
LEAKS = next(family for family in FAMILIES if family.name == "gpuagent_gpu_memory_leak_suspected")
SERIES = [(USED, [Sample(("0", "GPU-1"), 2.0**33)]), (LEAKS, [Sample(("0", "GPU-1"), 1.0)])]
ABOUT = {"service.name": "gpuagent", "service.version": "9.9", "host.name": "node1"}


def event(number: int = 0) -> IncidentEvent:
    """An incident that began."""
    labels = {"process": "trainer", "gpuagent.incident.key": f"k{number}"}
    return IncidentEvent(1000.5, "gpuagent.incident.began", "critical", "trainer leaks", labels)


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    """A collector that listens."""
    with OtlpCollector() as running:
        yield running


def sender(collector: OtlpCollector, headers_file: Path | None = None, seconds: float = 5.0) -> OtlpSender:
    """One that pushes there; its clock stands at 7."""
    return OtlpSender(
        lambda headers: Exporters(collector.url + "/", headers, seconds, ABOUT), headers_file, lambda: 7.0
    )


def test_metrics_and_events_arrive(collector: OtlpCollector) -> None:
    """Values, names, units, kinds, times and the node are what OpenTelemetry's messages say that they are."""
    own = sender(collector)
    own.offer(Batch(1234.5, SERIES, [event()]))
    own.push(Batch(1234.5, SERIES))

    (resource,) = collector.metrics[0].resource_metrics
    assert attributes(resource.resource.attributes).items() >= ABOUT.items()
    usage, leak = resource.scope_metrics[0].metrics
    assert (usage.name, usage.unit, usage.sum.is_monotonic) == ("hw.gpu.memory.usage", "By", False)
    assert usage.sum.data_points[0].time_unix_nano == 1_234_500_000_000
    assert leak.name == "gpuagent_gpu_memory_leak_suspected"
    assert collector.points() == {
        "hw.gpu.memory.usage": [({"hw.id": "GPU-1", "hw.type": "gpu", "hw.name": "GPU 0"}, 2.0**33)],
        "gpuagent_gpu_memory_leak_suspected": [({"gpu": "0", "uuid": "GPU-1"}, 1.0)],
    }
    (record,) = collector.logs[0].resource_logs[0].scope_logs[0].log_records
    assert (record.event_name, record.severity_text, record.body.string_value) == (
        "gpuagent.incident.began",
        "critical",
        "trainer leaks",
    )
    assert (record.severity_number, record.time_unix_nano) == (17, 1_000_500_000_000)
    assert attributes(record.attributes) == {"process": "trainer", "gpuagent.incident.key": "k0"}
    assert own.figures().sent == 1


@table("status, reason", [(503, "it answered HTTP 503"), (401, "it answered HTTP 401"), (302, "it answered HTTP 302")])
def test_a_refusal_is_told_once_and_counted(
    status: int, reason: str, collector: OtlpCollector, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line for the first failure and one for the recovery; events wait, and nothing is redirected."""
    caplog.clear()
    caplog.set_level(logging.INFO, "gpuagent_exporters")
    collector.status = status
    own = sender(collector, seconds=0.5)
    own.offer(Batch(1.0, SERIES, [event()]))
    own.push(Batch(1.0, SERIES))
    own.push(Batch(2.0, SERIES))
    figures = own.figures()
    assert (figures.sent, figures.failed, figures.waiting, figures.failing_since) == (0, 2, 1, 7.0)
    assert figures.reason == reason

    collector.status = 200
    own.push(Batch(3.0, SERIES))
    assert (own.figures().sent, own.figures().waiting, own.figures().failing_since) == (1, 0, None)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert lines == [f"the OTLP collector did not take a batch: {reason}", "the OTLP collector takes batches again"]


def test_a_collector_that_is_not_there(collector: OtlpCollector) -> None:
    """The reason has no address."""
    collector.__exit__()
    own = sender(collector, seconds=0.5)
    own.push(Batch(1.0, SERIES))

    assert own.figures().reason == "it could not be reached (ConnectionError)"


def test_whoever_offers_never_waits(collector: OtlpCollector) -> None:
    """While a push is under way one batch waits and others are dropped, and their events are not."""
    collector.answer_after = threading.Event()
    own = sender(collector, seconds=30)
    own.start()
    own.offer(Batch(0.0, SERIES))
    assert collector.arrived.wait(20)
    for number in range(3):
        own.offer(Batch(float(number), SERIES, [event(number)]))
    assert (own.figures().dropped, own.figures().waiting) == (2, 3)
    collector.answer_after.set()
    until(lambda: own.figures().sent == 2, "what waited is pushed")  # and not tried again during other tests


def test_events_are_bounded(collector: OtlpCollector) -> None:
    """Of more than can be kept the oldest go, and are counted."""
    own = sender(collector)
    own.offer(Batch(0.0, [], [event(number) for number in range(MOST_EVENTS + 3)]))

    assert (own.figures().waiting, own.figures().dropped) == (MOST_EVENTS, 3)


def test_headers_are_read_before_each_push(collector: OtlpCollector, tmp_path: Path) -> None:
    """A token that was changed is used at once, and a file that is gone is a failure with its name."""
    file = tmp_path / "headers"
    own = sender(collector, file)
    for token in ("one", "two"):
        file.write_text(f"# a comment\nAuthorization: Bearer {token}\n")
        own.push(Batch(0.0, SERIES))
    assert [one["authorization"] for one in collector.headers] == ["Bearer one", "Bearer two"]

    file.unlink()
    own.push(Batch(0.0, SERIES))
    assert own.figures().reason == f"cannot read otlp.headers_file, {file}: No such file or directory"


@table("text", ["no colon", "Na\xefme: x", "Other:", "Name: a\x07b"])
def test_headers_that_are_none(text: str, tmp_path: Path) -> None:
    """What is no header is refused with its line, and without its text."""
    file = tmp_path / "headers"
    file.write_text(f"Good: yes\n{text}\n", encoding="utf-8")

    with pytest.raises(HeadersRefused, match=r"line 2 of otlp\.headers_file") as refused:
        read_headers(file)
    assert text not in str(refused.value)


def test_a_fault_of_the_exporter_ends_nothing() -> None:
    """Whatever an exporter raises is a failure like any other."""

    def make(_: Mapping[str, str]) -> Any:
        raise MemoryError

    own = OtlpSender(make, None, lambda: 1.0)
    own.push(Batch(0.0, SERIES))

    assert (own.figures().failed, own.figures().reason) == (1, "MemoryError")
