"""What became of several processes, in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.units import GIB
from gpuagent_alerts.messages.group_end import sum_over_gpus, summarize_ends
from tests.agent.service.alerting.stage import PID, Stage, leaking
from tests.fakes.readings import gpu, process, snapshot

ENDED = "the process ended; 10.0 GiB came back"
KILLED = "gpuagent terminated it (SIGTERM); 20.0 GiB came back after 3 s"


@pytest.mark.parametrize(
    ("reasons", "of", "said"),
    [
        ([ENDED] * 8, 8, "all 8 processes ended; 80.0 GiB came back"),
        ([ENDED, ENDED], 2, "both processes ended; 20.0 GiB came back"),
        ([KILLED, ENDED, ENDED], 3,
         "2 of 3 processes ended, gpuagent terminated 1 of 3 (SIGTERM); 40.0 GiB came back"),
        ([KILLED, KILLED], 2, "gpuagent terminated both (SIGTERM); 40.0 GiB came back"),
        (["memory back to 3.0 GiB"] * 3, 4, "3 of 4: memory back to 3.0 GiB"),
        (["growth stopped at 58.0 GiB with 21.2 GiB free (04:09 UTC)",
          "growth stopped at 56.5 GiB with 900.0 MiB free"],
         8, "growth stopped at 56.5 to 58.0 GiB with 900.0 MiB to 21.2 GiB free (04:09 UTC)"),
    ],
)  # fmt: skip
def test_ends_are_counted_by_what_they_were(reasons: list[str], of: int, said: str) -> None:
    """Those that a remedy ended are not hidden behind those that ended by themselves; the memory is the sum."""
    assert summarize_ends(reasons, of=of) == said


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        ([ENDED, "the process ended; 12.0 GiB came back"], "the process ended; 22.0 GiB came back"),
        ([ENDED], ""),
        ([ENDED, "the process ended; it held 12.0 GiB"], ""),
        ([ENDED, "the process left the GPU; 12.0 GiB came back"], ""),
        ([KILLED, KILLED], ""),
    ],
)
def test_one_process_on_several_gpus_gives_back_the_sum(reasons: list[str], said: str) -> None:
    """Its memory on one GPU alone would be half of what came back; what differs is not added up."""
    assert sum_over_gpus(reasons) == said


def test_the_end_of_a_leak_is_no_all_clear_for_who_was_named_beside_it(tmp_path: Path) -> None:
    """Its message named another process that grows there: that one has no alert of its own yet, and grows on."""
    stage = Stage(tmp_path / "state")
    leaks = leaking(Evidence.BALANCED, full_in=3 * 3600.0)
    pace = 4 * GIB / 3600
    slow = Growth(Verdict.GROWING, slope=Range(pace, pace, pace), since_seconds=1.0, state=GrowthState.RISING)
    processes = [process(PID, used_gib=8.0, unit="a.service"), process(5000, used_gib=5.0, unit="b.service", name="b")]
    said = {
        MemoryKey("GPU-00000000", PID): leaks,
        MemoryKey("GPU-00000000", 5000): slow,
        MemoryKey("GPU-00000000"): leaks,
    }
    stage.show(replace(snapshot([gpu(0, used_gib=14.0)], processes), growth=said), 6 * 60.0)
    assert "and b (alice, pid 5000) 4.0 GiB/h" in stage.headlines()[0]
    rest = {MemoryKey("GPU-00000000", 5000): slow, MemoryKey("GPU-00000000"): slow}
    stage.show(replace(snapshot([gpu(0, used_gib=6.0)], processes[1:]), growth=rest), 10 * 60.0)

    assert stage.heard[-1].news == "ended"
    assert stage.headlines()[-1].endswith("; b (alice, pid 5000) goes on growing 4.0 GiB/h"), stage.headlines()[-1]
