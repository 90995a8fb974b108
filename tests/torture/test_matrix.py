"""Everything that can go wrong, alone and two at a time, while the agent is at work.

Meanwhile it is scraped over both doors, apps come with their figures, rules fire and two receivers are told. After each
trouble: it has not crashed, nothing is stuck, every alert was told once, nobody was killed, the GPU that nothing
happened to was never missing, and the agent is as large as it was.
"""

from __future__ import annotations

import random
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.agent.collector.calls import every_call
from tests.exhaustive import evenly
from tests.integration.waiting import until
from tests.torture import FULL, apps, host, network, nvml, times
from tests.torture.checks import Bill, endure
from tests.torture.conftest import Theater
from tests.torture.stage import stage
from tests.torture.trouble import Trouble, both

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.needs("cc", "gcc")]

SEED = 8
KINDS = (*nvml.ALL, *host.ALL, *network.ALL, *apps.ALL)
CALLS = [call.symbol for call in every_call() if call.of_gpu and call.recurs and not call.of_events]
EACH_CALL = tuple(nvml.of_calls(CALLS))
CODES = tuple(nvml.of_codes())
UNPAIRED = {"a second agent", "a core's twentieth"}
"""The second agent takes seconds to start, and its answer depends on an agent that has the time to answer."""


def some(troubles: Sequence[Trouble], share: int) -> list[Trouble]:
    """All of them under torture; otherwise the share, drawn once and for all."""
    if FULL:
        return list(troubles)
    return random.Random(SEED).sample(troubles, max(1, len(troubles) // share))


def pairs(count: int) -> list[Trouble]:
    """Two at a time, drawn once and for all."""
    chance = random.Random(SEED)
    troubles = [trouble for trouble in (*KINDS, *CODES) if trouble.name not in UNPAIRED]
    return [both(*chance.sample(troubles, 2)) for _ in range(count)]


def _named(troubles: Sequence[Trouble], usual: int = 0) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("trouble", evenly(troubles, usual), ids=lambda trouble: trouble.name)


def suffer(theater: Theater, trouble: Trouble, bills: Callable[[Bill], None]) -> None:
    """On the stage of those before, or on a new one if one of them failed."""
    made = theater.enter()
    try:
        bills(endure(made, trouble))
    except BaseException:
        theater.leave()
        raise


def test_the_ladder_is_armed(library: Path) -> None:
    """KILL-01: that nobody was killed means something: on the same stage, a rule that is true ends its process."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder, stage(Path(folder), library) as made:
        rules = Path(folder) / "rules.yaml"
        rules.write_text(rules.read_text().replace("> 20e9", "> 2e9"))
        made.agent.process.send_signal(signal.SIGHUP)
        until(lambda: -signal.SIGTERM in [process.poll() for process in made.bystanders], "somebody was ended")


@pytest.mark.few(2)
@_named(some(KINDS, 6), usual=4)
def test_alone(theater: Theater, trouble: Trouble, bills: Callable[[Bill], None]) -> None:
    """GPU-04, GPU-05, NUM-01, NUM-02, ALERT-07, PROC-03: each trouble alone costs what it may cost and no more."""
    suffer(theater, trouble, bills)


@_named(some((*CODES, *EACH_CALL), 40))
def test_each_call_and_each_code(theater: Theater, trouble: Trouble, bills: Callable[[Bill], None]) -> None:
    """GPU-04, GPU-08: each call of NVML that recurs hangs, is slow, fails; each code of NVML is answered."""
    suffer(theater, trouble, bills)


@_named(pairs(times(5, 60)))
def test_two_at_a_time(theater: Theater, trouble: Trouble, bills: Callable[[Bill], None]) -> None:
    """ALERT-07, EXP-05: so it is when two troubles come together."""
    suffer(theater, trouble, bills)
