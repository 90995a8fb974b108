"""Figures of a GPU's parts: memory, engines, temperatures, power, clocks, links, memory errors, MIG.

Units are in the names; None is unknown, never 0. Ratios: 0 to 1. `RECOVERY_ACTIONS` is the driver's advice on a faulty
GPU in words: NVML field 230, nvmlDeviceGpuRecoveryAction_t of nvml.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

HIGH_RATIO: Final = 0.90
"""Share of a memory above which little is left: there `GpuMemoryHigh` begins."""
FULL_RATIO: Final = 0.98
"""Share of a memory that is not free from which on it is full: there `GpuMemoryFull` begins, and a leak has no room."""


class MemoryKind(StrEnum):
    """Where the memory of a GPU is."""

    DEDICATED = "dedicated"
    """On its own board."""
    UNIFIED = "unified"
    """The host's: GPU and CPU share it, and it is full for both at once (GB10, Jetson)."""
    COHERENT = "coherent"
    """Its own, beside a CPU that reads it over C2C links (GH200, GB200, GB300)."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the machine, by /proc/meminfo."""

    total_bytes: int
    available_bytes: int
    """What can still be given out without swapping: free memory and what can be reclaimed of caches, less what the
    kernel keeps for itself (MemAvailable)."""
    free_bytes: int
    page_cache_bytes: int
    """Files in memory, mapped ones and models that are read through it among them; most of it can be reclaimed."""
    kernel_bytes: int
    """Slabs, page tables and stacks of the kernel."""
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0
    """No memory of the GPU can go there, but that of other processes can, slowly."""
    huge_pages_free_bytes: int = 0
    """Set aside for those who ask for huge pages: not part of `available_bytes`."""


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """Shares of the last 10 s in which some, or all, that could run waited for memory, by /proc/pressure/memory."""

    some_ratio: float
    full_ratio: float
    some_seconds: float | None = None
    """Seconds since the boot in which some waited, which tell of less than 10 s; None where the kernel tells none."""
    full_seconds: float | None = None
    """Seconds in which all waited."""
    direct_reclaims: int | None = None
    """How often a program had to free or move pages itself before it got any, since the boot: the whole machine was
    out of free pages then. What a limit of a cgroup causes is not among them."""


class StallRisk(StrEnum):
    """How near a machine whose GPU shares its memory is to a stall."""

    NONE = "none"
    WATCH = "watch"
    """Memory is given out fast, or waited for: it is read more often."""
    IMMINENT = "imminent"
    """Programs wait for memory, and what is left lasts for seconds."""


@dataclass(frozen=True, slots=True)
class MemoryOutlook:
    """What the last seconds of memory and pressure say of the next ones."""

    risk: StallRisk = StallRisk.NONE
    exhaustion_seconds: float | None = None
    """Time until nothing can be given out any more at the pace of the last seconds; None while it does not fall."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory. `used_bytes` excludes `reserved_bytes` where the driver tells them apart (R510 and later).

    Of a GPU with unified memory it is the host's: what is not available is used, by whomever.
    """

    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    bar1_total_bytes: int | None = None
    bar1_used_bytes: int | None = None

    @property
    def used_ratio(self) -> float | None:
        """Used over total; None where either is not known."""
        if not self.total_bytes or self.used_bytes is None:
            return None
        return self.used_bytes / self.total_bytes

    @property
    def taken_ratio(self) -> float | None:
        """Share that is not free: used and reserved; `used_ratio` where the driver does not tell what is free."""
        if not self.total_bytes or self.free_bytes is None:
            return self.used_ratio
        return 1 - self.free_bytes / self.total_bytes

    @property
    def is_full(self) -> bool:
        """Whether next to nothing is free. What the driver reserves is nobody's to take."""
        return (self.taken_ratio or 0.0) > FULL_RATIO


@dataclass(frozen=True, slots=True)
class Utilization:
    """Share of the last sampling window in which an engine was busy."""

    gpu_ratio: float | None = None
    memory_ratio: float | None = None
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None
    jpeg_ratio: float | None = None
    ofa_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """GPM metrics (Hopper and later) between two samples: ratios of 0 to 1, rates in bytes per second."""

    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    fp64_active_ratio: float | None = None
    fp32_active_ratio: float | None = None
    fp16_active_ratio: float | None = None
    dram_bandwidth_ratio: float | None = None
    graphics_active_ratio: float | None = None
    pcie_transmit_bytes_per_second: float | None = None
    pcie_receive_bytes_per_second: float | None = None
    nvlink_transmit_bytes_per_second: float | None = None
    nvlink_receive_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Thermal:
    """Degrees Celsius. `margin_celsius` is the distance to the slowdown temperature."""

    gpu_celsius: float | None = None
    memory_celsius: float | None = None
    margin_celsius: float | None = None
    slowdown_celsius: float | None = None
    shutdown_celsius: float | None = None
    memory_max_celsius: float | None = None
    gpu_max_celsius: float | None = None
    fan_ratios: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Power:
    """Watts and joules; `watts` is an average, `instant_watts` the newest sample. States run from 0 (fastest) to 15."""

    watts: float | None = None
    instant_watts: float | None = None
    limit_watts: float | None = None
    enforced_limit_watts: float | None = None
    default_limit_watts: float | None = None
    min_limit_watts: float | None = None
    max_limit_watts: float | None = None
    energy_joules: float | None = None
    integrated_energy_joules: float | None = None
    """Sum of power over time since the first reading, where the GPU has no counter of its energy."""
    performance_state: int | None = None


@dataclass(frozen=True, slots=True)
class Clocks:
    """Hertz by domain (graphics, sm, memory, video), and why the clocks are not higher."""

    hertz: tuple[tuple[str, float], ...] = ()
    max_hertz: tuple[tuple[str, float], ...] = ()
    event_reasons: tuple[tuple[str, bool], ...] = ()
    throttled_seconds: tuple[tuple[str, float], ...] = ()
    """Time spent throttled since the driver was loaded, by reason."""


@dataclass(frozen=True, slots=True)
class Pcie:
    """PCI Express link. The byte counters run since the driver was loaded."""

    generation: int | None = None
    max_generation: int | None = None
    width: int | None = None
    max_width: int | None = None
    replays: int | None = None
    transmit_bytes: int | None = None
    receive_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Ecc:
    """Memory errors. Volatile counts run since the driver was loaded, aggregate ones over the GPU's life."""

    enabled: bool | None = None
    volatile_corrected: int | None = None
    volatile_uncorrected: int | None = None
    aggregate_corrected: int | None = None
    aggregate_uncorrected: int | None = None
    sram_threshold_exceeded: bool | None = None
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages_single_bit: int | None = None
    retired_pages_double_bit: int | None = None
    retired_pages_pending: bool | None = None
    recovery_action: int | None = None  # field 230 of NVML: `gpuagent.core.hardware` has the words


class Link(NamedTuple):
    """One NVLink, or one C2C link between GPU and CPU. `bytes_per_second` is its speed in one direction."""

    number: int
    active: bool
    bytes_per_second: int | None = None
    errors: tuple[tuple[str, int], ...] = ()
    """Errors by kind, for the kinds that this generation counts."""


class Links(NamedTuple):
    """All links of one kind. Counters only grow, also where a single link goes down or is counted anew."""

    links: tuple[Link, ...] = ()
    errors: tuple[tuple[str, int], ...] = ()
    """Errors by kind, over all links."""
    transmit_bytes: int | None = None
    receive_bytes: int | None = None

    @property
    def bytes_per_second(self) -> int | None:
        """Speed of the links that are up, together and in one direction; None if none of them tells."""
        told = [link.bytes_per_second for link in self.links if link.active and link.bytes_per_second is not None]
        return sum(told) if told else None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG device: its memory belongs to its GPU instance, and is part of its parent's, never added to it."""

    uuid: str
    gpu_instance_id: int
    compute_instance_id: int
    profile: str
    memory: Memory
    profile_metrics: Profile | None = None


class RecoveryAction(NamedTuple):
    """One value of the field."""

    name: str
    """Name in JSON."""
    text: str
    """Text, as in "the driver asks to ..."."""
    advice: str
    """Advice what to do; `{gpu}` stands for the index of the GPU."""


RECOVERY_ACTIONS = {
    0: RecoveryAction("none", "do nothing", ""),
    1: RecoveryAction("gpu_reset", "reset the GPU", "Drain the node and reset the GPU: nvidia-smi -r -i {gpu}."),
    2: RecoveryAction("node_reboot", "reboot the node", "Drain and reboot the node."),
    3: RecoveryAction("drain_p2p", "drain peer-to-peer work", "Move multi-GPU jobs elsewhere."),
    4: RecoveryAction(
        "drain_and_reset",
        "drain and reset the GPU",
        "Let running work end, start none, then reset the GPU: nvidia-smi -r -i {gpu}.",
    ),
    5: RecoveryAction("recover_imex", "recover the IMEX domain", "Restart nvidia-imex on its nodes."),
    6: RecoveryAction("bus_reset", "reset the GPU's bus", "Drain the node and reboot it."),
    7: RecoveryAction("system_reboot", "reboot the whole system", "Drain and power-cycle the node."),
}


def recovery_action(value: int) -> RecoveryAction:
    """Return what a value means; one that is not in the list is named by its number."""
    known = RECOVERY_ACTIONS.get(value)
    if known is not None:
        return known
    return RecoveryAction(f"unknown_{value}", f"take recovery action {value}", "Look it up in NVIDIA's nvml.h.")
