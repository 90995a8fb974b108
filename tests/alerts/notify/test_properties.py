"""What holds of everything that a receiver is told, whatever happens."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.notify.outbox.attempt import DELIVERED, DeliveryOutcome, Reason
from gpuagent_alerts.notify.routes import Recipient
from tests.alerts.messages import alert
from tests.alerts.notify.parts import Desk, route

GPUS = ("0", "1", "2")
CALM_SECONDS = 1801.0
"""After this the end of what began again and again is told."""
HOOK, QUIET = Recipient("hook"), Recipient("grouped")


class Story(RuleBasedStateMachine):
    """Alerts come and go, are silenced and acknowledged; receivers fail; the process restarts; clocks jump."""

    @initialize()
    def begin(self) -> None:
        routes = [route("hook", repeat=60.0), route("grouped", group_by=["alertname"], repeat=60.0)]
        self.desk = Desk(routes=routes, recipients=[HOOK, QUIET])
        self.firing: set[str] = set()
        self.ended: set[str] = set()
        self.heard: dict[str, set[str]] = {"hook": set(), "grouped": set()}

    def alerts(self) -> list[Alert]:
        gone = self.ended - self.firing
        return [alert(gpu=g) for g in sorted(self.firing)] + [alert(gpu=g, ended=True) for g in sorted(gone)]

    @rule(gpus=st.sets(st.sampled_from(GPUS)), seconds=st.sampled_from([1.0, 5.0, 70.0]))
    def evaluate(self, gpus: set[str], seconds: float) -> None:
        self.ended |= self.firing - gpus
        self.firing = gpus
        self.desk.clock.advance(seconds)
        notifier = self.desk.notifier
        due = notifier.is_due({each.fingerprint: each.holds for each in self.alerts() if each.status is Status.FIRING})
        before = self.desk.store.changes
        told = notifier.notify(self.alerts())
        assert due or (told, self.desk.store.changes) == (0, before), "nobody would have looked"

    @rule(receiver=st.sampled_from(["hook", "grouped"]), ok=st.booleans())
    def deliver(self, receiver: str, ok: bool) -> None:
        taken = self.desk.outbox.take_due(receiver, 1)
        self.desk.outbox.record_outcome(taken, DELIVERED if ok else DeliveryOutcome(Reason.UNREACHABLE))
        for one in taken if ok else ():
            self.hear(receiver, one.message)

    def hear(self, receiver: str, message: Message) -> None:
        heard = self.heard[receiver]
        for one in message.alerts:
            if one.status is Status.FIRING:
                heard.add(one.labels["gpu"])
            else:
                begun = message.tells_beginning or one.labels["gpu"] in heard
                assert begun, "an end without a beginning"
                heard.discard(one.labels["gpu"])

    @rule(gpu=st.sampled_from(GPUS), seconds=st.sampled_from([3.0, 200.0]))
    def silence(self, gpu: str, seconds: float) -> None:
        self.desk.silence(f'gpu="{gpu}"', seconds=seconds)

    @rule(gpu=st.sampled_from(GPUS))
    def acknowledge(self, gpu: str) -> None:
        if gpu in self.firing:
            self.desk.acks.add(alert(gpu=gpu), comment="", creator="a")

    @rule(seconds=st.floats(-1e5, 1e5))
    def set_clock(self, seconds: float) -> None:
        self.desk.clock.step(seconds)

    @rule()
    def restart(self) -> None:
        self.desk.begin()

    @rule()
    def forget_ended(self) -> None:
        self.ended.clear()

    def teardown(self) -> None:
        """When all is delivered, unsilenced and calm, every receiver knows what fires, and nothing else."""
        if not hasattr(self, "desk"):
            return
        for silence in self.desk.silences.all():
            self.desk.silences.expire(silence.id)
        for later in (1.0, CALM_SECONDS):
            self.desk.clock.advance(later)
            self.desk.notifier.notify(self.alerts())
        for receiver in self.heard:
            while (seconds := self.desk.outbox.seconds_until_due(receiver)) is not None:
                self.desk.clock.advance(seconds)
                taken = self.desk.outbox.take_due(receiver, 1)
                self.desk.outbox.record_outcome(taken, DELIVERED)
                for queued in taken:
                    self.hear(receiver, queued.message)
        assert self.heard == {"hook": self.firing, "grouped": self.firing}
        self.desk.store.close()


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=60, stateful_step_count=30)


def test_an_incident_that_ended_unheard_is_written_once() -> None:
    """Nothing is written at an evaluation at which nothing is due, after a silence outlived its alert."""
    story = Story()
    story.begin()
    story.silence(gpu="0", seconds=3.0)
    for gpus, seconds in (({"0"}, 1.0), (set[str](), 5.0), (set[str](), 1.0)):
        story.evaluate(gpus=gpus, seconds=seconds)
    story.teardown()
