"""Which threads of a process have open files of their own, by unshare(CLONE_FILES): those are in no other list."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator

from gpuagent.procfs.files import ProcFiles

_KCMP = {"x86_64": 312, "aarch64": 272}
"""Number of kcmp(2), arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h."""
_KCMP_FILES = 2


def other_tables(files: ProcFiles, pid: int) -> Iterator[int]:
    """Yield a thread for each table of descriptors that is not the first thread's.

    Nothing where the kernel does not compare them (no kcmp(2)), or the process has gone. It takes the right to trace
    it.
    """
    number = _KCMP.get(platform.machine())
    if number is None:
        return
    kcmp = ctypes.CDLL(None, use_errno=True).syscall
    try:
        threads = sorted(files.threads(pid))
    except OSError:
        return
    known = [pid]
    for thread in threads:
        if thread == pid:
            continue
        compared = [kcmp(number, each, thread, _KCMP_FILES, 0, 0) for each in known]
        if compared and all(each in {1, 2, 3} for each in compared):
            known.append(thread)
            yield thread
