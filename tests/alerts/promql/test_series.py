"""The index of a tick, and what an expression tells of itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuagent.core.matchers import Matcher, MatchOperator
from gpuagent.core.metrics.family import Family, MetricType, Sample
from gpuagent_alerts.promql.expression import CachedPlan, compile_expression
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import EvaluationError, Row, ValueType, Vector


class CountingSamples(list[Sample]):
    """Tells how often it was gone through."""

    reads = 0

    def __iter__(self) -> Iterator[Sample]:
        self.reads += 1
        return super().__iter__()


def family(name: str, *labels: str) -> Family[None]:
    """One of the catalogue."""
    return Family(name, MetricType.GAUGE, "", "memory", labels, lambda _part: ())


def test_rows_have_all_labels_and_the_name() -> None:
    """A label that is None or empty in the catalogue is no label."""
    index = SeriesIndex.of([(family("used", "gpu", "unit", "user"), [Sample(("0", None, ""), 5.0)])])

    assert index.get("used") == (Row({"__name__": "used", "gpu": "0"}, 5.0),)


def test_names_come_in_the_order_of_the_catalogue() -> None:
    """Whether their samples were asked for or not."""
    index = SeriesIndex.of([(family(name), [Sample((), 1.0)]) for name in ("c", "a", "b")])
    index.get("b")

    assert list(index.names()) == ["c", "a", "b"]


def test_samples_are_read_when_a_rule_asks_for_them() -> None:
    """A metric that no rule names costs nothing, and one that ten rules name is read once."""
    named, unnamed = CountingSamples([Sample((), 1.0)]), CountingSamples([Sample((), 2.0)])
    index = SeriesIndex.of([(family("named"), named), (family("unnamed"), unnamed)])

    for _ in range(10):
        compile_expression("named > 0").evaluate(index, 0)

    assert (named.reads, unnamed.reads) == (1, 0)


def test_families_of_one_name_are_one_metric() -> None:
    """MIG and whole GPUs may share a name."""
    index = SeriesIndex.of(
        [(family("used", "gpu"), [Sample(("0",), 1.0)]), (family("used", "mig"), [Sample(("1",), 2.0)])]
    )

    assert [row.value for row in index.get("used")] == [1.0, 2.0]


def test_a_name_that_is_not_there_has_no_rows() -> None:
    """Rules may name what this node does not have."""
    assert index_of_one().get("nothing") == ()


def index_of_one() -> SeriesIndex:
    """One series."""
    return SeriesIndex([("used", {"gpu": "0", "empty": ""}, 5.0)])


def test_plain_samples_make_an_index_too() -> None:
    """As recording rules and tests have them; a name among the labels is not taken twice."""
    index = SeriesIndex([("used", {"__name__": "used", "gpu": "0", "empty": ""}, 5.0)])

    assert index.get("used") == (Row({"__name__": "used", "gpu": "0"}, 5.0),)


def test_evaluating_changes_nothing() -> None:
    """The same expression over the same index has the same rows, however often."""
    index = index_of_one()
    expression = compile_expression('used > 1 or label_replace(used, "gpu", "9", "", "") or sort_desc(used) or -used')

    assert expression.evaluate(index, 0) == expression.evaluate(index, 0)
    assert index.get("used") == index_of_one().get("used")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1 + 1", ValueType.SCALAR, 2.0),
        ("scalar(used)", ValueType.SCALAR, 5.0),
        ("vector(1)", ValueType.VECTOR, Vector([Row({}, 1.0)])),
    ],
)
def test_the_type_is_known_before_the_value(text: str, kind: ValueType, value: object) -> None:
    """A scalar evaluates to a float, a vector to rows."""
    expression = compile_expression(text)

    assert (expression.value_type, expression.evaluate(index_of_one(), 0)) == (kind, value)


def test_a_rule_takes_a_number_for_a_row_without_labels() -> None:
    """As Prometheus does with an alert whose expression is a scalar."""
    assert compile_expression("1 > bool 0").rows(index_of_one(), 0) == Vector([Row({}, 1.0)])


def test_an_expression_tells_what_it_looks_at() -> None:
    """For the rules about missing data: names and matchers, in arguments and parameters too."""
    expression = compile_expression(
        'topk(scalar(a), b{gpu="0"}) / on(gpu) group_left -c or absent({__name__=~"d.*", e!="f"}) or {__name__="g"}'
    )

    assert expression.metric_names == {"a", "b", "c", "g"}
    assert [(selector.name, selector.matchers) for selector in expression.selectors] == [
        ("a", ()),
        ("b", (Matcher("gpu", MatchOperator.EQUAL, "0"),)),
        ("c", ()),
        (None, (Matcher("__name__", MatchOperator.MATCHES, "d.*"), Matcher("e", MatchOperator.NOT_EQUAL, "f"))),
        ("g", ()),
    ]


def test_the_text_stays_as_it_was_written() -> None:
    """Comments and all, for status and errors."""
    text = "used  > 1 # comment"

    assert compile_expression(text).text == text


def test_time_is_in_milliseconds() -> None:
    """As in Prometheus."""
    assert compile_expression("time()").evaluate(index_of_one(), 1.23456) == 1.235


def test_samples_that_are_as_they_were_become_the_same_elements() -> None:
    """EXP-08: the index of the next tick has the very lists of this one where nothing has changed, else new ones."""
    used, busy = [Sample(("0",), 1.0), Sample(("1",), 2.0)], [Sample(("0",), 0.5)]
    families = family("used", "gpu"), family("busy", "gpu")
    first = SeriesIndex.of(zip(families, (used, busy), strict=True))
    before = {name: first.elements(name) for name in ("used", "busy", "nothing")}
    second = SeriesIndex.of(zip(families, (used, [Sample(busy[0].labels, 0.75)]), strict=True), first)

    assert second.elements("used") is before["used"]
    assert second.elements("nothing") is before["nothing"]
    assert second.elements("busy") == [("busy", {"gpu": "0"}, 0.75)]
    assert second.elements("busy")[0][1] is before["busy"][0][1]


def test_other_series_have_other_labels() -> None:
    """EXP-05: as many samples as before, of others: the labels are theirs."""
    used = family("used", "gpu")
    first = SeriesIndex.of([(used, [Sample(("0",), 1.0)])])
    first.elements("used")
    second = SeriesIndex.of([(used, [Sample(("1",), 1.0)])], first)

    assert second.elements("used") == [("used", {"gpu": "1"}, 1.0)]


@pytest.mark.parametrize("expression", ["used > 0", "sum(used)", "used > 0 and on () busy < 1", "absent(nothing)"])
def test_an_expression_on_nothing_new_is_not_evaluated(expression: str) -> None:
    """EXP-08: its last rows are given again until something that it selects has changed."""
    repeated = CachedPlan(compile_expression(expression))
    used, busy = family("used", "gpu"), family("busy", "gpu")
    samples = [Sample(("0",), 1.0)], [Sample(("0",), 0.5)]
    index = SeriesIndex.of(zip((used, busy), samples, strict=True))
    rows = repeated.rows(index, 1.0)
    again = SeriesIndex.of(zip((used, busy), samples, strict=True), index)

    assert rows == compile_expression(expression).rows(index, 1.0)
    assert repeated.rows(again, 2.0) is rows
    changed = SeriesIndex.of([(used, [Sample(("0",), 3.0), Sample(("1",), 2.0)])], again)
    assert repeated.rows(changed, 3.0) == compile_expression(expression).rows(changed, 3.0)


@pytest.mark.parametrize("expression", ["used > time()", "vector(time())", "hour() >= 0", '{__name__="used"}'])
def test_what_depends_on_more_than_series_is_evaluated_each_time(expression: str) -> None:
    """Time goes on while no series changes, and a pattern of names may meet new ones."""
    repeated, used = CachedPlan(compile_expression(expression)), family("used", "gpu")
    index = SeriesIndex.of([(used, [Sample(("0",), 1.0)])])

    for time_seconds in (0.0, 2.0, 7200.0):
        assert repeated.rows(index, time_seconds) == compile_expression(expression).rows(index, time_seconds)


def test_an_expression_that_failed_is_evaluated_again() -> None:
    """A failure is no result: it is told each time."""
    repeated = CachedPlan(compile_expression("used + on () used"))
    index = SeriesIndex.of([(family("used", "gpu"), [Sample(("0",), 1.0), Sample(("1",), 2.0)])])

    for _ in range(2):
        with pytest.raises(EvaluationError):
            repeated.rows(index, 0.0)
