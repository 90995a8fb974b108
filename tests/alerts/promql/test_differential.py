"""Our rows against those of Prometheus 2.42: random expressions over random series, judged by promtool."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.values import ExpressionError
from tests.alerts.promql.generate import Generator
from tests.alerts.promql.promtool import Case, disagreements, is_newer, our_rows, refused_by_prometheus
from tests.alerts.promql.spoil import patterns
from tests.torture import times

pytestmark = pytest.mark.needs("promtool")


@pytest.fixture(name="judge_of_2_42")
def _judge_of_2_42() -> None:
    if is_newer():
        pytest.skip("this promtool is newer than 2.45: its atan2 drops the name, for one; what counts here is 2.42")


def judge(seeds: Iterable[int], folder: Path) -> None:
    """Promtool and the agent agree about every expression of these cases."""
    cases = [Generator(seed).case() for seed in seeds]
    results = [our_rows(case, expression) for case in cases for expression in case.expressions]
    # Cases without rows, or without errors, would prove little.
    assert sum(bool(rows) and not isinstance(rows, str) for rows in results) > len(results) / 4
    assert any(isinstance(rows, str) for rows in results)

    assert not (wrong := disagreements(cases, folder)), "\n".join(wrong)


@pytest.mark.usefixtures("judge_of_2_42")
def test_rows_are_those_of_prometheus(tmp_path: Path) -> None:
    """Twenty seeded cases of twelve expressions: the same labels, the same values, errors where it has errors."""
    judge(range(20), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("judge_of_2_42")
@pytest.mark.parametrize("first", range(1000, 1000 + times(300, 3000), 100))
def test_so_they_are_with_other_seeds(first: int, tmp_path: Path) -> None:
    """A hundred more; three hundred in all tests, three thousand under torture."""
    judge(range(first, first + 100), tmp_path)


def test_the_judge_sees_a_difference(tmp_path: Path) -> None:
    """A judge that agrees with everything would prove nothing: a value of ours that is wrong is found."""
    told_wrong = Case(
        [("used", {"gpu": "0"}, 1.0)], ["used", "used + 1"], series_of_promtool=[("used", {"gpu": "0"}, 2.0)]
    )

    found = disagreements([told_wrong], tmp_path)

    assert [line.splitlines()[0] for line in found] == ["used # 0.0", "used + 1 # 0.1"]


@pytest.mark.usefixtures("judge_of_2_42")
def test_what_is_taken_here_is_taken_there(tmp_path: Path) -> None:
    """Expressions with words exchanged, lost and added: what the agent takes, Prometheus 2.42 reads the same way."""
    judge_spoiled(range(30), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("judge_of_2_42")
@pytest.mark.parametrize("first", range(1000, 1000 + times(300, 3000), 300))
def test_so_it_is_with_other_seeds(first: int, tmp_path: Path) -> None:
    """Three hundred more; three thousand under torture."""
    judge_spoiled(range(first, first + 300), tmp_path)


def judge_spoiled(seeds: Iterable[int], folder: Path) -> None:
    """No expression means one thing to promtool and another to the agent."""
    cases = [Generator(seed).spoiled_case() for seed in seeds]
    wrong = [
        difference
        for difference in disagreements(cases, folder)
        # What only we refuse is refused on purpose.
        if not _refused(difference.partition("\n  ours:")[0])
    ]

    assert not wrong, "\n".join(wrong)


def _refused(expression: str) -> bool:
    try:
        compile_expression(expression)
    except ExpressionError:
        return True
    return False


def test_patterns_that_are_taken_here_are_taken_there(tmp_path: Path) -> None:
    """Go's regular expressions and RE2's differ in a few corners: none of them loads here and not in Prometheus."""
    expressions = [text for text in patterns(1500, Random(1)) if not _refused(text)]

    assert len(expressions) > 300
    assert refused_by_prometheus(expressions, tmp_path) == []
