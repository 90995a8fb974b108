"""What somebody is at: its message is kept true without calling anybody anew."""

from __future__ import annotations

from pathlib import Path

from gpuagent.core.growth import Evidence
from gpuagent_alerts.notify.routes import Recipient
from tests.agent.service.alerting.stage import Stage, grown, leaking
from tests.fakes.readings import gpu, process, snapshot

LEAK = grown(snapshot([gpu(0)], [process(7)]), 7, leaking(Evidence.BALANCED))
WORSE = grown(snapshot([gpu(0)], [process(7)]), 7, leaking(Evidence.BALANCED, full_in=10_000.0))
CRITICAL = grown(snapshot([gpu(0, used_gib=23.9)], [process(7)]), 7, leaking(Evidence.BALANCED, full_in=0.0))


def acknowledged(path: Path, recipient: Recipient) -> Stage:
    """A leak that was told, and that somebody is at."""
    stage = Stage(path / "state.db", recipients=(recipient,))
    stage.show(LEAK, 60.0)
    assert stage.told() == ["began warning: ProcessMemoryLeak[balanced]/0"]
    (key,) = stage.keys()
    stage.acks.add_incident(key, comment="", creator="alice")
    return stage


def test_a_bot_rewrites_the_head(tmp_path: Path) -> None:
    """Worse of the same severity and better again are written over; a higher severity is told as ever."""
    stage = acknowledged(tmp_path, Recipient("slack", updates_quietly=True))
    stage.show(CRITICAL, 120.0)
    assert [one.news for one in stage.heard] == ["began", "worsened"]
    stage.show(LEAK, 1200.0)
    assert [(one.news, one.severity) for one in stage.heard[2:]] == [("updated", "warning")], stage.told()
    stage.show(LEAK, 600.0)
    assert len(stage.heard) == 3


def test_who_would_be_called_is_not_told(tmp_path: Path) -> None:
    """A receiver that can only post hears nothing of it."""
    stage = acknowledged(tmp_path, Recipient("hook"))
    stage.show(CRITICAL, 120.0)
    stage.show(LEAK, 1200.0)
    assert [one.news for one in stage.heard] == ["began", "worsened"]
