"""Resolve a path as the kernel does, and name everything on the way that others than root and the agent can change.

Whoever can change one directory or one link of a path decides which file it names. So every element is opened without
following links, and owner, mode and ACL are read from what was opened: what is judged is what the walk goes through.

POSIX ACLs are read as the kernel stores them. The value of `system.posix_acl_access` is a version and entries of 8
bytes, little-endian (linux/posix_acl_xattr.h). With an ACL, the group bits of a file's mode are the mask, not the
permissions of its group (acl(5)).
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from gpuagent_alerts.remedies.files.mounts import file_system_fault, image_of

MAX_LINKS = 40
"""As many as the kernel follows (MAXSYMLINKS, linux/namei.h)."""

_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
_ELSEWHERE = "name a file elsewhere"
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
XATTR = "system.posix_acl_access"
VERSION = 2
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
WRITE = 0x02
_HEADER = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")
_NO_ACL = frozenset({errno.ENODATA, errno.EOPNOTSUPP})
"""The file has none, or its file system knows none: the mode is all there is."""


class PathFault(NamedTuple):
    """An element of a path that others can change."""

    element: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{show_path(self.element)} {self.problem}: {self.remedy}"


@dataclass(slots=True)
class Walk:
    """Where a path leads, and what is wrong on the way. Close it, or use it as a context manager."""

    path: str
    faults: list[PathFault] = field(default_factory=list)
    descriptor: int | None = None
    """The file or directory at the end, opened with O_PATH; None if there is none, or it cannot be reached."""
    status: os.stat_result | None = None
    """Status of the descriptor; None where nothing is at the end."""

    def is_regular_file(self) -> bool:
        """Return whether a file with a content of its own is at the end: no directory, FIFO, device or socket."""
        return self.status is not None and stat.S_ISREG(self.status.st_mode)

    def is_directory(self) -> bool:
        """Return whether a directory is at the end."""
        return self.status is not None and stat.S_ISDIR(self.status.st_mode)

    def kind(self) -> str:
        """Return what is at the end, in words."""
        if self.status is None:
            return "not there"
        return _KINDS.get(stat.S_IFMT(self.status.st_mode), "a directory" if self.is_directory() else "a file")

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def walk(path: str, owners: Collection[int], images: tuple[str, ...] = ()) -> Walk:
    """Walk an absolute path. Everything on it has to belong to one of the `owners`, and only they may write it.

    `images` are the disk images that the path is a part of. Does not raise: what cannot be examined is a fault. A path
    that leads nowhere has one if others can complete it.
    """
    found = Walk(path)
    walker = _Walker(found, owners, images)
    try:
        walker.go()
    except OSError as error:
        reason = error.strerror or str(error)
        found.faults.append(PathFault(path, f"cannot be examined ({reason})", "let the agent's user reach it"))
    except ValueError as error:
        found.faults.append(PathFault(path, f"cannot be examined ({error})", "write another path"))
    finally:
        walker.close()
    return found


class _Walker:
    """One walk: the directory that it is in, and the names that are still to come, the next one last."""

    def __init__(self, found: Walk, owners: Collection[int], images: tuple[str, ...]) -> None:
        self._found = found
        self._owners = owners
        self._images = images
        self._pending = found.path.split("/")[::-1]
        self._place: list[str] = []
        self._here = -1
        self._creators: list[PathFault] = []
        self._unproven = False

    def close(self) -> None:
        if self._here != -1:
            os.close(self._here)
            self._here = -1

    def go(self) -> None:
        if not self._found.path.startswith("/"):
            raise ValueError("it is not an absolute path")
        self._enter(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), [])
        links = 0
        while self._pending:
            name = self._pending.pop()
            if name in {"", "."}:
                continue
            if name == "..":
                parent = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._here)
                self._enter(parent, self._place[:-1])
                continue
            place = [*self._place, name]
            try:
                opened = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._here)
            except OSError as error:
                if error.errno not in _NOT_THERE:
                    raise
                self._miss(place)
                return
            mode = os.fstat(opened).st_mode
            if stat.S_ISDIR(mode):
                self._enter(opened, place)
            elif stat.S_ISLNK(mode):
                links += 1
                self._follow(opened, place, links)
            else:
                self._end(opened, place)
                return
        # A directory is what was asked for: what others may put into it counts, also where they may not replace it.
        self._found.faults += [each for each in self._creators if each not in self._found.faults]
        self._found.descriptor, self._here = self._here, -1
        self._found.status = os.fstat(self._found.descriptor)

    def _enter(self, directory: int, place: list[str]) -> None:
        self.close()
        self._here, self._place = directory, place
        faults, self._creators = self._judge(directory, place)
        self._add(faults)

    def _follow(self, link: int, place: list[str], links: int) -> None:
        try:
            status = os.fstat(link)
            if status.st_uid not in self._owners:  # its mode means nothing (symlink(7))
                element = _text(place)
                self._add([PathFault(element, f"is a link of uid {status.st_uid}", _do("chown -h root", element))])
            self._add(self._judge_file_system(link, place))
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink("", dir_fd=link)
        finally:
            os.close(link)
        self._pending += target.split("/")[::-1]
        if target.startswith("/"):
            self._enter(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), [])

    def _end(self, opened: int, place: list[str]) -> None:
        self._found.descriptor = opened
        self._found.status = os.fstat(opened)
        self._add(self._judge(opened, place)[0])
        if any(name not in {"", "."} for name in self._pending):  # a file where a directory should be leads nowhere
            self._found.close()
            self._found.status = None

    def _miss(self, place: list[str]) -> None:
        """Nothing is there: whoever may create it decides what will be."""
        missing = _text(place)
        told = {(each.element, each.problem) for each in self._found.faults}
        for each in self._creators:
            if (each.element, each.problem) in told:
                continue
            problem = f"does not exist and can be created, as {show_path(each.element)} {each.problem}"
            self._add([PathFault(missing, problem, each.remedy)])

    def _add(self, faults: list[PathFault]) -> None:
        self._found.faults += [each for each in faults if each not in self._found.faults]

    def _judge_file_system(self, opened: int, place: list[str]) -> list[PathFault]:
        """Return the fault of the first element on a file system that proves nothing, and none for what lies below."""
        fault = "" if self._unproven else file_system_fault(opened, self._owners) or self._image_fault(opened)
        self._unproven = self._unproven or bool(fault)
        return [PathFault(_text(place), fault, _ELSEWHERE)] if fault else []

    def _image_fault(self, opened: int) -> str:
        """Describe what is wrong with the file in which this file system lies, if it lies in one."""
        image = image_of(opened)
        if not image:
            return ""
        if image in self._images:
            return f"lies in {show_path(image)}, which lies in itself"
        with walk(image, self._owners, (*self._images, image)) as walked:
            if walked.status is None:
                return f"lies in {show_path(image)}, which is not to be found"
            return f"lies in {show_path(image)}, a disk image: {walked.faults[0]}" if walked.faults else ""

    def _judge(self, opened: int, place: list[str]) -> tuple[list[PathFault], list[PathFault]]:
        """Faults of a file or directory; and those that count only if others create what it does not have yet."""
        element = _text(place)
        faults = self._judge_file_system(opened, place)
        status = os.fstat(opened)
        if status.st_uid not in self._owners:
            faults.append(PathFault(element, f"belongs to uid {status.st_uid}", _mend(status, "chown root", element)))
        if stat.S_ISSOCK(status.st_mode) or stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            return faults, []  # what is written into these is not kept in them
        writers = list(_writers(opened, status, element, self._owners))
        if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
            # As /tmp: others may add a name, but only its owner takes one away. It is meant to be writable.
            return faults, faults + [each._replace(remedy=_ELSEWHERE) for each in writers]
        return faults + writers, faults + writers


def _writers(opened: int, status: os.stat_result, element: str, owners: Collection[int]) -> Iterator[PathFault]:
    """Yield who may write by mode and ACL. A group is refused, whichever it is: its members change without the file."""
    if status.st_mode & stat.S_IWOTH:
        yield PathFault(element, "is writable by everybody", _mend(status, "chmod o-w", element))
    try:
        acl = read_acl(opened)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        yield PathFault(element, f"has an ACL that cannot be read ({reason})", _mend(status, "setfacl -b", element))
        return
    if acl.owning_group if acl is not None else status.st_mode & stat.S_IWGRP:
        remedy = _mend(status, "chmod g-w", element)
        yield PathFault(element, f"is writable by its group (gid {status.st_gid})", remedy)
    if acl is not None:
        for user in sorted(acl.users - set(owners)):
            yield PathFault(element, f"is writable by uid {user} (ACL)", _mend(status, "setfacl -b", element))
        for group in sorted(acl.groups):
            yield PathFault(element, f"is writable by gid {group} (ACL)", _mend(status, "setfacl -b", element))


def show_path(path: str) -> str:
    """Return a path that cannot disturb a terminal or a log."""
    return path if path.isprintable() else ascii(path)


def how_to_replace(element: str) -> str:
    """Return what replaces a file: whoever opened it for writing before keeps that, whatever its owner and mode are."""
    file, new = shlex.quote(element), shlex.quote(f"{element}.new")
    return show_path(f"cp {file} {new} && chmod go-w {new} && mv {new} {file}")


def _mend(status: os.stat_result, command: str, element: str) -> str:
    return how_to_replace(element) if stat.S_ISREG(status.st_mode) else _do(command, element)


def _do(command: str, element: str) -> str:
    return f"{command} {show_path(shlex.quote(element))}"


def _text(place: list[str]) -> str:
    return "/" + "/".join(place)


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
