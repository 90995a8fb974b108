"""What is told, when, and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent_alerts.alert import Alert, CauseKind, Status
from gpuagent_alerts.notify.outbox.eviction import OutboxBounds
from gpuagent_alerts.notify.receivers.pagerduty import dedup_key
from gpuagent_alerts.notify.routes import Recipient, Routes
from gpuagent_alerts.notify.state import MAX_ALERTS
from gpuagent_alerts.store.problem import StoreFailure
from tests.alerts.messages import NOW, alert
from tests.alerts.notify.parts import Desk, route
from tests.alerts.store.test_database import fill

AM = Recipient("am", one_by_one=True, everything=True, repeat_seconds=60.0, resolved_for_seconds=300.0)
HOUR = 3600.0


def gpu(number: int, *, ended: bool = False, name: str = "GpuMemoryHigh") -> Alert:
    """An alert about one GPU."""
    return alert(name, gpu=str(number), uuid=f"GPU-{number}", ended=ended)


NOTES_AND_HOOK = (Recipient("notes"), Recipient("hook"))


def test_once_when_it_begins_and_once_when_it_ends() -> None:
    """Between the two, nothing, until a repeat is due."""
    desk = Desk()

    assert desk.tick(gpu(0)) == ["hook: +GpuMemoryHigh/0"]
    assert desk.tick(gpu(0)) == []
    assert desk.tick(gpu(0, ended=True)) == ["hook: -GpuMemoryHigh/0"]
    assert desk.tick(gpu(0, ended=True)) == []
    assert desk.tick() == []


def test_it_is_repeated_at_its_interval() -> None:
    """After four hours if the route says nothing else; each repeat counts from the last message."""
    desk = Desk()
    desk.tick(gpu(0))

    assert desk.tick(gpu(0), seconds=4 * HOUR - 10) == []
    assert desk.tick(gpu(0), seconds=10) == ["hook: +GpuMemoryHigh/0"]
    assert desk.tick(gpu(0), seconds=4 * HOUR - 10) == []


@pytest.mark.parametrize("seconds", [-86400.0, 86400.0])
def test_setting_the_clock_repeats_nothing(seconds: float) -> None:
    """The wall clock jumps; a repeat is due when its time has passed, not when a clock says so."""
    desk = Desk()
    desk.tick(gpu(0))
    desk.clock.step(seconds)

    assert desk.tick(gpu(0)) == []
    assert desk.tick(gpu(0), seconds=4 * HOUR) == ["hook: +GpuMemoryHigh/0"]


def test_a_restart_tells_nothing_again_and_forgets_no_end(tmp_path: Path) -> None:
    """ALERT-08: no second firing after a restart, and the resolve is still sent."""
    desk = Desk(path=tmp_path / "alerts.db")
    desk.tick(gpu(0), gpu(1))
    desk.restart()
    first = desk.tick(gpu(0), gpu(1))
    desk.restart()

    assert first == []
    assert desk.tick(gpu(0)) == ["hook: -GpuMemoryHigh/1"]  # that it ended was seen by nobody
    desk.restart()
    assert desk.tick(gpu(0), seconds=4 * HOUR) == ["hook: +GpuMemoryHigh/0"]


def test_a_resolve_tells_what_was_told(tmp_path: Path) -> None:
    """Labels and beginning as told, annotations as they were last, the end as it was; the node's name is in it."""
    desk = Desk(path=tmp_path / "alerts.db")
    desk.tick(gpu(0))
    desk.restart()
    ended = replace(gpu(0, ended=True), annotations={"summary": "97 %"}, starts_at=1.0, ends_at=NOW + 1)
    desk.clock.advance(5)
    desk.notifier.notify([ended])
    (entry,) = desk.outbox.take_due("hook")
    (told,) = entry.message.alerts

    assert told.labels == {**gpu(0).labels, "instance": "node7"}
    assert (told.annotations, told.starts_at, told.ends_at) == ({"summary": "97 %"}, gpu(0).starts_at, NOW + 1)


def test_who_does_not_want_ends_is_not_told_of_them() -> None:
    """send_resolved: false; the next beginning is told as one."""
    desk = Desk(recipients=[Recipient("hook", send_resolved=False)])
    desk.tick(gpu(0))

    assert desk.tick(gpu(0, ended=True)) == []
    assert desk.tick(gpu(0)) == ["hook: +GpuMemoryHigh/0"]


def test_a_group_shares_its_messages() -> None:
    """Every message of a group has all that fires in it, and what has just ended."""
    desk = Desk(routes=[route("hook", group_by=["alertname"])])

    assert desk.tick(gpu(0), gpu(1)) == ["hook: +GpuMemoryHigh/0 +GpuMemoryHigh/1"]
    assert desk.tick(gpu(0), gpu(1), gpu(2, name="GpuXidCritical")) == ["hook: +GpuXidCritical/2"]
    assert desk.tick(gpu(0), gpu(1, ended=True)) == [
        "hook: -GpuMemoryHigh/1 +GpuMemoryHigh/0",
        "hook: -GpuXidCritical/2",
    ]
    assert desk.tick(gpu(0), gpu(3)) == ["hook: +GpuMemoryHigh/3 +GpuMemoryHigh/0"]
    assert desk.tick() == ["hook: -GpuMemoryHigh/0 -GpuMemoryHigh/3"]


@pytest.mark.parametrize(("severity", "ticks"), [("warning", 4), ("critical", 1)])
def test_what_is_new_waits_for_others_of_its_group(severity: str, ticks: int) -> None:
    """A route's `group_wait` holds for groups by labels too; what is critical waits 5 s, and an end for nothing."""
    desk = Desk(routes=[route("hook", group_by=["alertname"], wait=20.0)])
    began = desk.clock.wall() + 5.0

    def high(number: int, *, ended: bool = False) -> Alert:
        one = gpu(number, ended=ended)
        return replace(one, labels={**one.labels, "severity": severity}, starts_at=began)

    for _ in range(ticks):
        assert desk.tick(high(0), high(1)) == []
    assert desk.tick(high(0), high(1)) == ["hook: +GpuMemoryHigh/0 +GpuMemoryHigh/1"]
    assert desk.tick(high(0), high(1, ended=True)) == ["hook: -GpuMemoryHigh/1 +GpuMemoryHigh/0"]


def test_stricter_evidence_does_not_wait_anew() -> None:
    """A leak that is told as `strict` by the end of its wait has waited since it was `balanced`."""
    desk = Desk(routes=[route("hook", group_by=["alertname"], wait=20.0)])
    began = desk.clock.wall() + 5.0
    balanced, strict = (
        alert("GpuProcessMemoryLeak", gpu="0", uuid="GPU-0", pid="7", severity="warning", evidence=evidence)
        for evidence in ("balanced", "strict")
    )
    balanced, strict = replace(balanced, starts_at=began), replace(strict, starts_at=began + 15.0)
    for _ in range(3):
        assert desk.tick(balanced) == []
    assert desk.tick(balanced, strict) == []
    assert desk.tick(balanced, strict) == ["hook: +GpuProcessMemoryLeak/0"]


def test_one_leak_is_one_message() -> None:
    """A stricter standard is seen with the next message, and is none of its own; an Alertmanager hears of each."""
    balanced, strict = (alert("Leak", gpu="0", pid="7", evidence=one) for one in ("balanced", "strict"))
    desk = Desk(recipients=[Recipient("hook"), AM])

    assert desk.tick(balanced) == ["hook: +Leak/0", "am: +Leak/0"]
    assert desk.tick(balanced, strict) == ["am: +Leak/0"]
    assert desk.tick(balanced, strict) == []
    assert desk.tick(balanced, strict, seconds=4 * HOUR)[0] == "hook: +Leak/0 +Leak/0"
    ended = [replace(one, status=Status.RESOLVED, ends_at=NOW + 15) for one in (balanced, strict)]
    assert [one for one in desk.tick(*ended) if one.startswith("hook")] == ["hook: -Leak/0 -Leak/0"]


def test_a_route_for_strict_evidence_is_told_when_it_is_met() -> None:
    """That somebody else was told of the leak before, by a lower standard, keeps it from nobody."""
    routes = [route("hook"), route("pager", match=['evidence="strict"'])]
    desk = Desk(routes=routes, recipients=[Recipient("hook"), Recipient("pager")])
    balanced, strict = (alert("Leak", gpu="0", pid="7", evidence=one) for one in ("balanced", "strict"))

    assert desk.tick(balanced) == ["hook: +Leak/0"]
    assert desk.tick(balanced, strict) == ["pager: +Leak/0"]


def test_a_group_that_is_too_large_is_told_bit_by_bit() -> None:
    """A message has a bounded number of alerts; what is new beyond that comes with the next one, none is left out."""
    desk = Desk(routes=[route("hook", group_by=["alertname"])])
    many = [gpu(number) for number in range(2 * MAX_ALERTS + 50)]
    rounds = [desk.tick(*many) for _ in range(4)]
    ends = [desk.tick(many[-1]) for _ in range(4)]

    told = [message.split()[1:] for messages in rounds for message in messages]
    ended = [one for messages in ends for message in messages for one in message.split() if one.startswith("-")]
    assert all(len(alerts) <= MAX_ALERTS for alerts in told)
    assert len({one for alerts in told for one in alerts}) == len(many)
    assert len(ended) == len(set(ended)) == len(many) - 1
    assert all("+" in message for messages in ends for message in messages)  # the group goes on firing, and says so


def test_a_silence_keeps_what_is_new_from_being_told() -> None:
    """Silenced from beginning to end: nothing, not even the end. When the silence ends first: it is told then."""
    desk = Desk()
    silence = desk.silence('gpu="0"')

    assert desk.tick(gpu(0)) == []
    assert desk.tick(gpu(0, ended=True)) == []
    assert desk.tick(gpu(0), gpu(1)) == ["hook: +GpuMemoryHigh/1"]
    desk.silences.expire(silence)
    assert desk.tick(gpu(0), gpu(1)) == ["hook: +GpuMemoryHigh/0"]


def test_an_end_during_a_silence_is_told_if_the_beginning_was() -> None:
    """A silence stops repeats; it leaves nothing open that was told before it."""
    desk = Desk()
    desk.tick(gpu(0))
    desk.silence('gpu="0"', seconds=12 * HOUR)

    assert desk.tick(gpu(0), seconds=5 * HOUR) == []
    assert desk.tick(gpu(0, ended=True)) == ["hook: -GpuMemoryHigh/0"]


def test_an_acknowledgement_stops_repeats_until_the_end() -> None:
    """Somebody is at it; the end is told all the same, and the next time counts as new."""
    desk = Desk()
    desk.tick(gpu(0))
    desk.acks.add(gpu(0), comment="draining", creator="alice")

    assert desk.tick(gpu(0), seconds=5 * HOUR) == []
    assert desk.tick(gpu(0, ended=True)) == ["hook: -GpuMemoryHigh/0"]
    assert desk.acks.all() == []
    desk.tick(gpu(0))
    assert desk.tick(gpu(0), seconds=5 * HOUR) == ["hook: +GpuMemoryHigh/0"]


def test_a_lost_gpu_mutes_what_is_about_it() -> None:
    """Built in: its loss and what caused it are one incident; the rest is told if it goes on when the GPU is back."""
    desk = Desk()
    lost, xid = gpu(0, name="GpuLost"), gpu(0, name="GpuXidCritical")
    blind = gpu(0, name="GpuMonitorBlind")

    assert desk.tick(gpu(0), gpu(1), lost, blind, xid) == [
        "hook: +GpuMemoryHigh/1",
        "hook: +GpuLost/0 +GpuXidCritical/0",
    ]
    assert desk.tick(gpu(0), gpu(1), blind, xid) == []
    assert desk.tick(gpu(0), gpu(1), xid) == ["hook: +GpuMemoryHigh/0"]
    assert desk.tick(gpu(0), gpu(1)) == ["hook: -GpuLost/0 -GpuXidCritical/0"]


def test_an_alertmanager_is_kept_informed() -> None:
    """Every minute while it fires, and for five minutes after its end; one alert a message."""
    desk = Desk(recipients=[AM])
    told = [desk.tick(gpu(0), seconds=30.0) for _ in range(5)]
    ended = [desk.tick(gpu(0, ended=True), seconds=60.0) for _ in range(8)]

    assert told == [["am: +GpuMemoryHigh/0"], [], ["am: +GpuMemoryHigh/0"], [], ["am: +GpuMemoryHigh/0"]]
    assert ended == [["am: -GpuMemoryHigh/0"]] * 5 + [[]] * 3


@pytest.mark.parametrize("how", ["silence", "ack", "mute"])
def test_an_alertmanager_is_kept_informed_whatever_people_say_here(how: str) -> None:
    """It would take our silence for the end, and tell everybody so."""
    desk = Desk(recipients=[AM])
    desk.tick(gpu(0))
    lost = [gpu(0, name="GpuLost")] if how == "mute" else []
    if how == "silence":
        desk.silence('alertname="GpuMemoryHigh"')
    elif how == "ack":
        desk.acks.add(gpu(0), comment="", creator="alice")
    desk.tick(gpu(0), *lost)

    assert "am: +GpuMemoryHigh/0" in desk.tick(gpu(0), *lost, seconds=60)
    assert "am: +GpuMemoryHigh/0" in desk.tick(gpu(0), *lost, seconds=60)
    assert "am: -GpuMemoryHigh/0" in desk.tick(*lost)


def test_what_an_alertmanager_does_not_know_may_be_silenced() -> None:
    """What began during the silence is not told there either, until the silence has ended."""
    desk = Desk(recipients=[AM])
    desk.silence('gpu="0"', seconds=120.0)

    assert desk.tick(gpu(0)) == desk.tick(gpu(0), seconds=60) == []
    assert desk.tick(gpu(0), seconds=60) == ["am: +GpuMemoryHigh/0"]


def test_open_is_what_somebody_takes_for_firing() -> None:
    """From the first message that tells of it to the one that tells of its end."""
    desk = Desk()
    fingerprint = gpu(0).fingerprint
    desk.silence('gpu="1"')
    desk.tick(gpu(0), gpu(1))

    assert desk.notifier.is_open(fingerprint)
    assert not desk.notifier.is_open(gpu(1).fingerprint)
    desk.tick(gpu(0, ended=True))
    assert not desk.notifier.is_open(fingerprint)


def test_at_alertmanager_an_alert_may_begin_again_while_its_end_is_repeated() -> None:
    """The new beginning is told at once and has its own time."""
    desk = Desk(recipients=[AM])
    desk.tick(gpu(0))
    desk.tick(gpu(0, ended=True))
    again = replace(gpu(0), starts_at=NOW + 500)
    desk.clock.advance(5)
    desk.notifier.notify([again])
    (entry,) = desk.outbox.take_due("am")

    assert [(one.starts_at, one.ends_at) for one in entry.message.alerts] == [(NOW + 500, None)]


def test_a_new_route_leaves_nothing_open() -> None:
    """An alert that is routed elsewhere from now on is resolved where it was told, once it has ended."""
    desk = Desk(routes=[route("hook")], recipients=[Recipient("hook"), Recipient("ops")])
    desk.tick(gpu(0))
    desk.notifier.routes = Routes(
        [route("ops"), route("hook", match=['gpu="9"'])], [Recipient("hook"), Recipient("ops")]
    )

    assert desk.tick(gpu(0)) == ["ops: +GpuMemoryHigh/0"]
    assert desk.tick(gpu(0, ended=True)) == ["hook: -GpuMemoryHigh/0", "ops: -GpuMemoryHigh/0"]


def test_a_receiver_that_is_gone_is_forgotten() -> None:
    """Its state goes with it: when it comes back, it is told what fires then."""
    desk = Desk()
    desk.tick(gpu(0))
    routes = desk.notifier.routes
    desk.notifier.routes = Routes([], [])
    desk.tick(gpu(0))
    desk.notifier.routes = routes

    assert desk.tick(gpu(0)) == ["hook: +GpuMemoryHigh/0"]


def test_what_could_not_be_kept_is_told_the_next_time(tmp_path: Path) -> None:
    """A full disk costs one tick: the next one, in memory then, tells it."""
    desk = Desk(path=tmp_path / "alerts.db")
    fill(desk.store, 0)
    many = [gpu(number) for number in range(50)]
    with pytest.raises(StoreFailure):
        desk.tick(*many)

    assert len(desk.tick(*many)) == 50
    assert desk.tick(*many) == []


def test_a_beginning_that_had_to_be_dropped_has_no_end() -> None:
    """There was no room: the receiver knows nothing of it, so its end is not told; a repeat tells it as new."""
    desk = Desk(bounds=OutboxBounds(rows=1))
    desk.clock.advance(5)
    desk.notifier.notify([gpu(0), gpu(1)])

    assert desk.deliver() == ["hook: +GpuMemoryHigh/1"]
    assert desk.tick(gpu(1), gpu(0, ended=True)) == []
    desk.notifier.notify([gpu(1), gpu(2), gpu(3)])
    assert desk.deliver() == ["hook: +GpuMemoryHigh/3"]
    assert desk.tick(gpu(2), seconds=5 * HOUR) == ["hook: -GpuMemoryHigh/3"]  # one place: the end has it
    assert desk.tick(gpu(2), seconds=5 * HOUR) == ["hook: +GpuMemoryHigh/2"]
    assert desk.tick() == ["hook: -GpuMemoryHigh/2"]


def test_two_nodes_have_two_incidents() -> None:
    """The node is in the key of an incident, which is PagerDuty's, too; and in every label set."""
    keys = set()
    for node in ("node7", "node8"):
        desk = Desk(node=node)
        desk.notifier.notify([alert("GpuCountDropped")])
        (entry,) = desk.outbox.take_due("hook")
        keys.add(dedup_key(entry.message))
        assert entry.message.alerts[0].labels["instance"] == node

    assert len(keys) == 2


def test_labels_of_any_length_name_a_group() -> None:
    """The name of a group is bounded, and two long ones are still two."""
    desk = Desk(routes=[route("hook", group_by=["command"])])
    desk.notifier.notify([alert(command="x" * 5000 + end) for end in ("a", "b", "é")])
    taken = desk.outbox.take_due("hook", 9)

    assert len(taken) == 3
    assert all(len(one.message.group) < 500 for one in taken)


def test_a_remedy_that_acted_is_told_and_a_dry_run_is_not() -> None:
    """That a process was killed is told with the end of what it was killed for; what would have been done is not."""
    leak = alert("GpuProcessMemoryLeak", pid="7", uuid="GPU-0")
    dry = alert("GpuRemedy", pid="7", uuid="GPU-0", result="dry_run", dry_run="true")
    done = alert("GpuRemedy", pid="7", uuid="GPU-0", result="released", dry_run="false")
    desk = Desk()

    assert desk.tick(dry) == []
    assert desk.tick(leak, dry) == ["hook: +GpuProcessMemoryLeak/0 +GpuRemedy/0"]
    assert desk.tick(done) == ["hook: -GpuProcessMemoryLeak/0 -GpuRemedy/0 -GpuRemedy/0"]
    assert desk.tick(done) == desk.tick() == []


def test_a_remedy_for_a_full_gpu_is_told_with_that() -> None:
    """The GPU being full and what was done about it are one incident, which stays that of the GPU and ends once."""
    full = alert("GpuMemoryFull", uuid="GPU-0")
    done = alert("GpuRemedy", pid="7", uuid="GPU-0", result="released", dry_run="false")
    desk = Desk()

    assert desk.tick(full) == ["hook: +GpuMemoryFull/0"]
    assert desk.tick(full, done) == ["hook: +GpuRemedy/0 +GpuMemoryFull/0"]
    assert [one.kind for one in desk.notifier.incidents.values()] == [CauseKind.GPU]
    assert desk.tick(done) == ["hook: -GpuMemoryFull/0 -GpuRemedy/0"]
    assert desk.tick(done) == desk.tick() == []


def test_a_receiver_of_remedies_alone_hears_of_each() -> None:
    """Whoever is told of nothing but what was done is told of it, also when what it was done for is over."""
    leak = alert("GpuProcessMemoryLeak", pid="7", uuid="GPU-0")
    done = alert("GpuRemedy", pid="7", uuid="GPU-0", result="released", dry_run="false")
    notes = route("notes", match=['alertname="GpuRemedy"'])
    desk = Desk(routes=[notes, route("hook", match=['alertname!="GpuRemedy"'])], recipients=NOTES_AND_HOOK)

    assert desk.tick(leak) == ["hook: +GpuProcessMemoryLeak/0"]
    assert desk.tick(done) == ["notes: +GpuRemedy/0", "hook: -GpuProcessMemoryLeak/0"]
    assert desk.tick(done) == []
    assert desk.tick() == ["notes: -GpuRemedy/0"]
