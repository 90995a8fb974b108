"""What a person is told of an incident."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.growth import Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.snapshot import GpuState, Snapshot
from gpuagent.core.units import GIB
from gpuagent_alerts.alert import Alert, Briefing, CauseKind, Incident, News, Status
from gpuagent_alerts.messages.briefing import BriefingWriter, Links
from tests.fakes.readings import WALL, absent_gpu, gpu, process, snapshot

PACE = 84.4 * GIB
LABELS = {"gpu": "0", "uuid": "GPU-00000000"}
WHO = {**LABELS, "pid": "81204", "process": "whisper-api", "user": "svc-ml"}
BUSY = replace(
    snapshot(
        [gpu(0, used_gib=60.0, total_gib=80.0)],
        [
            process(81204, used_gib=44.1, name="whisper-api", user="svc-ml"),
            process(7, used_gib=9.0),
            process(8, used_gib=3.5),
            process(9, used_gib=2.0),
        ],
    ),
    growth={
        MemoryKey("GPU-00000000"): Growth(Verdict.LEAKING, exhaustion=Range(495.0, 300.0, 700.0)),
        MemoryKey("GPU-00000000", 81204): Growth(Verdict.LEAKING, culprit="server.py:41 holds 43.0 GiB in `cache`"),
    },
)


def alert(name: str, labels: Mapping[str, str] | None = None, *, ended: str = "", value: float = PACE) -> Alert:
    """An alert with the texts of the shipped rules; `ended` is the reason of its end."""
    labels = labels or {}
    return Alert(
        {"alertname": name, "severity": "critical", **labels},
        {
            "summary": f"GPU {labels.get('gpu', '0')}: {name} is so",
            "resolved_summary": f"GPU {labels.get('gpu', '0')}: {name} was so",
            "runbook_url": f"https://example.org/{name}",
        },
        Status.RESOLVED if ended else Status.FIRING,
        WALL - 600,
        WALL if ended else None,
        value,
        end_reason=ended,
    )


def brief(
    *alerts: Alert, seen: Snapshot | None = BUSY, kind: CauseKind = CauseKind.PROCESS, news: News = News.BEGAN,
    labels: dict[str, str] | None = None, links: Links | None = None,
) -> Briefing:  # fmt: skip
    """What is said in a message with these alerts."""
    incident = Incident("inc-1", kind, WHO if labels is None else labels, "critical", WALL - 600, news=news)
    return BriefingWriter("node7", links or Links(), seen).write(incident, alerts)


LEAK = alert("GpuProcessMemoryLeak", WHO)


@pytest.mark.parametrize(
    ("pace", "state", "next_command"),
    [
        (5.0, GrowthState.RISING, "gpuagent kill 81204"),
        (900.0, GrowthState.RISING, "gpuagent ps --gpu 0"),
        (900.0, GrowthState.FULL, "gpuagent ps --gpu 0"),
        (900.0, GrowthState.STOPPED, "gpuagent kill 81204"),
    ],
)
def test_the_slower_of_two_is_not_the_one_to_end(pace: float, state: GrowthState, next_command: str) -> None:
    """Another process fills the GPU: its own incident says who, and this one's next command shows both."""
    slope = pace * GIB / 3600
    other = Growth(Verdict.LEAKING, slope=Range(slope, slope, slope), state=state)
    seen = replace(BUSY, growth={**BUSY.growth, MemoryKey("GPU-00000000", 7): other})
    assert brief(LEAK, seen=seen).next_command == next_command


def test_a_leak_in_one_line() -> None:
    """Severity, node, GPU, who, how fast and when it is full."""
    told = brief(LEAK)

    assert told.headline == "CRITICAL node7 GPU 0: whisper-api (svc-ml, pid 81204) leaking 84.4 GiB/h, full in 8 min"
    assert told.numbers == "process holds 44.1 GiB · 60.0 GiB of 80.0 GiB in use (75 %) · +84.4 GiB/h"
    assert [(one.process, one.pid, one.used_bytes) for one in told.holders] == [
        ("whisper-api", 81204, int(44.1 * GIB)), ("python3", 7, 9 * GIB), ("python3", 8, int(3.5 * GIB)),
    ]  # fmt: skip
    assert told.culprit == "server.py:41 holds 43.0 GiB in `cache`"
    assert told.next_command == "gpuagent kill 81204"
    assert told.silence_command == "gpuagent silence add --incident inc-1 --for 2h"
    assert told.end_reason == ""


@pytest.mark.parametrize(
    ("seconds", "command"),
    [(600.0, "gpuagent kill 300"), (7200.0, "gpuagent ps --gpu 0"), (None, "gpuagent ps --gpu 0")],
)
def test_what_helps_with_a_restarted_leaker(seconds: float | None, command: str) -> None:
    """No alert names it yet: what runs now and fills the GPU in minutes can be ended, and never what ran before."""
    forecast = None if seconds is None else Range(seconds, seconds / 2, 1.5 * seconds)
    pace = Range(PACE / 3600, PACE / 3600, PACE / 3600)
    seen = snapshot([gpu(0, used_gib=60.0, total_gib=80.0)], [process(300, used_gib=44.1, name="whisper-api")])
    growth = dict.fromkeys((MemoryKey("GPU-00000000"), MemoryKey("GPU-00000000", 300)), Growth(
        Verdict.GROWING, slope=pace, exhaustion=forecast
    ))  # fmt: skip
    incident = Incident(
        "inc-1", CauseKind.PROCESS, {**LABELS, "unit": "api.service"}, "critical", WALL - 600, news=News.RESTARTED,
        restarts=1, restarted_pids=(300,),
    )  # fmt: skip
    ended = replace(LEAK, status=Status.RESOLVED, ends_at=WALL)
    told = BriefingWriter("node7", Links(), replace(seen, growth=growth)).write(incident, (ended,))
    assert told.next_command == command
    assert "and grows again: 84.4 GiB/h" in told.headline
    assert ("full in" in told.headline) is (seconds is not None)


def test_standards_of_one_leak_are_one_pace() -> None:
    """A leak that meets two standards does not leak twice."""
    assert "leaking 84.4 GiB/h," in brief(LEAK, replace(LEAK, labels={**LEAK.labels, "evidence": "strict"})).headline


def test_a_forecast_only_while_it_is_true() -> None:
    """A full GPU is full now; what `keep_firing_for` holds makes no forecast; without one there is none."""
    full = replace(BUSY, gpus=(gpu(0, used_gib=79.5, total_gib=80.0),))
    assert brief(LEAK, alert("GpuMemoryFull", LABELS), seen=full).headline.endswith("leaking 84.4 GiB/h, GPU full now")
    calm = replace(BUSY, growth={})
    assert brief(LEAK, seen=calm).headline.endswith("leaking 84.4 GiB/h")
    soon = alert("GpuMemoryExhaustionSoon", LABELS, value=60.0)
    assert brief(LEAK, soon, seen=calm).headline.endswith("full in 1 min")
    over = replace(soon, true_until=WALL)
    assert brief(replace(LEAK, true_until=WALL), over, seen=calm).headline.endswith(": no longer true")


def test_a_forecast_names_who_grows_most() -> None:
    """Before there is a verdict, too: whoever is woken asks that first. What does not grow is not named."""
    soon = alert("GpuMemoryExhaustionSoon", LABELS, value=900.0)
    slope = Range(10 * GIB / 3600, 0.0, 1.0)
    keys = MemoryKey("GPU-00000000", 7), MemoryKey("GPU-00000000", 8), MemoryKey("GPU-00000000", 9)
    growing = Growth(Verdict.GROWING, slope=slope)
    steady = Growth(Verdict.STEADY, slope=Range(1e9, 0.0, 1.0))
    slower = Growth(Verdict.LEAKING, slope=Range(1e6, 0.0, 1.0))
    seen = replace(BUSY, growth=dict(zip(keys, (growing, steady, slower), strict=True)))

    told = brief(soon, seen=seen, kind=CauseKind.GPU, labels=LABELS)
    assert told.headline == (
        "CRITICAL node7 GPU 0: python3 (alice, pid 7) growing 10.0 GiB/h (and python3 (alice, pid 9) 3.4 GiB/h), "
        "full in 15 min"
    )
    assert told.numbers == "60.0 GiB of 80.0 GiB in use (75 %) · +10.0 GiB/h"
    nobody = brief(soon, seen=replace(BUSY, growth={}), kind=CauseKind.GPU, labels=LABELS)
    assert nobody.headline == "CRITICAL node7 GPU 0: memory running out, full in 15 min"


def test_a_job_is_told_once() -> None:
    """The number of ranks, their sum and one pace; no single pid."""
    job = {"slurm_job": "4711", "process": "train", "user": "ann"}
    ranks = [
        alert(
            "GpuProcessMemoryLeak", {"gpu": str(n), "uuid": f"GPU-{n:08d}", "pid": str(100 + n), **job}, value=10 * GIB
        )
        for n in range(6)
    ]
    seen = snapshot(
        [gpu(n, used_gib=20.0, total_gib=80.0) for n in range(6)],
        [process(100 + n, gpu_index=n, used_gib=15.0) for n in range(6)],
    )
    told = brief(*ranks, seen=seen, kind=CauseKind.GROUP, labels={**job, "pid": "", "gpu": ""})

    assert told.headline == ("CRITICAL node7 GPUs 0, 1, 2, 3, 4, 5: Slurm job 4711 (6 ranks, ann) leaking 60.0 GiB/h")
    assert told.numbers == ("6 processes hold 90.0 GiB · 6 GPUs: 120.0 GiB of 480.0 GiB in use (25 %) · +60.0 GiB/h")
    assert told.next_command == "gpuagent ps"


@pytest.mark.parametrize("name", ["GpuMemoryFull", "GpuMemoryHigh"])
def test_a_full_gpu_names_who_holds_it(name: str) -> None:
    """Alerts that name nobody have the largest holders."""
    told = brief(alert(name, LABELS), kind=CauseKind.GPU, labels=LABELS)

    assert [one.pid for one in told.holders] == [81204, 7, 8]
    held = ", 44.1 GiB of it held by whisper-api (svc-ml, pid 81204)" if name == "GpuMemoryFull" else ""
    assert told.headline == f"CRITICAL node7 GPU 0: {name} is so{held}"


def test_the_leak_names_the_incident_and_not_what_it_led_to() -> None:
    """A full GPU, a forecast or a note about a remedy beside a leak is part of its story."""
    told = brief(
        alert("GpuRemedy", {**WHO, "step": "SIGTERM", "result": "freed"}), alert("GpuMemoryFull", LABELS),
        replace(LEAK, annotations={}, value=0.0),
    )  # fmt: skip
    assert (
        told.headline
        == "CRITICAL node7 GPU 0: whisper-api (svc-ml, pid 81204) leaking, GPU full now; remedy SIGTERM: freed"
    )


def test_a_lost_gpu_in_the_drivers_words() -> None:
    """What the driver reported, and what it takes."""
    seen = snapshot([absent_gpu(2, GpuState.LOST, "GPU_IS_LOST")])
    labels = {"gpu": "2", "uuid": "GPU-00000002"}
    told = brief(
        alert("GpuXidCritical", {**labels, "xid": "79"}), alert("GpuLost", labels),
        seen=seen, kind=CauseKind.GPU, labels=labels,
    )  # fmt: skip

    assert told.headline == "CRITICAL node7 GPU 2: the GPU is lost after Xid 79 (the GPU has fallen off the bus)"
    assert told.numbers.startswith("The driver has lost access to it")
    assert "Drain and reboot the node" in told.numbers
    assert told.next_command == "sudo dmesg | grep -i xid"


def test_the_end_is_in_the_past_tense() -> None:
    """What was and why it is over; nothing that was true while it fired."""
    ended = replace(LEAK, status=Status.RESOLVED, ends_at=WALL, end_reason="the process ended; 44.1 GiB came back")
    told = brief(ended, alert("GpuMemoryHigh", LABELS, ended="memory back to 16.0 GiB"), news=News.ENDED)

    assert told.headline == ("RESOLVED node7 GPU 0: GpuProcessMemoryLeak was so: the process ended; 44.1 GiB came back")
    assert told.end_reason == "the process ended; 44.1 GiB came back"
    assert (told.holders, told.culprit, told.next_command, told.silence_command) == ((), "", "", "")
    assert "84.4" not in repr(told)


def test_links_lead_to_this_gpu() -> None:
    """The board is templated, and text of a label cannot leave its place in the URL."""
    links = Links("http://node7:9837/", "https://grafana/d/node?var-node={node}&var-gpu={gpu}&var-uuid={uuid}&p={pid}")
    assert brief(LEAK, links=links).links == {
        "page": "http://node7:9837/",
        "plot": "http://node7:9837/api/v1/leaks/81204/plot.svg?gpu=GPU-00000000",
        "grafana": "https://grafana/d/node?var-node=node7&var-gpu=0&var-uuid=GPU-00000000&p=81204",
        "runbook": "https://example.org/GpuProcessMemoryLeak",
    }
    assert brief(LEAK).links == {"runbook": "https://example.org/GpuProcessMemoryLeak"}


def test_what_a_remedy_did_is_told_once() -> None:
    """The words of the remedy for an alert of this incident; no more than once."""
    done = replace(LEAK, annotations={**LEAK.annotations, "remedy": "SIGTERM: dry run, nothing was done"})
    assert brief(done, done).remedies == ("SIGTERM: dry run, nothing was done",)

    why = "nothing is done: pid {} was tried: refused at {}"
    texts = [why.format(7, "08:07"), why.format(9, "08:07"), why.format(7, "08:09")]
    refused = [replace(LEAK, annotations={**LEAK.annotations, "remedy": text}) for text in texts]
    assert brief(*refused).remedies == tuple(texts[:2])


@pytest.mark.parametrize("kind", list(CauseKind))
def test_nothing_known_is_no_failure(kind: CauseKind) -> None:
    """Without a snapshot, without labels, without alerts: there is always a headline."""
    bare: dict[str, Any] = {"seen": None, "kind": kind, "labels": {}}
    assert brief(**bare).headline == "CRITICAL node7: incident inc-1"
    mine = replace(alert("Mine"), annotations={})
    told = brief(mine, **bare)
    assert (told.headline, told.next_command) == ("CRITICAL node7: Mine", "gpuagent alerts")
