"""Scenario files: the shipped ones, and mistakes in one's own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from gpuagent_simulator.scenario import ScenarioError, load_scenario, parse_scenario, shipped_scenarios
from tests.alerts.leak.node import node, run
from tests.tables import table

WANTED = {
    "healthy",
    "leak",
    "full",
    "lost-gpu",
    "hang",
    "driver-reload",
    "mig",
    "xid",
    "dead-process",
    "unified-memory",
    "coherent-memory",
    "no-gpus",
    "consumer-card",
    "memory-stall",
    "crowd",
    "demo",
}


def _problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, file="x.yaml")
    return caught.value.problems


def test_the_promised_scenarios_are_shipped() -> None:
    """Every scenario that the documentation names can be had by its name."""
    assert set(shipped_scenarios()) == WANTED


@table("name", sorted(WANTED))
def test_shipped_scenario_loads(name: str) -> None:
    """A shipped scenario has no mistake, tells what happens, and knows its name."""
    scenario = load_scenario(name)
    file = resources.files("gpuagent_simulator").joinpath("scenarios", f"{name}.yaml")

    assert scenario.name == name
    assert scenario.description
    assert file.read_text(encoding="utf-8").startswith("# ")


def test_crowd_is_a_crowd() -> None:
    """EXP-08: the scenario that cost is measured on has 8 GPUs with 64 processes each."""
    scenario = load_scenario("crowd")

    assert scenario.gpu_count == 8
    assert sum(process.count for process in scenario.gpus[0].processes) == 64


def test_full_is_full() -> None:
    """The scenario shows what its name promises: the alert about a full GPU fires, and no other by then."""

    async def test() -> None:
        async with node("full") as stage:
            await stage.until(60, 1)
            assert [(told.alert.name, told.alert.labels["gpu"]) for told in stage.told] == [("GpuMemoryFull", "0")]

    run(test)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    """A path to a YAML file does as well as a name."""
    file = tmp_path / "mine.yaml"
    file.write_text("gpus:\n  - model: l40s\n")

    scenario = load_scenario(str(file))

    assert (scenario.name, scenario.gpus[0].name) == ("mine", "NVIDIA L40S")


def test_unknown_name_tells_the_known_ones() -> None:
    """A misspelt name is answered with what there is."""
    with pytest.raises(ScenarioError, match=r"no scenario 'healty'.*healthy"):
        load_scenario("healty")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"gpus: [" + b" " * 1024**2 + b"]", "larger than 1024 KiB"),
        (b"gpus:\n\t- x", "not YAML"),
        (b"a: 1\nb: [", "not YAML"),
        (b"- 1", "a scenario is a mapping"),
        (b"", "a scenario is a mapping"),
        (b"gpus: []\nx: &a [*a]", "inside of what it refers to"),
        (b"x: &a [1]\n" + b"".join(b"k%d: &k%d [*a, *a]\n" % (n, n) for n in range(3)), "unknown key"),
        (
            b"k0: &k0 [1, 1]\n" + b"".join(b"k%d: &k%d [*k%d, *k%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40)),
            "aliases counted",
        ),
        (b"[" * 5000, "nested more than"),
    ],
)
def test_a_file_that_is_no_scenario(tmp_path: Path, content: bytes, said: str) -> None:
    """Whatever a file holds, the answer is one clear sentence."""
    file = tmp_path / "x.yaml"
    file.write_bytes(content)

    with pytest.raises(ScenarioError) as caught:
        load_scenario(str(file))
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The path that cannot be read is in the message."""
    with pytest.raises(ScenarioError, match=r"gone\.yaml: No such file"):
        load_scenario(str(tmp_path / "gone.yaml"))


def test_every_mistake_at_once_with_line_and_key() -> None:
    """All mistakes are told in one go, each with file, line and the path of its key."""
    text = """\
drivr: x
gpus:
  - model: h100
    processes:
      - name: a
        memory: {shape: rampp}
      - name: b
        memory: {shape: ramp, rat: 3}
      - memory: 3XB
        from: 3 parsec
        kind: Q
  - model: l40s
    temprature: 3
faults:
  - {kind: hangs}
  - {kind: error, at: 3s}
  - {kind: hang, code: 15}
  - {kind: lost, at: 5s, until: 5s}
  - {kind: error, code: gpu_is_lots}
"""
    expected = {
        "x.yaml:1: drivr: unknown key; did you mean driver?",
        "x.yaml:6: gpus[0].processes[0].memory.shape: 'rampp' is unknown; did you mean ramp?",
        "x.yaml:8: gpus[0].processes[1].memory.rate: is missing",
        "x.yaml:8: gpus[0].processes[1].memory.rat: unknown key; did you mean rate?",
        "x.yaml:9: gpus[0].processes[2].name: is missing",
        "x.yaml:9: gpus[0].processes[2].memory: '3XB' has the unknown unit XB",
        "x.yaml:10: gpus[0].processes[2].from: '3 parsec' is not a duration",
        "x.yaml:11: gpus[0].processes[2].kind: must be one to three of the letters C, G and M",
        "x.yaml:13: gpus[1].temprature: unknown key; did you mean temperature?",
        "x.yaml:15: faults[0].kind: 'hangs' is unknown; did you mean hang?",
        "x.yaml:16: faults[1]: error needs code",
        "x.yaml:17: faults[2]: hang takes no code: it takes at, calls, gpu, until",
        "x.yaml:18: faults[3]: until must be later than at",
        "x.yaml:19: faults[4].code: 'gpu_is_lots' is not an NVML error code",
    }

    problems = _problems(text)

    assert len(problems) == len(expected)
    for beginning in expected:
        assert any(problem.startswith(beginning) for problem in problems), beginning


@table(
    "text, said",
    [
        ("gpus: []\ngpus: []", "x.yaml:2: gpus: is given twice: see line 1"),
        ("gpus: [{model: h101}]", "unknown model 'h101'; one of h100"),
        ("gpus: [{model: h100}]\nfaults: [{kind: lost, gpu: 1}]", "GPU 1 of 1"),
        ("faults: [{kind: missing, gpu: 0, calls: nvmlInit_v2}]", "takes no gpu"),
        (
            "gpus: []\nfaults:\n  - kind: hang\n    calls: nvmlDeviceGetNam",
            "x.yaml:4: faults[0].calls: no entry point is called nvmlDeviceGetNam; did you mean nvmlDeviceGetName?",
        ),
        ("gpus: [{model: h100, memory: null}]", "give memory, or say that the GPU lacks it"),
        ("gpus: [{model: h100, count: 2, uuid: x}]", "not together with count"),
        ("gpus: [{persistence: maybe}]", "gpus[0].persistence: must be true or false, not text"),
        ("gpus: [{count: 1.5}]", "gpus[0].count: must be a whole number, not 1.5"),
        ("gpus: [{power: {idle: cold}}]", "gpus[0].power.idle: 'cold' is not a number"),
        ("gpus: [{memory: {total: .inf}}]", "gpus[0].memory.total: inf is no number of bytes"),
        (
            "gpus: [{model: h100, processes: [{name: a, memory: 1, gpu_instance: 1}]}]",
            "the GPU has no mig",
        ),
        ("gpus: [{model: h100, processes: [{name: a, memory:}]}]", "or unavailable"),
        ("gpus: [{model: h100, processes: [{name: a, memory: 1, pid: 12}]}]", "4194305"),
        (
            "gpus: [{model: h100, processes: [{name: a, memory: 1, bind: k, count: 2}]}]",
            "a process with bind",
        ),
        (
            "gpus: [{model: h100, processes: [{name: a, memory: 1, holds_after_death: true}]}]",
            "use dead_after",
        ),
        (
            "gpus: [{model: h100, processes: [{name: a, memory: 1, life: 1s, until: 3s}]}]",
            "until or life",
        ),
        (
            "gpus: [{model: h100, count: 2, processes: [{name: a, memory: 1, count: 100000}]}]",
            "200000 processes are more than 100000",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    """What contradicts itself is told when the file is loaded, not found out in the story."""
    assert said in "\n".join(_problems(text))


def test_a_model_is_overridden_key_by_key() -> None:
    """A scenario gives only what differs from the model; a function of time is replaced whole."""
    gpu = parse_scenario(
        "gpus: [{model: h100, memory: {base_used: {shape: ramp, rate: 5}}, power: {limit: 500}}]"
    ).gpus[0]

    assert gpu.memory is not None
    assert (gpu.memory.total, gpu.memory.base_used(2)) == (85520809984, 10)
    assert (gpu.power.limit, gpu.power.min_limit) == (500, 200)


def test_numbers_and_flags_may_be_quoted() -> None:
    """A program that fills in a template may put every value in quotes."""
    written = 'gpus: [{count: "2", persistence: "No", accounting: 1, temperature: {idle: "30.5"}, power: {limit: 3}}]'
    gpu = parse_scenario(written).gpus[0]

    assert (gpu.count, gpu.persistence, gpu.accounting) == (2, False, True)
    assert (gpu.temperature.idle, gpu.power.limit) == (30.5, 3.0)


def test_a_key_with_nothing_below_it_is_as_if_it_were_not_there() -> None:
    """What the model has stays: somebody commented out the lines below the key."""
    assert parse_scenario("gpus: [{power:, processes:}]") == parse_scenario("gpus: [{}]")
