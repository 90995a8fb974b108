"""Read the facts around the driver: kernel, modules, container, permissions, and the processes that a capture names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpuagent import __version__
from gpuagent.collector.inventory import count_pci_gpus
from gpuagent.core.hardware import HostMemory, MemoryPressure
from gpuagent.core.identity import TICKS_PER_SECOND
from gpuagent.doctor.capture.redaction import CaptureRedactor
from gpuagent.procfs.files import ProcFiles, parse_stat, parse_status
from gpuagent.procfs.host_memory import read_host_memory, read_memory_pressure
from gpuagent.procfs.machine import effective_capabilities, in_host_pid_namespace
from gpuagent_simulator.captures.arguments import text_value

_MOST_TEXT_BYTES = 4096
_MEMINFO = ("MemTotal", "MemFree", "MemAvailable", "SwapTotal", "SwapFree", "HugePages_Total", "Hugepagesize")
_CONTAINER_FILES = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
_CONTAINER_VARIABLES = {"KUBERNETES_SERVICE_HOST": "kubernetes", "container": "container"}
_NVIDIA = "0x10de"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

UserName = Callable[[int], str]


def program_facts() -> dict[str, Any]:
    """Return who recorded, with what, and when."""
    try:
        binding = version("nvidia-ml-py")
    except PackageNotFoundError:
        binding = ""
    return {
        "gpuagent": __version__,
        "nvidia_ml_py": binding,
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def host_facts(redactor: CaptureRedactor, root: Path = Path("/")) -> dict[str, Any]:
    """Return what can be told of the machine at `root`; what cannot be read is left out. No name of the machine."""
    proc = root / "proc"
    name = os.uname()
    facts: dict[str, Any] = {
        "kernel": f"{name.sysname} {name.release} {name.version} {name.machine}",
        "pid_namespace": "host" if in_host_pid_namespace(str(proc)) else "container",
        "pci_gpus": count_pci_gpus(root / "sys/bus/pci/devices"),
        "pci_devices": _pci_devices(root / "sys/bus/pci/devices"),
        "nvidia_version": _text(proc / "driver/nvidia/version"),
        "nvidia_params": _params(proc / "driver/nvidia/params"),
        "container": _container(root),
        "wsl": (root / "dev/dxg").exists() or None,
        "cgroup": redactor.cgroup(_text(proc / "self/cgroup") or ""),
        "cgroup_version": 2 if (root / "sys/fs/cgroup/cgroup.controllers").exists() else 1,
        "proc_options": _proc_options(proc),
        "uid": redactor.uid(os.geteuid()),
        "groups": [redactor.uid(group) for group in sorted(os.getgroups())],
        "capabilities": _capabilities(proc),
        "device_files": [_device_file(path, root, redactor) for path in sorted((root / "dev").glob("nvidia*"))],
        **memory_facts(read_host_memory(proc), read_memory_pressure(proc)),
        "meminfo": _meminfo(proc),
        "buddyinfo": _text(proc / "buddyinfo"),
        "cgroup_memory": _cgroup_memory(root / "sys/fs/cgroup"),
        "numa_nodes": len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
    }
    return {key: value for key, value in facts.items() if value not in (None, "", [], {})}


def memory_facts(memory: HostMemory | None, pressure: MemoryPressure | None) -> dict[str, Any]:
    """Return the memory of the machine as the agent reads it, for a replay to tell the same."""
    return {
        "memory": None if memory is None else asdict(memory),
        "memory_pressure": None if pressure is None else {k: v for k, v in asdict(pressure).items() if v is not None},
    }


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_TEXT_BYTES).decode(errors="replace").strip()
    except OSError:
        return None


def _params(path: Path) -> dict[str, str]:
    """Return the parameters of the nvidia module that are set: most are 0 or empty."""
    pairs = (line.partition(":") for line in (_text(path) or "").splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs if value.strip() not in ("", "0", '""')}


def _container(root: Path) -> list[str]:
    found = [kind for path, kind in _CONTAINER_FILES.items() if (root / path[1:]).exists()]
    return found + [kind for name, kind in _CONTAINER_VARIABLES.items() if os.environ.get(name)]


def _proc_options(proc: Path) -> str | None:
    for line in (_text(proc / "mounts") or "").split("\n"):
        words = line.split()
        if len(words) > 3 and words[1] == "/proc":
            return words[3]
    return None


def _capabilities(proc: Path) -> str | None:
    found = effective_capabilities(root=proc)
    return None if found is None else f"{found:#x}"


def _device_file(path: Path, root: Path, redactor: CaptureRedactor) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": f"/{path.relative_to(root)}"}
    with suppress(OSError):
        found = path.stat()
        facts |= {
            "mode": f"{found.st_mode & 0o7777:04o}",
            "uid": redactor.uid(found.st_uid),
            "gid": redactor.uid(found.st_gid),
            "usable": os.access(path, os.R_OK | os.W_OK),
        }
    return facts


def _pci_devices(folder: Path) -> list[dict[str, str]]:
    """Return how NVIDIA's devices are on the PCI bus: whether one sleeps, who owns it, and which node it is near."""
    found = []
    for device in sorted(folder.glob("*")):
        if _text(device / "vendor") != _NVIDIA:
            continue
        facts = {"address": device.name, "class": _text(device / "class"), "numa_node": _text(device / "numa_node")}
        facts["runtime_status"] = _text(device / "power/runtime_status")
        with suppress(OSError):
            facts["driver"] = (device / "driver").readlink().name
        found.append({key: value for key, value in facts.items() if value is not None})
    return found


def _cgroup_memory(folder: Path) -> dict[str, str]:
    """Return the limit of the cgroup that this runs in, as a container sees it: the root has none."""
    told = {name: _text(folder / f"memory.{name}") for name in ("max", "current", "swap.max")}
    return {name: value for name, value in told.items() if value is not None}


def _meminfo(proc: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in (_text(proc / "meminfo") or "").splitlines())
    return {name: value.strip() for name, _, value in pairs if name in _MEMINFO}


# ---- processes -----------------------------------------------------------------------------------


def process_facts(
    pids: Iterable[int], files: ProcFiles, boot_seconds: float, user_name: UserName
) -> dict[int, dict[str, Any]]:
    """Return the facts of each pid, ages as of `boot_seconds`: `{gone: true}` where /proc has no such process."""
    return {pid: _process(pid, files, boot_seconds, user_name) for pid in sorted(pids)}


def _process(pid: int, files: ProcFiles, boot_seconds: float, user_name: UserName) -> dict[str, Any]:
    try:
        stat = parse_stat(files.read(pid, "stat"))
    except (OSError, ValueError):
        return {"gone": True}
    facts: dict[str, Any] = {
        "state": stat.state,
        "age_seconds": round(max(0.0, boot_seconds - stat.start_ticks / TICKS_PER_SECOND), 2),
    }
    with suppress(OSError, ValueError):
        facts["name"] = text_value(files.read(pid, "comm").removesuffix(b"\n"))
    with suppress(OSError, ValueError):
        status = parse_status(files.read(pid, "status"))
        if status.uid is not None:
            facts |= {"uid": status.uid, "user": user_name(status.uid)}
    with suppress(OSError, ValueError):
        facts["command"] = [text_value(word) for word in files.read(pid, "cmdline").removesuffix(b"\0").split(b"\0")]
    with suppress(OSError, ValueError):
        facts["cgroup"] = files.read(pid, "cgroup").decode(errors="replace").strip()
    with suppress(OSError, ValueError, IndexError):
        facts["resident_bytes"] = int(files.read(pid, "statm").split()[1]) * _PAGE_BYTES
    return facts
