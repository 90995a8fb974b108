"""Which GPUs are full by design."""

from __future__ import annotations

import dataclasses

import pytest

from gpuagent.catalogue.preallocation import preallocated, recogniser
from gpuagent.identity import ProcessId
from gpuagent.reading import GIB, GpuIdentity, GpuReading, GpuState, Memory, ProcessInfo, ProcessReading
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
    ("name", "command"),
    [
        ("python3", "python3 -m vllm.entrypoints.openai.api_server --model m"),
        ("vllm", "/usr/bin/python3 /usr/local/bin/vllm serve m"),
        ("VLLM::EngineCor", ""),
        ("python3", "python3 -m sglang.launch_server --model-path m"),
        ("trtllm-serve", "trtllm-serve m"),
        ("lmdeploy", "lmdeploy serve api_server m"),
        ("tensorflow_mode", "tensorflow_model_server --port=8500"),
        ("text-generation", "text-generation-server serve m"),
    ],
)
def test_servers_that_preallocate_are_recognised(name: str, command: str) -> None:
    """The servers people run are known by their process, without any configuration."""
    assert recogniser()(info(name, command))


@pytest.mark.parametrize("command", ["python3 train.py", "whisper-server --model large-v3", "python3 my_vllm_clone.py"])
def test_others_are_not(command: str) -> None:
    """A full GPU stays an alarm where an ordinary process holds it."""
    assert not recogniser()(info("python3", command))


def test_a_pattern_of_the_users_is_taken_too() -> None:
    """TensorFlow and JAX cannot be told from outside: the configuration names them."""
    assert recogniser((r"jax_serve\.py",))(info("python3", "python3 jax_serve.py"))


def test_a_gpu_counts_while_such_servers_hold_most_of_it() -> None:
    """A small server of this kind is no excuse for a GPU that others fill."""
    server, other = info("vllm"), info("python3", "python3 train.py")
    recognise = recogniser()

    def told(*processes: ProcessReading, gpu: GpuReading = GPU) -> list[bool]:
        return [value for _, value in preallocated([gpu], processes, recognise)]

    assert told(holds(70 * GIB, server), holds(2 * GIB, other)) == [True]
    assert told(holds(20 * GIB, server), holds(52 * GIB, other)) == [False]
    assert told(holds(70 * GIB, server, uuid="GPU-b")) == [False]
    assert told(holds(70 * GIB, None)) == [False]
    assert told(holds(70 * GIB, server), gpu=dataclasses.replace(GPU, processes_known=False)) == []
    assert told(holds(70 * GIB, server), gpu=dataclasses.replace(GPU, memory=None)) == []
