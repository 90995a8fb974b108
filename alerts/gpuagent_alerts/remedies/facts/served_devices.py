"""Find what others lose with a process that nobody can name: what it serves by a device file, and a console it leads.

* A file system in user space ends with whoever has `/dev/fuse` open for it: a program that has mapped a file of it gets
  SIGBUS (fuse(4)). A character device of `/dev/cuse` ends likewise, and so do a network interface of `/dev/net/tun` and
  a block device of ublk or nbd. Where `/dev/watchdog` is closed without a word, the machine is restarted. Whose system
  calls it answers (seccomp_unotify(2)) gets ENOSYS, and whose pages it fills (userfaultfd(2)) reads zeros. It goes by
  the name of what is open: who opens the same device by another name takes nothing from others but what is its own.
* The leader of a session on a terminal that is no pseudo-terminal ends: the kernel hangs up that terminal for everybody
  who has it open (`disassociate_ctty` and `tty_vhangup_session`, drivers/tty/).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from gpuagent_alerts.remedies.facts.process_scan import ProcessRow, ProcessScan
from gpuagent_alerts.remedies.facts.terminals import PtyMasters, pty_number

_SERVED = re.compile(
    r"(/dev/(cuse|net/tun|watchdog\d*|ublkc\d+|ublk-control|nbd\d+(p\d+)?|uhid|uinput|vduse/.+)( \(deleted\))?"
    r"|anon_inode:(seccomp notify|\[userfaultfd\]))"
)
_FUSE = re.compile(r"/dev/fuse( \(deleted\))?")
_OWNER = re.compile(r"(?:^|,)user_id=(\d+)(?:,|$)")
_HOST_INIT = 1


def against_end(scan: ProcessScan, masters: PtyMasters, ended: Collection[int]) -> str:
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
            if not served and any(map(_FUSE.fullmatch, paths)) and _shares_files(masters, row):
                served = ["/dev/fuse"]
        except (PermissionError, FileNotFoundError, ProcessLookupError):  # hidden, or ended meanwhile
            continue
        if served:
            return f"pid {pid} has {served[0]} open, and others may work on what it serves there"
    return ""


def _shares_files(masters: PtyMasters, row: ProcessRow) -> bool:
    """Return whether others than its users may use a file system that it serves (`allow_other`), as far as it is seen.

    Its own mounts and those of the host count. A mount for its own user alone, as of an AppImage, is its own work.
    """
    for pid in {row.pid, _HOST_INIT}:
        for line in masters.mountinfo(pid).decode("utf-8", "replace").splitlines():
            kind, _, rest = line.partition(" - ")[2].partition(" ")
            options = rest.rpartition(" ")[2]
            owner = _OWNER.search(options)
            if kind.startswith("fuse") and "allow_other" in options.split(",") and owner and int(owner[1]) in row.uids:
                return True
    return False
