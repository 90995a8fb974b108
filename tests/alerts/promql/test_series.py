"""The index of a tick, and what an expression tells of itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuagent.catalogue.family import Family, Kind, Sample
from gpuagent.matchers import Matcher, MatchOperator
from gpuagent_alerts.promql.compile import compile_expression
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import Row, ValueType, Vector


class CountingSamples(list[Sample]):
    """Tells how often it was gone through."""

    reads = 0

    def __iter__(self) -> Iterator[Sample]:
        self.reads += 1
        return super().__iter__()


def family(name: str, *labels: str) -> Family[None]:
    """One of the catalogue."""
    return Family(name, Kind.GAUGE, "", "memory", labels, lambda _part: ())


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
