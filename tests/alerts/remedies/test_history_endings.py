"""What a remedy did, as the end of an alert about its process tells it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.remedies.history import SHOWN_SECONDS, RemedyHistory

UUID = "GPU-00000000"


def notes(*results: str, dry_run: bool = False, clock: ManualClock | None = None) -> RemedyHistory:
    """Notes of runs that have just ended, as the record has them; by default of one that helped."""
    clock = clock or ManualClock()
    made = RemedyHistory(clock)
    made.restore([_run(result, clock, dry_run=dry_run) for result in results or ("released",)])
    return made


def _run(result: str, clock: ManualClock, *, dry_run: bool) -> dict[str, Any]:
    return {
        "id": "run-1", "gpu": 0, "gpu_uuid": UUID, "pid": 7, "name": "serve", "user": "ml", "unit": "serve.service",
        "dry_run": dry_run, "ladder": ["SIGTERM"], "steps": [], "fingerprint": "f",
        "end": {
            "result": result, "step": "SIGTERM", "time_seconds": clock.wall(), "released_bytes": 2**30, "seconds": 2.0,
        },
    }  # fmt: skip


def test_what_freed_the_memory_of_a_process() -> None:
    """The step, what came back and how soon; of this process on this GPU alone."""
    made = notes()

    assert str(made.ending_of("7", UUID)) == "gpuagent terminated it (SIGTERM); 1.0 GiB came back after 2 s"
    assert made.ending_of("8", UUID) is None
    assert made.ending_of("7", "GPU-1") is None
    assert made.ending_of("", UUID) is None


@pytest.mark.parametrize(("result", "dry_run"), [("released", True), ("no_effect", False), ("refused", False)])
def test_what_did_not_free_it_ended_nothing(result: str, dry_run: bool) -> None:
    """Neither a dry run nor a remedy that did not help is the reason of an end."""
    assert notes(result, dry_run=dry_run).ending_of("7", UUID) is None


def test_an_old_remedy_is_no_reason() -> None:
    """After a quarter of an hour the number may be another process's."""
    clock = ManualClock()
    made = notes(clock=clock)
    clock.advance(SHOWN_SECONDS + 1)
    assert made.ending_of("7", UUID) is None


def test_a_refusal_does_not_hide_what_was_done_before_it() -> None:
    """Neither in the reason of an end nor in what is said of the alert; of nothing that was done there is one line."""
    made = notes("released", "refused")
    assert str(made.ending_of("7", UUID)) == "gpuagent terminated it (SIGTERM); 1.0 GiB came back after 2 s"
    assert made.last_action_text("f", "", "") == (
        "SIGTERM of pid 7: released, 1.0 GiB came back in 2 s; then SIGTERM of pid 7: refused, 1.0 GiB came back in 2 s"
    )
    assert notes("refused").last_action_text("f", "", "").startswith("SIGTERM of pid 7: refused")
