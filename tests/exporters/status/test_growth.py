"""Growth in the status document, and what is told of it first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.core.growth import Evidence, Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.snapshot import Snapshot
from gpuagent.core.units import GIB
from gpuagent.core.wording import full_in_words
from gpuagent.core.xids import Severity
from gpuagent_exporters.status.problems import find_problems
from gpuagent_exporters.status.severity import Assessments
from tests.fakes.documents import document
from tests.fakes.readings import NOW, WALL, gpu, mig_instance, process, snapshot

UUID = "GPU-00000000"
PACE = Range(1.2 * GIB / 3600, 1.1 * GIB / 3600, 1.3 * GIB / 3600)
WHY = ("floor of memory rose in 8 of 8 parts of 34 min, did not slow down",)
LEAK = Growth(
    Verdict.LEAKING,
    Evidence.STRICT,
    PACE,
    WALL - 7800,
    Range(8040.0, 4020.0, 12_060.0),
    WHY,
    evidence_told=(Evidence.STRICT,),
    state=GrowthState.RISING,
)


def seen(of_process: Growth | None, of_gpu: Growth | None = None) -> Snapshot:
    """A GPU with one process, of which this is said."""
    growth = {MemoryKey(UUID, 4242): of_process, MemoryKey(UUID): of_gpu}
    return replace(snapshot([gpu()], [process()]), growth={key: one for key, one in growth.items() if one is not None})


def told(seen: Snapshot) -> list[tuple[Severity, str, int | None]]:
    """Severity, kind and pid of each problem."""
    return [(problem.severity, problem.kind, problem.pid) for problem in find_problems(seen, NOW)]


def test_everything_that_is_known() -> None:
    """LEAK-02: bare numbers, units in the keys, Unix time; of the process and of the GPU."""
    shown = document(seen(LEAK, replace(LEAK, fast=True, fast_exhaustion_seconds=9.5)))
    sooner = {"exhaustion_seconds": 9.5, "exhaustion_range_seconds": None, "fast_exhaustion_seconds": 9.5}
    expected = {
        "verdict": "leaking",
        "growth_state": "rising",
        "evidence": "strict",
        "growth_bytes_per_second": PACE.value,
        "growth_range_bytes_per_second": [PACE.low, PACE.high],
        "growth_since_seconds": WALL - 7800,
        "leak_since_seconds": WALL - 7800,
        "exhaustion_seconds": 8040.0,
        "exhaustion_range_seconds": [4020.0, 12_060.0],
        "fast_exhaustion_seconds": None,
        "reasons": list(WHY),
    }
    assert {key: shown["processes"][0][key] for key in expected} == expected
    assert {key: shown["gpus"][0][key] for key in expected} == expected | sooner


@pytest.mark.parametrize("growth", [None, Growth(Verdict.LEARNING)])
def test_what_is_not_known_is_null(growth: Growth | None) -> None:
    """LEAK-03: the keys are there all the same, and none of them is 0."""
    shown = document(seen(growth, growth))
    for part in (shown["processes"][0], shown["gpus"][0]):
        assert part["verdict"] == (growth and "learning")
        assert part["reasons"] == []
        keys = [key for key in part if key.startswith(("growth_", "exhaustion_", "leak_", "fast_"))]
        assert [part[key] for key in [*keys, "evidence"]] == [None] * 9


def test_growth_is_not_yet_a_leak() -> None:
    """LEAK-02: `leak_since` is of a leak alone, `growth_since` of both."""
    shown = document(seen(replace(LEAK, verdict=Verdict.GROWING, evidence=None)))["processes"][0]
    assert (shown["leak_since_seconds"], shown["growth_since_seconds"]) == (None, WALL - 7800)


def test_a_leak_in_words() -> None:
    """LEAK-02: who, for how long, how fast, when the GPU is full, by which standard, why, and what to do."""
    (problem,) = find_problems(seen(LEAK, LEAK), NOW)
    assert problem.sentence == (
        "GPU 0: python3 (pid 4242) has been leaking memory for 2 h 10 min, 1.2 GiB/h, full in 2 h 14 min "
        "(evidence: strict): floor of memory rose in 8 of 8 parts of 34 min, did not slow down"
    )
    assert "gpuagent blame 4242" in problem.advice


def test_a_leak_of_which_the_history_was_lost() -> None:
    """Its alert outlived the agent: nothing says that it is over before it has been measured anew."""
    here, alert = (
        seen(Growth(Verdict.LEARNING)),
        FiringAlert("GpuProcessMemoryLeak", "warning", True, "GPU-00000000", 4242, gpu=0, began_at=WALL - 1620.0),
    )
    (problem,) = find_problems(here, NOW, firing=[alert])
    assert problem.severity is Severity.WARNING
    assert problem.sentence == (
        "GPU 0: python3 (pid 4242) has had an alert about its growth for 27 min; whether it still leaks is being "
        "measured anew"
    )


MINUTES = Range(900.0, 450.0, 1350.0)
GROWING = replace(LEAK, verdict=Verdict.GROWING, evidence=None)


@pytest.mark.parametrize(
    ("of_process", "of_gpu", "problems"),
    [
        (LEAK, None, [(Severity.WARNING, "leak", 4242)]),
        (replace(LEAK, exhaustion=MINUTES), None, [(Severity.CRITICAL, "leak", 4242)]),
        (replace(LEAK, slope=None, exhaustion=None, reasons=()), None, [(Severity.WARNING, "leak", 4242)]),
        (GROWING, None, [(Severity.INFO, "growth", 4242)]),
        (replace(GROWING, exhaustion=MINUTES), None, [(Severity.WARNING, "growth", 4242)]),
        (replace(GROWING, exhaustion=Range(90_000.0, 1.0, 2.0)), None, []),
        (replace(GROWING, exhaustion=None), None, []),
        (Growth(Verdict.CACHED, reasons=("holds 4.0 GiB more",)), None, [(Severity.INFO, "cached", 4242)]),
        (Growth(Verdict.LEVELLED_OFF), Growth(Verdict.STEADY), []),
        (Growth(Verdict.STEADY), LEAK, [(Severity.WARNING, "unowned_leak", None)]),
        (LEAK, LEAK, [(Severity.WARNING, "leak", 4242)]),
        (
            None,
            Growth(Verdict.STEADY, fast=True, fast_exhaustion_seconds=9.0),
            [(Severity.WARNING, "fast_growth", None)],
        ),
    ],
)
def test_what_is_worth_a_word(
    of_process: Growth | None, of_gpu: Growth | None, problems: list[tuple[Severity, str, int | None]]
) -> None:
    """LEAK-01, LEAK-02, LEAK-04: leaks always, growth where it fills the GPU today, caches as what they are."""
    assert told(seen(of_process, of_gpu)) == problems


def test_a_server_that_starts_is_no_alarm() -> None:
    """LEAK-04: one that takes most of the GPU by design fills it within seconds, as the alert knows too."""
    fast = Growth(Verdict.LEARNING, fast=True, fast_exhaustion_seconds=9.0)
    whole = seen(fast, fast)
    (one,) = whole.processes
    assert one.info is not None
    server = one._replace(info=replace(one.info, name="VLLM::EngineCor", start_time_seconds=WALL - 300))
    problems = find_problems(replace(whole, processes=(server,)), NOW)

    assert told(whole) == [(Severity.WARNING, "fast_growth", None)]
    assert [(problem.severity, problem.kind) for problem in problems] == [(Severity.INFO, "fast_growth")]
    assert "by design" in problems[0].advice


FULL = replace(LEAK, exhaustion=Range(0.0, 0.0, 0.0), state=GrowthState.FULL)


def test_a_leak_at_the_wall_in_words() -> None:
    """LEAK-02: pace and growth in the past, the forecast now, and critical; never a pace of 0 nor `about 0 s`."""
    (problem,) = (one for one in find_problems(seen(FULL), NOW) if one.kind == "leak")
    assert problem.severity is Severity.CRITICAL
    assert problem.text.startswith(
        "python3 (pid 4242) began to leak memory 2 h 10 min ago, 1.2 GiB/h until the GPU was full (evidence: strict)"
    )


def test_a_leak_that_stopped_with_room() -> None:
    """LEAK-02: until it is called off it is a leak without a forecast, and the flat time is no growth."""
    (problem,) = find_problems(seen(replace(LEAK, exhaustion=None, state=GrowthState.STOPPED)), NOW)
    assert "began to leak memory 2 h 10 min ago, 1.2 GiB/h until it stopped (evidence" in problem.text
    assert "full" not in problem.text.partition(":")[0]


@pytest.mark.parametrize("of_process", [Growth(Verdict.STEADY), LEAK], ids=["alone", "a leak in another instance"])
def test_memory_of_no_process_in_a_mig_instance_in_words(of_process: Growth) -> None:
    """LEAK-02: the instance is named once, with its own forecast, and not the GPU that has room."""
    parts = (mig_instance(1, 8.0), mig_instance(2, 4.0))
    whole = replace(LEAK, exhaustion=None)
    growth = {MemoryKey(UUID): whole, MemoryKey(UUID, 0, 1): LEAK, MemoryKey(UUID, 4242, 2): of_process}
    there = snapshot([gpu(mig=parts)], [process(instance=2)])
    texts = [one.text for one in find_problems(replace(there, growth=growth), NOW) if one.kind == "unowned_leak"]
    assert texts == [
        f"memory of no process is leaking in MIG instance 1 (1g.10gb), 1.2 GiB/h, full in 2 h 14 min: {WHY[0]}"
    ]


def test_memory_of_processes_that_the_driver_does_not_tell_is_not_called_nobodys() -> None:
    """MEM-02: a virtual GPU lists processes and tells the memory of none: what leaks is likely theirs."""
    there = snapshot([gpu()], [process(used_gib=None), process(4243, used_gib=None)])
    found = find_problems(replace(there, growth={MemoryKey(UUID): LEAK}), NOW)
    (problem,) = [one for one in found if one.kind == "unowned_leak"]
    assert problem.text.startswith("memory of unknown processes is leaking, 1.2 GiB/h")
    assert problem.advice == "The driver does not tell the memory of 2 processes: it is likely there."


def test_a_gpu_with_a_problem_is_not_ok() -> None:
    """EXP-05: the document says how grave the gravest problem of a GPU is, and of a process how grave its growth."""
    shown = document(seen(FULL))
    assert (shown["gpus"][0]["severity"], shown["processes"][0]["severity"]) == ("critical", "critical")
    quiet = document(seen(Growth(Verdict.STEADY)))
    assert (quiet["gpus"][0]["severity"], quiet["processes"][0]["severity"]) == (None, None)


def test_the_forecast_is_that_of_the_gpu() -> None:
    """Two that grow fill it sooner than each by itself: people are told that, and what one of them would take alone."""
    alone, both = Range(1140.0, 570.0, 1710.0), Range(540.0, 270.0, 810.0)
    slope = Range(10 * GIB / 3600, 1.0, 2.0)
    leak = Growth(
        Verdict.LEAKING, Evidence.STRICT, slope, since_seconds=1.0, exhaustion=alone, state=GrowthState.RISING
    )
    growth = {MemoryKey("GPU-00000000", 4242): leak, MemoryKey("GPU-00000000"): replace(leak, exhaustion=both)}
    seen = replace(snapshot([gpu(0)], [process(4242)]), growth=growth)

    (text,) = [one.text for one in find_problems(seen, NOW) if one.kind == "leak"]
    assert "full in 9 min (19 min by itself)" in text
    said = Assessments(growth).document(MemoryKey("GPU-00000000", 4242))
    assert (full_in_words(said), said["exhaustion_seconds"]) == ("9 min", 1140.0)
