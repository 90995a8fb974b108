"""Which GPUs are full by design."""

from __future__ import annotations

import dataclasses

import pytest

from gpuagent.catalogue.frameworks import CONFIGURED, Framework, framework_of, recogniser
from gpuagent.catalogue.preallocation import fast_growth_expected, preallocated
from gpuagent.embedded import ClientReading
from gpuagent.growth import Growth, MemoryKey, Verdict
from gpuagent.identity import ProcessId
from gpuagent.reading import (
    GIB,
    GpuIdentity,
    GpuReading,
    GpuState,
    Memory,
    NodeReading,
    NvmlState,
    ProcessInfo,
    ProcessReading,
    Snapshot,
)
from gpuagent.reading import ProcessState as Process

GPU = GpuReading(
    GpuIdentity(0, "GPU-a"), GpuState.OK, memory=Memory(total_bytes=80 * GIB, used_bytes=72 * GIB), processes_known=True
)


def info(name: str, command: str = "") -> ProcessInfo:
    """A process by its name and command line."""
    return ProcessInfo(ProcessId("boot", 7, 1), name, 1000, "alice", command)


def holds(used_bytes: int, of: ProcessInfo | None, uuid: str = "GPU-a") -> ProcessReading:
    """That process on a GPU."""
    return ProcessReading(0, uuid, 7, Process.LIVE if of else Process.DEAD, of, used_bytes, "C", None)


@pytest.mark.parametrize(
    ("framework", "name", "command"),
    [
        ("vllm", "python3", "python3 -m vllm.entrypoints.openai.api_server --model m"),
        ("vllm", "vllm", "/usr/bin/python3 /usr/local/bin/vllm serve m"),
        ("vllm", "VLLM::EngineCor", "VLLM::EngineCore"),
        ("vllm", "VLLM::Worker_TP", ""),
        ("sglang", "python3", "python3 -m sglang.launch_server --model-path m"),
        ("sglang", "sglang::schedul", "sglang::scheduler_TP0"),
        ("tensorrt-llm", "trtllm-serve", "trtllm-serve m"),
        ("lmdeploy", "lmdeploy", "lmdeploy serve api_server m"),
        ("tensorflow-serving", "tensorflow_mode", "tensorflow_model_server --port=8500"),
        ("tgi", "text-generation", "text-generation-server serve m"),
        ("maxtext", "python3", "python3 -m MaxText.train configs/base.yml"),
    ],
)
def test_servers_that_preallocate_are_recognised(framework: str, name: str, command: str) -> None:
    """The servers people run are known by their process, without any configuration, and when they rename themselves."""
    assert recogniser()(info(name, command)) == Framework(framework, preallocates=True)


@pytest.mark.parametrize(
    ("framework", "name", "command"),
    [
        ("ollama", "ollama", "/usr/local/bin/ollama runner --model /m --ctx-size 8192 --port 38761"),
        ("ollama", "ollama_llama_se", "/tmp/ollama1/runners/cuda_v12/ollama_llama_server --model m"),
        ("triton", "tritonserver", "tritonserver --model-repository=/models"),
        ("triton", "triton_python_b", "/opt/tritonserver/backends/python/triton_python_backend_stub m"),
    ],
)
def test_servers_that_take_what_they_need_are_recognised_too(framework: str, name: str, command: str) -> None:
    """A full GPU stays an alarm where one of these holds it."""
    assert recogniser()(info(name, command)) == Framework(framework, preallocates=False)


@pytest.mark.parametrize(
    "command", ["python3 train.py", "whisper-server --model large-v3", "python3 my_vllm_clone.py", "ollama serve"]
)
def test_others_are_not(command: str) -> None:
    """A full GPU stays an alarm where an ordinary process holds it."""
    assert recogniser()(info("python3", command)) is None


def test_a_pattern_of_the_users_is_taken_too() -> None:
    """Programs of TensorFlow and JAX cannot be told from outside: the configuration names them."""
    recognise = recogniser((r"jax_serve\.py", "ollama"))

    assert recognise(info("python3", "python3 jax_serve.py")) == Framework(CONFIGURED, preallocates=True)
    assert recognise(info("ollama", "ollama runner")) == Framework("ollama", preallocates=True)


@pytest.mark.parametrize(
    ("command", "told", "expected"),
    [
        ("python3 train.py", {}, None),
        ("python3 train.py", {"jax": True}, Framework("jax", preallocates=True)),
        ("python3 train.py", {"jax": False, "tensorflow": True}, Framework("tensorflow", preallocates=True)),
        ("python3 -m MaxText.train", {"jax": False}, Framework("maxtext", preallocates=False)),
        ("vllm serve m", {}, Framework("vllm", preallocates=True)),
    ],
)
def test_the_word_of_the_app_counts_more(command: str, told: dict[str, bool], expected: Framework | None) -> None:
    """It knows its environment, in which preallocation is switched off."""
    process = holds(GIB, info("python3", command))
    client = ClientReading(ProcessId("boot", 7, 1), "app", frameworks=told)

    assert framework_of(process, {7: client}, recogniser()) == expected


def test_a_gpu_counts_while_such_servers_hold_most_of_it() -> None:
    """A small server of this kind is no excuse for a GPU that others fill."""
    server, other, modest = info("vllm"), info("python3", "python3 train.py"), info("ollama", "ollama runner")
    recognise = recogniser()

    def told(*processes: ProcessReading, gpu: GpuReading = GPU) -> list[bool]:
        return [value for _, value in preallocated([gpu], processes, {}, recognise)]

    assert told(holds(70 * GIB, server), holds(2 * GIB, other)) == [True]
    assert told(holds(20 * GIB, server), holds(52 * GIB, other)) == [False]
    assert told(holds(70 * GIB, modest)) == [False]
    assert told(holds(70 * GIB, server, uuid="GPU-b")) == [False]
    assert told(holds(70 * GIB, None)) == [False]
    assert told(holds(70 * GIB, server), gpu=dataclasses.replace(GPU, processes_known=False)) == []
    assert told(holds(70 * GIB, server), gpu=dataclasses.replace(GPU, memory=None)) == []


NOW = 1_700_000_000.0
FAST = Growth(Verdict.LEARNING, fast=True, fast_exhaustion_seconds=8.0)


def grows(*growing: tuple[int, str, float], gpu: Growth = FAST) -> Snapshot:
    """Processes (pid, name, age in seconds) that grow fast on one GPU, beside one that does not."""
    processes = [
        ProcessReading(
            0, "GPU-a", pid, Process.LIVE,
            ProcessInfo(ProcessId("boot", pid, pid), name, 1000, "alice", start_time_seconds=NOW - age_seconds),
            20 * GIB, "C", None,
        )
        for pid, name, age_seconds in (*growing, (9, "train.py", 50.0))
    ]  # fmt: skip
    growth = {MemoryKey("GPU-a"): gpu, **{process.key: FAST for process in processes[:-1]}}
    return Snapshot(
        NOW, 100.0, NodeReading(NvmlState.READY), gpus=(GPU,), processes=tuple(processes), growth=growth
    )  # fmt: skip


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (grows((1, "VLLM::EngineCor", 1799.0)), [True]),
        (grows((1, "VLLM::Worker_TP", 200.0), (2, "sglang::schedul", 300.0)), [True]),
        (grows((1, "VLLM::EngineCor", 1800.0)), [False]),
        (grows((1, "python3", 200.0)), [False]),
        (grows((1, "VLLM::EngineCor", 200.0), (2, "python3", 200.0)), [False]),
        (grows(), [False]),
        (grows((1, "VLLM::EngineCor", 200.0), gpu=Growth(Verdict.STEADY)), []),
    ],
    ids=["a server", "two of them", "an old one", "another process", "both", "nobody's memory", "nothing is fast"],
)
def test_a_server_that_starts_excuses_its_own_growth(snapshot: Snapshot, expected: list[bool]) -> None:
    """For half an hour, and nobody else's; where nothing would fill the GPU within minutes, nothing is said."""
    assert [value for _, value in fast_growth_expected(snapshot, recogniser())] == expected
