"""Families of one GPU, labeled `gpu` (its NVML index) and `uuid`, and of its MIG instances.

Memory of MIG belongs to the GPU instance and appears once for it, however many compute instances share it; the parent's
own memory families hold the sum, so the two must never be added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from gpuagent.core.hardware import Links, MigInstance, recovery_action
from gpuagent.core.metrics.family import Family, LabeledValue, MetricType, Value, single
from gpuagent.core.snapshot import GpuReading, GpuState

GPU_LABELS = ("gpu", "uuid")

GpuFamily = Family[GpuReading]


def _part(part: str, field: str) -> Callable[[GpuReading], Value]:
    """Return a field of a part of the reading; None while the part is missing."""
    read_part, read_field = attrgetter(part), attrgetter(field)

    def read(gpu: GpuReading) -> Value:
        holder = read_part(gpu)
        return None if holder is None else read_field(holder)

    return read


def _family(
    name: str, part: str, field: str, text: str, *, collector: str = "", kind: MetricType = MetricType.GAUGE
) -> GpuFamily:
    return Family(f"gpuagent_gpu_{name}", kind, text, collector or part, GPU_LABELS, single(_part(part, field)))


def _figure(name: str, collector: str, text: str, *, kind: MetricType = MetricType.GAUGE) -> GpuFamily:
    """Return the family of a figure that a collector put into `figures` under this name."""
    return Family(f"gpuagent_gpu_{name}", kind, text, collector, GPU_LABELS, single(lambda gpu: gpu.figures.get(name)))


def _gpu_series(
    name: str, collector: str, labels: tuple[str, ...], text: str,
    of: Callable[[GpuReading], Iterable[LabeledValue]], kind: MetricType = MetricType.GAUGE,
) -> GpuFamily:  # fmt: skip
    """Return a family whose samples `of` yields, each with the values of `labels`: () for a series without any."""
    return Family(f"gpuagent_gpu_{name}", kind, text, collector, GPU_LABELS + labels, of)


def _pairs(part: str, field: str) -> Callable[[GpuReading], Iterable[LabeledValue]]:
    """Return the reader of a field that holds (label value, number) pairs."""
    read = _part(part, field)

    def of(gpu: GpuReading) -> Iterable[LabeledValue]:
        pairs = read(gpu)
        return (((name,), value) for name, value in pairs) if isinstance(pairs, tuple) else ()

    return of


def _links_active(part: str) -> Callable[[GpuReading], Iterable[LabeledValue]]:
    read: Callable[[GpuReading], Links | None] = attrgetter(part)
    return lambda gpu: (((str(link.number),), link.active) for link in (read(gpu) or Links()).links)


def _nvlinks(gpu: GpuReading) -> Iterable[LabeledValue]:
    if gpu.nvlink is not None and gpu.nvlink.links:
        up = sum(link.active for link in gpu.nvlink.links)
        yield ("active",), up
        yield ("inactive",), len(gpu.nvlink.links) - up


def _link_errors(gpu: GpuReading) -> Iterable[LabeledValue]:
    """Errors of links that had one: the others are counted in the sum."""
    for link in (gpu.nvlink or Links()).links:
        for error, number in link.errors:
            if number:
                yield (str(link.number), error), number


def _fans(gpu: GpuReading) -> Iterable[LabeledValue]:
    return () if gpu.thermal is None else (((str(n),), speed) for n, speed in enumerate(gpu.thermal.fan_ratios))


def _ecc_errors(gpu: GpuReading) -> Iterable[LabeledValue]:
    if gpu.ecc is not None:
        for period in ("volatile", "aggregate"):
            for error in ("corrected", "uncorrected"):
                yield (error, period), getattr(gpu.ecc, f"{period}_{error}")


def _remapped(gpu: GpuReading) -> Iterable[LabeledValue]:
    if gpu.ecc is not None:
        yield ("corrected",), gpu.ecc.remapped_rows_corrected
        yield ("uncorrected",), gpu.ecc.remapped_rows_uncorrected


def _retired(gpu: GpuReading) -> Iterable[LabeledValue]:
    if gpu.ecc is not None:
        yield ("single_bit",), gpu.ecc.retired_pages_single_bit
        yield ("double_bit",), gpu.ecc.retired_pages_double_bit


def _lost(gpu: GpuReading) -> Value:
    """Return whether the GPU is lost; unknown, not 0, where nothing can be said."""
    if gpu.state in (GpuState.LOST, GpuState.GONE) or gpu.lost_since_seconds is not None:
        return 1
    return 0 if gpu.state in (GpuState.OK, GpuState.ASLEEP) else None


def _unrepaired(gpu: GpuReading) -> Iterable[LabeledValue]:
    return (((str(xid.xid),), xid.last_time_seconds) for xid in gpu.unrepaired_xids)


def _recovery_advised(gpu: GpuReading) -> Iterable[LabeledValue]:
    if gpu.ecc is not None and gpu.ecc.recovery_action:
        yield (recovery_action(gpu.ecc.recovery_action).text,), 1


def _figures_trusted(gpu: GpuReading) -> Value:
    """Return whether figures are trusted; known of a GPU that was read, or that has a reason against acting."""
    if gpu.act_refusal:
        return 0
    return 1 if gpu.state is GpuState.OK else None


def _beside(gpu: GpuReading) -> Iterable[LabeledValue]:
    if gpu.identity.shares_memory and gpu.reconciliation is not None:
        yield (), gpu.reconciliation.host_bytes


def _info(gpu: GpuReading) -> Iterable[LabeledValue]:
    identity = gpu.identity
    mig = "" if identity.mig_enabled is None else str(identity.mig_enabled).lower()
    yield (
        identity.name, identity.serial, identity.pci_bus_id, identity.vbios_version, identity.brand,
        identity.compute_capability, mig, identity.memory_kind,
    ), 1  # fmt: skip


_INFO_LABELS = (
    "name", "serial", "pci_bus_id", "vbios_version", "brand", "compute_capability", "mig_enabled", "memory_kind",
)  # fmt: skip

IDENTITY = (
    _gpu_series("info", "identity", _INFO_LABELS, "What the GPU is; always 1.", _info),
    _gpu_series("lost", "identity", (), "1 while the driver has lost the GPU or no longer "
              "enumerates it, and until it answers again after a new initialization of NVML.",
              single(_lost)),
    _gpu_series("xid_unrepaired_timestamp_seconds", "xid_events", ("xid",),
              "Unix time of the last Xid of this code, for Xids that take a reset or a reboot, until the driver shows "
              "that it was done; see docs/operations.md.", _unrepaired),
    _gpu_series("blind", "identity", (), "1 while a call into the driver for this GPU has not come back.",
              single(lambda gpu: gpu.state is GpuState.BLIND)),
    _gpu_series("processes_trusted", "processes", (),
              "0 where the driver is known to shuffle its process list: nothing is acted on.",
              single(lambda gpu: gpu.processes_trusted if gpu.processes_known else None)),
    _gpu_series("figures_trusted", "identity", (),
              "0 while nothing is acted on because the driver's figures are, or were within a minute, impossible.",
              single(_figures_trusted)),
)  # fmt: skip

MEMORY = (
    _family("memory_total_bytes", "memory", "total_bytes", "Device memory in total."),
    _family("memory_used_bytes", "memory", "used_bytes",
            "Device memory in use, without what the driver reserves (with it before driver 510)."),
    _family("memory_free_bytes", "memory", "free_bytes", "Device memory free."),
    _family("memory_reserved_bytes", "memory", "reserved_bytes", "Device memory reserved by driver and firmware."),
    _family("memory_used_ratio", "memory", "used_ratio", "Device memory in use over its total, 0 to 1."),
    _family("bar1_memory_total_bytes", "memory", "bar1_total_bytes", "BAR1 address space in total.",
            collector="bar1"),
    _family("bar1_memory_used_bytes", "memory", "bar1_used_bytes", "BAR1 address space mapped.",
            collector="bar1"),
    _figure("memory_own_limit_bytes", "bar1",
            "Limit that the driver keeps on this GPU for the agent's own cgroup: it tells of that limit instead of the "
            "memory, so the figures of that are absent."),
    _family("memory_processes_bytes", "reconciliation", "processes_bytes",
            "Memory of processes that are alive.", collector="processes"),
    _family("memory_dead_processes_bytes", "reconciliation", "dead_processes_bytes",
            "Memory of processes that the driver lists and /proc does not know.", collector="processes"),
    _family("memory_unattributed_bytes", "reconciliation", "unattributed_bytes",
            "Memory in use for which no process is listed: driver contexts, managed memory, leftovers.",
            collector="processes"),
    _gpu_series("memory_host_bytes", "processes", (),
              "Memory in use beside the GPU's processes, where the machine gives it out too (unified, NUMA node).",
              _beside),
    _gpu_series("memory_stall_imminent", "procfs", (),
              "1 while the machine whose memory the GPU shares is about to stall for want of it: programs wait for "
              "memory, and what is left lasts for seconds.", single(attrgetter("stall_imminent"))),
)  # fmt: skip

UTILIZATION = tuple(
    _family(f"{name}_ratio", "utilization", field, text)
    for name, field, text in (
        ("utilization", "gpu_ratio", "Share of time in which a kernel ran, 0 to 1."),
        ("memory_utilization", "memory_ratio", "Share of time in which device memory was read or written, 0 to 1."),
        ("encoder_utilization", "encoder_ratio", "Video encoder utilization, 0 to 1."),
        ("decoder_utilization", "decoder_ratio", "Video decoder utilization, 0 to 1."),
        ("jpeg_utilization", "jpeg_ratio", "JPEG decoder utilization, 0 to 1."),
        ("ofa_utilization", "ofa_ratio", "Optical flow accelerator utilization, 0 to 1."),
    )
)

PROFILE_FIELDS = (
    ("graphics_active_ratio", "Share of time in which any engine was active, 0 to 1 (GPM)."),
    ("sm_active_ratio", "Share of the multiprocessors that were busy, 0 to 1 (GPM)."),
    ("sm_occupancy_ratio", "Warps resident over the most possible, 0 to 1 (GPM)."),
    ("tensor_active_ratio", "Share of time in which the tensor cores were busy, 0 to 1 (GPM)."),
    ("fp64_active_ratio", "Share of time in FP64 arithmetic, 0 to 1 (GPM)."),
    ("fp32_active_ratio", "Share of time in FP32 arithmetic, 0 to 1 (GPM)."),
    ("fp16_active_ratio", "Share of time in FP16 arithmetic, 0 to 1 (GPM)."),
    ("dram_bandwidth_ratio", "Memory bandwidth used over the most possible, 0 to 1 (GPM)."),
    ("pcie_transmit_bytes_per_second", "PCI Express traffic from the GPU (GPM)."),
    ("pcie_receive_bytes_per_second", "PCI Express traffic to the GPU (GPM)."),
    ("nvlink_transmit_bytes_per_second", "NVLink traffic from the GPU, all links (GPM)."),
    ("nvlink_receive_bytes_per_second", "NVLink traffic to the GPU, all links (GPM)."),
)
PROFILE = tuple(_family(f"profile_{field}", "profile", field, text) for field, text in PROFILE_FIELDS)

THERMAL = (
    _family("temperature_celsius", "thermal", "gpu_celsius", "Temperature of the GPU."),
    _family("memory_temperature_celsius", "thermal", "memory_celsius", "Temperature of the memory."),
    _family("temperature_margin_celsius", "thermal", "margin_celsius", "Degrees left before the GPU slows down."),
    _family("temperature_slowdown_celsius", "thermal", "slowdown_celsius", "Temperature at which it slows down."),
    _family("temperature_shutdown_celsius", "thermal", "shutdown_celsius", "Temperature at which it shuts down."),
    _family("temperature_max_celsius", "thermal", "gpu_max_celsius", "Highest temperature for normal operation."),
    _family("memory_temperature_max_celsius", "thermal", "memory_max_celsius",
            "Highest memory temperature for normal operation."),
    _gpu_series("fan_speed_ratio", "thermal", ("fan",), "Fan speed over its maximum, 0 to 1.", _fans),
)  # fmt: skip

POWER = (
    _family("power_watts", "power", "watts", "Power draw, the driver's average (1 s on Ampere and later)."),
    _family("power_instant_watts", "power", "instant_watts", "Power draw, the newest sample."),
    _family("power_limit_watts", "power", "limit_watts", "Power limit that was set."),
    _family("power_enforced_limit_watts", "power", "enforced_limit_watts", "Power limit in force, whoever set it."),
    _family("power_default_limit_watts", "power", "default_limit_watts", "Power limit after a reset."),
    _family("power_min_limit_watts", "power", "min_limit_watts", "Lowest power limit that can be set."),
    _family("power_max_limit_watts", "power", "max_limit_watts", "Highest power limit that can be set."),
    _family("energy_joules_total", "power", "energy_joules", "Energy used since the driver was loaded.",
            kind=MetricType.COUNTER),
    _family("energy_integrated_joules_total", "power", "integrated_energy_joules",
            "Energy used since the agent began to read the GPU, for GPUs without a counter: power over time.",
            kind=MetricType.COUNTER),
    _family("performance_state", "power", "performance_state", "Performance state: 0 fastest to 15 slowest."),
)  # fmt: skip

CLOCKS = (
    _gpu_series("clock_hertz", "clocks", ("domain",), "Clock frequency.", _pairs("clocks", "hertz")),
    _gpu_series("clock_max_hertz", "clocks", ("domain",), "Highest clock frequency.",
              _pairs("clocks", "max_hertz")),
    _gpu_series("clock_event_reason", "clocks", ("reason",), "1 while this holds the clocks down.",
              _pairs("clocks", "event_reasons")),
    _gpu_series("clock_throttled_seconds_total", "clocks", ("reason",),
              "Time with clocks held down since the driver was loaded.",
              _pairs("clocks", "throttled_seconds"), MetricType.COUNTER),
)  # fmt: skip

PCIE = (
    _family("pcie_link_generation", "pcie", "generation", "PCI Express generation in use (lower while idle)."),
    _family("pcie_link_generation_max", "pcie", "max_generation", "Highest PCI Express generation of GPU and slot."),
    _family("pcie_link_width", "pcie", "width", "PCI Express lanes in use."),
    _family("pcie_link_width_max", "pcie", "max_width", "Most PCI Express lanes of GPU and slot."),
    _family("pcie_replays_total", "pcie", "replays", "PCI Express packets sent again.", kind=MetricType.COUNTER),
    _family("pcie_transmit_bytes_total", "pcie", "transmit_bytes", "Bytes sent over PCI Express.",
            kind=MetricType.COUNTER),
    _family("pcie_receive_bytes_total", "pcie", "receive_bytes", "Bytes received over PCI Express.",
            kind=MetricType.COUNTER),
)  # fmt: skip

ECC = (
    _family("ecc_enabled", "ecc", "enabled", "1 if memory errors are corrected and counted."),
    _gpu_series("ecc_errors_total", "ecc", ("error", "period"),
              "Memory errors: volatile since the driver was loaded, aggregate over the GPU's life.",
              _ecc_errors, MetricType.COUNTER),
    _family("ecc_sram_threshold_exceeded", "ecc", "sram_threshold_exceeded",
            "1 if the GPU has had more SRAM errors than the field diagnostic allows."),
    _gpu_series("remapped_rows", "ecc", ("error",), "Memory rows replaced because of errors.", _remapped),
    _family("row_remap_pending", "ecc", "remap_pending", "1 if a row will be replaced at the next reset."),
    _family("row_remap_failed", "ecc", "remap_failed", "1 if a row could not be replaced: replace the GPU."),
    _gpu_series("retired_pages", "ecc", ("error",), "Memory pages retired (before Ampere).", _retired),
    _family("retired_pages_pending", "ecc", "retired_pages_pending", "1 if pages will be retired at the next reboot."),
    _family("recovery_action", "ecc", "recovery_action",
            "What the driver advises: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, "
            "5 recover IMEX domain, 6 bus reset, 7 system reboot."),
    _gpu_series("recovery_action_advised", "ecc", ("action",),
              "The recovery action in words, while the driver asks for one; always 1.", _recovery_advised),
)  # fmt: skip

LINKS = (
    _gpu_series("nvlink_links", "nvlink", ("state",), "Links that are up or asleep (active), and those that are not.",
              _nvlinks),
    _gpu_series("nvlink_active", "nvlink", ("link",), "1 while the link is up or asleep.", _links_active("nvlink")),
    _family("nvlink_speed_bytes_per_second", "nvlink", "bytes_per_second",
            "Speed of the active links together, in one direction."),
    _gpu_series("nvlink_errors_total", "nvlink", ("error",), "Errors of all links; kinds differ by generation.",
              _pairs("nvlink", "errors"), MetricType.COUNTER),
    _gpu_series("nvlink_link_errors_total", "nvlink", ("link", "error"), "Errors of a link, for links that had one.",
              _link_errors, MetricType.COUNTER),
    _family("nvlink_transmit_bytes_total", "nvlink", "transmit_bytes", "Data bytes sent over all links.",
            kind=MetricType.COUNTER),
    _family("nvlink_receive_bytes_total", "nvlink", "receive_bytes", "Data bytes received over all links.",
            kind=MetricType.COUNTER),
    _gpu_series("c2c_active", "c2c", ("link",), "1 while the link between GPU and CPU is up.", _links_active("c2c")),
    _family("c2c_speed_bytes_per_second", "c2c", "bytes_per_second", "Speed of the active links between GPU and CPU."),
    _gpu_series("c2c_errors_total", "c2c", ("error",), "Errors of all links between GPU and CPU.",
              _pairs("c2c", "errors"), MetricType.COUNTER),
)  # fmt: skip

GPU_FAMILIES: tuple[GpuFamily, ...] = (
    *IDENTITY, *MEMORY, *UTILIZATION, *PROFILE, *THERMAL, *POWER, *CLOCKS, *PCIE, *ECC, *LINKS,
)  # fmt: skip


_MIG_INFO_LABELS = ("mig_uuid", "gpu_instance_id", "compute_instance_id", "profile")
INSTANCE_LABELS = ("gpu_instance_id", "profile")
"""Labels of what belongs to a GPU instance, beside those of its GPU."""


def instance_profile(mig: MigInstance) -> str:
    """Return the profile of the GPU instance: compute instances put their own share in front of it (`1c.3g.40gb`)."""
    return mig.profile.partition("c.")[2] or mig.profile


def _mig_info(gpu: GpuReading) -> Iterable[LabeledValue]:
    for mig in gpu.mig:
        yield (mig.uuid, str(mig.gpu_instance_id), str(mig.compute_instance_id), mig.profile), 1


def _once_per_gpu_instance(read: Callable[[MigInstance], Value]) -> Callable[[GpuReading], Iterable[LabeledValue]]:
    def of(gpu: GpuReading) -> Iterable[LabeledValue]:
        seen = set()
        for mig in gpu.mig:
            if mig.gpu_instance_id not in seen:
                seen.add(mig.gpu_instance_id)
                yield (str(mig.gpu_instance_id), instance_profile(mig)), read(mig)

    return of


def _mig_memory_family(name: str, text: str, read: Callable[[MigInstance], Value]) -> GpuFamily:
    labels = GPU_LABELS + INSTANCE_LABELS
    return Family(f"gpuagent_mig_memory_{name}", MetricType.GAUGE, text, "mig", labels, _once_per_gpu_instance(read))


def _mig_profile_family(field: str, text: str) -> GpuFamily:
    def read(mig: MigInstance) -> Value:
        metrics = mig.profile_metrics
        return None if metrics is None else getattr(metrics, field)

    labels = GPU_LABELS + INSTANCE_LABELS
    name = f"gpuagent_mig_profile_{field}"
    return Family(name, MetricType.GAUGE, text.replace("GPU", "instance"), "mig", labels, _once_per_gpu_instance(read))


MIG_FAMILIES: tuple[GpuFamily, ...] = (
    Family(
        "gpuagent_mig_info",
        MetricType.GAUGE,
        "A MIG device of the GPU; always 1.",
        "mig",
        GPU_LABELS + _MIG_INFO_LABELS,
        _mig_info,
    ),
    _mig_memory_family("total_bytes", "Memory of the GPU instance in total.", lambda mig: mig.memory.total_bytes),
    _mig_memory_family("used_bytes", "Memory of the GPU instance in use.", lambda mig: mig.memory.used_bytes),
    _mig_memory_family("free_bytes", "Memory of the GPU instance free.", lambda mig: mig.memory.free_bytes),
    *(_mig_profile_family(field, text) for field, text in PROFILE_FIELDS),
)
