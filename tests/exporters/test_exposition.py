"""The text formats, held against prometheus-client's own writers and parsers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from gpuagent.core.metrics.family import Family, MetricType, Sample
from gpuagent.core.metrics.series import series
from gpuagent_exporters.exposition import TextWriter
from tests.fakes.snapshots import full_alerting, full_snapshot, snapshots, texts

Series = list[tuple[Family[Any], list[Sample]]]
Parsed = dict[tuple[str, str, str], dict[tuple[tuple[str, str], ...], float]]

GAUGE: Family[Any] = Family("gpuagent_some_bytes", MetricType.GAUGE, "Bytes.", "memory", ("a", "b"), lambda _: ())
COUNTER: Family[Any] = Family(
    "gpuagent_some_total", MetricType.COUNTER, 'Of "things"\\\n.', "memory", ("a", "b"), lambda _: ()
)
BARE: Family[Any] = Family("gpuagent_bare", MetricType.GAUGE, "No labels.", "memory", (), lambda _: ())
RENAMED: Family[Any] = Family("gpuagent_some_bytes", MetricType.GAUGE, "Bytes.", "memory", ("c", "d"), lambda _: ())
"""GAUGE with other labels."""

numbers = st.floats(allow_nan=False) | st.integers(-(2**64), 2**64).map(float)
labels = st.tuples(st.none() | texts, st.none() | texts)


class SnapshotCollector(Collector):
    """Hands series to a registry of prometheus-client."""

    def __init__(self, series: Callable[[], Series]) -> None:
        self._series = series

    def collect(self) -> Iterator[Metric]:
        """One metric per family that has samples."""
        for family, samples in self._series():
            name = family.name
            if family.kind is MetricType.COUNTER:
                name = name.removesuffix("_total")
            metric = Metric(name, family.help, str(family.kind))
            for labels, value in samples:
                pairs = zip(family.labels, labels, strict=True)
                metric.add_sample(family.name, {key: text for key, text in pairs if text is not None}, value)
            yield metric


def parsed(families: Iterable[Metric]) -> Parsed:
    """Every series by its family's name, type and help: an absent label is the same as an empty one."""
    return {
        (family.name, family.type, family.documentation): {
            tuple(sorted(sample.labels.items())): sample.value for sample in family.samples
        }
        for family in families
    }


def theirs(content: Series, *, openmetrics: bool) -> str:
    """What prometheus-client writes."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(lambda: content))
    return (generate_openmetrics if openmetrics else generate_latest)(registry).decode()


def both(content: Series, *, openmetrics: bool) -> tuple[Parsed, Parsed]:
    """Ours and theirs, as a parser understands them."""
    parse = parse_openmetrics if openmetrics else parse_text
    end = "# EOF\n" if openmetrics else ""
    ours = TextWriter().write(content, openmetrics=openmetrics).decode() + end
    return parsed(parse(ours)), parsed(parse(theirs(content, openmetrics=openmetrics)))


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
@given(
    gauges=st.dictionaries(labels, numbers, min_size=1, max_size=5),
    counters=st.dictionaries(labels, numbers.map(abs), min_size=1, max_size=5),
    bare=numbers,
)
def test_any_label_and_any_value(
    openmetrics: bool,
    gauges: dict[tuple[str | None, str | None], float],
    counters: dict[tuple[str | None, str | None], float],
    bare: float,
) -> None:
    """PROC-07: quotes, backslashes, newlines and any letter come out as they went in, as by prometheus-client."""
    content = [
        (GAUGE, [Sample(*item) for item in gauges.items()]),
        (COUNTER, [Sample(*item) for item in counters.items()]),
        (BARE, [Sample((), bare)]),
    ]
    ours, expected = both(content, openmetrics=openmetrics)

    assert ours == expected
    ((_, values),) = ((key, values) for key, values in ours.items() if key[0] == "gpuagent_some_bytes")
    assert values == {
        tuple((name, text) for name, text in zip("ab", pair, strict=True) if text is not None): value
        for pair, value in gauges.items()
    }


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
@given(snapshot=snapshots())
@settings(max_examples=20)
def test_any_snapshot(openmetrics: bool, snapshot: Any) -> None:
    """EXP-04: whatever was measured, the scrape is one that Prometheus can read, and says what the catalogue says."""
    ours, expected = both(list(series(snapshot, 100.0, top=3)), openmetrics=openmetrics)

    assert ours == expected


def test_texts_are_equal_but_for_numbers_and_the_order_of_labels() -> None:
    """EXP-09: help, type, names and labels are those of prometheus-client to the letter."""
    content = list(series(full_snapshot(), 100.0, alerting=full_alerting()))
    for openmetrics in (False, True):
        ours = TextWriter().write(content, openmetrics=openmetrics).decode()
        expected = theirs(content, openmetrics=openmetrics).removesuffix("# EOF\n")
        assert shape(ours) == shape(expected)


def shape(text: str) -> list[object]:
    """Each line, without its number and with its labels in order."""
    return [
        line if line[0] == "#" else sorted(line.rpartition(" ")[0].replace("{", ",").rstrip("}").split(","))
        for line in text.splitlines()
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (85520809984.0, "85520809984"),
        (0.25, "0.25"),
        (1e-7, "1e-07"),
        (-3.5, "-3.5"),
        (2.0**64, "18446744073709551616"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    """EXP-04: whole ones have no point; not even one that should never be there costs the scrape."""
    written = TextWriter().write([(BARE, [Sample((), value)])]).decode()

    assert written.splitlines()[-1] == f"gpuagent_bare {text}"
    assert next(iter(parse_text(written))).samples[0].value == pytest.approx(value, nan_ok=True)


def test_what_was_written_is_kept_for_as_long_as_its_series() -> None:
    """EXP-03: ten thousand series that come and go leave nothing behind."""
    writer = TextWriter()
    for round_ in range(100):
        content = [(GAUGE, [Sample((f"{round_}-{number}", "x"), 1.0) for number in range(100)])]
        writer.write(content)
        assert [len(written.samples) for written in writer._last.values()] == [100]

    assert writer.write(content) == writer.write(content)
    assert writer.write([]) == b""
    assert writer._last == {}


rows = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), unique=True).map(sorted)
scrapes = st.lists(
    st.tuples(
        st.dictionaries(
            st.sampled_from([GAUGE, COUNTER, BARE, RENAMED]), st.tuples(rows, st.integers(0, 2)), max_size=4
        ),
        st.booleans(),
    ),
    max_size=6,
)


@given(scrapes=scrapes)
def test_a_scrape_does_not_show_what_was_before_it(scrapes: Any) -> None:
    """EXP-05: whatever came, went or changed value or labels, the text is that of a writer that knows nothing."""
    writer = TextWriter()
    for families, openmetrics in scrapes:
        content = [
            (family, [Sample(row if family.labels else (), number + value) for number, row in enumerate(rows)])
            for family, (rows, value) in families.items()
        ]
        assert writer.write(content, openmetrics=openmetrics) == TextWriter().write(content, openmetrics=openmetrics)


def test_the_same_values_under_other_names_are_another_text() -> None:
    """EXP-04: each family has its own name and its own names of labels."""
    other: Family[Any] = Family("gpuagent_other", MetricType.GAUGE, "Other.", "memory", ("c", "d"), lambda _: ())
    sample = Sample(("1", "2"), 3.0)
    writer = TextWriter()
    for _ in range(2):
        lines = writer.write([(GAUGE, [sample]), (other, [sample]), (COUNTER, [sample])]).decode().splitlines()
        assert [line for line in lines if line[0] != "#"] == [
            'gpuagent_some_bytes{a="1",b="2"} 3',
            'gpuagent_other{c="1",d="2"} 3',
            'gpuagent_some_total{a="1",b="2"} 3',
        ]
