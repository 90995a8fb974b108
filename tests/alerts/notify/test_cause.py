"""Which alerts have one cause, from their labels and what is known of processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from gpuagent.core.hardware import RECOVERY_ACTIONS
from gpuagent_alerts.alert import Alert, CauseKind, Status
from gpuagent_alerts.notify.cause import AT_ONCE, CauseProcess, NoCauseFacts, cause_of
from gpuagent_alerts.notify.urgency import CALM, Action, Urgency, UrgencyStage, load_urgency, urgency_of, worst_severity


@dataclass
class Known(NoCauseFacts):
    """Processes that were seen."""

    programs: dict[tuple[str, int], CauseProcess] = field(default_factory=dict)
    growing: dict[str, CauseProcess] = field(default_factory=dict)
    dead: dict[str, list[CauseProcess]] = field(default_factory=dict)
    lost: Sequence[str] = ()
    blind: bool = False

    def program(self, uuid: str, pid: int) -> CauseProcess | None:
        return self.programs.get((uuid, pid))

    def grower(self, uuid: str, *, leaking: bool, instance: str = "") -> CauseProcess | None:
        return self.growing.get(f"{uuid}/{instance}" if instance else uuid) if leaking else None

    def dead_processes(self, uuid: str) -> Sequence[CauseProcess]:
        return self.dead.get(uuid, [])

    def lost_gpus(self) -> Sequence[Mapping[str, str]]:
        return [{"gpu": "0", "uuid": uuid} for uuid in self.lost]

    def is_blind(self) -> bool:
        return self.blind


RANK = CauseProcess("boot:7:1", 7, ("job:9:1000",), {"process": "python3", "slurm_job": "9"})


def labels(name: str, **more: str) -> dict[str, str]:
    """Labels of an alert about GPU 0."""
    return {"alertname": name, "gpu": "0", "uuid": "a", **more}


@pytest.mark.parametrize(
    ("alert", "kind"),
    [
        (labels("GpuMemoryHigh"), CauseKind.GPU),
        (labels("GpuXidCritical", xid="79"), CauseKind.GPU),
        (labels("Mine"), CauseKind.GPU),
        (labels("GpuProcessMemoryLeak", pid="7"), CauseKind.PROCESS),
        ({"alertname": "GpuCountDropped"}, CauseKind.NODE),
        ({"alertname": "GpuMonitorBlind", "scope": "node"}, CauseKind.NODE),
        ({"alertname": "Mine", "receiver": "slack"}, CauseKind.RECEIVER),
        ({"alertname": "Watchdog"}, CauseKind.RULE),
    ],
)
def test_labels_alone_tell_what_it_happened_to(alert: dict[str, str], kind: CauseKind) -> None:
    """Without a snapshot every alert has a cause."""
    assert cause_of(alert, NoCauseFacts()).kind is kind


def test_memory_belongs_to_who_leaks_on_that_gpu() -> None:
    """A full GPU is the leak's; without a leak it is the GPU's memory, which is not its health."""
    full = labels("GpuMemoryFull")
    of_leak = cause_of(full, Known(growing={"a": RANK}))
    assert (of_leak.kind, of_leak.identity) == (CauseKind.PROCESS, "process:boot:7:1")
    own, health = cause_of(full, NoCauseFacts()), cause_of(labels("GpuLost"), NoCauseFacts())
    assert not set(own.joins) & set(health.brings)


def test_ranks_share_their_job_and_a_pid_that_is_used_again_shares_nothing() -> None:
    """Processes of one job have an identity in common for the same rule; another start is another process."""
    other = CauseProcess("boot:8:1", 8, ("job:9:1000",))
    later = CauseProcess("boot:7:99", 7)
    seen = Known({("a", 7): RANK, ("b", 8): other})
    first = cause_of(labels("GpuProcessMemoryLeak", pid="7"), seen)
    second = cause_of(labels("GpuProcessMemoryLeak", pid="8", uuid="b"), seen)
    idle = cause_of(labels("GpuProcessIdleHoldingMemory", pid="8", uuid="b"), seen)
    again = cause_of(labels("GpuProcessMemoryLeak", pid="7"), Known({("a", 7): later}))

    assert set(second.joins) & set(first.brings) == {"group:job:9:1000:memory"}
    assert not set(idle.joins) & set(first.brings)
    assert not set(again.joins) & set(first.brings)


def test_what_a_dead_process_holds_on_two_gpus_is_one_thing() -> None:
    """Its pid joins them, and finds the incident that it had while it lived."""
    seen = Known(dead={uuid: [CauseProcess("", 7)] for uuid in "ab"})
    one, two = (cause_of(labels("GpuDeadProcessesHoldMemory", uuid=uuid), seen) for uuid in "ab")
    alive = cause_of(labels("GpuProcessMemoryLeak", pid="7"), Known({("a", 7): RANK}))
    assert "pid:7" in set(two.joins) & set(one.brings)
    assert set(one.joins) & set(alive.brings) == {"pid:7"}


def test_a_gpu_less_is_the_lost_gpu_and_blind_gpus_are_the_node() -> None:
    """The driver lists fewer as one is lost; where no GPU can be read, it is not about one of them."""
    lost = cause_of(labels("GpuLost"), NoCauseFacts())
    assert set(cause_of({"alertname": "GpuCountDropped"}, Known(lost=["a"])).joins) & set(lost.brings)
    assert cause_of(labels("GpuMonitorBlind"), Known(blind=True)).kind is CauseKind.NODE


def test_a_dry_run_begins_nothing() -> None:
    """It is part of what it is about, and has no severity of its own; a remedy that acted has."""
    dry = labels("GpuRemedy", pid="7", dry_run="true", result="dry_run", severity="warning")
    done = {**dry, "dry_run": "false", "result": "released"}
    assert not cause_of(dry, NoCauseFacts()).begins
    assert cause_of(done, NoCauseFacts()).begins
    assert urgency_of(Alert(dry, {}, Status.FIRING, 0.0)) == CALM
    assert urgency_of(Alert(done, {}, Status.FIRING, 0.0)) == Urgency(2, UrgencyStage.NOTED, Action.TAKEN)


def test_what_the_driver_asks_for_may_become_worse() -> None:
    """A GPU that first had to be drained and then has to be reset is news; each action of the driver has its stage."""
    stages = [
        urgency_of(
            Alert(labels("GpuRecoveryAction", action=RECOVERY_ACTIONS[value].text), {}, Status.FIRING, 1.0)
        ).stage
        for value in (3, 4, 1, 2)
    ]
    assert stages == [UrgencyStage.GROWING, UrgencyStage.FULL, UrgencyStage.LOST, UrgencyStage.LOST]


@pytest.mark.parametrize(
    ("written", "urgency"),
    [
        ([4, 3, 1], Urgency(4, UrgencyStage.FULL, Action.TAKEN)),
        ([4, 3], Urgency(4, UrgencyStage.FULL, Action.NONE)),
        ([4, 5], Urgency(4, UrgencyStage.NOTED, Action.TAKEN)),
        ([-1, -1], CALM),
    ],
)
def test_an_urgency_that_an_older_version_wrote(written: list[int], urgency: Urgency) -> None:
    """It has no rank of actions; its highest stage was that a remedy had acted."""
    assert load_urgency(written) == urgency


def test_own_rules_of_one_gpu_are_apart_and_their_tiers_together() -> None:
    """Two rules of a user's are two things; one rule at two severities is one that worsens."""
    one, other = (cause_of(labels(name), NoCauseFacts()) for name in ("Mine", "Other"))
    low, high = (cause_of(labels("Mine", severity=each), NoCauseFacts()) for each in ("warning", "critical"))
    assert not set(one.joins) & set(other.brings)
    assert low.joins == high.joins


def test_the_worst_severity_is_written_as_a_rule_has_it() -> None:
    """One of a user's own ranks as a warning."""
    found = [labels("A", severity=each) for each in ("info", "page", "critical", "none")]
    assert worst_severity(found) == "critical"
    assert worst_severity(found[:2]) == "page"
    assert worst_severity([]) == ""


def test_a_gpu_without_a_name_becomes_the_one_that_answers_at_its_index() -> None:
    """Its incident is handed to the UUID once, and is then no other GPU's at that index."""
    unnamed = cause_of({"alertname": "GpuLost", "gpu": "0"}, NoCauseFacts())
    named = cause_of(labels("GpuLost"), NoCauseFacts())
    assert set(named.joins) & set(unnamed.brings) == {*named.replaces, f"{AT_ONCE}lost"}
    assert not set(named.replaces) & set(named.brings)


def test_memory_without_an_owner_is_one_cause() -> None:
    """That there is some, and that it grows; a process that leaks beside it is none of it."""
    some, grows = (
        cause_of(labels(name), Known(growing={"a": RANK})) for name in ("GpuMemoryUnattributed", "GpuMemoryLeak")
    )
    assert some.joins[0] == grows.joins[0]
    leak = cause_of(labels("GpuProcessMemoryLeak", pid="7"), Known(programs={("a", 7): RANK}))
    assert not set(leak.joins) & set(some.brings)
