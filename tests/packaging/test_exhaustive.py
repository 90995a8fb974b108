"""Which tests are left to `make test-all`, and what a sample of them is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.exhaustive import ONE_CASE_IN, evenly, is_sampled, usually

ROOT = Path(__file__).parents[2]
INTERRUPTED = "tests/agent/cli/test_progress.py::test_ctrl_c_stops_looking_alone"


def collected(*words: str) -> set[str]:
    """Return the ids of the tests of served apps that these options select."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests/client/blame"]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.slow
def test_what_is_sampled() -> None:
    """CI runs what `make test` runs, extended tests, and what is drawn for the commit: exhaustive and further cases."""
    exhaustive, always = collected("-m", "exhaustive"), collected("-m", "not exhaustive and not few")
    usual = collected("-m", "few and not extended and not exhaustive")
    cases = collected("-m", "few and extended and not exhaustive")
    commit = next(name for name in map(str, range(1000)) if any(is_sampled(test, name) for test in exhaustive))

    drawn = {test for test in exhaustive if is_sampled(test, commit)}
    drawn_cases = {test for test in cases if is_sampled(test, commit, ONE_CASE_IN)}
    assert always
    assert set() < drawn_cases < cases
    assert collected("--sample", commit) == always | usual | drawn | drawn_cases


@pytest.mark.slow
def test_few_cases_of_a_test_are_usual() -> None:
    """So many as the test says: the others are extended."""
    cases = [test for test in collected() if "test_the_holder_is_named[" in test]
    usual = [test for test in collected("-m", "not extended") if "test_the_holder_is_named[" in test]

    assert len(usual) == 3 < len(cases)


def test_each_commit_has_a_sample_of_its_own() -> None:
    """A few of many, the same ones each time, so that what fails in CI can be run again."""
    tests = [f"tests/test_a.py::test_a[{number}]" for number in range(10_000)]
    one, again, other = ([test for test in tests if is_sampled(test, commit)] for commit in ("a", "a", "b"))

    assert one == again != other
    assert 400 < len(one) < 600


def test_usual_cases_are_spread_evenly() -> None:
    """So many are not exhaustive, the first among them; all of them where there are no more."""
    cases = evenly(range(10), 3)

    assert [case.values for case in cases] == [(number,) for number in range(10)]
    assert [case.values[0] for case in cases if not case.marks] == [0, 3, 6]
    assert not any(case.marks for case in evenly("ab", 5))


def test_usual_cases_may_be_named() -> None:
    """The others are exhaustive."""
    assert [case.values[0] for case in usually("abcd", "b", "d") if not case.marks] == ["b", "d"]


@pytest.mark.slow
def test_children_can_be_interrupted_under_nohup() -> None:
    """`nohup make test &` starts pytest with SIGINT and SIGHUP ignored: what tests start gets the default again."""

    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", INTERRUPTED],
        cwd=ROOT, env=dict(os.environ), preexec_fn=ignore, capture_output=True, text=True, timeout=55, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
