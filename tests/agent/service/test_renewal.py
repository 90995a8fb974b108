"""Taking over from ourselves after a driver upgrade."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpuagent.service.renewal import Renewal

VARIABLE = "GPUAGENT_RENEWALS"


class Clock:
    """Seconds since the boot."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def test_the_first_is_due_at_once() -> None:
    """GPU-07: a process that was never renewed has nothing to wait for."""
    assert Renewal({}, Clock(100.0)).due


@pytest.mark.parametrize(
    ("count", "wait"), [(1, 10.0), (2, 20.0), (3, 40.0), (6, 320.0), (7, 600.0), (8, 600.0), (5000, 600.0)]
)
def test_each_waits_longer_than_the_last(count: int, wait: float) -> None:
    """GPU-07: no crash loop while driver and library do not fit, for hours or for weeks."""
    clock = Clock(1000.0)
    renewal = Renewal({VARIABLE: f"{count}:1000"}, clock)
    assert not renewal.due
    clock.seconds = 1000.0 + wait - 0.5
    assert not renewal.due
    clock.seconds = 1000.0 + wait

    assert renewal.due


def test_an_hour_of_peace_is_forgiven() -> None:
    """GPU-07: the next upgrade is months away, and is the first again."""
    renewal = Renewal({VARIABLE: "7:1000"}, Clock(1000.0 + 3601))

    assert renewal.count == 0
    assert renewal.due


@pytest.mark.parametrize("text", ["", ":", "x", "x:y", "1:y", "1.5:2", "٣:x", "1:2:3"])
def test_a_variable_that_is_not_ours(text: str) -> None:
    """GPU-07: is no reason not to start."""
    assert Renewal({VARIABLE: text}, Clock(100.0)).count in (0, 1)


def test_the_new_process_knows_of_the_old_one() -> None:
    """GPU-07: the same pid, the same arguments, and one renewal more, now."""
    program = """
import os, sys
from gpuagent.service.renewal import Renewal
renewal = Renewal(now=lambda: 1234.0)
if len(sys.argv) == 1:
    renewal.take_over([sys.executable, "-c", sys.orig_argv[2], str(os.getpid())])
print(renewal.count, renewal.due, os.getpid() == int(sys.argv[1]), os.environ["GPUAGENT_RENEWALS"])
"""
    environ = {**os.environ, VARIABLE: "2:1000"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True, timeout=50
    )

    assert done.stdout.split() == ["3", "False", "True", "3:1234"]
