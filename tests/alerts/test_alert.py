"""Which texts of a rule are said of an alert in which state."""

from __future__ import annotations

from dataclasses import replace

from gpuagent_alerts.alert import resolved_summary, shown_annotations
from tests.alerts.messages import SHOWN, SHOWN_ENDED, alert


def test_what_fires_has_the_texts_of_firing() -> None:
    """Nothing of a pending or an ended alert is told of one that fires."""
    assert shown_annotations(alert()) == SHOWN


def test_what_ended_has_what_was_and_why_it_is_over() -> None:
    """A resolve never repeats summary, description or reasons of the time before; links stay."""
    ended = alert(ended=True)
    ended = replace(ended, annotations={**ended.annotations, "reasons": "the floor rises"})

    assert shown_annotations(ended) == SHOWN_ENDED


def test_a_rule_without_these_texts() -> None:
    """The defaults are true for any rule, whatever ended it."""
    bare = replace(alert(ended=True), annotations={"summary": "Full now."}, end_reason="")

    assert resolved_summary(bare) == "GpuLost has ended: no longer true"
    assert shown_annotations(bare) == {"summary": "GpuLost has ended: no longer true"}
