"""What a machine has that the suite needs, found out in processes of their own: the driver stays out of this one."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHEELHOUSE = ROOT / "wheelhouse-gpu"
SOURCES = ("agent", "exporters", "alerts", "simulator", "client")
MODULES = {
    "apscheduler": "apscheduler", "bcrypt": "bcrypt", "h11": "h11", "re2": "google-re2", "httpx": "httpx",
    "pynvml": "nvidia-ml-py", "prometheus_client": "prometheus-client", "promql_parser": "promql-parser",
    "yaml": "pyyaml", "rich": "rich", "starlette": "starlette", "typer": "typer", "uvicorn": "uvicorn",
}  # fmt: skip
"""What the agent imports, and the package that has it."""
_MISSING = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        print(name)
"""
_FACTS = """
import json, os
facts = {}
try:
    import pynvml
    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    names = sorted({pynvml.nvmlDeviceGetName(gpu) for gpu in gpus})
    facts["card"] = ", ".join(names) + (f" x {count}" if count > 1 else "")
    facts["driver"] = pynvml.nvmlSystemGetDriverVersion()
    version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    facts["CUDA"] = f"{version // 1000}.{version % 1000 // 10}"
except Exception as error:
    facts["driver"] = f"not read ({error})"
try:
    import torch
    facts["torch"] = torch.__version__
except Exception as error:
    facts["torch"] = "none"
print(json.dumps(facts))
"""


def packages_path(wheelhouse: Path | None, into: Path) -> str:
    """Return a PYTHONPATH with this working tree and, unpacked, the wheels of a folder: neither pip nor venv is needed.

    Wheels are zip files of what goes into site-packages: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
    """
    paths = [str(ROOT), *(str(ROOT / source) for source in SOURCES)]
    if wheelhouse is not None:
        for wheel in sorted(wheelhouse.glob("*.whl")):
            if not wheel.name.startswith("gpuagent"):
                with zipfile.ZipFile(wheel) as packed:
                    packed.extractall(into)
        paths.append(str(into))
    return os.pathsep.join(paths)


def missing_packages() -> list[str]:
    """Return the packages that this interpreter cannot import under the environment of now."""
    done = subprocess.run(
        [sys.executable, "-c", _MISSING, *MODULES], capture_output=True, text=True, timeout=60, check=False
    )
    return [MODULES[name] for name in done.stdout.split() if name in MODULES]


def facts(*, dry: bool) -> Mapping[str, str]:
    """Return what the table says of the machine."""
    if dry:
        found = {"card": "simulated H100", "driver": "simulated"}
    else:
        try:
            done = subprocess.run(
                [sys.executable, "-c", _FACTS], capture_output=True, text=True, timeout=90, check=False
            )
            found = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
            found = {"driver": f"not read ({error})"}
    # Of the first namespace; every other one has a number from the kernel's counter (include/linux/proc_ns.h).
    own_pids = str(Path("/proc/self/ns/pid").readlink()) != "pid:[4026531836]"
    return found | {
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "pids": "a namespace of its own" if own_pids else "the host's",
        "user": str(os.geteuid()),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


_END_SECONDS = 10.0
_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Become the parent of what the experiments leave behind, so that it can be ended."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill all children of this process, and those that it gets by their end, until there are none, or for 10 s."""
    give_up = time.monotonic() + _END_SECONDS
    while (children := _children(os.getpid())) and time.monotonic() < give_up:
        for pid in children:
            os.kill(pid, signal.SIGKILL)  # a child that was not waited for keeps its pid
        for pid in children:
            os.waitpid(pid, os.WNOHANG)  # one that is stuck in the driver does not end
        time.sleep(0.02)


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found
