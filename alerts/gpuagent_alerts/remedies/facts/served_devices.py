"""Find what others lose with a process that nobody can name: what it serves by a device file, and a console it leads.

* A file system in user space ends with whoever has `/dev/fuse` open for it: a program that has mapped a file of it
  gets SIGBUS (fuse(4)). It is left out where its mount is seen to be for the server's own user alone, as of an
  AppImage. Which mount that is, `fdinfo` tells since Linux 6.16 (`fuse_connection`, the minor number of its device);
  before, every file system in user space on the machine has to be one. Whose it is say `/sys/fs/fuse/connections` and
  mountinfo. A mount that is not seen, as after `fusermount -z`, is not shown to be anybody's own.
* A character device of `/dev/cuse` ends likewise, and so do a network interface of `/dev/net/tun` and a block device
  of ublk or nbd. Where `/dev/watchdog` is closed without a word, the machine is restarted. Whose system calls it
  answers (seccomp_unotify(2)) gets ENOSYS, and whose pages it fills (userfaultfd(2)) reads zeros. It goes by the name
  of what is open: who opens the same device by another name takes nothing from others but what is its own.
* The leader of a session on a terminal that is no pseudo-terminal ends: the kernel hangs up that terminal for everybody
  who has it open (`disassociate_ctty` and `tty_vhangup_session`, drivers/tty/).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from gpuagent_alerts.remedies.facts.process_scan import ProcessRow, ProcessScan
from gpuagent_alerts.remedies.facts.terminals import PtyMasters, pty_number

_SERVED = re.compile(
    r"(/dev/(cuse|net/tun|watchdog\d*|ublkc\d+|ublk-control|nbd\d+(p\d+)?|uhid|uinput|vduse/.+)( \(deleted\))?"
    r"|anon_inode:(seccomp notify|\[userfaultfd\]))"
)
_FUSE = re.compile(r".*/fuse( \(deleted\))?")
_FUSE_NODES = frozenset({"/dev/fuse", "/dev/fuse (deleted)"})
_CONNECTION = re.compile(rb"^fuse_connection:\s*(\d+)", re.MULTILINE)
_CONNECTIONS = "/sys/fs/fuse/connections"
_OWNER = re.compile(r"(?:^|,)user_id=(\d+)(?:,|$)")
_ANONYMOUS = re.compile(r"0:(\d+)")
"""Device of a file system without a disk."""
_HOST_INIT = 1


def fuse_connections(folder: str = _CONNECTIONS) -> Mapping[int, int]:
    """Return whose each file system in user space is, by number; nothing where the kernel's list is not mounted."""
    found: dict[int, int] = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for each in entries:
            with suppress(FileNotFoundError):  # it ends meanwhile
                found[int(each.name)] = each.stat().st_uid
    return found


def against_end(
    scan: ProcessScan,
    masters: PtyMasters,
    ended: Collection[int],
    connections: Callable[[], Mapping[int, int]] = fuse_connections,
) -> str:
    """Return why the end of one of these reaches others that cannot be named; "" where none is seen to do so.

    Open files that the agent has no right to see, as it takes CAP_SYS_PTRACE, are passed over, and who has ended
    meanwhile. Raises OSError, ValueError for other failures.
    """
    for pid in sorted(ended):
        row = scan.rows[pid]
        if row.session == pid and row.terminal and pty_number(row.terminal) is None:
            number = row.terminal & 0xFFFFFFFF
            terminal = f"{os.major(number)}:{os.minor(number)}"
            return f"pid {pid} leads the session on terminal {terminal}, which is then hung up for all who have it open"
        try:
            paths = masters.paths(pid)
            served = sorted(path for path in paths if _SERVED.fullmatch(path))
            if not served and any(map(_FUSE.fullmatch, paths)):
                served = _shared_files(masters, row, connections)
        except (PermissionError, FileNotFoundError, ProcessLookupError):  # hidden, or ended meanwhile
            continue
        if served:
            return f"pid {pid} has {served[0]} open, and others may work on what it serves there"
    return ""


def _shared_files(masters: PtyMasters, row: ProcessRow, connections: Callable[[], Mapping[int, int]]) -> list[str]:
    """Return by which descriptors it serves a file system that is not shown to be its own user's alone."""
    infos = masters.infos(row.pid, lambda path: _FUSE.fullmatch(path) is not None)
    told = {int(found[1]): path for path, info in infos if (found := _CONNECTION.search(info))}
    named = [path for path, _ in infos if path in _FUSE_NODES]
    if not told and not named:
        return []
    owners = connections()
    private = _private_mounts(masters, row, owners)
    if told:  # a descriptor of which this kernel tells no connection serves nothing yet
        return [path for number, path in told.items() if number not in private]
    return [] if owners and owners.keys() <= private else named


def _private_mounts(masters: PtyMasters, row: ProcessRow, owners: Mapping[int, int]) -> set[int]:
    """Return the numbers of the file systems that are seen, by it or the host, and are for its own user alone."""
    private: set[int] = set()
    shared: set[int] = set()
    for pid in {row.pid, _HOST_INIT}:
        try:
            lines = masters.mountinfo(pid).decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            mount, _, rest = line.partition(" - ")
            kind, _, rest = rest.partition(" ")
            options = rest.rpartition(" ")[2]
            fields, owner = mount.split(" "), _OWNER.search(options)
            device = _ANONYMOUS.fullmatch(fields[2]) if len(fields) > 2 else None
            if device is None or owner is None or not (kind == "fuse" or kind.startswith("fuse.")):
                continue
            number = int(device[1])
            is_own = owners.get(number, int(owner[1])) in row.uids and "allow_other" not in options.split(",")
            (private if is_own else shared).add(number)
    return private - shared
