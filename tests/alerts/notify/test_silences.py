"""Silences: what is taken, what is refused, how long it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.matchers import parse_matcher
from gpuagent_alerts.notify.silences import KEPT_SECONDS, MAX_SILENCES, Acks, Silences, SilenceState
from gpuagent_alerts.store.database import Store
from tests.alerts.messages import alert

LABELS = {"alertname": "GpuLost", "gpu": "0"}


def test_a_silence_survives_a_restart(tmp_path: Path) -> None:
    """With all that was said, regular expressions and odd characters included."""
    clock, store = ManualClock(), Store(tmp_path / "alerts.db")
    made = Silences(store, clock).add(
        [parse_matcher('alertname=~"Gpu.*"'), parse_matcher('unit!="a\\"b\\\\\\n"')],
        600.0,
        comment="é",
        creator="alice",
    )
    store.close()
    store = Store(tmp_path / "alerts.db")
    again = Silences(store, clock)

    assert again.all() == [made]
    assert again.silencing(LABELS) == [made]
    store.close()


def test_its_time_decides() -> None:
    """Pending before it, active in it, expired after it; all by the wall clock."""
    clock = ManualClock()
    silences = Silences(Store(None), clock)
    begin = clock.wall() + 60.0
    one = silences.add([parse_matcher('gpu="0"')], 60.0, comment="", creator="a", starts_at=begin)
    seen = []
    for _ in range(3):
        seen.append((one.state(clock.wall()), bool(silences.silencing(LABELS))))
        clock.advance(60.0)

    assert seen == [(SilenceState.PENDING, False), (SilenceState.ACTIVE, True), (SilenceState.EXPIRED, False)]


def test_ending_one_is_kept(tmp_path: Path) -> None:
    """It is expired from then on, also after a restart; a second time changes nothing, an unknown id is an error."""
    clock, store = ManualClock(), Store(tmp_path / "alerts.db")
    silences = Silences(store, clock)
    made = silences.add([parse_matcher('gpu="0"')], 600.0, comment="", creator="a")
    clock.advance(10.0)
    ended = silences.expire(made.id)
    clock.advance(10.0)

    assert (silences.expire(made.id), ended.ends_at) == (ended, made.starts_at + 10.0)
    store.close()
    store = Store(tmp_path / "alerts.db")
    assert Silences(store, clock).all() == [ended]
    with pytest.raises(KeyError):
        silences.expire("nonesuch")
    store.close()


def test_old_ones_are_forgotten() -> None:
    """Five days after its end, as in Alertmanager."""
    clock = ManualClock()
    silences = Silences(Store(None), clock)
    silences.add([parse_matcher('gpu="0"')], 60.0, comment="", creator="a")
    clock.advance(KEPT_SECONDS + 59.0)
    silences.prune()
    kept = len(silences.all())
    clock.advance(2.0)
    silences.prune()

    assert (kept, silences.all()) == (1, [])


@pytest.mark.parametrize(
    ("texts", "seconds", "comment", "why"),
    [
        ([], 60.0, "", "needs a matcher"),
        (['gpu=~".*"'], 60.0, "", "name one with a value"),
        (['gpu=""', 'unit!="x"'], 60.0, "", "name one with a value"),
        (['gpu=~"("'], 60.0, "", "RE2"),
        (['gpu="0"'], 0.0, "", "last for some time"),
        (['gpu="0"'], float("inf"), "", "last for some time"),
        (['gpu="0"'], float("nan"), "", "last for some time"),
        (['gpu="0"'], 60.0, "x" * 1001, "at most 1000 characters"),
        ([f'gpu="{"x" * 1000}"'], 60.0, "", "at most 1000 characters"),
        (['gpu="0"'] * 51, 60.0, "", "at most 50 matchers"),
    ],
)
def test_what_cannot_be_meant_is_refused(texts: list[str], seconds: float, comment: str, why: str) -> None:
    """In words for the person who asked; nothing is kept."""
    silences = Silences(Store(None), ManualClock())
    with pytest.raises(ValueError, match=why):
        silences.add([parse_matcher(text) for text in texts], seconds, comment=comment, creator="a")

    assert silences.all() == []


def test_their_number_is_bounded() -> None:
    """A script that goes wrong must not fill the disk, or slow down every tick."""
    silences = Silences(Store(None), ManualClock())
    for _ in range(MAX_SILENCES):
        silences.add([parse_matcher('gpu="0"')], 60.0, comment="", creator="a")
    with pytest.raises(ValueError, match="1000 silences already"):
        silences.add([parse_matcher('gpu="0"')], 60.0, comment="", creator="a")


def test_an_acknowledgement_survives_a_restart(tmp_path: Path) -> None:
    """With who and why; taken back, it is gone."""
    clock, store = ManualClock(), Store(tmp_path / "alerts.db")
    made = Acks(store, clock).add(alert(), comment="on it\ud800", creator="alice")
    store.close()
    store = Store(tmp_path / "alerts.db")
    acks = Acks(store, clock)

    assert acks.all() == [made]
    assert alert().fingerprint in acks
    assert (acks.remove(alert().fingerprint), acks.remove(alert().fingerprint)) == (True, False)
    assert Acks(store, clock).all() == []
    with pytest.raises(ValueError, match="at most 1000"):
        acks.add(alert(), comment="x" * 1001, creator="alice")
    store.close()
