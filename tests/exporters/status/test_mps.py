"""Memory that clients of MPS share: whose it is where the driver lists them, and what is said where it does not."""

from __future__ import annotations

import asyncio

import pytest

from gpuagent.cli.cells import Paint
from gpuagent.cli.check import judge
from gpuagent.cli.ps import process_table
from gpuagent.cli.status import status_screen
from gpuagent_alerts.remedies.safeguards.never_list import NEVER, find_listed
from gpuagent_exporters.status.document import status_document
from tests.fakes.rig import rig

SERVER = "{{name: nvidia-cuda-mps, command: nvidia-cuda-mps-server, memory: {}}}"
CLIENT = "{name: client, kind: M, memory: 2GiB}"
OTHER = "{name: train, memory: 30GiB}"


def document(*processes: str) -> dict[str, object]:
    """The status of a node with one GPU and these processes."""

    async def run() -> dict[str, object]:
        async with rig(f"gpus:\n  - {{model: h100, processes: [{', '.join(processes)}]}}\n", events=False) as stage:
            snapshot = await stage.tick()
            now = stage.clock.now()
            return status_document(
                snapshot, now_seconds=now, source="agent", version="1", pid=1, uptime_seconds=1.0,
                poll_interval_seconds=1.0, history={}, history_interval_seconds=1.0,
            )  # fmt: skip

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("processes", "shared"),
    [
        pytest.param([SERVER.format("20GiB"), OTHER], True, id="its clients are not listed"),
        pytest.param([SERVER.format("20GiB"), CLIENT], False, id="its clients are listed"),
        pytest.param([SERVER.format("400MiB"), OTHER], False, id="it has no clients"),
    ],
)
def test_who_holds_what_clients_share(processes: list[str], *, shared: bool) -> None:
    """PROC-08: a server is not the owner of its clients' memory: `status`, `ps` and `check` say so, and are calm."""
    told = document(*processes)
    listed = told["processes"]
    assert isinstance(listed, list)
    marked = [process["process"] for process in listed if process["shared_through_mps"]]
    assert marked == (["nvidia-cuda-mps"] if shared else [])
    text = judge(told, 0.9, 0.98)[1]
    screens = (
        text,
        "\n".join(status_screen(told, 120, Paint(color=False, ascii_only=False))),
        "\n".join(process_table(listed, 160, Paint(color=False, ascii_only=False))),
    )
    problems = told["problems"]
    assert isinstance(problems, list)
    assert [each["severity"] for each in problems if each["kind"] == "mps_shared"] == ["info"] * shared
    assert [("shared through MPS" in each) for each in screens] == [shared] * 3


def test_no_rule_ends_a_server() -> None:
    """PROC-08: whatever its clients hold, the server and its daemon are on the never-list under each of their names."""
    for name in ("nvidia-cuda-mps", "nvidia-cuda-mps-server", "nvidia-cuda-mps-control"):
        assert find_listed((name,), NEVER) is not None
