"""Validate the scenario file as data, and complete GPUs from `models.yaml`. docs/simulation.md explains every key."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Annotated, Any, ClassVar, Literal

from gpuagent.core.problems import Problem, shown
from gpuagent.core.sections import Section, ShortForm, key
from gpuagent.core.yaml_document import Limits, read_document
from gpuagent_simulator.curves import Constant, Curve, Ramp
from gpuagent_simulator.faults import Fault
from gpuagent_simulator.values import (
    Bytes,
    Flag,
    Name,
    Number,
    PositiveSeconds,
    ProcessKind,
    Seconds,
    Whole,
    Words,
)

LIMITS = Limits(depth=64, values=200_000, typed=True)
"""How large and deep a scenario, or the file of models, may be."""

DEFAULT_MODEL = "h100"


class Feature(StrEnum):
    """Feature that a GPU may lack: the calls behind it answer NOT_SUPPORTED."""

    ACCOUNTING = "accounting"
    BAR1 = "bar1"
    CLOCK_REASONS = "clock_reasons"
    ECC = "ecc"
    ENERGY = "energy"
    EVENTS = "events"
    FAN = "fan"
    GPM = "gpm"
    JPEG_OFA = "jpeg_ofa"
    MARGIN = "margin"
    MEMORY = "memory"
    MEMORY_TEMPERATURE = "memory_temperature"
    MIG = "mig"
    NVLINK = "nvlink"
    PCIE = "pcie"
    POWER_AVERAGE = "power_average"
    POWER_LIMITS = "power_limits"
    PROCESS_UTILIZATION = "process_utilization"
    RECOVERY_ACTION = "recovery_action"
    REMAPPED_ROWS = "remapped_rows"
    RETIRED_PAGES = "retired_pages"
    SERIAL = "serial"
    UTILIZATION = "utilization"


LOST_UNDER_MIG = frozenset(
    {
        Feature.ACCOUNTING,
        Feature.JPEG_OFA,
        Feature.PROCESS_UTILIZATION,
        Feature.REMAPPED_ROWS,
        Feature.UTILIZATION,
    }
)
"""Features that a GPU in MIG mode lacks (nvml.h, and nvidia-smi of an H100 and H200 with MIG)."""


@cache
def models() -> dict[str, dict[str, Any]]:
    """Return the models by name."""
    text = resources.files(__package__).joinpath("models.yaml").read_text(encoding="utf-8")
    loaded: Any = read_document(text, LIMITS).value
    return {name: dict(model) for name, model in loaded.items()}


def _over(base: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """Merge key by key; a curve is replaced whole."""
    merged = dict(base)
    for name, value in given.items():
        below = merged.get(name)
        if isinstance(below, dict) and isinstance(value, dict) and "shape" not in value | below:
            merged[name] = _over(below, value)
        else:
            merged[name] = value
    return merged


DEFAULT_CGROUP = "/user.slice"
FIRST_MADE_UP_PID = 4_194_305
"""Above the kernel's highest pid (PID_MAX_LIMIT, include/linux/threads.h): no real process can be
meant."""
MAX_PID = 2**31 - 1
MAX_PROCESSES = 100_000

Percent = Curve
ZERO = Constant(0.0)

MAX_INSTANCE = 0xFFFF


def _memory(value: object) -> object:
    """Read `unavailable` as None; an empty value is a mistake."""
    if value is None:
        raise ValueError("give an amount, a shape, or unavailable")
    return None if value == "unavailable" else value


class EngineLoad(Section):
    """Share of time, in percent, in which a process keeps each engine busy."""

    sm: Percent = ZERO
    memory: Percent = ZERO
    encoder: Percent = ZERO
    decoder: Percent = ZERO
    jpeg: Percent = ZERO
    ofa: Percent = ZERO


class ProcessSpec(Section):
    """A process on a GPU, or `count` of them."""

    name: Name
    command: Words = ()
    user: str = "root"
    uid: Whole | None = key(default=None, ge=0, le=2**32 - 1)
    cgroup: str = DEFAULT_CGROUP
    state: Literal["R", "S", "D", "Z", "T", "t", "I"] = "S"
    resident: Curve = Constant(512 * 1024**2)
    age: Seconds = 60.0
    kind: ProcessKind = "C"
    memory: Annotated[Curve | None, ShortForm("an amount, a shape, or unavailable", _memory)]
    utilization: EngineLoad = EngineLoad()
    gpu_instance: Whole | None = key(default=None, ge=0, le=MAX_INSTANCE)
    compute_instance: Whole = key(default=0, ge=0, le=MAX_INSTANCE)
    from_: Seconds = 0.0
    until: Seconds = math.inf
    life: PositiveSeconds | None = None
    count: Whole = key(default=1, ge=1, le=MAX_PROCESSES)
    every: Seconds = 0.0
    pid: Whole | None = key(default=None, ge=FIRST_MADE_UP_PID, le=MAX_PID)
    bind: str = ""
    holds_after_death: Flag = False
    dead: Flag = False
    dead_after: Seconds | None = None

    def __post_init__(self) -> None:
        if self.bind and (self.pid is not None or self.count > 1 or self.dead):
            raise ValueError("a process with bind takes its pid and life from outside: no pid, count or dead")
        if self.holds_after_death and not self.bind:
            raise ValueError("holds_after_death is for processes with bind; use dead_after")
        if self.dead and self.dead_after is not None:
            raise ValueError("give dead or dead_after, not both")
        if self.life is not None and not math.isinf(self.until):
            raise ValueError("give until or life, not both")
        if self.pid is not None and self.pid + self.count - 1 > MAX_PID:
            raise ValueError(f"pid + count goes beyond {MAX_PID}")


class DeviceMemory(Section):
    """Device memory. `base_used` is what no process owns."""

    total: Bytes
    reserved: Bytes = 0
    base_used: Curve = ZERO


class Bar1(Section):
    """The window through which the host reaches device memory."""

    total: Bytes = 0
    used: Curve = ZERO


class GpuLoad(Section):
    """Utilization of the GPU in percent; what is not given follows from the processes."""

    gpu: Percent | None = None
    memory: Percent | None = None
    encoder: Percent | None = None
    decoder: Percent | None = None
    jpeg: Percent | None = None
    ofa: Percent | None = None


class TemperatureSpec(Section):
    """Temperatures in degrees Celsius. `gpu` and `memory` follow from the load if they are not given."""

    gpu: Curve | None = None
    memory: Curve | None = None
    idle: Number = 32.0
    rise: Number = 40.0
    slowdown: Whole = 89
    shutdown: Whole = 92
    memory_max: Whole = 95
    gpu_max: Whole = 87


class PowerSpec(Section):
    """Power of the GPU, in watts.

    `draw` follows from the load if it is not given; the energy counter is its integral.
    """

    draw: Curve | None = None
    idle: Number = 70.0
    limit: Number = 700.0
    min_limit: Number = 200.0
    max_limit: Number = 700.0


class Domains(Section):
    """MHz by clock domain."""

    graphics: Number
    sm: Number
    memory: Number
    video: Number


class Throttled(Section):
    """Seconds spent below full clocks since the driver was loaded."""

    power_cap: Curve = ZERO
    sync_boost: Curve = ZERO
    sw_thermal: Curve = ZERO
    hw_thermal: Curve = ZERO
    hw_power_brake: Curve = ZERO


class ClocksSpec(Section):
    """Clocks at rest and at most.

    `event_reasons` is NVML's bit mask and follows from the load if not given.
    """

    idle: Domains
    max: Domains
    event_reasons: Curve | None = None
    throttled: Throttled = Throttled()


class PcieSpec(Section):
    """PCI Express link; the counters are bytes since the driver was loaded."""

    generation: Whole = 5
    max_generation: Whole = 5
    width: Whole = 16
    max_width: Whole = 16
    replays: Curve = ZERO
    transmit: Curve = Ramp(rate=40e6)
    receive: Curve = Ramp(rate=120e6)


class EccSpec(Section):
    """Error counts.

    `remap_pending`, `remap_failed`, `retired_pending` and `sram_threshold_exceeded` are 0 or 1.
    """

    enabled: Flag = True
    volatile_corrected: Curve = ZERO
    volatile_uncorrected: Curve = ZERO
    aggregate_corrected: Curve = ZERO
    aggregate_uncorrected: Curve = ZERO
    sram_threshold_exceeded: Curve = ZERO
    remapped_corrected: Curve = ZERO
    remapped_uncorrected: Curve = ZERO
    remap_pending: Curve = ZERO
    remap_failed: Curve = ZERO
    retired_single_bit: Curve = ZERO
    retired_double_bit: Curve = ZERO
    retired_pending: Curve = ZERO
    recovery_action: Curve = ZERO


class NvLinkSpec(Section):
    """NVLinks. Byte and error counters are those of one link; all links are alike."""

    links: Whole = key(default=0, ge=0, le=36)
    inactive: tuple[Whole, ...] = ()
    version: Whole = 4
    megabytes_per_second: Whole = 26562
    transmit: Curve = Ramp(rate=25e6)
    receive: Curve = Ramp(rate=25e6)
    replay_errors: Curve = ZERO
    recovery_errors: Curve = ZERO
    crc_flit_errors: Curve = ZERO
    crc_data_errors: Curve = ZERO


class C2cSpec(Section):
    """Links between GPU and CPU on one board (GH200, GB200)."""

    links: Whole = key(default=0, ge=0, le=36)
    inactive: tuple[Whole, ...] = ()
    megabytes_per_second: Whole = 44712
    interrupt_errors: Whole = 0
    replay_errors: Whole = 0


class Fans(Section):
    """Fans; `percent` follows from the temperature if it is not given."""

    count: Whole = key(default=0, ge=0, le=8)
    percent: Curve | None = None


class MigInstanceSpec(Section):
    """A MIG device.

    A compute instance in a GPU instance, whose memory it shares with its siblings.
    """

    gpu_instance: Whole = key(ge=0, le=MAX_INSTANCE)
    compute_instance: Whole = key(default=0, ge=0, le=MAX_INSTANCE)
    profile: str
    memory: Bytes
    base_used: Curve = ZERO
    multiprocessors: Whole = 16
    slices: Whole = 1
    uuid: str = ""
    from_: Seconds = 0.0
    until: Seconds = math.inf


class GpuSpec(Section):
    """A GPU, or `count` of them; `model` fills in what is not given."""

    model: str
    count: Whole = key(default=1, ge=1, le=64)
    name: str
    uuid: str = ""
    serial: str = ""
    pci_bus_id: str = ""
    pci_device_id: Whole = 0
    pci_subsystem_id: Whole = 0
    vbios: str = "96.00.74.00.01"
    brand: Whole = 14
    architecture: Whole
    compute_capability: tuple[Whole, Whole]
    multiprocessors: Whole = 132
    lacks: frozenset[Feature] = frozenset()
    memory: DeviceMemory | None = None
    bar1: Bar1 = Bar1()
    utilization: GpuLoad = GpuLoad()
    temperature: TemperatureSpec = TemperatureSpec()
    power: PowerSpec = PowerSpec()
    clocks: ClocksSpec
    performance_state: Curve | None = None
    pcie: PcieSpec = PcieSpec()
    ecc: EccSpec = EccSpec()
    nvlink: NvLinkSpec = NvLinkSpec()
    c2c: C2cSpec = C2cSpec()
    fans: Fans = Fans()
    gpm: Mapping[str, Curve] | None = None
    persistence: Flag = True
    accounting: Flag = False
    mig: tuple[MigInstanceSpec, ...] | None = None
    processes: tuple[ProcessSpec, ...] = ()

    @classmethod
    def complete(cls, given: Mapping[str, object]) -> Mapping[str, object]:
        """Return the GPU completed from its model; a key with nothing below it is as if it were not there."""
        empty = {name for name, place in cls.keys.items() if place.empty_is_default}
        found = {name: value for name, value in given.items() if value is not None or name not in empty}
        model = found.setdefault("model", DEFAULT_MODEL)
        known = model if isinstance(model, str) and model in models() else DEFAULT_MODEL
        return _over(models()[known], found)

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        model = given.get("model")
        if isinstance(model, str) and model not in models():
            yield Problem(("model",), f"unknown model {shown(model)}; one of {', '.join(models())}")

    def __post_init__(self) -> None:
        if self.memory is None and Feature.MEMORY not in self.lacks:
            raise ValueError("give memory, or say that the GPU lacks it")
        if self.count > 1 and (self.uuid or self.serial or self.pci_bus_id):
            raise ValueError("uuid, serial and pci_bus_id are one GPU's own: not together with count")
        if self.mig is None and any(process.gpu_instance is not None for process in self.processes):
            raise ValueError("a process names a gpu_instance, but the GPU has no mig")


class FaultList(Section):
    """Content of a scenario's `faults_file`: read again whenever it changes."""

    noun: ClassVar[str] = "file of faults"
    parts: ClassVar[str] = "faults"

    faults: tuple[Fault, ...] = ()


class HostSpec(Section):
    """Memory of the machine, for GPUs that share it. `used` is what others than the GPU's processes have taken."""

    memory: Bytes = 128 * 1024**3
    used: Curve = Constant(6 * 1024**3)
    kernel: Curve = Constant(1024**3)
    page_cache: Curve = Constant(20 * 1024**3)
    swap: Bytes = 0
    swap_used: Curve = ZERO
    pressure: Curve = ZERO
    full_pressure: Curve = ZERO


class Scenario(Section):
    """A whole scenario."""

    noun: ClassVar[str] = "scenario"
    parts: ClassVar[str] = "gpus, processes and faults"

    name: str = "unnamed"
    description: str = ""
    driver: str = "580.95.05"
    nvml: str = ""
    cuda: Whole = 13000
    host: HostSpec = HostSpec()
    gpus: tuple[GpuSpec, ...] = ()
    faults: tuple[Fault, ...] = ()
    faults_file: str = ""

    @property
    def gpu_count(self) -> int:
        """GPUs that the node has when all is well."""
        return sum(gpu.count for gpu in self.gpus)

    def __post_init__(self) -> None:
        for position, fault in enumerate(self.faults):
            if fault.gpu is not None and fault.gpu >= self.gpu_count:
                raise ValueError(f"faults[{position}] is for GPU {fault.gpu} of {self.gpu_count}")
        processes = sum(gpu.count * process.count for gpu in self.gpus for process in gpu.processes)
        if processes > MAX_PROCESSES:
            raise ValueError(f"{processes} processes are more than {MAX_PROCESSES}")
