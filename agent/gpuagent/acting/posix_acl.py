"""POSIX ACLs as the kernel stores them: which users and groups beside owner, group and others may write.

The value of `system.posix_acl_access` is a version and entries of 8 bytes, little-endian (linux/posix_acl_xattr.h).
With an ACL, the group bits of a file's mode are the mask, not the permissions of its group (acl(5)).
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass

XATTR = "system.posix_acl_access"
VERSION = 2
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
WRITE = 0x02

_HEADER = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")
_NO_ACL = frozenset({errno.ENODATA, errno.EOPNOTSUPP})
"""The file has none, or its file system knows none: the mode is all there is."""


@dataclass(frozen=True, slots=True)
class AclWriters:
    """Who may write by an ACL once the mask is applied; owner and others are in the mode."""

    users: frozenset[int]
    groups: frozenset[int]
    owning_group: bool


def parse_acl(value: bytes) -> AclWriters:
    """Return who may write. Raises ValueError for what is no ACL of version 2."""
    if len(value) < _HEADER.size or (len(value) - _HEADER.size) % _ENTRY.size:
        raise ValueError(f"an ACL of {len(value)} bytes")
    (version,) = _HEADER.unpack_from(value)
    if version != VERSION:
        raise ValueError(f"an ACL of version {version}")
    entries = list(_ENTRY.iter_unpack(value[_HEADER.size :]))
    if unknown := {tag for tag, _, _ in entries} - {USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER}:
        raise ValueError(f"an ACL entry of type {min(unknown):#x}")
    masks = [permissions for tag, permissions, _ in entries if tag == MASK]
    # Without a mask there are no named entries (acl(5)); were there any, nothing would limit them.
    writable = all(mask & WRITE for mask in masks)

    def named(tag: int) -> frozenset[int]:
        found = (entry for entry in entries if entry[0] == tag and entry[1] & WRITE)
        return frozenset(identifier for _, _, identifier in found) if writable else frozenset()

    return AclWriters(named(USER), named(GROUP), bool(named(GROUP_OBJ)))


def read_acl(descriptor: int) -> AclWriters | None:
    """Return who may write by the ACL of an open file; None where it has none.

    Raises OSError and ValueError where that cannot be found out.
    """
    try:
        # fgetxattr(2) refuses descriptors of O_PATH; the link in /proc leads to the very same file.
        return parse_acl(os.getxattr(f"/proc/self/fd/{descriptor}", XATTR))
    except OSError as error:
        if error.errno in _NO_ACL:
            return None
        raise
