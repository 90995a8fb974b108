"""Becomes another program, which can do no more than its user: run as a program itself, never imported by the agent.

`python -I -S drop_privileges.py PROGRAM ARGUMENT...`. It exists because code between fork and exec is not safe in a
process with threads. No setuid program or file capability can give back what is taken here (PR_SET_NO_NEW_PRIVS).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

# linux/prctl.h, linux/capability.h
PR_SET_NO_NEW_PRIVS = 38
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION_3 = 0x20080522
HIGHEST_CAPABILITY = 63

AGAIN = "--again"
"""Says that this is the second start: there is no third."""
CANNOT_CONFINE = 126
CANNOT_RUN = 127


def drop_everything() -> None:
    """Give up all capabilities, now and for every program that follows. Some of it may be refused to who has none.

    Where capset(2) is forbidden, as in the service, what is permitted now stays until the next program is started.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(HIGHEST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # with a full bounding set, root would get all back at exec
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    libc.capset(header, nothing)


def is_confined() -> bool:
    """Return whether there is nothing, and nothing can be gained, as the kernel sees it.

    The inheritable set may be left, as only capset(2) empties it: with no_new_privs an execve never grants more than
    was permitted before, and that is nothing (security/commoncap.c, cap_bprm_creds_from_file).
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    left = (int(status.get(name, "0"), 16) for name in ("CapPrm", "CapEff", "CapAmb"))
    return status.get("NoNewPrivs", "").strip() == "1" and not any(left)


def main(command: list[str]) -> int:
    """Confine, then become the command; returns only where that is not possible."""
    is_second = command[:1] == [AGAIN]
    command = command[1:] if is_second else command
    drop_everything()
    if not is_confined() and not is_second:
        # Once the ambient set is empty, execve(2) takes the permitted ones away from all but root.
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, AGAIN, *command])  # noqa: S606
    if not is_confined():
        print("its capabilities cannot be taken away", file=sys.stderr)  # noqa: T201
        return CANNOT_CONFINE
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:  # Python ignores SIGPIPE, and a program would inherit that
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        print(f"cannot be run: {error.strerror}", file=sys.stderr)  # noqa: T201
        return CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
