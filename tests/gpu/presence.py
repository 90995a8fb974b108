"""Whether there is a GPU that tests can use. A container without one may well have the driver's device nodes."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

COUNT = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"


@cache
def missing_gpu(program: str = COUNT, seconds: float = 60.0) -> str:
    """Return why no GPU can be used, "" if one can.

    NVML is asked in a process of its own: the driver stays out of this one, and a call that hangs ends.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return "NVML does not answer"
    if done.returncode:
        return done.stderr.strip().rpartition("\n")[2] or f"NVML ended the process that asked with {done.returncode}"
    return "" if int(done.stdout) else "NVML counts no GPU"
