"""Which GPUs are full by design."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.growth import Growth, MemoryKey, Verdict
from gpuagent.core.hardware import Memory
from gpuagent.core.identity import ProcessId
from gpuagent.core.metrics.preallocation import fast_growth_expected, preallocated
from gpuagent.core.metrics.process import CONFIGURED, Framework, framework_of, framework_recognizer
from gpuagent.core.snapshot import (
    ClientReading,
    GpuIdentity,
    GpuReading,
    GpuState,
    NodeReading,
    NvmlState,
    ProcessInfo,
    ProcessReading,
    Snapshot,
)
from gpuagent.core.snapshot import ProcessState as Process
from gpuagent.core.units import GIB
from tests.tables import table

GPU = GpuReading(
    GpuIdentity(0, "GPU-a"), GpuState.OK, memory=Memory(total_bytes=80 * GIB, used_bytes=72 * GIB), processes_known=True
)


def info(name: str, command: str = "") -> ProcessInfo:
    """A process of alice's by its name and command line."""
    return ProcessInfo(ProcessId("boot", 7, 1), name, 1000, "alice", command)


def of(owner: ProcessInfo, uid: int = 1001, **names: str) -> ProcessInfo:
    """The same process of another owner's; `names` are of its unit, pod, container or job."""
    return dataclasses.replace(owner, uid=uid, user=f"user{uid}", **names)  # type: ignore[arg-type]


def holds(used_bytes: int | None, of: ProcessInfo | None, uuid: str = "GPU-a") -> ProcessReading:
    """That process on a GPU."""
    return ProcessReading(0, uuid, 7, Process.LIVE if of else Process.DEAD, of, used_bytes, "C", None)


@table(
    "framework, name, command",
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
def test_servers_that_preallocate_are_recognized(framework: str, name: str, command: str) -> None:
    """The servers people run are known by their process, without any configuration, and when they rename themselves."""
    assert framework_recognizer()(info(name, command)) == Framework(framework, preallocates=True)


@pytest.mark.parametrize(
    ("framework", "name", "command"),
    [
        ("ollama", "ollama", "/usr/local/bin/ollama runner --model /m --ctx-size 8192 --port 38761"),
        ("ollama", "ollama_llama_se", "/tmp/ollama1/runners/cuda_v12/ollama_llama_server --model m"),
        ("triton", "tritonserver", "tritonserver --model-repository=/models"),
        ("triton", "triton_python_b", "/opt/tritonserver/backends/python/triton_python_backend_stub m"),
    ],
)
def test_servers_that_take_what_they_need_are_recognized_too(framework: str, name: str, command: str) -> None:
    """A full GPU stays an alarm where one of these holds it."""
    assert framework_recognizer()(info(name, command)) == Framework(framework, preallocates=False)


@pytest.mark.parametrize(
    "command", ["python3 train.py", "whisper-server --model large-v3", "python3 my_vllm_clone.py", "ollama serve"]
)
def test_others_are_not(command: str) -> None:
    """A full GPU stays an alarm where an ordinary process holds it."""
    assert framework_recognizer()(info("python3", command)) is None


def test_a_pattern_of_the_users_is_taken_too() -> None:
    """Programs of TensorFlow and JAX cannot be told from outside: the configuration names them."""
    recognize = framework_recognizer((r"jax_serve\.py", "ollama"))

    assert recognize(info("python3", "python3 jax_serve.py")) == Framework(CONFIGURED, preallocates=True)
    assert recognize(info("ollama", "ollama runner")) == Framework("ollama", preallocates=True)


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

    assert framework_of(process, {7: client}, framework_recognizer()) == expected


def test_a_gpu_counts_while_such_servers_hold_most_of_it() -> None:
    """A small server of this kind is no excuse for a GPU that others fill."""
    server, other, modest = info("vllm"), info("python3", "python3 train.py"), info("ollama", "ollama runner")
    recognize = framework_recognizer()

    def told(*processes: ProcessReading, gpu: GpuReading = GPU) -> list[bool]:
        return [value for _, value in preallocated([gpu], processes, {}, recognize)]

    assert told(holds(70 * GIB, server), holds(2 * GIB, other)) == [True]
    assert told(holds(20 * GIB, server), holds(52 * GIB, other)) == [False]
    assert told(holds(70 * GIB, modest)) == [False]
    assert told(holds(70 * GIB, server, uuid="GPU-b")) == [False]
    assert told(holds(70 * GIB, None)) == [False]
    assert told(holds(70 * GIB, server), gpu=dataclasses.replace(GPU, processes_known=False)) == []
    assert told(holds(70 * GIB, server), gpu=dataclasses.replace(GPU, memory=None)) == []


def test_a_gpu_that_another_program_fills_does_not_count() -> None:
    """Above 90 %, the servers alone have to make it so: what fills the rest can run out of memory."""
    gpu = dataclasses.replace(GPU, memory=Memory(total_bytes=80 * GIB, used_bytes=75 * GIB))

    def told(server_gib: int, other_gib: int) -> list[bool]:
        held = [holds(server_gib * GIB, info("vllm")), holds(other_gib * GIB, info("python3"))]
        return [value for _, value in preallocated([gpu], held, {}, framework_recognizer())]

    assert told(63, 12) == [False]
    assert told(72, 2) == [True]
    assert told(74, 1) == [True]


BOB = 1001
SERVER, OTHER = info("vllm"), info("python3", "python3 train.py")


@table(
    "processes, expected",
    [
        ([(70, SERVER), (2, of(OTHER))], False),
        ([(70, SERVER), (1.4, of(OTHER))], True),
        ([(70, SERVER), (1.4, of(OTHER)), (0.5, of(OTHER, 1002))], False),
        ([(60, of(OTHER)), (10, SERVER)], False),
        ([(70, of(OTHER)), (0.1, SERVER)], False),
        ([(57, SERVER), (15, OTHER)], False),
        ([(58, SERVER), (14, OTHER)], True),
        ([(36, SERVER), (36, SERVER)], True),
        ([(36, SERVER), (36, of(SERVER))], False),
        ([(70, SERVER), (2, None)], False),
        ([(70, SERVER), (None, of(OTHER))], False),
        ([(70, SERVER), (None, OTHER)], True),
        ([(None, SERVER)], False),
        ([(70, of(SERVER, 0, pod_uid="a")), (2, of(OTHER, 0, pod_uid="b"))], False),
        ([(70, of(SERVER, 0, pod_uid="a")), (2, of(OTHER, 0, pod_uid="a"))], True),
        ([(70, of(SERVER, 0, container_id="a")), (2, of(OTHER, 0, container_id="b"))], False),
        ([(70, of(SERVER, 0, container_id="a")), (2, of(OTHER, 0))], False),
        ([(70, of(SERVER, 0, container_id="a")), (2, of(OTHER, 0, container_id="a"))], True),
        ([(70, of(SERVER, 1000, slurm_job="7")), (2, of(OTHER, 1000, slurm_job="8"))], True),
        ([(70, of(SERVER, 1000, unit="a.service")), (2, of(OTHER, 1000, unit="b.service"))], True),
    ],
)
def test_a_name_silences_nothing_for_others(
    processes: list[tuple[float | None, ProcessInfo | None]], expected: bool
) -> None:
    """ALERT-01: what a process calls itself counts only where its owner has the GPU to themselves."""
    held = [holds(None if gib is None else int(gib * GIB), owner) for gib, owner in processes]

    assert [value for _, value in preallocated([GPU], held, {}, framework_recognizer())] == [expected]


def test_what_an_app_says_of_itself_silences_nothing_for_others() -> None:
    """ALERT-01: the embedded client speaks for the process, as its name does."""
    client = ClientReading(ProcessId("boot", 7, 1), "app", frameworks={"jax": True})
    alone = [holds(70 * GIB, OTHER)]
    shared = [*alone, holds(2 * GIB, of(OTHER))._replace(pid=8)]

    assert [value for _, value in preallocated([GPU], alone, {7: client}, framework_recognizer())] == [True]
    assert [value for _, value in preallocated([GPU], shared, {7: client}, framework_recognizer())] == [False]


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("vllm-a.service", True),
        ("user@1000.service/vllm-a.service", False),
        ("other.service", False),
        ("", False),
    ],
)
def test_a_unit_that_root_named_counts_for_all(unit: str, expected: bool) -> None:
    """ALERT-01: on a shared GPU the unit says what the process cannot; one of a user's own manager is a name."""
    recognize = framework_recognizer((r"^vllm-a\.service$",))
    process = of(SERVER, 1000, unit=unit)
    held = [holds(60 * GIB, process), holds(12 * GIB, of(OTHER))]

    assert [value for _, value in preallocated([GPU], held, {}, recognize)] == [expected]


def test_two_servers_with_units_share_a_gpu() -> None:
    """ALERT-01: of two users, both named by root: full by design; with a third user's memory it still is."""
    recognize = framework_recognizer((r"^vllm-\w+\.service$",))
    servers = [holds(32 * GIB, of(SERVER, uid, unit=f"vllm-{uid}.service")) for uid in (1, 2)]
    third = holds(8 * GIB, of(OTHER, 3))

    assert [value for _, value in preallocated([GPU], [*servers, third], {}, recognize)] == [True]
    assert [value for _, value in preallocated([GPU], [servers[0], third], {}, recognize)] == [False]


@given(
    st.lists(st.tuples(st.integers(0, 72), st.integers(0, 3), st.booleans()), max_size=6),
    st.integers(0, 3),
)
def test_no_name_of_one_user_changes_what_a_neighbor_is_told(shares: list[tuple[int, int, bool]], victim: int) -> None:
    """ALERT-01: while a user has more than 2 % of a GPU and no such server, no name of another's makes it silent."""
    mine = sum(share for share, uid, _ in shares if uid == victim)
    held = [holds(share * GIB, of(SERVER if named and uid != victim else OTHER, uid)) for share, uid, named in shares]
    ((_, silent),) = preallocated([GPU], held, {}, framework_recognizer())

    assert not (silent and mine > 0.02 * 72)


NOW = 1_700_000_000.0
FAST = Growth(Verdict.LEARNING, fast=True, fast_exhaustion_seconds=8.0)


def grows(*growing: tuple[int, str, float], gpu: Growth = FAST, beside_uid: int = 1000, unit: str = "") -> Snapshot:
    """Processes (pid, name, age in seconds) that grow fast on one GPU, beside one that does not."""
    processes = [
        ProcessReading(
            0, "GPU-a", pid, Process.LIVE,
            ProcessInfo(
                ProcessId("boot", pid, pid), name, beside_uid if pid == 9 else 1000, "alice",
                start_time_seconds=NOW - age_seconds, unit=unit if pid != 9 else "",
            ),
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
    assert [value for _, value in fast_growth_expected(snapshot, framework_recognizer())] == expected


@pytest.mark.parametrize(
    ("unit", "expected"), [("", False), ("vllm.service", True), ("user@7.service/vllm.service", False)]
)
def test_a_server_that_starts_beside_somebody_else_is_told(unit: str, expected: bool) -> None:
    """LEAK-04: the neighbor's memory is at stake, whatever the process calls itself; a unit of root's excuses it."""
    snapshot = grows((1, "VLLM::EngineCor", 200.0), beside_uid=BOB, unit=unit)

    assert [value for _, value in fast_growth_expected(snapshot, framework_recognizer((r"^vllm\.service$",)))] == [
        expected
    ]
