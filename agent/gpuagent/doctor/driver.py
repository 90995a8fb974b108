"""The driver, its library and the GPUs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpuagent.core.snapshot import GpuReading, GpuState, NvmlState, Snapshot
from gpuagent.core.wording import WITHHELD
from gpuagent.doctor.finding import Finding, Level


def binding() -> Iterator[Finding]:
    """nvidia-ml-py, and the packages that fight it over the name pynvml."""
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
    """Whether the dynamic loader finds the driver's library, in its own words if not."""
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
    """Whether this user may open the GPUs."""
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
        yield Finding("device nodes", Level.OK, f"{len(present)} nodes can be opened")


def profiling(params: Path = Path("/proc/driver/nvidia/params")) -> Iterator[Finding]:
    """GPM and NVLink counters may be reserved to the administrator."""
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
    """NVML as a whole."""
    node = snapshot.node
    if node.nvml_state is not NvmlState.READY:
        yield Finding(
            "NVML", Level.FAILURE, node.nvml_reason or "it has not answered",
            "nvidia-smi should fail alike; after a driver upgrade reload the modules or reboot",
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


def gpu(reading: GpuReading) -> Iterator[Finding]:
    """One GPU: its state, and once what it cannot tell and why."""
    subject = f"GPU {reading.identity.index}"
    name = reading.identity.name or reading.identity.uuid or "unknown"
    if reading.state is not GpuState.OK:
        yield Finding(subject, Level.FAILURE, f"{name}: {reading.state}, {reading.reason}",
                      "a reset (nvidia-smi --gpu-reset) or a reboot; the other GPUs go on meanwhile")  # fmt: skip
        return
    yield Finding(subject, Level.OK, name)
    if reading.identity.unified_memory:
        yield Finding(subject, Level.INFO, "it has no memory of its own: rules on device memory do not apply")
    if reading.act_refusal and reading.processes_trusted:
        yield Finding(subject, Level.WARNING, reading.act_refusal,
                      "compare with nvidia-smi; if it lasts, update the driver or reset the GPU")  # fmt: skip
    elif not reading.processes_known:
        yield Finding(subject, Level.WARNING, "its process list cannot be read", "under MIG this needs root")
    if not reading.processes_trusted:
        yield Finding(subject, Level.WARNING,
                      "this driver shuffles its process list: processes are shown, never acted on",
                      "upgrade the driver to 535.104 or later")  # fmt: skip
    for run in reading.runs:
        if not run.ok and not (reading.act_refusal and WITHHELD in run.reason):
            yield Finding(subject, Level.WARNING, f"collector {run.collector}: {run.reason}")
    by_reason: dict[str, list[str]] = {}
    for call, reason in reading.unsupported:
        by_reason.setdefault(reason, []).append(call.removeprefix("nvmlDeviceGet").removeprefix("nvmlDevice"))
    for reason, calls in by_reason.items():
        yield Finding(subject, Level.INFO, f"{reason}: {', '.join(calls)}")
