"""What the app itself can ask: in an app of its own, for these speak of the whole process."""

from __future__ import annotations

import pytest

from gpuagent_client.api import find_by_uuid
from tests.client.conftest import Apps
from tests.fakes.agent_socket import FakeAgent

TORCH = """
import gpuagent_client as client, json, logging, sys
from faketorch import GIB, FakeTorch
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
torch = FakeTorch().install()
"""
UUID = "GPU-1f8b4a3e-7c2d-4e5f-9a0b-000000000000"


def output_of(apps: Apps, source: str, **environment: str) -> list[str]:
    """The lines that an app prints."""
    app = apps.code(TORCH + source, **environment)
    output, _ = app.communicate()
    assert app.returncode == 0, output
    return output.splitlines()


def test_describe_without_a_gpu_says_so(apps: Apps) -> None:
    """On a laptop, or before the first tensor, nothing is started to find out."""
    lines = output_of(apps, "print(client.describe()); print(torch.calls)")

    assert lines == ["CPU: this process does not use a GPU", "[]"]


def test_describe_without_an_agent_leaves_out_what_is_free(apps: Apps) -> None:
    """Name, total and peak are torch's; what others leave is the agent's knowledge."""
    lines = output_of(apps, "torch.start_cuda().allocate(7 * GIB // 2)\nprint(client.describe())")

    assert lines == ["NVIDIA GeForce RTX 4090, 24.00 GiB total, 3.50 GiB peak used"]


def test_describe_with_an_agent(apps: Apps, agent: FakeAgent) -> None:
    """The line for people, without a call to the driver."""
    app = apps.code(
        TORCH
        + "torch.start_cuda().allocate(7 * GIB // 2)\nclient.start()\n"
        + "for line in sys.stdin: print(client.describe(), flush=True)\n"
    )
    (client,) = agent.wait_for_client(having=lambda one: one.of("stats"))
    client.say({"t": "level", "level": "ok", "free_bytes": {UUID: 20 << 30}})
    client.ask("rate", interval=0.2)  # answered after the level was heard
    output, _ = app.communicate("describe\n")

    assert output == "NVIDIA GeForce RTX 4090, 24.00 GiB total, 20.00 GiB available, 3.50 GiB peak used\n"


def test_describe_before_cuda_tells_of_the_only_gpu(apps: Apps, agent: FakeAgent) -> None:
    """The agent knows the GPU before the app has touched it."""
    app = apps.code(TORCH + "client.start()\nfor line in sys.stdin: print(client.describe(), flush=True)\n")
    (client,) = agent.wait_for_client(having=lambda one: one.of("stats"))
    known = {"free_bytes": {UUID: 20 << 30}, "total_bytes": {UUID: 24 << 30}, "names": {UUID: "NVIDIA RTX 4090"}}
    client.say({"t": "level", "level": "ok", **known})
    client.ask("rate", interval=0.2)
    output, _ = app.communicate("describe\n")

    assert output == "NVIDIA RTX 4090, 24.00 GiB total, 20.00 GiB available, not used by this process\n"


def test_an_allocator_without_figures_is_described_as_such(apps: Apps) -> None:
    """Neither a number that is not known, nor "CPU"."""
    lines = output_of(apps, "torch.backend = 'pluggable'; torch.start_cuda().allocate(GIB)\nprint(client.describe())")

    assert lines == ["a GPU whose allocator keeps no figures"]


def test_measure_tells_what_a_block_has_done(apps: Apps) -> None:
    """Logged for the developer: allocated, reserved, peak, and what the block has added."""
    lines = output_of(
        apps,
        """
torch.start_cuda().allocate(GIB)
with client.measure("load model") as m:
    torch.allocate(2 * GIB)
    torch.free(GIB)
print(m.allocated_bytes / GIB, m.reserved_bytes / GIB, m.peak_bytes / GIB, m.delta_bytes / GIB, m.exact)
""",
    )

    assert lines[0].startswith("load model: 2.00 GiB allocated, 3.00 GiB reserved, 3.00 GiB peak, +1.00 GiB in 0.")
    assert lines[1] == "2.0 3.0 3.0 1.0 True"


def test_a_peak_is_exact_only_when_alone(apps: Apps) -> None:
    """Peaks belong to the process: of two blocks at a time, neither can say whose it was."""
    lines = output_of(
        apps,
        """
torch.start_cuda().allocate(GIB)
logging.disable()
with client.measure("outer") as outer:
    with client.measure("inner") as inner:
        torch.allocate(GIB)
with client.measure("flat") as flat:
    pass
print(outer.exact, inner.exact, flat.exact)
""",
    )

    assert lines == ["False False False"]


def test_a_block_that_fails_is_measured_too(apps: Apps) -> None:
    """An out-of-memory error is when the figures are wanted most, and it stays the app's error."""
    lines = output_of(
        apps,
        """
torch.start_cuda().allocate(GIB)
try:
    with client.measure("load model"):
        raise MemoryError("CUDA out of memory")
except MemoryError as error:
    print(error)
""",
    )

    assert lines[0].startswith("load model: 1.00 GiB allocated")
    assert lines[1] == "CUDA out of memory"


def test_reports_reach_the_agent(apps: Apps, agent: FakeAgent) -> None:
    """Under the name that the app gives, with the figures of that moment."""
    apps.code(
        TORCH
        + """
torch.start_cuda().allocate(GIB)
client.start()
client.report("before_request")
with client.measure("load model"):
    torch.allocate(GIB)
sys.stdin.readline()
"""
    )
    (client,) = agent.wait_for_client(having=lambda one: len(one.of("event")) == 2)
    first, second = client.of("event")

    figures = {"allocated_bytes": 1 << 30, "reserved_bytes": 1 << 30, "peak_bytes": 1 << 30}
    assert (first["name"], first["fields"]) == ("before_request", {"kind": "report", **figures})
    assert second["fields"]["kind"] == "measure"
    assert second["fields"]["delta_bytes"] == 1 << 30


def test_on_a_cpu_everything_can_be_called(apps: Apps) -> None:
    """The same code runs on a laptop: figures are absent, not zero, and nothing is started."""
    lines = output_of(
        apps,
        """
with client.measure("load model") as m:
    pass
print(m.allocated_bytes, m.delta_bytes)
client.report("idle"); client.declare(typical_bytes=GIB); client.limit_memory(0.5)
print(torch.calls)
""",
    )

    assert lines == ["load model: no GPU memory in use in 0.0 s", "None None", "idle: no GPU memory in use", "[]"]


def test_a_limit_holds_at_once_where_a_gpu_is_in_use(apps: Apps) -> None:
    """Without an agent, and without a start."""
    lines = output_of(apps, "torch.start_cuda().allocate(GIB)\nclient.limit_memory(0.9)\nprint(torch.fraction)")

    assert lines == ["[0.9]"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        "client.declare(minimum_bytes=0)",
        "client.declare(minimum_bytes=1.5)",
        "client.declare(minimum_bytes=2, typical_bytes=1)",
        "client.limit_memory(0)",
        "client.limit_memory(90)",
        "client.on_reset(7)",
        "for n in range(200): client.on_reset(lambda: None)",
        "client.start(app=7)",
    ],
)
def test_a_misuse_is_told_and_costs_nothing(apps: Apps, call: str) -> None:
    """One line in the log of an app in production; an error for whoever tests."""
    lines = output_of(apps, f"{call}\nprint('served')")
    assert len(lines) == 2
    assert "the app is not affected" in lines[0]

    app = apps.code(TORCH + call, GPUAGENT_STRICT="1")
    assert "ValueError" in app.communicate()[0]


def test_declared_needs_reach_the_agent(apps: Apps, agent: FakeAgent) -> None:
    """Whether they were declared before the start or after."""
    apps.code(
        TORCH
        + "client.declare(minimum_bytes=GIB); client.start(); client.declare(typical_bytes=2 * GIB)\n"
        + "sys.stdin.readline()\n"
    )
    both = {"minimum_bytes": 1 << 30, "typical_bytes": 2 << 30}
    (client,) = agent.wait_for_client(having=lambda one: one.hello.get("declared") == both)

    assert client.connected


@pytest.mark.parametrize("key", ["1f8b", "GPU-1f8b", "MIG-1f8b"])
def test_uuids_are_joined_whatever_their_prefix(key: str) -> None:
    """Torch prints a UUID without what NVML puts before it."""
    assert find_by_uuid({key: 5}, "1f8b") == 5
    assert find_by_uuid({key: 5}, "") is None
    assert find_by_uuid({key: 5}, "2222") is None
