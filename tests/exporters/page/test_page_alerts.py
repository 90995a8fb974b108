"""Alerts and remedies on the page."""

from __future__ import annotations

from typing import Any

from gpuagent.core.units import GIB
from gpuagent_exporters.page import page
from tests.exporters.page.test_page import HOSTILE, Page
from tests.fakes.source import status_document

NOW = 1_700_000_000.0

Document = dict[str, Any]


def alert(**changes: Any) -> Document:
    """A leak that fires, with `changes`."""
    return {
        "name": "GpuProcessMemoryLeak", "state": "firing", "severity": "warning", "fingerprint": "f00d",
        "labels": {"gpu": "0", "pid": "4242"}, "annotations": {"summary": "python3 (alice) leaks memory"},
        "value": 1.0, "active_seconds": 300.0, "silenced_by": [], "muted_by": "", "acknowledged_by": "",
    } | changes  # fmt: skip


def remedy(**changes: Any) -> Document:
    """A process that was ended, with `changes`."""
    end = {"result": "released", "released_bytes": 5 * GIB, "seconds": 4.0, "detail": "SIGTERM to alice's job"}
    return {
        "id": "r1", "time_seconds": NOW - 600, "alertname": "GpuProcessMemoryLeak", "asked_by": "", "pid": 4242,
        "name": "python3", "gpu": 0, "used_bytes": 6 * GIB, "dry_run": False, "steps": [], "end": end,
    } | changes  # fmt: skip


def drawn(
    alerts: list[Document] | None = None,
    remedies: list[Document] | None = None,
    *,
    hidden: bool = False,
    **more: Any,
) -> Page:
    """A page with these, and with further keys of both documents."""
    told = page.PageData(
        status_document(processes=[]),
        {"alerts": alerts or [], "time_seconds": NOW, **more},
        {"remedies": remedies or [], "stopped": "", "dry_run": False, **more},
        hidden=hidden,
    )
    return Page(page.render(told))


def test_an_alert_in_words() -> None:
    """State, severity, place, age and the text that a receiver would get."""
    text = drawn([alert()]).text

    assert "FIRING GpuProcessMemoryLeak warning · firing for 5 min · GPU 0 · pid 4242" in text
    assert "python3 (alice) leaks memory" in text
    assert "Incidents 1" in text


def test_the_gravest_comes_first_and_pending_last() -> None:
    """What has to be looked at first is on top."""
    several = [alert(name="C", state="pending", severity="critical"), alert(name="B"), alert(severity="critical")]
    text = drawn(several).text

    assert text.index("critical · firing for") < text.index(" B ") < text.index("PENDING")
    assert "Incidents 2 firing, 1 pending" in text
    assert "C is true, fires if it stays so" in text


def test_a_pending_alert_does_not_say_what_is_true_of_a_firing_one() -> None:
    """Neither in its own words nor in the count on top: two that are pending are no `Incidents 0`."""
    waiting = alert(state="pending", active_seconds=20.0, fires_in_seconds=280.0)
    text = drawn([waiting, alert(state="pending", annotations={"pending_summary": "filling up"})]).text

    assert "Incidents 0 firing, 2 pending" in text
    assert "pending for 20 s" in text
    assert "GpuProcessMemoryLeak is true, fires in 4 min 40 s if it stays so" in text
    assert "filling up" in text
    assert "leaks memory" not in text


def test_the_watchdog_is_no_trouble() -> None:
    """What fires all the time, for a machine, is neither listed nor counted as something wrong."""
    text = drawn([alert(name="Watchdog", severity="none")]).text

    assert "Watchdog fires for nobody, which shows that alerting works." in text
    assert "Incidents 0" in text
    assert "FIRING" not in text


def test_why_nobody_hears_of_it() -> None:
    """Silenced, muted and acknowledged alerts fire on, and say why it is quiet."""
    text = drawn([alert(silenced_by=["s1"], muted_by="GpuLost", acknowledged_by="bob")]).text

    assert "silenced · muted by GpuLost · acknowledged by bob" in text


def test_what_is_wrong_with_alerting_itself() -> None:
    """A store that fails, rules that cannot be evaluated and receivers that are off mean that nobody may be told."""
    text = drawn(
        store_problem="disk full",
        failing_rules=[{"rule": "Mine", "group": "g", "error": "e"}],
        receivers=[{"receiver": "chat", "off": "gone (410)"}, {"receiver": "mail", "off": ""}],
    ).text

    assert "STORE: disk full" in text
    assert "RULES: 1 rule cannot be evaluated: Mine" in text
    assert "OFF: the receiver chat is switched off: gone (410)" in text
    assert "mail" not in text


def test_remedies_newest_first_with_what_came_back() -> None:
    """Who, why, when, and whether the memory came back."""
    text = drawn(None, [remedy(), remedy(id="r2", end=None, dry_run=True, time_seconds=NOW)]).text

    assert "RELEASED python3 (pid 4242) on GPU 0, 6.0 GiB: GpuProcessMemoryLeak · 10 min ago" in text
    assert "5.0 GiB came back · in 4 s · SIGTERM to alice's job" in text
    assert text.index("UNDER WAY (dry run)") < text.index("RELEASED")


def test_stopped_remedies_are_said() -> None:
    """A person has to know that nothing will be done any more, and that a dry run does nothing."""
    text = drawn(stopped="3 remedies did not help", dry_run=True).text

    assert "STOPPED: 3 remedies did not help" in text
    assert "Dry run" in text


def test_an_open_address_names_nobody() -> None:
    """Texts of alerts, and who acknowledged or asked, may name users: they are for the trusted."""
    one = alert(acknowledged_by="bob")
    by_hand = remedy(alertname="", asked_by="carol (uid 7)")
    open_to_all, trusted = drawn([one], [by_hand], hidden=True).text, drawn([one], [by_hand]).text

    for name in ("alice", "bob", "carol"):
        assert name in trusted
        assert name not in open_to_all
    assert "acknowledged" in open_to_all


def test_hostile_texts_are_only_text() -> None:
    """Names and texts of alerts and remedies come from processes and rule files: no tag comes out of them."""
    wicked = alert(
        name=HOSTILE, state=HOSTILE, severity=HOSTILE, fingerprint=HOSTILE, labels={"gpu": HOSTILE, "pid": HOSTILE},
        annotations={"summary": HOSTILE}, muted_by=HOSTILE, acknowledged_by=HOSTILE,
    )  # fmt: skip
    done = remedy(id=HOSTILE, name=HOSTILE, alertname=HOSTILE, end={"result": HOSTILE, "detail": HOSTILE})
    both = drawn([wicked], [done], stopped=HOSTILE, store_problem=HOSTILE)

    assert "img" not in both.tags
    assert both.tags.count("script") == 1  # the page's own
    assert both.text.count("<script>alert(1)</script>") >= 8


def test_long_lists_are_cut_and_counted() -> None:
    """The page is bounded, and says what it leaves out."""
    text = drawn([alert(fingerprint=str(n)) for n in range(103)], [remedy(id=str(n)) for n in range(22)]).text

    assert "3 more in /api/v1/alerts" in text
    assert "2 more in /api/v1/remedies" in text


def incident(**changes: Any) -> Document:
    """An incident of one alert, with `changes`."""
    return {
        "key": "inc-1", "kind": "process", "headline": "WARNING node7 GPU 0: python3 (alice) leaking 9.0 GiB/h",
        "labels": {"gpu": "0", "pid": "4242"}, "severity": "warning", "starts_at_seconds": NOW - 600,
        "ends_at_seconds": None, "reopened": 0, "alerts": ["f00d"], "acknowledged_by": "",
    } | changes  # fmt: skip


def test_alerts_stand_below_their_incident() -> None:
    """Its line, its key and since when; what belongs to none follows; what ended in the last day has a line each."""
    over = incident(
        key="inc-2", headline="RESOLVED node7 GPU 1: memory was full: memory back to 2.0 GiB (3 %)",
        ends_at_seconds=NOW - 60,
    )  # fmt: skip
    alone = alert(fingerprint="beef", name="Mine", labels={})
    text = drawn([alone, alert(incident="inc-1")], incidents=[incident(), over]).text

    begins = text.index("WARNING node7 GPU 0: python3 (alice) leaking 9.0 GiB/h")
    assert "inc-1 · warning · began 10 min ago" in text
    assert begins < text.index("FIRING GpuProcessMemoryLeak") < text.index("FIRING Mine") < text.index("Ended in the")
    assert "memory back to 2.0 GiB (3 %) ended 1 min ago, lasted 9 min" in text
    assert "inc-1 · warning · silenced · began 10 min ago" in drawn([], incidents=[incident(silenced=True)]).text


def test_the_count_is_of_incidents() -> None:
    """Several alerts of one incident are one thing to look at; one that has ended is none."""
    ended = incident(key="inc-2", ends_at_seconds=1000.0)
    told = [alert(incident="inc-1"), alert(name="Other", incident="inc-1"), alert(name="Alone")]

    assert "Incidents 2" in drawn(told, incidents=[incident(), ended]).text


def test_an_incident_without_its_line_names_nobody() -> None:
    """An open address is not told the headline, which may name a user: the kind and the GPU are left."""
    shown = incident(headline="", acknowledged_by="hidden")
    text = drawn([alert(incident="inc-1")], incidents=[shown], hidden=True).text
    assert "incident of a process gpu 0 pid 4242" in text
    assert "acknowledged" in text
    assert "alice" not in text


def event(minutes_ago: float, kind: str, **facts: str) -> Document:
    """Something that happened in an incident."""
    nothing = {"severity": "", "alert": "", "receiver": "", "reason": "", "by": ""}
    return {"time_seconds": NOW - 60 * minutes_ago, "event": kind, **nothing, **facts}


def test_an_incident_has_its_timeline() -> None:
    """Began, worsened, told to whom, acknowledged, acted, ended: in this order, with what came of it."""
    events = [
        event(10, "began", severity="warning"),
        event(9, "told", receiver="chat", reason="firing"),
        event(9, "told", receiver="pager", reason="firing"),
        event(8, "worsened", severity="critical", alert="GpuMemoryExhaustionSoon"),
        event(7, "dead", receiver="mail", reason="repeat"),
        event(6, "acknowledged", by="bob"),
        event(1, "ended"),
        event(1, "told", receiver="chat", reason="resolved"),
    ]
    over = incident(timeline=events, ends_at_seconds=NOW - 60)
    done = remedy(time_seconds=NOW - 300, fingerprint="f00d")
    text = drawn(None, [done], incidents=[over]).text
    steps = (
        "10 min ago began warning", "9 min ago told chat, pager",
        "8 min ago worsened critical: GpuMemoryExhaustionSoon",
        "7 min ago not told mail again", "6 min ago acknowledged by bob",
        "5 min ago acted python3 (pid 4242): released, 5.0 GiB came back", "1 min ago ended",
        "1 min ago told chat that it ended",
    )  # fmt: skip
    flat = text.replace("ago", "ago ").replace("  ", " ")
    for word in ("began", "told", "worsened", "acknowledged", "acted", "ended"):
        flat = flat.replace(f"ago {word}", f"ago {word} ").replace("  ", " ")
    flat = flat.replace("ago not told", "ago not told ").replace("  ", " ")
    places = [flat.index(step) for step in steps]
    assert places == sorted(places)
    assert "bob" not in drawn(None, [done], incidents=[over], hidden=True).text


def test_the_incident_of_the_watchdog_is_none() -> None:
    """What fires all the time shows that alerting works, and is no incident to look at."""
    assert "inc-1" not in drawn(incidents=[incident(severity="none")]).text
