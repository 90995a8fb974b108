"""What a remedy did, as the end of an alert about its process tells it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.remedies.history import SHOWN_SECONDS, RemedyHistory

UUID = "GPU-00000000"


def notes(result: str = "released", *, dry_run: bool = False, clock: ManualClock | None = None) -> RemedyHistory:
    """Notes of one run that has just ended, as the record has it."""
    clock = clock or ManualClock()
    run: dict[str, Any] = {
        "id": "run-1", "gpu": 0, "gpu_uuid": UUID, "pid": 7, "name": "serve", "user": "ml", "unit": "serve.service",
        "dry_run": dry_run, "ladder": ["SIGTERM"], "steps": [], "fingerprint": "f",
        "end": {
            "result": result, "step": "SIGTERM", "time_seconds": clock.wall(), "released_bytes": 2**30, "seconds": 2.0,
        },
    }  # fmt: skip
    made = RemedyHistory(clock)
    made.restore([run])
    return made


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
