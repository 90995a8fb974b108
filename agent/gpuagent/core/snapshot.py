"""What was measured: frozen data that every other part reads and none may change.

A `Snapshot` is all that others see of a tick. Units are in the names; `None` is unknown, never 0. Ratios: 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gpuagent.core.clock import CLOCK_STEP_SECONDS
from gpuagent.core.growth import Growth, MemoryKey
from gpuagent.core.hardware import (
    Clocks,
    Ecc,
    HostMemory,
    Links,
    Memory,
    MemoryKind,
    MemoryOutlook,
    MemoryPressure,
    MigInstance,
    Pcie,
    Power,
    Profile,
    Thermal,
    Utilization,
)
from gpuagent.core.identity import NO_INSTANCE, JobSign, ProcessId


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
    ASLEEP = "asleep"
    """Powered down, or left alone so that it can be: it had no process when it was last read."""


class ProcessState(StrEnum):
    """How far a process of the driver's list could be found in /proc."""

    LIVE = "live"
    DEAD = "dead"
    """Listed by the driver, unknown to /proc or a zombie there: it has ended, and no signal frees its memory."""
    UNRESOLVED = "unresolved"
    """The agent sees another pid namespace than the driver: the pid means nothing here."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Facts of /proc about one process, started at a Unix time. Strings are bounded and redacted; "" is unknown."""

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

    @property
    def is_zombie(self) -> bool:
        """Whether it has ended, and its parent has not taken note: one whose first thread only has ended has memory."""
        return self.state == "Z" and self.resident_bytes == 0


class GpuProcess(NamedTuple):
    """One process on one GPU (or GPU instance) as the driver lists it. `kinds`: C compute, G graphics, M MPS."""

    pid: int
    used_bytes: int | None
    kinds: str
    gpu_instance_id: int = NO_INSTANCE
    compute_instance_id: int = NO_INSTANCE


class ProcessUtilization(NamedTuple):
    """Newest accepted utilization sample of one process on one GPU, or 0 throughout on a GPU observed at 0 %."""

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
    def is_zombie(self) -> bool:
        """Whether it has ended, and /proc still lists it."""
        return self.state is ProcessState.DEAD and self.former is not None and self.former.is_zombie

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
    memory_kind: MemoryKind = MemoryKind.DEDICATED
    numa_node: int | None = None
    """NUMA node of coherent memory that the kernel manages: it may hand out pages of it to any process."""

    @property
    def unified_memory(self) -> bool:
        """The GPU has no memory of its own: the host's serves both."""
        return self.memory_kind is MemoryKind.UNIFIED

    @property
    def shares_memory(self) -> bool:
        """The kernel gives out this memory too: what no process of the GPU holds is its own or other programs'.

        Of coherent memory that is a NUMA node, pages are not released when a process ends (nvml.h,
        nvmlDeviceGetMemoryInfo).
        """
        return self.unified_memory or self.numa_node is not None


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Where the used memory of one GPU is: used = processes + dead_processes + unattributed + host."""

    processes_bytes: int
    dead_processes_bytes: int
    unattributed_bytes: int
    host_bytes: int = 0
    """Of memory that GPU and CPU share: what programs and the kernel hold beside the GPU's processes."""


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
    """Unix time, by the wall clock as it was then."""
    last_clock_seconds: float | None = field(default=None, compare=False)
    """CLOCK_BOOTTIME of the same; None for what an agent before this one has seen."""

    def age_seconds(self, clock_seconds: float, wall_seconds: float) -> float:
        """Return how long ago the last one was, however the wall clock was set since."""
        if self.last_clock_seconds is not None:
            return max(0.0, clock_seconds - self.last_clock_seconds)
        return max(0.0, wall_seconds - self.last_time_seconds)

    def unix_seconds(self, clock_seconds: float, wall_seconds: float) -> float:
        """Return the Unix time of the last one, by the wall clock as it is now."""
        if self.last_clock_seconds is None:
            return self.last_time_seconds
        now = wall_seconds - (clock_seconds - self.last_clock_seconds)
        return now if abs(now - self.last_time_seconds) > CLOCK_STEP_SECONDS else self.last_time_seconds


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
    repair: str = ""
    """What has shown that its last fault was repaired, in words; "" where nothing was, or a fault is open."""
    replaces: str = ""
    """UUID of the lost GPU at whose PCI address this one answers, since the agent was started; "" if there is none."""
    measured_seconds: float | None = None
    """Clock at which this GPU was last read with success; grows old while the GPU is blind or lost."""
    memory: Memory | None = None
    reconciliation: Reconciliation | None = None
    stall_imminent: bool | None = None
    """Of a GPU that shares the machine's memory: the machine is about to stall for want of it. None elsewhere."""
    utilization: Utilization | None = None
    profile: Profile | None = None
    thermal: Thermal | None = None
    power: Power | None = None
    clocks: Clocks | None = None
    pcie: Pcie | None = None
    ecc: Ecc | None = None
    nvlink: Links | None = None
    c2c: Links | None = None  # between GPU and CPU
    figures: Mapping[str, float] = field(default_factory=dict)
    """Figures of collectors that have no part of their own, by name, in base units."""
    mig: tuple[MigInstance, ...] = ()
    processes_known: bool = False
    """The process list was read in this tick: a process that is not in it has gone."""
    processes_trusted: bool = True  # False where the driver shuffles its list (535.43 to 535.98): show, never act
    act_refusal: str = ""
    """Reason why nobody is acted on by these figures, the same text while its cause lasts; "" if nothing forbids it."""
    runs: tuple[CollectorRun, ...] = ()
    unsupported: tuple[tuple[str, str], ...] = ()
    """NVML calls that this GPU does not answer, each with the driver's reason."""

    @property
    def processes_read(self) -> bool:
        """Whether the GPU works and its processes were listed in this tick: an empty list says that there are none."""
        return self.state is GpuState.OK and self.processes_known

    @property
    def read_seconds(self) -> float:
        """Clock of the figures: of the last reading with success, of this one where there was none."""
        return self.time_seconds if self.measured_seconds is None else self.measured_seconds


@dataclass(frozen=True, slots=True)
class AllocatorReading:
    """A caching allocator's figures on one GPU, in bytes or counts. What it does not tell is None, never 0.

    Keys and their meaning: https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html
    """

    allocated_bytes: int | None = None
    """Handed out to tensors."""
    allocated_peak_bytes: int | None = None
    reserved_bytes: int | None = None
    """Taken from the driver."""
    reserved_peak_bytes: int | None = None
    active_bytes: int | None = None
    inactive_split_bytes: int | None = None
    """Free pieces of segments that are partly in use: cannot go back."""
    segments: int | None = None
    alloc_retries: int | None = None
    ooms: int | None = None
    limit_ratio: float | None = None
    """Share of the GPU that the process may take, where it has been limited."""


@dataclass(frozen=True, slots=True)
class ClientReading:
    """One app with an embedded client that is connected now. Its identity is the kernel's word, never the app's."""

    id: ProcessId
    app: str
    client_version: str = ""
    torch_version: str = ""
    python_version: str = ""
    backend: str = ""
    """Name of the allocator: native, cudaMallocAsync, pluggable; "" before CUDA is up."""
    capabilities: tuple[str, ...] = ()
    """Commands that the app obeys."""
    measured_seconds: float | None = None
    """CLOCK_BOOTTIME of the last figures; None before the first."""
    devices: Mapping[str, AllocatorReading] = field(default_factory=dict)
    """Figures by NVML's UUID of the GPU; those of a MIG device are under its GPU's, as its processes are.

    Empty once the figures are too old to be believed.
    """
    problem: str = ""
    """Reason why there are no figures although CUDA is up, such as an allocator that keeps none."""
    declared_minimum_bytes: int | None = None
    declared_typical_bytes: int | None = None
    frameworks: Mapping[str, bool] = field(default_factory=dict)
    """The frameworks that use the GPU beside torch, and whether they took most of it when they came up."""


class NvmlState(StrEnum):
    """Where the agent stands with the driver's library."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    PAUSED = "paused"
    """Closed on request, so that the driver can be reloaded or a GPU reset."""


class Pause(NamedTuple):
    """A pause of measuring that somebody asked for."""

    by: str
    """The user who asked; "" where that is not known."""
    until_seconds: float
    """CLOCK_BOOTTIME at which it ends by itself."""


PAUSE_GRACE_SECONDS = 60.0
"""What a pause may last beyond its stated end before that is a fault: measuring begins at the next tick."""


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
    """Reason why a GPU may be missing, or an index mean another GPU than it did; "" if nothing says so."""
    pci_gpus: int | None = None
    nvml_initializations: int = 0
    host_memory: HostMemory | None = None
    """Memory of the machine, where a GPU shares it or reads it over C2C links."""
    memory_pressure: MemoryPressure | None = None
    memory_outlook: MemoryOutlook | None = None
    """What is to be expected of it, where a GPU has no memory of its own; None where that is unknown."""
    pause: Pause | None = None
    """The pause that is in force; None where there is none, or nobody told of it."""

    @property
    def why_unread(self) -> str:
        """Reason why no GPU is read, in words that stand alone, and who paused that; "" while they are read."""
        return why_unread(self.nvml_state, self.nvml_reason)


def pause_overrun_seconds(node: NodeReading, clock_seconds: float) -> float:
    """Return for how long a pause lasts that should be over; 0 within its grace, and where there is none."""
    late = 0.0 if node.pause is None else clock_seconds - node.pause.until_seconds
    return late if late > PAUSE_GRACE_SECONDS else 0.0


def why_unread(state: NvmlState, reason: str) -> str:
    """Return the reason of a state of the library in words that stand alone."""
    return f"measuring is paused {reason}".rstrip() if state is NvmlState.PAUSED else reason


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
    """Growth by the leak detector; empty until it has seen the snapshot."""
