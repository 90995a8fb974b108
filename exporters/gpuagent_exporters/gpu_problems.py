"""What is wrong with one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuagent.core.hardware import Ecc, Power, recovery_action
from gpuagent.core.snapshot import GpuReading, GpuState, ProcessReading
from gpuagent.core.units import format_duration
from gpuagent.core.wording import MPS_UNKNOWN, NO_PCI_ADDRESS
from gpuagent_exporters.memory_problems import memory_problems
from gpuagent_exporters.severity import Problem, Severity

_NOT_TOLD = {MPS_UNKNOWN, NO_PCI_ADDRESS}
"""Refusals to act for want of a fact: nothing contradicts itself."""
_SLOWED_DOWN = {
    "hw_thermal_slowdown": "it is too hot",
    "sw_thermal_slowdown": "it is too hot",
    "hw_power_brake_slowdown": "the power supply pulled the brake",
    "hw_slowdown": "it is too hot or lacks power",
}
"""`sw_power_cap` is not here: at the default limit it is how a busy GPU works."""


def recovery_name(action: int | None) -> str | None:
    """Return the driver's advice as one word; "none" where it has none."""
    if action is None:
        return None
    return recovery_action(action).name


def of_state(gpu: GpuReading, now_seconds: float) -> Problem:
    """Of a GPU that could not be read in this tick."""
    reason = f" ({gpu.reason})" if gpu.reason else ""
    since = "" if gpu.since_seconds is None else f" for {format_duration(max(0.0, now_seconds - gpu.since_seconds))}"
    index = gpu.identity.index
    if gpu.state is GpuState.STARTING:
        return Problem(Severity.INFO, "gpu_starting", f"not read yet{reason}", gpu=index)
    texts = {
        GpuState.LOST: f"lost{since}: the driver has no access to it{reason}",
        GpuState.BLIND: f"nothing is known of it{since}: a call into the driver has not come back",
        GpuState.GONE: f"gone{since}: it was there before, and the driver no longer lists it",
    }
    advice = {
        GpuState.LOST: f"Look for Xid in the kernel log (dmesg). Then nvidia-smi -r -i {index}, or drain and reboot.",
        GpuState.BLIND: "Look for Xid and for tasks in state D in the kernel log (dmesg). Often only a reboot helps.",
        GpuState.GONE: "If nobody took it out: look at the kernel log (dmesg) and `lspci -d 10de:`, then reboot.",
    }
    return Problem(
        Severity.CRITICAL,
        f"gpu_{gpu.state}",
        texts.get(gpu.state, f"cannot be read{since}{reason}"),
        advice.get(gpu.state, "It is tried again by itself. `gpuagent doctor` says more."),
        gpu=index,
    )


def of_reading(gpu: GpuReading, processes: Sequence[ProcessReading], now_seconds: float) -> Iterator[Problem]:
    """Of a GPU that answers."""
    if gpu.lost_since_seconds is not None:
        since = format_duration(max(0.0, now_seconds - gpu.lost_since_seconds))
        yield Problem(
            Severity.CRITICAL,
            "gpu_lost",
            f"was lost {since} ago and answers again: it is back once it answers after a new initialization of NVML",
            "The agent initializes NVML by itself, at first after a minute. Look for Xid in the kernel log (dmesg).",
            gpu=gpu.identity.index,
        )
    yield from memory_problems(gpu, processes)
    yield from _ecc(gpu)
    yield from _slowed_down(gpu)
    if gpu.processes_known and not gpu.processes_trusted:
        yield Problem(
            Severity.WARNING,
            "processes_untrusted",
            "this driver version mixes up its list of processes: memory may be shown beside the wrong pid",
            "Update the driver (later than 535.98). Until then nothing is done to a process on its word.",
            gpu=gpu.identity.index,
        )
    elif gpu.act_refusal:
        yield _figures(gpu)


def _figures(gpu: GpuReading) -> Problem:
    """Of a GPU whose figures contradict each other, or another GPU's, or of which too little is told."""
    if gpu.act_refusal in _NOT_TOLD:
        hint = "The figures are shown; nothing is done to a process by them. Compare with nvidia-smi -q as root."
        return Problem(Severity.WARNING, "figures_untrusted", gpu.act_refusal, hint, gpu=gpu.identity.index)
    return Problem(
        Severity.WARNING,
        "figures_untrusted",
        gpu.act_refusal,
        "Figures that cannot be true are not shown. Compare with nvidia-smi and look for Xid in the kernel log "
        "(dmesg). If it lasts, update the driver, or reset the GPU when it is idle: "
        f"nvidia-smi -r -i {gpu.identity.index}.",
        gpu=gpu.identity.index,
    )


def _ecc(gpu: GpuReading) -> Iterator[Problem]:
    ecc, index = gpu.ecc or Ecc(), gpu.identity.index
    if ecc.recovery_action:
        action = recovery_action(ecc.recovery_action)
        text = f"the driver asks to {action.text}"
        yield Problem(Severity.CRITICAL, "recovery_action", text, action.advice.format(gpu=index), gpu=index)
    if ecc.remap_failed or ecc.sram_threshold_exceeded:
        text = "a bad memory row could not be replaced" if ecc.remap_failed else "too many errors in its SRAM"
        advice = "Take the GPU out of service and have it examined: it will likely be replaced under warranty."
        yield Problem(Severity.CRITICAL, "memory_defect", text, advice, gpu=index)
    if ecc.remap_pending or ecc.retired_pages_pending:
        text = "bad memory waits to be replaced by spare rows or pages"
        advice = f"Running work is not hurt. Reset the GPU when it is idle: nvidia-smi -r -i {index}."
        yield Problem(Severity.WARNING, "remap_pending", text, advice, gpu=index)
    if ecc.volatile_uncorrected:
        text = f"uncorrectable memory errors since the driver was loaded: {ecc.volatile_uncorrected}"
        advice = (
            "Results of the programs that were hit are lost. Reset the GPU when idle; if errors return, replace it."
        )
        yield Problem(Severity.WARNING, "ecc_uncorrected", text, advice, gpu=index)


def _slowed_down(gpu: GpuReading) -> Iterator[Problem]:
    active = [name for name, on in (gpu.clocks.event_reasons if gpu.clocks else ()) if on]
    causes = list(dict.fromkeys(_SLOWED_DOWN[name] for name in active if name in _SLOWED_DOWN))
    if causes:
        celsius = gpu.thermal.gpu_celsius if gpu.thermal else None
        heat = "" if celsius is None else f" ({celsius:.0f} degrees)"
        yield Problem(
            Severity.WARNING,
            "slowed_down",
            f"the driver slows it down: {causes[0]}{heat}",
            "Check fans, air flow, room temperature and power cables.",
            gpu=gpu.identity.index,
        )
    power = gpu.power or Power()
    limit, default = power.enforced_limit_watts, power.default_limit_watts
    if "sw_power_cap" in active and limit and default and limit < default:
        yield Problem(
            Severity.INFO,
            "power_limited",
            f"held at {limit:.0f} W, below its default of {default:.0f} W",
            "Somebody lowered the limit (nvidia-smi -pl), or the chassis did.",
            gpu=gpu.identity.index,
        )
