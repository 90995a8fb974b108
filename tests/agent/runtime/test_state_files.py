"""Small state files: whatever lies in their place, the agent starts, says so, and writes its own for itself alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuagent.collector.holders import LastHolders
from gpuagent.collector.inventory import IndexRegistry, Inventory
from gpuagent.collector.listings_table import load
from gpuagent.collector.repairs import RepairsFile
from gpuagent.collector.saved_state import find_traces
from gpuagent.collector.trust import TrustRegistry
from gpuagent.core.clock import ManualClock
from gpuagent.core.snapshot import GpuIdentity
from gpuagent.runtime.state_files import MAX_BYTES, read_state, write_state

BOOT = "b8c23df1-820e-4860-8918-e92c9c0ad98a"
GPU = GpuIdentity(0, "GPU-a", "H100", "00000000:01:00.0")


def make_huge(path: Path) -> None:
    """Make a sparse file of 3 GiB."""
    with path.open("wb") as file:
        file.truncate(3 * 2**30)


def make_endless(path: Path) -> None:
    """Make a link to a device without an end."""
    path.symlink_to("/dev/zero")


@pytest.fixture(params=[os.mkfifo, make_endless, make_huge, Path.mkdir])
def unreadable(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What nobody can read to its end, in the place of a state file."""
    make: Callable[[Path], None] = request.param
    path = tmp_path / "listings.json"
    make(path)
    return path


def test_what_cannot_be_read_is_moved_aside(unreadable: Path) -> None:
    """Nobody waits for a FIFO, follows a link or fills the memory; the text says where it is now."""
    aside = unreadable.with_name("unreadable-listings.json")
    with pytest.raises(OSError, match=f"moved to {aside}"):
        read_state(unreadable)
    with pytest.raises(FileNotFoundError):
        read_state(unreadable)
    assert aside.is_symlink() or aside.exists()


def test_every_reader_goes_on(unreadable: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every file's reader begins anew, which is told, and nothing is taken for granted for want of a file."""
    for name in ("gpus.json", "trust.json", "indices.json", "faults.json", "holders.json"):
        os.mkfifo(unreadable.with_name(name))
    assert find_traces(unreadable.parent, unreadable.parent / "none", BOOT, {"listings"}, unreadable.name).ran_before
    assert load(unreadable, BOOT, 1000.0).tables == {}
    assert not Inventory(unreadable.with_name("gpus.json"), BOOT).was_readable
    assert IndexRegistry(unreadable.with_name("indices.json")).uncertainty
    assert TrustRegistry(unreadable.with_name("trust.json"), BOOT).for_gpu(GPU).refusal
    assert RepairsFile(unreadable.with_name("faults.json"), BOOT).load(1000.0) == {}
    LastHolders(ManualClock(), unreadable.with_name("holders.json"), BOOT)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 7


def test_a_whole_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    """Exactly the limit is read, one byte more is not."""
    path = tmp_path / "gpus.json"
    write_state(path, "x" * MAX_BYTES)
    assert len(read_state(path)) == MAX_BYTES
    write_state(path, "x" * (MAX_BYTES + 1))
    with pytest.raises(OSError, match="larger than 8 MiB"):
        read_state(path)


def test_only_the_owner_reads_what_is_written(tmp_path: Path) -> None:
    """Whatever the umask: 0600, and what lay at the name of the new file is not written through."""
    old, theirs = os.umask(0), tmp_path / "theirs"
    theirs.touch()
    (tmp_path / "gpus.new").symlink_to(theirs)
    try:
        Inventory(tmp_path / "gpus.json", BOOT).observe([GPU])
        registry = TrustRegistry(tmp_path / "trust.json", BOOT)
        registry.save()
    finally:
        os.umask(old)
    for name in ("gpus.json", "trust.json"):
        assert stat.S_IMODE((tmp_path / name).lstat().st_mode) == 0o600
        assert (tmp_path / name).is_file()
    assert theirs.read_text() == ""
