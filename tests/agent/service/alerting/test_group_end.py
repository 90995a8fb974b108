"""What became of several processes, in one line."""

from __future__ import annotations

import pytest

from gpuagent_alerts.messages.group_end import sum_over_gpus, summarize_ends

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
