"""The one line of an incident: who, how fast, until when, on which GPUs, and what made it as bad as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.growth import Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.hardware import MigInstance
from gpuagent.core.snapshot import GpuReading, GpuState, NvmlState, ProcessState, Reconciliation, Snapshot
from gpuagent.core.units import GIB, format_duration
from gpuagent_alerts.alert import Alert, Briefing, CauseKind, Incident, News, Status, resolved_summary
from gpuagent_alerts.messages.briefing import BriefingWriter
from gpuagent_alerts.messages.naming import was_leaking
from gpuagent_alerts.messages.snapshot_inputs import unmeasured_seconds
from gpuagent_alerts.notify.urgency import UrgencyStage, urgency_of
from gpuagent_alerts.states.instance import Instance
from tests.agent.service.alerting.test_briefing import LABELS, alert, brief
from tests.fakes.readings import NOW, WALL, absent_gpu, gpu, identity, memory, process, snapshot

JOB: dict[str, Any] = {"slurm_job": "777", "process_group": 5}


def growing(gib_per_hour: float, verdict: Verdict = Verdict.GROWING, **more: Any) -> Growth:
    """Growth at this pace."""
    slope = gib_per_hour * GIB / 3600
    return Growth(verdict, slope=Range(slope, slope, slope), **more)


def ranks(number: int, growth: Growth) -> Snapshot:
    """A job with one rank on each GPU, all of which grow like this."""
    seen = snapshot(
        [gpu(each, used_gib=30.0, total_gib=80.0) for each in range(number)],
        [process(100 + each, gpu_index=each, name="rank", **JOB) for each in range(number)],
    )
    return replace(seen, growth={MemoryKey(f"GPU-{each:08d}", 100 + each): growth for each in range(number)})


def test_a_job_that_grows_is_told_as_one_with_all_its_gpus() -> None:
    """Number of ranks and the sum of their pace, also on GPUs whose alert comes later."""
    first = {"gpu": "0", "uuid": "GPU-00000000"}
    told = brief(
        alert("GpuMemoryExhaustionSoon", first, value=600.0), seen=ranks(6, growing(70.0)), kind=CauseKind.PROCESS,
        labels={**first, "pid": "100", "slurm_job": "777"},
    )  # fmt: skip

    assert told.headline == (
        "CRITICAL node7 GPUs 0, 1, 2, 3, 4, 5: Slurm job 777 (6 ranks, alice) growing 420.0 GiB/h, full in 10 min"
    )
    assert told.numbers.startswith("6 processes hold ")
    assert "6 GPUs: 180.0 GiB of 480.0 GiB in use" in told.numbers
    assert told.numbers.endswith("+420.0 GiB/h")


def test_a_rank_alone_names_its_job() -> None:
    """Who is woken looks for the job, not for the pid."""
    told = brief(alert("GpuMemoryExhaustionSoon", LABELS, value=600.0), seen=ranks(1, growing(70.0)))
    assert "GPU 0: rank (alice, Slurm job 777, pid 100) growing 70.0 GiB/h, full in 10 min" in told.headline


def test_fast_growth_has_its_forecast_in_the_headline() -> None:
    """The pace alone does not tell how long there is."""
    fast = Growth(Verdict.GROWING, slope=Range(1e8, 1e8, 1e8), fast=True, fast_exhaustion_seconds=114.0)
    seen = ranks(1, fast)
    seen = replace(seen, growth={**seen.growth, MemoryKey("GPU-00000000"): fast})
    told = brief(alert("GpuMemoryExhaustionSoon", LABELS, value=float("nan")), seen=seen)
    assert told.headline.endswith("GiB/h, full in 1 min 54 s")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (GrowthState.RISING, "leaking 9.0 GiB/h"),
        (GrowthState.STOPPED, "leaked 9.0 GiB/h and has stopped"),
        (GrowthState.FULL, "leaked 9.0 GiB/h until there was no room"),
    ],
)
def test_a_leak_that_has_stopped_is_not_leaking(state: GrowthState, said: str) -> None:
    """`gpuagent ps` says `stopped` of it."""
    leak = alert("GpuProcessMemoryLeak", {**LABELS, "pid": "100", "process": "rank", "user": "alice"})
    told = brief(leak, seen=ranks(1, growing(9.0, Verdict.LEAKING, state=state)), kind=CauseKind.PROCESS,
                 labels={**LABELS, "pid": "100"})  # fmt: skip
    assert said in told.headline


@pytest.mark.parametrize(
    ("used_gib", "said"),
    [(78.4, "leaked 9.0 GiB/h until 1.4 GiB was left, GPU full now"), (79.9, "was no room, GPU full now")],
)
def test_a_full_gpu_with_room_says_how_much(used_gib: float, said: str) -> None:
    """The last 2 % of a large GPU last a slow leak for half an hour."""
    leak = alert("GpuProcessMemoryLeak", {**LABELS, "pid": "100", "process": "rank", "user": "alice"})
    seen = ranks(1, growing(9.0, Verdict.LEAKING, state=GrowthState.FULL))
    seen = replace(seen, gpus=(gpu(0, used_gib=used_gib, total_gib=80.0),))
    told = brief(leak, seen=seen, kind=CauseKind.PROCESS, labels={**LABELS, "pid": "100"})
    assert told.headline.endswith(said)


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        (absent_gpu(0, GpuState.LOST, identity=identity(0, uuid="")), "the GPU is lost"),
        (absent_gpu(1, GpuState.LOST, identity=identity(1, uuid="")), "the driver does not list the GPU"),
    ],
)
def test_why_a_gpu_that_has_told_no_name_is_not_measured(listed: GpuReading, why: str) -> None:
    """One that was lost before the agent started is known by its index alone."""
    leak = replace(alert("GpuProcessMemoryLeak", {**LABELS, "pid": "100", "process": "rank"}), unmeasured_seconds=90.0)
    told = brief(leak, seen=snapshot([listed], []), kind=CauseKind.PROCESS, labels={**LABELS, "pid": "100"})
    assert told.headline.endswith(f"(last known 1 min 30 s ago: {why})"), told.headline


@pytest.mark.parametrize(
    ("state", "beside", "said"),
    [
        (GrowthState.RISING, None, "memory of no process growing 9.0 GiB/h, full in 2 h"),
        (GrowthState.STOPPED, None, "memory of no process grew 9.0 GiB/h and has stopped"),
        (GrowthState.FULL, None, "memory of no process grew 9.0 GiB/h until there was no room"),
        (GrowthState.RISING, 9.0, "memory of no process grew and has stopped"),
        (None, None, "GpuMemoryLeak is so"),
    ],
    ids=["rises", "stopped", "full", "a process beside it rises", "unknown"],
)
def test_memory_of_no_process_that_has_stopped_is_not_growing(
    state: GrowthState | None, beside: float | None, said: str
) -> None:
    """Its alert holds for a while after it has stopped, and says as `gpuagent status` does that it has."""
    hours = Range(7200.0, 3600.0, 10_800.0) if state is GrowthState.RISING else None
    whole = growing(9.0, Verdict.LEAKING, state=state, exhaustion=hours)
    seen = snapshot([gpu(0, used_gib=30.0, total_gib=80.0)], [process(100, name="rank")])
    growth = {MemoryKey("GPU-00000000"): whole}
    if beside is not None:
        growth[MemoryKey("GPU-00000000", 100)] = growing(beside, state=GrowthState.RISING)
    told = brief(alert("GpuMemoryLeak", LABELS), seen=replace(seen, growth=growth), kind=CauseKind.GPU)
    assert told.headline.endswith(f"GPU 0: {said}"), told.headline


@pytest.mark.parametrize(("value", "is_full"), [(0.64, False), (0.985, True), (64.0, True)])
def test_full_is_said_of_what_is_full(value: float, *, is_full: bool) -> None:
    """A rule file may give the shipped name to a rule at 60 %: its own words are told, and a full GPU is still news."""
    above = replace(alert("GpuMemoryFull", LABELS), value=value, annotations={"summary": "GPU 0 is above 60 %"})
    leak = alert("GpuProcessMemoryLeak", {**LABELS, "pid": "100", "process": "rank", "user": "alice"})
    seen = ranks(1, growing(9.0, Verdict.LEAKING, state=GrowthState.RISING))
    told = brief(leak, above, seen=seen, kind=CauseKind.PROCESS, labels={**LABELS, "pid": "100"})
    assert ("full now" in told.headline) is is_full
    assert told.says_full is is_full
    assert (urgency_of(above).stage == UrgencyStage.FULL) is is_full


@pytest.mark.parametrize("name", ["GpuMemoryLeak", "GpuMemoryExhaustionSoon"])
def test_memory_of_processes_that_the_driver_does_not_tell_is_of_unknown_ones(name: str) -> None:
    """A virtual GPU lists processes and tells the memory of none: it is not nobody's, and they are who to look at."""
    whole = growing(9.0, Verdict.LEAKING, state=GrowthState.RISING, exhaustion=Range(7200.0, 3600.0, 10_800.0))
    seen = snapshot([gpu(0, used_gib=30.0, total_gib=80.0)], [process(100 + n, used_gib=None) for n in range(2)])
    seen = replace(seen, growth={MemoryKey("GPU-00000000"): whole})
    told = brief(alert(name, LABELS), seen=seen, kind=CauseKind.GPU, labels=LABELS)
    assert told.headline.endswith("GPU 0: memory of unknown processes growing 9.0 GiB/h, full in 2 h")
    assert told.next_command == "gpuagent ps --gpu 0"


def mig(used_gib: float, growth: Growth) -> Snapshot:
    """A GPU of 80 GiB with one instance of 10 GiB, whose process grows."""
    instance = MigInstance("MIG-1", 1, 0, "1g.10gb", memory(used_gib, 10.0))
    inside = process(100, used_gib=used_gib, name="m")._replace(gpu_instance_id=1, compute_instance_id=0)
    seen = snapshot([gpu(0, used_gib=used_gib, total_gib=80.0, mig=(instance,))], [inside, process(9, used_gib=30.0)])
    keys = MemoryKey("GPU-00000000", 100, 1), MemoryKey("GPU-00000000", 0, 1)
    return replace(seen, growth=dict.fromkeys(keys, growth))


def test_memory_of_no_process_in_a_mig_instance() -> None:
    """Its forecast names nobody, and who has the GPU open is what to look at: no process of the list grows."""
    labels = {**LABELS, "gpu_instance_id": "1", "profile": "1g.10gb"}
    rising = growing(9.0, Verdict.LEAKING, state=GrowthState.RISING, exhaustion=Range(1200.0, 600.0, 1800.0))
    seen = replace(mig(7.0, rising), growth={MemoryKey("GPU-00000000", 0, 1): rising})
    told = brief(alert("GpuMemoryExhaustionSoon", labels), seen=seen, labels=labels, kind=CauseKind.GPU)
    assert told.headline == "CRITICAL node7 GPU 0 MIG 1: memory of no process growing 9.0 GiB/h, full in 20 min"
    assert told.next_command == "sudo fuser -v /dev/nvidia*"


def test_figures_of_a_mig_instance_are_its_own() -> None:
    """Memory, holders and forecast; the instance is named once."""
    labels = {**LABELS, "gpu_instance_id": "1", "profile": "1g.10gb"}
    who = {**labels, "pid": "100", "process": "m", "user": "alice"}
    leak = growing(9.0, Verdict.LEAKING, exhaustion=Range(1200.0, 600.0, 1800.0))
    told = brief(alert("GpuProcessMemoryLeak", who), seen=mig(7.0, leak), labels=who)

    assert told.headline == "CRITICAL node7 GPU 0 MIG 1: m (alice, pid 100) leaking 9.0 GiB/h, full in 20 min"
    assert told.numbers == "process holds 7.0 GiB · 7.0 GiB of 10.0 GiB in use (70 %) · +9.0 GiB/h"
    assert [one.pid for one in told.holders] == [100]

    full = alert("GpuInstanceMemoryFull", labels)
    full = replace(full, annotations={"summary": "GPU 0, MIG instance 1 (1g.10gb): memory is full (99 %)"})
    told = brief(full, seen=mig(9.9, leak), labels=labels, kind=CauseKind.GPU)
    assert told.headline == (
        "CRITICAL node7 GPU 0 MIG 1: memory is full (99 %), 9.9 GiB of it held by m (alice, pid 100)"
    )
    assert told.numbers == "9.9 GiB of 10.0 GiB in use (99 %)"


def test_a_dead_process_is_one_and_has_one_name() -> None:
    """On however many GPUs it holds memory: the sum, and what it was called while it lived."""
    was = process(99, name="zombie", user="zoe").info
    seen = snapshot(
        [gpu(each, used_gib=30.0, total_gib=80.0) for each in (0, 1)],
        [process(99, gpu_index=each, used_gib=30.0, state=ProcessState.DEAD)._replace(former=was) for each in (0, 1)],
    )
    parts = [{"gpu": str(n), "uuid": f"GPU-{n:08d}", "pid": "99", "process": "zombie", "user": "zoe"} for n in (0, 1)]
    both = [alert("GpuDeadProcessesHoldMemory", each, value=30.0 * GIB) for each in parts]
    told = brief(*both, seen=seen, kind=CauseKind.GPU, labels={"pid": "99"})

    assert told.headline == "CRITICAL node7 GPUs 0, 1: zombie (zoe, pid 99) has ended and still holds 60.0 GiB"
    assert told.numbers.startswith("process holds 60.0 GiB")
    assert [(one.process, one.user) for one in told.holders] == [("zombie", "zoe")]

    reason = "the driver no longer counts memory for it; 30.0 GiB came back"
    gone = [replace(each, status=Status.RESOLVED, ends_at=WALL, end_reason=reason) for each in both]
    told = brief(*gone, seen=seen, kind=CauseKind.GPU, labels={"pid": "99"}, news=News.ENDED)
    assert told.headline == (
        "RESOLVED node7 GPUs 0, 1: zombie (zoe, pid 99) had ended and held 60.0 GiB: "
        "the driver no longer counts memory for it; 60.0 GiB came back"
    )


def test_what_made_it_critical_is_in_the_line() -> None:
    """An Xid that is worth a look, and a driver that asks for a reset: the second is why somebody is called."""
    xid = replace(alert("GpuXidWarning", {**LABELS, "xid": "94"}))
    xid = replace(xid, labels={**xid.labels, "severity": "warning"})
    asks = replace(alert("GpuRecoveryAction", LABELS), annotations={
        "summary": "GPU 0: the driver asks to reset the GPU", "runbook_url": "https://example.org/recovery",
    })  # fmt: skip
    told = brief(asks, xid, kind=CauseKind.GPU, labels=LABELS)

    assert told.headline == ("CRITICAL node7 GPU 0: Xid 94: contained memory error; the driver asks to reset the GPU")
    assert told.links["runbook"] == "https://example.org/recovery"
    before = brief(xid, kind=CauseKind.GPU, labels=LABELS)
    assert before.headline.endswith("Xid 94: contained memory error")


@pytest.mark.parametrize(
    ("own_gib", "other_gib", "said"),
    [
        (39.5, 39.7, "79.2 GiB of it held by python3 (pid 7) and mine (pid 100)"),
        (28.0, 50.0, "28.0 GiB of it held by mine (dave, pid 100), and 50.0 GiB by python3 (carol, pid 7)"),
    ],
)
def test_an_incident_of_a_process_names_that_process_on_a_full_gpu(own_gib: float, other_gib: float, said: str) -> None:
    """Who else holds more is in the list below, and who holds clearly more, as a screen says, is named too."""
    seen = snapshot(
        [gpu(0, used_gib=79.5, total_gib=80.0)],
        [process(100, used_gib=own_gib, name="mine", user="dave"), process(7, used_gib=other_gib, user="carol")],
    )
    told = brief(
        alert("GpuMemoryFull", LABELS), seen=seen, kind=CauseKind.PROCESS, labels={**LABELS, "pid": "100"}
    )  # fmt: skip
    assert told.headline.endswith(said)
    assert told.holders[0].user == "carol"


MIB_830 = 830 / 1024
UNTOLD = ", 78.0 GiB of it unassigned: the driver does not tell the memory of 2 processes"


@pytest.mark.parametrize(
    ("sizes", "unattributed", "said", "next_command"),
    [
        ((44.0, 20.0, 15.0), 0.2, ", 44.0 GiB of it held by p0 (alice, pid 100)", "gpuagent ps --gpu 0"),
        ((MIB_830,), 78.0, ", 78.0 GiB of it held by no process that the driver lists", "sudo fuser -v /dev/nvidia*"),
        ((None, None), 78.0, UNTOLD, "gpuagent ps --gpu 0"),
        ((6.5,) * 12, 1.0, ", 78.0 GiB of it held by 12 processes", "gpuagent ps --gpu 0"),
        ((39.0, 38.0), 1.0, ", 77.0 GiB of it held by p0 (pid 100) and p1 (pid 101)", "gpuagent ps --gpu 0"),
        ((MIB_830,), 20.0, "", "gpuagent ps --gpu 0"),
    ],
)
def test_a_full_gpu_names_who_fills_it_and_nobody_else(
    sizes: tuple[float | None, ...], unattributed: float, said: str, next_command: str
) -> None:
    """Not one of twelve equal ones, nor a small one beside memory of no process; the next command finds that."""
    whole = gpu(0, used_gib=79.2, total_gib=80.0, reconciliation=Reconciliation(0, 0, int(unattributed * GIB)))
    seen = snapshot([whole], [process(100 + n, used_gib=size, name=f"p{n}") for n, size in enumerate(sizes)])
    told = brief(alert("GpuMemoryFull", LABELS), seen=seen, kind=CauseKind.GPU, labels=LABELS)
    assert told.headline == f"CRITICAL node7 GPU 0: GpuMemoryFull is so{said}"
    assert told.next_command == next_command


def test_a_budget_is_told_with_what_it_allows() -> None:
    """What is used means nothing without it."""
    over = replace(alert("GpuBudgetExceeded", {**LABELS, "budget": "team"}),
                   annotations={"summary": "GPU 0: team uses 7.0 GiB, more than its budget"})  # fmt: skip
    incident = Incident("inc-1", CauseKind.GPU, LABELS, "warning", WALL)
    writer = BriefingWriter("node7", budgets={"team": 6 * GIB})
    assert writer.write(incident, [over]).headline.endswith("uses 7.0 GiB, more than its budget of 6.0 GiB")


def blind(*gpus: str, kind: CauseKind = CauseKind.GPU) -> Briefing:
    """What is said of GPUs that cannot be read."""
    alerts: list[Alert] = [alert("GpuMonitorBlind", {"gpu": each, "uuid": f"GPU-0000000{each}"}) for each in gpus]
    return brief(*alerts, kind=kind, labels={}, seen=None)


def test_it_says_what_cannot_be_read() -> None:
    """One GPU, several, or any of the node."""
    assert blind("0", "1").headline == "CRITICAL node7 GPUs 0, 1: the agent cannot read these GPUs"
    assert blind("0", "1", kind=CauseKind.NODE).headline == "CRITICAL node7: the agent cannot read any GPU"
    why = snapshot([], node={"nvml_state": NvmlState.FAILED, "nvml_reason": "the NVIDIA driver is not loaded"})
    told = brief(alert("GpuMonitorBlind", {}), kind=CauseKind.NODE, labels={}, seen=why)
    assert told.headline == "CRITICAL node7: the agent cannot read any GPU: the NVIDIA driver is not loaded"


@pytest.mark.parametrize(
    ("ended_ago", "reason", "said"),
    [
        (60.0, "it goes on, full in 9 min at the earliest", "it goes on, full in 9 min at the earliest"),
        (600.0, "it slowed down, and it goes on, full in 9 min at the earliest", "and it went on (22:03 UTC)"),
        (
            600.0, "it slowed down, and a (pid 7) goes on growing, full in 9 min at the earliest",
            "it slowed down, and a (pid 7) went on growing (22:03 UTC)",
        ),
    ],
)  # fmt: skip
def test_an_end_that_is_told_late_has_no_forecast(ended_ago: float, reason: str, said: str) -> None:
    """What was full in 9 min then may be full by now."""
    ended = replace(alert("GpuMemoryExhaustionSoon", LABELS, ended=reason), ends_at=WALL - ended_ago)
    incident = Incident("inc-1", CauseKind.GPU, LABELS, "critical", WALL - 900, WALL - ended_ago)
    told = BriefingWriter("node7", snapshot=snapshot([gpu(0)], [])).write(incident, [ended])
    assert told.headline.endswith(said), told.headline


def test_an_end_in_good_english() -> None:
    """All GPUs that could not be read are "these"; several instances of a unit were leaking, a job was."""
    gpus = [{"gpu": each, "uuid": f"GPU-0000000{each}"} for each in "01"]
    blind_ones = [replace(alert("GpuMonitorBlind", each, ended="the agent can read it again"), end_is_certain=True)
                  for each in gpus]  # fmt: skip
    incident = Incident("inc-1", CauseKind.GPU, {}, "critical", WALL - 900, WALL)
    told = BriefingWriter("node7", snapshot=snapshot([gpu(0), gpu(1)], [])).write(incident, blind_ones)
    assert told.headline.endswith(": the agent can read these GPUs again"), told.headline
    assert was_leaking("3 instances of whisper@.service (ml)") == (
        "3 instances of whisper@.service (ml) were leaking memory"
    )
    assert was_leaking("Slurm job 7 (3 ranks, ml)") == "Slurm job 7 (3 ranks, ml) was leaking memory"


def test_a_pause_is_called_a_pause() -> None:
    """Who paused the agent is not told that something is broken."""
    node = {"nvml_state": NvmlState.PAUSED, "nvml_reason": "for a driver update"}
    told = brief(alert("GpuMonitorBlind", {}), kind=CauseKind.NODE, labels={}, seen=snapshot([], node=node))
    assert told.headline == "CRITICAL node7: measuring is paused for a driver update"
    assert told.next_command == "gpuagent resume"


@pytest.mark.parametrize(("others", "nobodys", "said"), [
    ((), 0.0, "leaking 10.0 GiB/h, full in 10 min"),
    ((5.0,), 0.0, "leaking 10.0 GiB/h (and p200 (alice, pid 200) 5.0 GiB/h), full in 10 min"),
    ((5.0, 2.0), 0.0, "leaking 10.0 GiB/h (and 2 other processes 7.0 GiB/h), full in 10 min"),
    ((), 8.0, "leaking 10.0 GiB/h (and memory of no process 8.0 GiB/h), full in 10 min"),
    ((5.0, 2.0), 8.0, "(and 2 other processes 7.0 GiB/h and memory of no process 8.0 GiB/h), full in 10 min"),
])  # fmt: skip
def test_others_that_grow_on_the_gpu_are_told_with_the_forecast(
    others: tuple[float, ...], nobodys: float, said: str
) -> None:
    """The time to full is that of all of them: one leak alone would not explain it."""
    seen, leak = beside(others, nobodys)
    assert brief(leak, seen=seen, labels=dict(leak.labels)).headline.endswith(said)


def test_a_pace_around_the_limit_does_not_make_the_line_flicker() -> None:
    """Who was named beside the leaker stays so until they grow much slower, in any incident but another one."""
    writer = BriefingWriter("node7")
    incident = Incident("inc-1", CauseKind.PROCESS, {}, "critical", WALL, None, News.BEGAN)

    def named(pace: float, key: str = "inc-1") -> bool:
        writer.snapshot, leak = beside((pace,), 0.0)
        return "and p200" in writer.headline(replace(incident, key=key, labels=leak.labels), [leak])

    assert [named(pace) for pace in (0.9, 1.1, 0.9, 1.1, 0.6, 0.4, 0.9)] == [
        False,
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert [named(pace, key) for pace, key in ((1.1, "inc-1"), (0.9, "inc-2"), (0.9, "inc-1"))] == [True, False, True]


def beside(others: tuple[float, ...], nobodys: float) -> tuple[Snapshot, Alert]:
    """Return a leak of 10 GiB/h beside which others, and memory of no process, grow by so many GiB/h, and its alert."""
    processes = [process(100, name="rank"), *(process(200 + n, name=f"p{200 + n}") for n in range(len(others)))]
    growth = {MemoryKey("GPU-00000000", 100): growing(10.0, Verdict.LEAKING)}
    growth |= {MemoryKey("GPU-00000000", 200 + n): growing(pace) for n, pace in enumerate(others)}
    growth = {key: replace(one, state=GrowthState.RISING) for key, one in growth.items()}
    whole = (10.0 + sum(others) + nobodys) * GIB / 3600
    growth[MemoryKey("GPU-00000000")] = Growth(
        Verdict.LEAKING, slope=Range(whole, whole, whole), exhaustion=Range(600.0, 300.0, 900.0),
        state=GrowthState.RISING,
    )  # fmt: skip
    seen = replace(snapshot([gpu(0, used_gib=30.0, total_gib=80.0)], processes), growth=growth)
    who = {**LABELS, "pid": "100", "process": "rank", "user": "alice"}
    return seen, replace(alert("GpuProcessMemoryLeak", who), value=10.0 * GIB)


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ((0.99, 0.5, 0.5), "leaking 30.0 GiB/h, GPU 0 full now"),
        ((0.99, 0.99, 0.5), "leaking 30.0 GiB/h, GPUs 0, 1 full now"),
        ((0.99, 0.99, 0.99), "leaking 30.0 GiB/h, all full now"),
    ],
)
def test_a_job_names_which_of_its_gpus_are_full(ratios: tuple[float, ...], said: str) -> None:
    """The line speaks of all GPUs of the job, and not all of them need be full; the same of the alert itself."""
    seen = ranks(3, growing(10.0, Verdict.LEAKING))
    seen = replace(seen, gpus=tuple(gpu(n, used_gib=80 * each, total_gib=80.0) for n, each in enumerate(ratios)))
    first = {"gpu": "0", "uuid": "GPU-00000000"}
    who = {**first, "pid": "100", "process": "rank", "user": "alice", "slurm_job": "777"}
    leak, full = alert("GpuProcessMemoryLeak", who), alert("GpuMemoryFull", first)
    assert brief(leak, full, seen=seen, kind=CauseKind.GROUP, labels=who).headline.endswith(said)
    alone = brief(full, seen=seen, kind=CauseKind.GROUP, labels=who).headline
    assert (" is so on GPU" in alone) is (said.count("all") == 0)


def test_an_end_of_blindness_says_what_could_not_be_read() -> None:
    """And of a pause, who had asked for it."""
    what = {"gpu": "0", "uuid": "GPU-00000000"}
    blind_one = alert("GpuMonitorBlind", what, ended="the agent can read it again")
    blind_one = replace(blind_one, annotations={"resolved_summary": "GPU 0: the agent could not read it"})
    told = brief(blind_one, kind=CauseKind.GPU, labels=what, news=News.ENDED, seen=None)
    assert told.headline == "RESOLVED node7 GPU 0: the agent could not read the GPU: the agent can read it again"


def test_what_a_remedy_did_needs_no_reason_to_be_over() -> None:
    """Nothing about it can cease to be true."""
    did = alert("GpuRemedy", LABELS)
    did = replace(did, status=Status.RESOLVED, ends_at=WALL, annotations={
        "resolved_summary": "GPU 0: a remedy for serve (ml, pid 7) ended: SIGTERM: released",
    })  # fmt: skip
    assert resolved_summary(did) == "GPU 0: a remedy for serve (ml, pid 7) ended: SIGTERM: released"


def test_processes_that_cannot_be_read_are_no_blindness() -> None:
    """The memory of the GPU is measured all the same, and the line says so."""
    text = "its memory can be read, its processes cannot"
    unlisted = alert("GpuMonitorBlind", {"gpu": "0", "uuid": "GPU-00000000", "scope": "processes"})
    told = brief(replace(unlisted, annotations={"summary": f"GPU 0: {text}"}), kind=CauseKind.GPU, labels={}, seen=None)
    assert told.headline == f"CRITICAL node7 GPU 0: {text}"


def test_a_runbook_is_an_address_of_the_web() -> None:
    """What a rule's annotation holds is clicked on: nothing but http(s) becomes a link."""
    bad = replace(alert("Mine", LABELS), annotations={"summary": "x", "runbook_url": "javascript:alert(1)"})
    assert brief(bad).links == {}


@pytest.mark.parametrize(
    ("state", "measured", "frozen", "expected"),
    [
        (GpuState.BLIND, NOW - 383.0, 277.0, "6 min 23 s"),
        (GpuState.BLIND, None, 277.0, "4 min 37 s"),  # since the agent was started again
        (GpuState.OK, NOW, 277.0, "4 min 37 s"),  # its list alone is refused
    ],
    ids=["hangs", "restarted", "refused"],
)
def test_one_age_for_what_is_not_measured(
    state: GpuState, measured: float | None, frozen: float, expected: str
) -> None:
    """A GPU that hangs is waited for with its last figures: messages and screens count from when these were read."""
    one = replace(gpu(0), state=state, measured_seconds=measured, time_seconds=NOW)
    seen = snapshot([replace(one, processes_known=False)], [])
    instance = Instance(labels=LABELS, write=dict, value=1.0, active_clock=0.0, frozen=True, frozen_seconds=frozen)
    assert format_duration(unmeasured_seconds(instance, seen)) == expected
    told = brief(replace(alert("GpuMemoryExhaustionSoon", LABELS), unmeasured_seconds=frozen), seen=seen, labels=LABELS)
    assert f"(last known {expected} ago: " in told.headline
