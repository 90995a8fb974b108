"""Find what others lose with a process that nobody can name: what it serves by a device file, and a console it leads.

* A file system in user space ends with whoever has `/dev/fuse` open for it: a program that has mapped a file of it gets
  SIGBUS (fuse(4)). A character device of `/dev/cuse` ends likewise, and so do a network interface of `/dev/net/tun` and
  a block device of ublk or nbd. Where `/dev/watchdog` is closed without a word, the machine is restarted.
* The leader of a session on a terminal that is no pseudo-terminal ends: the kernel hangs up that terminal for everybody
  who has it open (`disassociate_ctty` and `tty_vhangup_session`, drivers/tty/).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from gpuagent_alerts.remedies.facts.process_scan import ProcessScan
from gpuagent_alerts.remedies.facts.terminals import PtyMasters, pty_number

_SERVED = re.compile(
    r"/dev/(fuse|cuse|net/tun|watchdog\d*|ublkc\d+|ublk-control|nbd\d+(p\d+)?|uhid|uinput|vduse/.+)( \(deleted\))?"
)


def against_end(scan: ProcessScan, masters: PtyMasters, ended: Collection[int]) -> str:
    """Return why the end of one of these reaches others that cannot be named; "" where none is seen to do so.

    Open files that the agent has no right to see, as it takes CAP_SYS_PTRACE, are passed over. Raises OSError,
    ValueError for other failures.
    """
    for pid in sorted(ended):
        row = scan.rows[pid]
        if row.session == pid and row.terminal and pty_number(row.terminal) is None:
            number = row.terminal & 0xFFFFFFFF
            terminal = f"{os.major(number)}:{os.minor(number)}"
            return f"pid {pid} leads the session on terminal {terminal}, which is then hung up for all who have it open"
        try:
            served = sorted({path for path in masters.paths(pid) if _SERVED.fullmatch(path)})
        except PermissionError:
            continue
        if served:
            return f"pid {pid} has {served[0]} open, and others may work on what it serves there"
    return ""
