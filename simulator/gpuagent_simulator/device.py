"""Compute what holds of each GPU and MIG instance at this second of the scenario.

What follows from how busy a GPU is (utilization, heat, power, energy, clocks) can each be given outright, too.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

from gpuagent_simulator.abi import Code, NvmlError
from gpuagent_simulator.curves import ScenarioClock, Shape
from gpuagent_simulator.faults import FaultInjector, FaultKind
from gpuagent_simulator.memory_limits import CgroupLimits
from gpuagent_simulator.process import IDLE, Bindings, Load, Process
from gpuagent_simulator.spec import LOST_UNDER_MIG, Feature, GpuSpec, MigInstanceSpec

REASON_IDLE, REASON_POWER_CAP = 0x1, 0x4
"""Bits of the clocks event reasons (nvml.h)."""


class Engines:
    """Gauges of one GPU, in NVML's units."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._joules = 0.0
        self._measured_at = 0.0  # also where a new process joins the scenario in its middle
        self._loaded_at = -math.inf

    def _given_or(self, given: Shape | None, derived: float) -> float:
        return derived if given is None else self._gpu.now(given)

    def percent(self, engine: str) -> int:
        """Return the utilization of `gpu`, `memory`, `encoder`, `decoder`, `jpeg` or `ofa`."""
        busy = self._gpu.moment().busy
        derived = busy.sm if engine == "gpu" else getattr(busy, engine)
        given = getattr(self._gpu.spec.utilization, engine)
        return round(min(100.0, max(0.0, self._given_or(given, derived))))

    @property
    def load(self) -> float:
        """0 to 1."""
        return self.percent("gpu") / 100

    def gpu_celsius(self) -> int:
        """Return the temperature of the chip."""
        heat = self._gpu.spec.temperature
        return round(self._given_or(heat.gpu, heat.idle + heat.rise * self.load))

    def memory_celsius(self) -> int:
        """Return the temperature of the memory: some degrees above the chip's."""
        return round(self._given_or(self._gpu.spec.temperature.memory, self.gpu_celsius() + 8))

    def margin_celsius(self) -> int:
        """Return the degrees left until the GPU slows down."""
        return self._gpu.spec.temperature.slowdown - self.gpu_celsius()

    def watts(self) -> float:
        """Return the power drawn: at full load nearly the limit."""
        power = self._gpu.spec.power
        return self._given_or(power.draw, power.idle + 0.92 * (power.limit - power.idle) * self.load)

    def energy_millijoules(self) -> int:
        """Return the energy since the driver was loaded: power over the time between two reads."""
        now, loaded_at, watts = self._gpu.scenario_clock.now(), self._gpu.faults.loaded_at(), self.watts()
        with self._lock:
            if loaded_at != self._loaded_at:
                self._joules, self._measured_at, self._loaded_at = 0.0, loaded_at, loaded_at
            self._joules += watts * max(0.0, now - self._measured_at)
            self._measured_at = max(now, self._measured_at)
            return int(self._joules * 1000)

    def megahertz(self, domain: str) -> int:
        """Return the clock of `graphics`, `sm`, `memory` or `video`.

        Nearly at most under any load, else at rest.
        """
        clocks = self._gpu.spec.clocks
        resting: float = getattr(clocks.idle, domain)
        fastest: float = getattr(clocks.max, domain)
        if not self.load:
            return round(resting)
        return round(fastest if domain == "memory" else 0.94 * fastest)

    def event_reasons(self) -> int:
        """Return why the clocks are not higher, as NVML's bit mask."""
        power, reasons = self._gpu.spec.power, 0
        if not self.load:
            reasons |= REASON_IDLE
        if self.watts() > 0.98 * power.limit:
            reasons |= REASON_POWER_CAP
        return round(self._given_or(self._gpu.spec.clocks.event_reasons, reasons))

    def performance_state(self) -> int:
        """Return 0 (fastest) to 15; a GPU with a fan rests at 8, one of a data center stays at 0."""
        resting = 8 if self._gpu.spec.fans.count and not self.load else 0
        return round(self._given_or(self._gpu.spec.performance_state, resting))

    def fan_percent(self) -> int:
        """Return the speed of every fan."""
        derived = max(0.0, (self.gpu_celsius() - 30) * 1.2)
        return round(min(100.0, self._given_or(self._gpu.spec.fans.percent, derived)))


class ListedProcess(NamedTuple):
    """A process in the driver's list. `used_bytes` None: the driver does not report it."""

    process: Process
    pid: int
    used_bytes: int | None
    load: Load
    denied_bytes: int = 0
    """How much more it wants than it gets: its allocations fail with an out-of-memory error."""


class GpuMoment(NamedTuple):
    """Processes of a GPU in one second of the scenario.

    Every call within that second returns the same.
    """

    key: tuple[int, ...]
    seconds: float
    rows: tuple[ListedProcess, ...]
    busy: Load
    """Load of all processes together, at most 100 percent each."""


class Gpu:
    """One GPU. Thread-safe: a moment is computed once a second and then only read."""

    is_mig = False

    def __init__(
        self,
        index: int,
        spec: GpuSpec,
        processes: list[Process],
        *,
        scenario_clock: ScenarioClock,
        faults: FaultInjector,
        bindings: Bindings,
    ) -> None:
        self.index = index
        self.spec = spec
        self.scenario_clock = scenario_clock
        self.faults = faults
        self.name = spec.name.encode()
        self.uuid = (spec.uuid or f"GPU-51a0f2d4-0000-4000-8000-{index:012x}").encode()
        self.serial = (spec.serial or f"16512200{index:05d}").encode()
        self.memory_limits = CgroupLimits()
        self.pci_bus_id = spec.pci_bus_id or f"00000000:{0x18 + index * 8 & 0xFF:02X}:00.0"
        self.mig_enabled = spec.mig is not None
        self.lacks = spec.lacks | LOST_UNDER_MIG if self.mig_enabled else spec.lacks
        self.engines = Engines(self)
        self.instances = tuple(MigDevice(self, instance) for instance in spec.mig or ())
        self.grown: dict[str, int] = {}
        """Entries that a growing process list has beyond the scenario's, by entry point."""
        self._processes = processes
        self._bindings = bindings
        self._lock = threading.Lock()
        self._moment: GpuMoment | None = None

    @property
    def parent(self) -> Gpu:
        """The GPU itself: MIG devices have another."""
        return self

    # ---- time ------------------------------------------------------------------------------------

    def now(self, function: Shape) -> float:
        """Return a gauge at this second of the scenario."""
        return function(self.scenario_clock.now())

    def since_load(self, function: Shape) -> int:
        """Return a counter that the driver starts anew when it is loaded."""
        loaded_at = self.faults.loaded_at()
        before = 0.0 if math.isinf(loaded_at) else function(loaded_at)
        return max(0, int(self.now(function) - before))

    def moment(self) -> GpuMoment:
        """Return what the processes do in this second."""
        self._bindings.poll()
        now = self.scenario_clock.now()
        key = (math.floor(now), self._bindings.version, self.memory_limits.version)
        moment = self._moment
        if moment is None or moment.key != key:
            with self._lock:
                moment = self._moment = self._compute(key, now)
        return moment

    def held(self) -> list[tuple[Process, int]]:
        """Return what each process holds at this moment."""
        return [(row.process, row.used_bytes or 0) for row in self.moment().rows]

    def _compute(self, key: tuple[int, ...], now: float) -> GpuMoment:
        """Hand out memory as the driver does: what there is, first come first served.

        No sum exceeds the memory of the GPU, of a MIG instance, or the limit of a cgroup.
        """
        left = math.inf
        if self.spec.memory is not None:
            left = self.spec.memory.total - self.spec.memory.reserved - self.base_used_bytes(now)
        rows = []
        rooms = {one.spec.gpu_instance: float(one.spec.memory) for one in self.instances if one.exists(now)}
        for one in self.instances:
            if one.exists(now):
                rooms[one.spec.gpu_instance] -= one.spec.base_used(now)
        listed = [each for each in self._processes if each.is_listed(now)]
        permitted = self.memory_limits.rooms(listed)
        for process in listed:
            used = wanted = process.used_bytes(now)
            if used is not None:
                buffer_size = rooms.get(process.gpu_instance, math.inf)
                used = max(0, int(min(permitted(process, used), left, buffer_size)))
                left -= used
                rooms[process.gpu_instance] = buffer_size - used
            denied = (wanted or 0) - (used or 0)
            rows.append(ListedProcess(process, process.pid, used, process.load(now), denied))
        totals = map(sum, zip(*(row.load for row in rows), strict=True)) if rows else IDLE
        return GpuMoment(key, now, tuple(rows), Load(*(min(100, total) for total in totals)))

    # ---- memory ----------------------------------------------------------------------------------

    def base_used_bytes(self, now: float) -> int:
        """Return the memory that no process owns: the driver's context, and that of MIG instances."""
        if self.spec.memory is None:
            return 0
        most = self.spec.memory.total - self.spec.memory.reserved
        base = self.spec.memory.base_used(now)
        base += sum(i.spec.base_used(now) for i in self.instances if i.exists(now))
        return min(max(0, int(base)), most)

    def memory(self) -> tuple[int, int, int]:
        """Return (total, reserved, used without reserved) in bytes."""
        if self.spec.memory is None:
            raise NvmlError(Code.NOT_SUPPORTED)
        if self.faults.of(self.index) and self.faults.find(FaultKind.FULL, self.index) is not None:
            return self.spec.memory.total, self.spec.memory.reserved, self.spec.memory.total - self.spec.memory.reserved
        moment = self.moment()
        used = sum(row.used_bytes or 0 for row in moment.rows)
        return (
            self.spec.memory.total,
            self.spec.memory.reserved,
            used + self.base_used_bytes(moment.seconds),
        )

    def shared_bytes(self) -> int:
        """Return how much of the host's memory its processes hold; 0 where the GPU has memory of its own."""
        if Feature.MEMORY not in self.lacks:
            return 0
        return sum(row.used_bytes or 0 for row in self.moment().rows)

    def rows(self) -> tuple[ListedProcess, ...]:
        """Return the processes that a process list of this device has."""
        return self.moment().rows

    # ---- state -----------------------------------------------------------------------------------

    def require_feature(self, feature: Feature) -> None:
        """Raise NOT_SUPPORTED if the GPU lacks this."""
        if feature in self.lacks:
            raise NvmlError(Code.NOT_SUPPORTED)

    def live_instances(self) -> list[MigDevice]:
        """Return the MIG devices that exist now, in the order of their slots."""
        now = self.scenario_clock.now()
        return [instance for instance in self.instances if instance.exists(now)]


class MigDevice:
    """A compute instance of a GPU, as a device of its own."""

    is_mig = True

    def __init__(self, parent: Gpu, spec: MigInstanceSpec) -> None:
        self.parent = parent
        self.spec = spec
        self.name = parent.name + f" MIG {spec.profile}".encode()
        node = f"{spec.gpu_instance:06x}{spec.compute_instance:06x}"
        self.uuid = (spec.uuid or f"MIG-51a0f2d4-{parent.index:04x}-4000-8000-{node}").encode()
        self.lacks = parent.lacks

    @property
    def slot(self) -> int:
        """Its index in the parent: how many there are before it."""
        live = self.parent.live_instances()
        return live.index(self) if self in live else len(live)

    def exists(self, now: float) -> bool:
        """Return True between its creation and its destruction."""
        return self.spec.from_ <= now < self.spec.until

    def memory(self) -> tuple[int, int, int]:
        """Return the memory of the GPU instance: its compute instances share it."""
        moment = self.parent.moment()
        siblings = [
            other.spec for other in self.parent.live_instances() if other.spec.gpu_instance == self.spec.gpu_instance
        ]
        used = int(sum(spec.base_used(moment.seconds) for spec in siblings)) + sum(
            row.used_bytes or 0 for row in moment.rows if row.process.belongs_to(self.spec, whole_gpu_instance=True)
        )
        return self.spec.memory, 0, min(used, self.spec.memory)

    def rows(self) -> tuple[ListedProcess, ...]:
        """Return the processes of this compute instance."""
        return tuple(row for row in self.parent.moment().rows if row.process.belongs_to(self.spec))

    def require_feature(self, feature: Feature) -> None:
        """Raise NOT_SUPPORTED if the GPU lacks this."""
        self.parent.require_feature(feature)


Device = Gpu | MigDevice
