"""A program of a test as the user nobody, who may nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

NOBODY = 65534


def run_as_nobody(code: str, *args: object, rights: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Python code that may import this project; `rights` are options of setpriv. Skips where that cannot be."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    path = os.pathsep.join(["agent", "exporters", "alerts", "simulator", *sys.path])
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)

    if run(*become, sys.executable, "-c", "import gpuagent, tests").returncode != 0:
        pytest.skip("the user nobody may not enter a folder above this checkout, or above its Python")
    return run(*become, *rights, sys.executable, "-c", code, *map(str, args))
