"""What an outage held back is told as what it is by then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuagent_alerts.alert import Message, News
from gpuagent_alerts.notify.outbox.attempt import DELIVERED, DeliveryOutcome, MessageContext, Reason
from gpuagent_alerts.notify.outbox.entry import Occasion, OutboxEntry
from gpuagent_alerts.notify.receivers.text import headline
from tests.alerts.incident_messages import BRIEFING, ENDED, about, incident
from tests.alerts.messages import entry
from tests.alerts.notify.outbox.parts import Bench

DOWN = DeliveryOutcome(Reason.UNREACHABLE, "it refused the connection")


def told(bench: Bench, sent: Message) -> str:
    """The line that its receiver sees now."""
    return headline(sent, MessageContext("node7", "", bench.clock.wall()))


def queue(bench: Bench, news: News) -> None:
    """Write a message of an incident."""
    occasion = Occasion.RESOLVED if news is News.ENDED else Occasion.FIRING
    made = replace(about(incident(news)), receiver="hook", id=f"gpa_{news}")
    bench.outbox.enqueue([OutboxEntry(made, occasion)])


def test_a_late_message_says_when_it_was_written(tmp_path: Path) -> None:
    """A forecast of an hour ago is no forecast of now; what comes at once says nothing of the kind."""
    bench = Bench(path=tmp_path / "alerts.db")
    queue(bench, News.BEGAN)
    (first,) = bench.outbox.take_due("hook")
    assert told(bench, first.message) == BRIEFING.headline
    bench.outbox.record_outcome([first], DOWN)
    bench.clock.advance(3600.0)
    (sent,) = bench.drain()
    assert told(bench, sent).startswith(f"{BRIEFING.headline} (written ")
    assert told(bench, sent).endswith(" UTC, 1 h ago)")


def test_what_is_over_when_it_is_told_is_one_message(tmp_path: Path) -> None:
    """The end tells of the beginning, too, also after another failed attempt; nothing of before comes after it."""
    bench = Bench(path=tmp_path / "alerts.db")
    for news in (News.BEGAN, News.WORSENED):
        queue(bench, news)
    bench.attempt(DOWN)
    bench.clock.advance(3000.0)
    queue(bench, News.ENDED)
    bench.attempt(DOWN)
    bench.clock.advance(600.0)
    (sent,) = bench.drain()
    assert sent.incident is not None
    assert sent.incident.news is News.ENDED
    assert told(bench, sent).startswith(f"{ENDED.headline} (from ")
    assert told(bench, sent).endswith(", told late)")


def test_a_beginning_in_time_is_told_before_its_end(tmp_path: Path) -> None:
    """Within two minutes, and where nothing has ended, each message is told by itself."""
    bench = Bench(path=tmp_path / "alerts.db")
    queue(bench, News.BEGAN)
    queue(bench, News.ENDED)
    assert [one.incident.news for one in bench.drain() if one.incident is not None] == [News.BEGAN, News.ENDED]
    bench.outbox.enqueue([entry(group="a")])
    bench.clock.advance(600.0)
    assert bench.attempt(DELIVERED)
