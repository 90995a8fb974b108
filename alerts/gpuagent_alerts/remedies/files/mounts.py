"""Which file systems say what others like: FUSE of other users, images that others can write, and /proc."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

# linux/magic.h
FUSE_SUPER_MAGIC = 0x65735546
PROC_SUPER_MAGIC = 0x9FA0

_OCTAL = re.compile(rb"\\([0-7]{3})")
_MOUNT_POINT, _HEAD_FIELDS, _TAIL_FIELDS = 4, 6, 3
_STATFS_BYTES = 512
"""More than any struct statfs has; `f_type`, a long, is its first field on Linux."""


def file_system_fault(descriptor: int, owners: Collection[int]) -> str:
    """Say why owner and mode of an open file prove nothing on its file system; "" where they do.

    Raises OSError where that cannot be found out.
    """
    kind = _magic(descriptor)
    if kind == PROC_SUPER_MAGIC:
        return "lies in /proc, where a name is another file for each process"
    if kind == FUSE_SUPER_MAGIC:
        mount = _field(Path(f"/proc/self/fdinfo/{descriptor}").read_text("ascii"), "mnt_id:")
        user = fuse_user(Path("/proc/self/mountinfo").read_bytes(), mount)
        if user is None or user not in owners:
            whose = "nobody known" if user is None else f"uid {user}"
            return f"lies on a FUSE file system of {whose}, whose program makes up owners and modes"
    return ""


def image_of(descriptor: int, blocks: Path = Path("/sys/dev/block")) -> str:
    """Return the file behind the loop device that an open file's file system lies on; "" where there is none.

    Who can write that file writes the file system below its owners and modes. Raises OSError where it cannot be seen.
    """
    device = os.fstat(descriptor).st_dev
    place = blocks / f"{os.major(device)}:{os.minor(device)}"
    if os.major(device) == 0 or not place.exists():
        return ""
    waiting = [place.resolve()]
    while waiting:
        block = waiting.pop()
        for each in (block, block.parent):  # a partition lies in the folder of its device
            image = each / "loop" / "backing_file"
            if image.exists():
                return image.read_text("utf-8", "surrogateescape").rstrip("\n")
        if (block / "slaves").is_dir():  # of the device mapper: encrypted, or a volume
            waiting += [each.resolve() for each in (block / "slaves").iterdir()]
    return ""


def fuse_user(mountinfo: bytes, mount_id: int) -> int | None:
    """Return the uid that mounted a FUSE file system, by the text of mountinfo (proc(5)); None if it does not say."""
    for line in mountinfo.split(b"\n"):
        head, separator, tail = line.partition(b" - ")
        fields = tail.split(b" ")
        if separator and head.split(b" ")[0] == b"%d" % mount_id:
            # The kernel's own option comes first; no option of the program's can hold a comma (fs/fuse/inode.c).
            users = [option for option in fields[-1].split(b",") if option.startswith(b"user_id=")]
            return int(users[0].removeprefix(b"user_id=")) if users and users[0][8:].isdigit() else None
    return None


def fuse_of_users(mountinfo: bytes) -> Mapping[str, int]:
    """Return the mount point of each FUSE file system that is not root's, and who has mounted it (proc(5)).

    Its program answers whom it likes, with what it likes, or never; to root it usually answers EACCES.
    """
    found = {}
    for line in mountinfo.split(b"\n"):
        head, _, tail = (part.split(b" ") for part in line.partition(b" - "))
        if (
            len(head) < _HEAD_FIELDS
            or len(tail) < _TAIL_FIELDS
            or not tail[0].startswith(b"fuse")
            or not head[0].isdigit()
        ):
            continue
        user = fuse_user(line, int(head[0]))
        if user:
            point = _OCTAL.sub(lambda octal: bytes([int(octal[1], 8)]), head[_MOUNT_POINT])
            found[os.fsdecode(point)] = user
    return found


def _magic(descriptor: int) -> int:
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _c_library().fstatfs(descriptor, found) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ctypes.c_long.from_buffer(found).value & 0xFFFFFFFF


@functools.cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _field(text: str, name: str) -> int:
    return next((int(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name)), -1)
