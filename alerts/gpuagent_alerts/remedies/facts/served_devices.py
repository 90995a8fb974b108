"""Find what others lose with a process that nobody can name: what it serves by a device file, and a console it leads.

* A file system in user space ends with whoever has `/dev/fuse` open for it: a program that has mapped a file of it
  gets SIGBUS (fuse(4)). It is left out where its mount is seen to be for the server's own user alone, as of an
  AppImage. Which mount that is, `fdinfo` tells since Linux 6.16 (`fuse_connection`, the minor number of its device);
  before, every file system in user space on the machine has to be one. Whose it is say `/sys/fs/fuse/connections` and
  mountinfo. A mount that is not seen, as after `fusermount -z`, is not shown to be anybody's own.
* A character device of `/dev/cuse` ends likewise, and so do a network interface of `/dev/net/tun` and a block device
  of ublk or nbd. Where `/dev/watchdog` is closed without a word, the machine is restarted. Whose system calls it
  answers (seccomp_unotify(2)) gets ENOSYS, and whose pages it fills (userfaultfd(2)) reads zeros. A device is known
  by its number: who may mount has it under any name. A descriptor that lies unread in a socket is in nobody's list.
* The leader of a session on a terminal that is no pseudo-terminal ends: the kernel hangs up that terminal for everybody
  who has it open (`disassociate_ctty` and `tty_vhangup_session`, drivers/tty/).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from gpuagent_alerts.remedies.facts.open_terminals import Device
from gpuagent_alerts.remedies.facts.process_scan import HOST_INIT, ProcessRow, ProcessScan
from gpuagent_alerts.remedies.facts.terminals import PtyMasters, pty_number

_OBJECTS = re.compile(r"anon_inode:(seccomp notify|\[userfaultfd\])")
_MISC_MAJOR, _NBD_MAJOR = 10, 43
_MISC = {130: "watchdog", 200: "net/tun", 203: "cuse", 223: "uinput", 229: "fuse", 239: "uhid"}
"""Minor numbers that never change: include/linux/miscdevice.h."""
_DYNAMIC_MISC = frozenset({"cachefiles", "ublk-control"})
_DYNAMIC = frozenset({"ipvtap", "macvtap", "ublk-char", "uio", "vduse", "watchdog"})
"""Drivers whose numbers /proc/misc and /proc/devices tell."""
_LINE = re.compile(r"^\s*(\d+) (\S+)$", re.MULTILINE)
_FUSE = "fuse"
_CONNECTION = re.compile(rb"^fuse_connection:\s*(\d+)", re.MULTILINE)
_CONNECTIONS = "/sys/fs/fuse/connections"
_OWNER = re.compile(r"(?:^|,)user_id=(\d+)(?:,|$)")
_ANONYMOUS = re.compile(r"0:(\d+)")
"""Device of a file system without a disk."""


def fuse_connections(folder: str = _CONNECTIONS) -> Mapping[int, int]:
    """Return whose each file system in user space is, by number; nothing where the kernel's list is not mounted."""
    found: dict[int, int] = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for each in entries:
            with suppress(FileNotFoundError):  # it ends meanwhile
                found[int(each.name)] = each.stat().st_uid
    return found


class ServedDevices:
    """Numbers of the devices by which a process serves what others use."""

    def __init__(self, root: str = "/proc") -> None:
        """Read those that this boot has given out. Raises OSError."""
        characters = Path(root, "devices").read_text(encoding="utf-8").partition("Block devices:")[0]
        self._majors: dict[int, str] = {
            int(number): name for number, name in _LINE.findall(characters) if name in _DYNAMIC
        }
        misc = _LINE.findall(Path(root, "misc").read_text(encoding="utf-8"))
        self._misc: dict[int, str] = {int(number): name for number, name in misc if name in _DYNAMIC_MISC} | _MISC

    def name(self, device: Device) -> str:
        """Return which one it is, as /dev has it; "" for any other device."""
        if device.is_block:
            return "nbd" if device.major == _NBD_MAJOR else ""
        if device.major == _MISC_MAJOR:
            return self._misc.get(device.minor, "")
        return self._majors.get(device.major, "")


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
    devices = ServedDevices()
    for pid in sorted(ended):
        row = scan.rows[pid]
        if row.session == pid and row.terminal and pty_number(row.terminal) is None:
            number = row.terminal & 0xFFFFFFFF
            terminal = f"{os.major(number)}:{os.minor(number)}"
            return f"pid {pid} leads the session on terminal {terminal}, which is then hung up for all who have it open"
        try:
            if why := _against(masters, row, devices, connections):
                return why
        except (PermissionError, FileNotFoundError, ProcessLookupError):  # hidden, or ended meanwhile
            continue
    return ""


def _against(
    masters: PtyMasters, row: ProcessRow, devices: ServedDevices, connections: Callable[[], Mapping[int, int]]
) -> str:
    """Return what a process serves to others, as a reason; "" for nothing. Raises OSError, ValueError."""
    open_devices = [
        (path, devices.name(device), info)
        for path, device, info in masters.devices(row.pid, lambda each: bool(devices.name(each)))
    ]
    served = [path for path in sorted(masters.paths(row.pid)) if _OBJECTS.fullmatch(path)]
    served += sorted(_as_named(path, name) for path, name, _ in open_devices if name != _FUSE)
    if not served:
        fuse = [(_as_named(path, name), info) for path, name, info in open_devices if name == _FUSE]
        served = _shared_files(masters, row, fuse, connections) if fuse else []
    if served:
        return f"pid {row.pid} has {served[0]} open, and others may work on what it serves there"
    if masters.may_have_in_flight(row.pid):
        owners = connections()
        private, shared = _seen_mounts(masters, row, owners)
        if (owners.keys() | shared) - private:
            return (
                f"pid {row.pid} may have /dev/fuse open where it is in no list, unread in a socket or registered with"
                " an io_uring, and others may work on what it serves there"
            )
    return ""


def _as_named(path: str, name: str) -> str:
    """Return how a device is named to people: by its link, and what it is where that does not say so."""
    said = path.removesuffix(" (deleted)").startswith(f"/dev/{name}")
    return path if said else f"{path} (/dev/{name})"


def _shared_files(
    masters: PtyMasters,
    row: ProcessRow,
    fuse: Collection[tuple[str, bytes]],
    connections: Callable[[], Mapping[int, int]],
) -> list[str]:
    """Return by which of its descriptors it serves a file system that is not shown to be its own user's alone."""
    told = {int(found[1]): path for path, info in fuse if (found := _CONNECTION.search(info))}
    owners = connections()
    private, _ = _seen_mounts(masters, row, owners)
    if told:  # a descriptor of which this kernel tells no connection serves nothing yet
        return [path for number, path in told.items() if number not in private]
    return [] if owners and owners.keys() <= private else [path for path, _ in fuse]


def _seen_mounts(masters: PtyMasters, row: ProcessRow, owners: Mapping[int, int]) -> tuple[set[int], set[int]]:
    """Return the numbers of the file systems that it or the host sees: for its own user alone, and all others."""
    private: set[int] = set()
    shared: set[int] = set()
    for pid in {row.pid, HOST_INIT}:
        try:
            lines = masters.mountinfo(pid).decode("utf-8", "replace").split("\n")
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
    return private - shared, shared
