"""What was measured: frozen data that every other part reads and none may change.

A `Snapshot` is all that others see of a tick. Units are in the names; `None` is unknown, never 0. Ratios: 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gpuagent.embedded import ClientReading
from gpuagent.growth import Growth, MemoryKey
from gpuagent.identity import NO_INSTANCE, JobSign, ProcessId


class GpuState(StrEnum):
    """What can be said of a GPU at a tick."""

    OK = "ok"
    STARTING = "starting"
    """Known by its index, not yet read."""
    LOST = "lost"
    """The driver says that it has lost the GPU (GPU_IS_LOST, or no handle where one was)."""
    BLIND = "blind"
    """A call into the driver has not come back: nothing is known."""
    FAILED = "failed"
    """The driver answers, but the memory of this GPU could not be read in this tick."""
    GONE = "gone"
    """Seen before, no longer enumerated."""


class ProcessState(StrEnum):
    """How far a process of the driver's list could be found in /proc."""

    LIVE = "live"
    DEAD = "dead"
    """Listed by the driver, unknown to /proc: no signal frees its memory."""
    UNRESOLVED = "unresolved"
    """The agent sees another pid namespace than the driver: the pid means nothing here."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """What /proc tells of one process, started at a Unix time. Strings are bounded and redacted; "" is unknown."""

    id: ProcessId
    name: str
    uid: int
    user: str
    command: str = ""
    state: str = "?"  # the kernel's letter: R, S, D (uninterruptible), Z (zombie), T...
    parent_pid: int = 0
    pid_namespace: int = 0  # its inode; 0 where it may not be read
    start_time_seconds: float = 0.0
    resident_bytes: int | None = None
    cgroup: str = ""
    unit: str = ""
    container_id: str = ""
    container_runtime: str = ""
    container_name: str = ""  # chosen by whoever started it; `namespace/pod/container` in Kubernetes
    pod_uid: str = ""
    pod: str = ""
    namespace: str = ""
    slurm_job: str = ""
    proven_names: frozenset[str] = frozenset()
    """Which of `unit`, `container` (its id), `job` and `pod` only root can have chosen: see `procfs.cgroup_owner`."""
    process_group: int = 0  # 0 is unknown
    job_signs: tuple[JobSign, ...] = ()
    on_host: bool = False  # not in a container by the kernel's word, so its user is an account: `procfs.credentials`


class GpuProcess(NamedTuple):
    """One process on one GPU (or GPU instance) as the driver lists it. `kinds`: C compute, G graphics, M MPS."""

    pid: int
    used_bytes: int | None
    kinds: str
    gpu_instance_id: int = NO_INSTANCE
    compute_instance_id: int = NO_INSTANCE


class ProcessUtilization(NamedTuple):
    """Newest accepted utilisation sample of one process on one GPU, or 0 throughout on a GPU observed at 0 %."""

    sm_ratio: float
    memory_ratio: float
    encoder_ratio: float
    decoder_ratio: float


class ProcessReading(NamedTuple):
    """A process on a GPU, joined with what /proc knows of it (`info` is None unless `state` is live)."""

    gpu_index: int
    gpu_uuid: str
    pid: int
    state: ProcessState
    info: ProcessInfo | None
    used_bytes: int | None
    kinds: str
    utilization: ProcessUtilization | None
    gpu_instance_id: int = NO_INSTANCE
    compute_instance_id: int = NO_INSTANCE
    idle_since_seconds: float | None = None
    """Clock (CLOCK_BOOTTIME) since which every reading has found this process at 0 % everywhere; None if unknown."""
    holder_unproven: bool = False
    """Whether somebody before it may have held this memory (see `collector.listings`): it is not acted on."""
    former: ProcessInfo | None = None  # of a dead one, what it was while it lived: to be read, never acted on

    @property
    def key(self) -> MemoryKey:
        """Whose memory this is, within its snapshot."""
        return MemoryKey(self.gpu_uuid, self.pid, self.gpu_instance_id)


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What a GPU is. `index` is NVML's, and may change over a driver reload; `uuid` may not."""

    index: int
    uuid: str
    name: str = ""
    serial: str = ""
    pci_bus_id: str = ""
    vbios_version: str = ""
    brand: str = ""
    compute_capability: str = ""
    mig_enabled: bool | None = None
    unified_memory: bool = False
    """The GPU has no memory of its own (GB10, Jetson): the host's RAM serves both."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory. `used_bytes` excludes `reserved_bytes` where the driver tells them apart (R510 and later)."""

    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    bar1_total_bytes: int | None = None
    bar1_used_bytes: int | None = None

    @property
    def used_ratio(self) -> float | None:
        """Used over total; None where the GPU has no memory of its own."""
        if not self.total_bytes or self.used_bytes is None:
            return None
        return self.used_bytes / self.total_bytes


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Where the used memory of one GPU is: used = processes + dead_processes + unattributed."""

    processes_bytes: int
    dead_processes_bytes: int
    unattributed_bytes: int


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
    recovery_action: int | None = None  # field 230 of NVML: `gpuagent.recovery` has the words


class NvLink(NamedTuple):
    """One NVLink of a GPU. Byte counters run since the driver was loaded."""

    link: int
    active: bool
    replay_errors: int | None = None
    recovery_errors: int | None = None
    crc_flit_errors: int | None = None
    crc_data_errors: int | None = None
    transmit_bytes: int | None = None
    receive_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG device: its memory belongs to its GPU instance, and is part of its parent's, never added to it."""

    uuid: str
    gpu_instance_id: int
    compute_instance_id: int
    profile: str
    memory: Memory
    profile_metrics: Profile | None = None


class CollectorRun(NamedTuple):
    """How one collector fared. `reason` is "" on success."""

    collector: str
    ok: bool
    duration_seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class XidCount:
    """Xid events of one code on one GPU: the number since the agent started, the last one since the boot."""

    gpu_index: int
    gpu_uuid: str
    xid: int
    count: int
    last_time_seconds: float


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Everything known of one GPU at a tick. Parts that were not read, or not in time, are None."""

    identity: GpuIdentity
    state: GpuState
    reason: str = ""
    time_seconds: float = 0.0
    """Clock of the collection (CLOCK_BOOTTIME), not of the tick."""
    since_seconds: float | None = None
    """Clock at which `state` began, `lost_since_seconds` where it is lost or gone."""
    lost_since_seconds: float | None = None  # until it answers in a session that began after that
    unrepaired_xids: tuple[XidCount, ...] = ()  # take a reset or reboot that the driver has not shown to be done
    measured_seconds: float | None = None
    """Clock at which this GPU was last read with success; grows old while the GPU is blind or lost."""
    memory: Memory | None = None
    reconciliation: Reconciliation | None = None
    utilization: Utilization | None = None
    profile: Profile | None = None
    thermal: Thermal | None = None
    power: Power | None = None
    clocks: Clocks | None = None
    pcie: Pcie | None = None
    ecc: Ecc | None = None
    nvlinks: tuple[NvLink, ...] = ()
    mig: tuple[MigInstance, ...] = ()
    processes_known: bool = False
    """The process list was read in this tick: a process that is not in it has gone."""
    processes_trusted: bool = True  # False where the driver shuffles its list (535.43 to 535.98): show, never act
    act_refusal: str = ""
    """Why nobody is acted on by these figures, the same text for as long as its cause; "" if nothing forbids it."""
    runs: tuple[CollectorRun, ...] = ()
    unsupported: tuple[tuple[str, str], ...] = ()
    """NVML calls that this GPU does not answer, each with the driver's reason."""

    @property
    def read_seconds(self) -> float:
        """Clock of the figures: of the last reading with success, of this one where there was none."""
        return self.time_seconds if self.measured_seconds is None else self.measured_seconds


class NvmlState(StrEnum):
    """Where the agent stands with the driver's library."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    PAUSED = "paused"
    """Closed on request, so that the driver can be reloaded or a GPU reset."""


@dataclass(frozen=True, slots=True)
class NodeReading:
    """What holds for the node as a whole."""

    nvml_state: NvmlState
    nvml_reason: str = ""
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""
    boot_id: str = ""
    host_pid_namespace: bool = True
    gpus_expected: int = 0
    """The most GPUs seen since the start, or on the PCI bus, whichever is more."""
    gpus_doubt: str = ""
    """Why a GPU may be missing, or an index mean another GPU than it did; "" if nothing says so."""
    pci_gpus: int | None = None
    nvml_initializations: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One tick, whole. `time_seconds` is Unix time, `clock_seconds` CLOCK_BOOTTIME: for ages and holds."""

    time_seconds: float
    clock_seconds: float
    node: NodeReading
    gpus: tuple[GpuReading, ...] = ()
    processes: tuple[ProcessReading, ...] = ()
    xids: tuple[XidCount, ...] = ()
    measured_seconds: float | None = None  # clock of the last tick in which a GPU was read, or that there is none
    runs: tuple[CollectorRun, ...] = ()  # collectors of the node itself, not of a GPU
    simulated: str = ""  # name of the scenario; "" on a real node
    ticks: int = 0
    ticks_late: int = 0
    processes_seen: int = 0  # since the start, by identity
    clients: Mapping[int, ClientReading] = field(default_factory=dict)
    """Apps with an embedded client, by pid: joined by the kernel's word on who is connected."""
    growth: Mapping[MemoryKey, Growth] = field(default_factory=dict)
    """What the leak detector says; empty until it has seen the snapshot."""
