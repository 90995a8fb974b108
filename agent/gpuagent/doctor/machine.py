"""Checks of the machine: the driver, its library and the GPUs, and what is around them (/proc, permissions, limits)."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpuagent.core.snapshot import GpuReading, GpuState, NvmlState, Snapshot
from gpuagent.core.units import format_bytes
from gpuagent.core.wording import WITHHELD
from gpuagent.doctor.finding import Finding, Level
from gpuagent.driver.nvml.library import LIBRARY_UNLOADABLE
from gpuagent.node import NoSuchNode
from gpuagent.procfs.host_memory import limited_view
from gpuagent.procfs.machine import CAP_KILL, CAP_SYS_PTRACE, COST, effective_capabilities, in_host_pid_namespace
from gpuagent_simulator.captures.node import read_capture
from gpuagent_simulator.scenario import ScenarioError


def binding() -> Iterator[Finding]:
    """Check that nvidia-ml-py is installed, and no other package under the name pynvml."""
    try:
        yield Finding("python binding", Level.OK, f"nvidia-ml-py {version('nvidia-ml-py')}")
    except PackageNotFoundError:
        yield Finding("python binding", Level.FAILURE, "nvidia-ml-py is not installed", "pip install nvidia-ml-py")
    try:
        other = version("pynvml")
    except PackageNotFoundError:
        return
    yield Finding(
        "python binding",
        Level.WARNING,
        f"the package pynvml {other} is installed beside nvidia-ml-py: it is deprecated, and before version 12 it "
        "overwrites the module",
        "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py",
    )


def library() -> Iterator[Finding]:
    """Check whether the dynamic loader finds the driver's library, in its own words if not."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        yield Finding(
            "driver library",
            Level.FAILURE,
            str(error),
            "install the NVIDIA driver (Debian: nvidia-driver with libnvidia-ml1; Ubuntu: ubuntu-drivers install), or "
            "in a container start it with the NVIDIA runtime and the capability `utility`",
        )
    else:
        yield Finding("driver library", Level.OK, "libnvidia-ml.so.1 can be loaded")


def device_nodes(dev: Path = Path("/dev")) -> Iterator[Finding]:
    """Check whether this user may open the GPUs."""
    nodes = [dev / "nvidiactl", *sorted(dev.glob("nvidia[0-9]*"))]
    present = [node for node in nodes if node.exists()]
    if not present:
        yield Finding(
            "device nodes",
            Level.WARNING,
            f"there is no {dev}/nvidiactl",
            "nvidia-modprobe makes the nodes; in a container they have to be passed in; under systemd see DeviceAllow",
        )
        return
    refused = [str(node) for node in present if not os.access(node, os.R_OK | os.W_OK)]
    if refused:
        yield Finding(
            "device nodes", Level.FAILURE, f"no permission for {', '.join(refused)}",
            "run as a user who may, or look at the options of the nvidia module (NVreg_DeviceFileMode)",
        )  # fmt: skip
    else:
        yield Finding(
            "device nodes", Level.OK, f"{len(present)} {'node' if len(present) == 1 else 'nodes'} can be opened"
        )


def profiling(params: Path = Path("/proc/driver/nvidia/params")) -> Iterator[Finding]:
    """Check whether the driver keeps GPM and NVLink counters for the administrator."""
    try:
        admin_only = "RmProfilingAdminOnly: 1" in params.read_text()
    except OSError:
        return
    if admin_only and os.geteuid() != 0:
        yield Finding(
            "profiling counters", Level.INFO,
            "the driver keeps profiling counters for the administrator: GPM metrics may be absent",
            "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, or run as root",
        )  # fmt: skip


def nvml(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that NVML answers, and that it lists every GPU that should be there."""
    node = snapshot.node
    if node.nvml_state is not NvmlState.READY:
        if LIBRARY_UNLOADABLE in node.why_unread:  # `library` says it, with what to do
            yield Finding("NVML", Level.FAILURE, "cannot be asked without the driver library")
            return
        yield Finding(
            "NVML", Level.FAILURE, node.why_unread or "it has not answered",
            "nvidia-smi should fail in the same way; after a driver upgrade reload the modules or reboot",
        )  # fmt: skip
        return
    versions = f"driver {node.driver_version or '?'}, NVML {node.nvml_version or '?'}, CUDA {node.cuda_version or '?'}"
    yield Finding("NVML", Level.OK, versions)
    number = sum(gpu.state is not GpuState.GONE for gpu in snapshot.gpus)
    if number < node.gpus_expected:
        yield Finding(
            "GPU count", Level.FAILURE, f"the driver enumerates {number} GPUs, {node.gpus_expected} should be there",
            "dmesg tells whether one has fallen off the bus (Xid 79); a reboot or a power cycle brings it back",
        )  # fmt: skip
    elif not number:
        yield Finding("GPU count", Level.INFO, "no GPU on this node: the agent idles")
    else:
        yield Finding("GPU count", Level.OK, f"{number} of {node.gpus_expected}")


def gpus(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield what is found about each GPU."""
    for reading in snapshot.gpus:
        yield from gpu(reading)


def _shared_memory(subject: str, reading: GpuReading) -> Iterator[Finding]:
    """Yield what is special about memory that a CPU has a part in."""
    identity, memory = reading.identity, reading.memory
    if identity.unified_memory:
        if memory is None or memory.free_bytes is None or memory.total_bytes is None:
            yield Finding(subject, Level.WARNING, "it shares the memory of the machine, and /proc/meminfo tells none",
                          "without it nothing is known of how full the memory is")  # fmt: skip
        else:
            sizes = f"{format_bytes(memory.free_bytes)} of {format_bytes(memory.total_bytes)}"
            yield Finding(subject, Level.INFO, f"it shares the memory of the machine: {sizes} can still be given out")
    elif identity.numa_node is not None:
        text = f"its memory is NUMA node {identity.numa_node} of the machine"
        yield Finding(subject, Level.INFO, f"{text}: the kernel may use what programs have given back")


def gpu(reading: GpuReading) -> Iterator[Finding]:
    """Check the state of one GPU, and say what it cannot tell and why."""
    subject = f"GPU {reading.identity.index}"
    name = reading.identity.name or reading.identity.uuid or "unknown"
    if reading.state is GpuState.ASLEEP:
        yield Finding(subject, Level.INFO, f"{name}: {reading.reason}")
        return
    if reading.state is not GpuState.OK:
        yield Finding(subject, Level.FAILURE, f"{name}: {reading.state}, {reading.reason}",
                      "a reset (nvidia-smi --gpu-reset) or a reboot; the other GPUs go on meanwhile")  # fmt: skip
        return
    yield Finding(subject, Level.OK, name)
    yield from _shared_memory(subject, reading)
    if reading.act_refusal and reading.processes_trusted:
        yield Finding(subject, Level.WARNING, reading.act_refusal,
                      "compare with nvidia-smi; if it lasts, update the driver or reset the GPU")  # fmt: skip
    elif not reading.processes_known:
        yield Finding(subject, Level.WARNING, "its process list cannot be read", "under MIG this needs root")
    if not reading.processes_trusted:
        yield Finding(subject, Level.WARNING,
                      "this driver's process list has another form than documented: it is shown, never acted on",
                      "upgrade the driver to 535.104 or later")  # fmt: skip
    yield from _collectors(subject, reading)
    by_reason: dict[str, list[str]] = {}
    for call, reason in reading.unsupported:
        by_reason.setdefault(reason, []).append(call.removeprefix("nvmlDeviceGet").removeprefix("nvmlDevice"))
    for reason, calls in by_reason.items():
        yield Finding(subject, Level.INFO, f"{reason}: {', '.join(calls)}")


def _collectors(subject: str, reading: GpuReading) -> Iterator[Finding]:
    """Yield which collectors failed, and what those that did not fail report."""
    for run in reading.runs:
        if run.ok and run.reason:
            yield Finding(subject, Level.INFO, f"collector {run.collector}: {run.reason}")
        elif not run.ok and not (reading.act_refusal and WITHHELD in run.reason):
            yield Finding(subject, Level.WARNING, f"collector {run.collector}: {run.reason}")


_OLDEST_PLAUSIBLE = 1_735_689_600  # 2025-01-01: a clock before that was never set


def pid_namespace(proc: str = "/proc") -> Iterator[Finding]:
    """Check whether the driver's pids mean the same processes here."""
    if in_host_pid_namespace(proc):
        yield Finding("pid namespace", Level.OK, "the host's")
    else:
        yield Finding("pid namespace", Level.WARNING, COST, "hostPID: true in Kubernetes, --pid=host in Docker")


def _mounts(proc: Path) -> Iterator[list[str]]:
    """Yield the fields of each line of mounts(5), in which what is not UTF-8 is replaced. Raises OSError."""
    for line in (proc / "mounts").read_bytes().decode("utf-8", "replace").split("\n"):
        yield line.split(" ")


def process_visibility(proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Check whether other users' processes can be looked at."""
    try:
        options = next((fields[3] for fields in _mounts(proc) if len(fields) > 3 and fields[1] == "/proc"), "")
    except OSError:
        options = ""
    hidden = any(option in ("hidepid=1", "hidepid=2", "hidepid=invisible", "hidepid=noaccess", "hidepid=ptraceable")
                 for option in options.split(","))  # fmt: skip
    if hidden and os.geteuid() != 0:
        yield Finding(
            "process visibility", Level.WARNING, "/proc is mounted with hidepid: other users' processes look dead",
            "add the agent's user to the group of the mount option gid=, or run as root",
        )  # fmt: skip
    else:
        yield Finding("process visibility", Level.OK, "processes of all users can be seen")


def capabilities(proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Find what this user may do to other users' processes."""
    effective = effective_capabilities(root=proc)
    if effective is None:
        return
    missing = [
        name for name, bit in (("CAP_KILL", CAP_KILL), ("CAP_SYS_PTRACE", CAP_SYS_PTRACE))
        if not effective >> bit & 1
    ]  # fmt: skip
    if missing:
        yield Finding(
            "capabilities", Level.INFO,
            f"without {' and '.join(missing)}: other users' processes can be shown, not all of them in full, and not "
            "be signaled",
        )  # fmt: skip
    else:
        yield Finding("capabilities", Level.OK, "all that remedies may need")


def pidfd() -> Iterator[Finding]:
    """Check whether a process can be held by a descriptor, which is what makes a signal safe."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        yield Finding("pidfd", Level.WARNING, f"pidfd_open: {error.strerror}", "Linux 5.3 or newer is needed to act")
    else:
        yield Finding("pidfd", Level.OK, "available")


def descriptors() -> Iterator[Finding]:
    """Check the limit of open files: one descriptor for each GPU process is kept open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        yield Finding("descriptors", Level.WARNING, f"the hard limit is {hard}",
                      "LimitNOFILE= in the unit; above 4096 GPU processes cost nothing to follow")  # fmt: skip
    else:
        yield Finding("descriptors", Level.OK, f"hard limit {'none' if hard == resource.RLIM_INFINITY else hard}")


def clock() -> Iterator[Finding]:
    """Check the wall clock: people read it, while ages and holds use CLOCK_BOOTTIME."""
    if time.time() < _OLDEST_PLAUSIBLE:
        yield Finding("clock", Level.WARNING, "the wall clock was never set", "time stamps will be wrong; use NTP")
    else:
        yield Finding("clock", Level.OK, time.strftime("%Y-%m-%d %H:%M:%S %Z"))


_ADVICE = "start fewer programs, or limit each of them: gpuagent_client.limit_memory(0.9)"


def memory_view() -> Iterator[Finding]:
    """Whether the agent sees the memory of the machine, which is the GPU's where the two share it."""
    if reason := limited_view():
        yield Finding(
            "memory", Level.WARNING, f"{reason}; of a GPU that shares it nothing is told",
            "run the agent on the host, or without LXCFS in its container",
        )  # fmt: skip


def wsl(proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> Iterator[Finding]:
    """Say what is missing under WSL: its driver does not list processes, and falls back to the host's memory.

    The setting against that in Windows' control panel has no effect there (microsoft/WSL#11050).
    """
    try:
        version = (proc / "version").read_text(errors="replace").lower()
    except OSError:
        version = ""
    if "microsoft" in version or (dev / "dxg").exists():
        text = (
            "this driver does not tell which process holds memory, and swaps GPU memory to the host's instead of "
            "saying that there is no more"
        )
        yield Finding("WSL", Level.WARNING, text, _ADVICE)


def managed_memory(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Say which programs have more than the GPU holds, by the agent's status: only managed memory allows that."""
    reserved: dict[Any, int] = {}
    for process in status.get("processes", ()):
        reserved[process.get("gpu")] = reserved.get(process.get("gpu"), 0) + (process.get("reserved_bytes") or 0)
    for gpu in status.get("gpus", ()):
        total = gpu.get("memory_total_bytes")
        if total and reserved.get(gpu.get("index"), 0) > total:
            text = (
                f"GPU {gpu['index']}: programs have reserved {format_bytes(reserved[gpu['index']])} of "
                f"{format_bytes(total)}: it is managed memory, which the driver swaps to the host's"
            )
            yield Finding("managed memory", Level.WARNING, text, _ADVICE)


def captured_host(simulate: str | None) -> Mapping[str, Any] | None:
    """Return what a capture says of its host; None where nothing, or no capture, is simulated. Raises NoSuchNode."""
    if simulate is None:
        return None
    try:
        capture = read_capture(Path(simulate))
    except ScenarioError as error:
        raise NoSuchNode(str(error)) from None
    return None if capture is None else capture.host


def captured_machine(host: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what is found about the host of a capture."""
    if "kernel" in host:
        yield Finding("captured machine", Level.INFO, str(host["kernel"]))
    if host.get("container"):
        yield Finding("captured machine", Level.INFO, f"a container ({', '.join(map(str, host['container']))})")
    if host.get("wsl"):
        yield Finding("captured machine", Level.INFO, "WSL: this driver does not tell which process holds memory")
    if host.get("pid_namespace", "host") != "host":
        yield Finding("pid namespace", Level.WARNING, COST, "hostPID: true in Kubernetes, --pid=host in Docker")
    refused = [str(file.get("path")) for file in host.get("device_files", ()) if file.get("usable") is False]
    if refused:
        yield Finding("device nodes", Level.FAILURE, f"no permission for {', '.join(refused)}")
    yield from _capabilities(host)


def _capabilities(host: Mapping[str, Any]) -> Iterator[Finding]:
    if "capabilities" not in host:
        return
    effective = int(str(host["capabilities"]), 16)
    names = (("CAP_KILL", CAP_KILL), ("CAP_SYS_PTRACE", CAP_SYS_PTRACE))
    missing = [name for name, bit in names if not effective >> bit & 1]
    text = f"without {' and '.join(missing)}" if missing else "all that remedies may need"
    yield Finding("capabilities", Level.INFO if missing else Level.OK, text)
