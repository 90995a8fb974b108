"""Whether the indices of the GPUs mean what they meant, over restarts and boots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.collector.inventory import IndexRegistry
from gpuagent.core.snapshot import GpuIdentity

A = GpuIdentity(0, "GPU-a", pci_bus_id="00000000:18:00.0")
B = GpuIdentity(1, "GPU-b", pci_bus_id="00000000:20:00.0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file, after an agent has seen both GPUs."""
    file = tmp_path / "indices.json"
    memory = IndexRegistry(file)
    memory.observe([A])
    memory.observe([A, B])
    assert memory.uncertainty == ""
    return file


def doubt(path: Path, *gpus: GpuIdentity, lost: bool = False) -> str:
    """Start an agent that sees these GPUs, and return its doubt."""
    memory = IndexRegistry(path, lost=lost)
    memory.observe(gpus)
    return memory.uncertainty


def test_nothing_has_changed(path: Path) -> None:
    """The same GPUs at the same indices, with an address or without: no doubt, and the file is not written again."""
    before = path.stat().st_mtime_ns
    assert doubt(path, A, B) == ""
    assert doubt(path, A, replace(B, pci_bus_id="")) == ""
    assert path.stat().st_mtime_ns == before


def test_a_gpu_that_is_added_behind_the_others_is_learned(path: Path) -> None:
    """A new index has not meant anything before."""
    new = GpuIdentity(2, "GPU-c", pci_bus_id="00000000:28:00.0")
    assert doubt(path, A, B, new) == ""
    assert doubt(path, A, B) == "GPU GPU-c, index 2, is missing"


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ([replace(B, index=0)], "index 0 was GPU-a at 00000000:18:00.0, and is GPU-b at 00000000:20:00.0"),
        ([replace(B, index=0), replace(A, index=1)], "index 0 was GPU-a"),
        ([A, replace(B, pci_bus_id="00000000:77:00.0")], "index 1 was GPU-b"),
        ([A, replace(B, uuid="GPU-new")], "index 1 was GPU-b"),
        ([A], "GPU GPU-b, index 1, is missing"),
    ],
    ids=["moved up", "swapped", "another slot", "replaced", "missing"],
)
def test_another_gpu_than_before(path: Path, gpus: list[GpuIdentity], words: str) -> None:
    """KILL-01: it stays uncertain over any number of restarts, until the GPUs are back or a person removes the file."""
    for _ in range(3):
        assert doubt(path, *gpus).startswith(words)
    assert doubt(path, A, B) == ""
    path.unlink()
    assert doubt(path, *gpus) == ""
    assert doubt(path, *gpus) == ""


def test_while_the_agent_runs(path: Path) -> None:
    """A reload of the driver that leaves a GPU out makes the indices uncertain until it is back."""
    memory = IndexRegistry(path)
    memory.observe([A, B])
    memory.observe([replace(B, index=0)])
    assert memory.uncertainty.startswith("index 0 was GPU-a")
    memory.observe([A, B])
    assert memory.uncertainty == ""


@pytest.mark.parametrize("damage", [None, "", "{", "[]", '{"schema": 1, "doubt": "", "indices": [5]}', '{"schema": 9}'])
def test_lost_memory_is_no_memory_of_today(path: Path, damage: str | None) -> None:
    """KILL-01: what each index meant before is not known: uncertain, until a person removes what was written since."""
    path.unlink() if damage is None else path.write_text(damage)
    assert "was lost" in doubt(path, A, B, lost=True)
    assert "was lost" in doubt(path, A, B)
    path.unlink()
    assert doubt(path, A, B) == ""


def test_a_directory_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Costs the memory over restarts, and nothing else."""
    assert doubt(tmp_path / "missing" / "indices.json", A) == ""
    assert "cannot be saved" in caplog.text
