"""File systems whose word on owners and modes is somebody else's."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent_alerts.remedies.facts.terminals import mounts_of
from gpuagent_alerts.remedies.files.mounts import file_system_fault, fuse_of_users, fuse_user
from gpuagent_alerts.remedies.files.path_walk import walk
from tests.alerts.remedies.trees import ALICE, tree

__all__ = ["tree"]

MNT_DETACH = 2  # sys/mount.h


@pytest.fixture
def theirs(tree: Path) -> Iterator[Path]:
    """A FUSE file system that another user has mounted; nobody answers for it, and nothing has to be asked."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse cannot be opened: {error.strerror}")
    folder = tree / "theirs"
    folder.mkdir()
    options = f"fd={device},rootmode=40000,user_id={ALICE},group_id={ALICE}".encode()
    try:
        if libc.mount(b"user_id=0", str(folder).encode(), b"fuse", 0, options) != 0:
            pytest.skip(f"FUSE cannot be mounted here: {os.strerror(ctypes.get_errno())}")
        yield folder
        libc.umount2(str(folder).encode(), MNT_DETACH)
    finally:
        os.close(device)


def test_a_fuse_file_system_of_somebody_else(theirs: Path) -> None:
    """Its program answers stat(2): root as the owner of everything, if it likes. It is refused for who mounted it."""
    descriptor = os.open(theirs, os.O_PATH)
    try:
        assert file_system_fault(descriptor, {0}) == (
            f"lies on a FUSE file system of uid {ALICE}, whose program makes up owners and modes"
        )
        assert file_system_fault(descriptor, {0, ALICE}) == ""
    finally:
        os.close(descriptor)
    with walk(str(theirs / "file"), {0}) as walked:
        assert len(walked.faults) == 1


def test_a_disk_image(tree: Path) -> None:
    """Who can write the image writes the file system in it, whatever owners and modes say there."""
    image = tree / "image"
    with image.open("wb") as stream:
        stream.truncate(16 * 2**20)
    folder = tree / "mounted"
    folder.mkdir()
    try:
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no loop device here: {error}")
    try:
        (folder / "x").touch()
        with walk(str(folder / "x"), {0}) as walked:
            assert walked.faults == []
        os.chown(image, ALICE, ALICE)
        with walk(str(folder / "x"), {0}) as walked:
            assert [str(fault).partition(":")[0] for fault in walked.faults] == [
                f"{folder} lies in {image}, a disk image"
            ]
    finally:
        subprocess.run(["umount", folder], check=True)


def test_other_file_systems(tree: Path) -> None:
    """Of the kernel's own file systems /proc alone is refused."""
    told = {}
    for path in ("/", str(tree), "/dev", "/proc", "/proc/self", "/sys"):
        descriptor = os.open(path, os.O_PATH)
        told[path] = bool(file_system_fault(descriptor, {0}))
        os.close(descriptor)
    assert [path for path, refused in told.items() if refused] == ["/proc", "/proc/self"]


MOUNTS = b"""\
24 30 0:22 / /proc rw,nosuid - proc proc rw
30 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
50 30 0:51 / /mnt/al\\040ice rw,nosuid,nodev shared:9 master:2 - fuse.sshfs user_id=0 rw,user_id=1000,group_id=1000
51 30 0:52 / /mnt/root rw - fuseblk /dev/sdb1 rw,user_id=0,group_id=0,allow_other
"""


def test_who_mounted_a_fuse_file_system() -> None:
    """Its owner makes up what stat says; it is the kernel's option that tells, not the name that the owner chose."""
    assert [fuse_user(MOUNTS, number) for number in (50, 51, 30, 24, 5)] == [1000, 0, None, None, None]


@pytest.mark.parametrize("breaks", [b"\r", b"\x0c", b"\x85", b"\xe2\x80\xa8"])
def test_a_mount_point_that_looks_like_lines(breaks: bytes) -> None:
    """Whoever mounts names the mount point: only a line feed ends a line, and an odd line costs itself alone."""
    said = b"x 30 0:53 / /mnt/x rw - fuse.x x rw,user_id=7\n"
    said += b"60 30 0:53 / /a" + breaks + b"51 rw - fuse.x x rw,user_id=7\n"
    assert fuse_user(said + MOUNTS, 51) == 0
    assert fuse_of_users(said + MOUNTS) == {"/a" + os.fsdecode(breaks) + "51": 7, "/mnt/al ice": 1000}
    assert [each.mount_id for each in mounts_of(said + MOUNTS)] == [60, 24, 30, 50, 51]
