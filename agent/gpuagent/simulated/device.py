"""GPUs and MIG instances as the entry points see them: what holds at this second of the story."""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

from gpuagent.simulated.bindings import Bindings
from gpuagent.simulated.codes import Code, Refusal
from gpuagent.simulated.engines import Engines
from gpuagent.simulated.faults import FaultBoard, Kind
from gpuagent.simulated.functions import Shape
from gpuagent.simulated.models import LOST_UNDER_MIG, Feature
from gpuagent.simulated.process import IDLE, Load, Process
from gpuagent.simulated.spec import GpuSpec, MigInstanceSpec
from gpuagent.simulated.story import Story


class Row(NamedTuple):
    """A process in the driver's list. `used_bytes` None: the driver does not tell."""

    process: Process
    pid: int
    used_bytes: int | None
    load: Load


class Moment(NamedTuple):
    """The processes of a GPU in one second of the story.

    Every call of that second tells the same.
    """

    key: tuple[int, int]
    seconds: float
    rows: tuple[Row, ...]
    busy: Load
    """All processes together, at most 100 percent each."""


class Gpu:
    """One GPU. Thread-safe: a moment is computed once a second and then only read."""

    is_mig = False

    def __init__(
        self,
        index: int,
        spec: GpuSpec,
        processes: list[Process],
        *,
        story: Story,
        faults: FaultBoard,
        bindings: Bindings,
    ) -> None:
        self.index = index
        self.spec = spec
        self.story = story
        self.faults = faults
        self.name = spec.name.encode()
        self.uuid = (spec.uuid or f"GPU-51a0f2d4-0000-4000-8000-{index:012x}").encode()
        self.serial = (spec.serial or f"16512200{index:05d}").encode()
        self.pci_bus_id = spec.pci_bus_id or f"00000000:{0x18 + index * 8 & 0xFF:02X}:00.0"
        self.mig_enabled = spec.mig is not None
        self.lacks = spec.lacks | LOST_UNDER_MIG if self.mig_enabled else spec.lacks
        self.engines = Engines(self)
        self.instances = tuple(MigDevice(self, instance) for instance in spec.mig or ())
        self.grown: dict[str, int] = {}
        """By entry point: entries that a growing process list has beyond the story's."""
        self._processes = processes
        self._bindings = bindings
        self._lock = threading.Lock()
        self._moment: Moment | None = None

    @property
    def parent(self) -> Gpu:
        """The GPU itself: MIG devices have another."""
        return self

    # ---- time ------------------------------------------------------------------------------------

    def now(self, function: Shape) -> float:
        """A gauge at this time of the story."""
        return function(self.story.now())

    def since_load(self, function: Shape) -> int:
        """A counter that the driver starts anew when it is loaded."""
        loaded_at = self.faults.loaded_at()
        before = 0.0 if math.isinf(loaded_at) else function(loaded_at)
        return max(0, int(self.now(function) - before))

    def moment(self) -> Moment:
        """What the processes do in this second."""
        self._bindings.look()
        now = self.story.now()
        key = (math.floor(now), self._bindings.version)
        moment = self._moment
        if moment is None or moment.key != key:
            with self._lock:
                moment = self._moment = self._compute(key, now)
        return moment

    def _compute(self, key: tuple[int, int], now: float) -> Moment:
        """The driver gives out what there is, first come first served.

        No sum exceeds the memory of the GPU, or of a MIG instance.
        """
        left = math.inf
        if self.spec.memory is not None:
            left = self.spec.memory.total - self.spec.memory.reserved - self.base_used_bytes(now)
        rows = []
        rooms = {one.spec.gpu_instance: float(one.spec.memory) for one in self.instances if one.exists(now)}
        for one in self.instances:
            if one.exists(now):
                rooms[one.spec.gpu_instance] -= one.spec.base_used(now)
        for process in self._processes:
            if not process.listed(now):
                continue
            used = process.used_bytes(now)
            if used is not None:
                room = rooms.get(process.gpu_instance, math.inf)
                used = max(0, int(min(used, left, room)))
                left -= used
                rooms[process.gpu_instance] = room - used
            rows.append(Row(process, process.pid, used, process.load(now)))
        totals = map(sum, zip(*(row.load for row in rows), strict=True)) if rows else IDLE
        return Moment(key, now, tuple(rows), Load(*(min(100, total) for total in totals)))

    # ---- memory ----------------------------------------------------------------------------------

    def base_used_bytes(self, now: float) -> int:
        """Memory that no process owns: the driver's context, and that of MIG instances."""
        if self.spec.memory is None:
            return 0
        most = self.spec.memory.total - self.spec.memory.reserved
        base = self.spec.memory.base_used(now)
        base += sum(i.spec.base_used(now) for i in self.instances if i.exists(now))
        return min(max(0, int(base)), most)

    def memory(self) -> tuple[int, int, int]:
        """(total, reserved, used without reserved) in bytes."""
        if self.spec.memory is None:
            raise Refusal(Code.NOT_SUPPORTED)
        if self.faults.of(self.index) and self.faults.find(Kind.FULL, self.index) is not None:
            return self.spec.memory.total, self.spec.memory.reserved, self.spec.memory.total - self.spec.memory.reserved
        moment = self.moment()
        used = sum(row.used_bytes or 0 for row in moment.rows)
        return (
            self.spec.memory.total,
            self.spec.memory.reserved,
            used + self.base_used_bytes(moment.seconds),
        )

    def rows(self) -> tuple[Row, ...]:
        """The processes that a process list of this device has."""
        return self.moment().rows

    # ---- state -----------------------------------------------------------------------------------

    def need(self, feature: Feature) -> None:
        """Raise NOT_SUPPORTED if the GPU lacks this."""
        if feature in self.lacks:
            raise Refusal(Code.NOT_SUPPORTED)

    def live_instances(self) -> list[MigDevice]:
        """The MIG devices that exist now, in the order of their slots."""
        now = self.story.now()
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
        """True between its creation and its destruction."""
        return self.spec.from_ <= now < self.spec.until

    def memory(self) -> tuple[int, int, int]:
        """Memory of the GPU instance: its compute instances share it."""
        moment = self.parent.moment()
        siblings = [
            other.spec for other in self.parent.live_instances() if other.spec.gpu_instance == self.spec.gpu_instance
        ]
        used = int(sum(spec.base_used(moment.seconds) for spec in siblings)) + sum(
            row.used_bytes or 0 for row in moment.rows if row.process.belongs_to(self.spec, whole_gpu_instance=True)
        )
        return self.spec.memory, 0, min(used, self.spec.memory)

    def rows(self) -> tuple[Row, ...]:
        """Processes of this compute instance."""
        return tuple(row for row in self.parent.moment().rows if row.process.belongs_to(self.spec))

    def need(self, feature: Feature) -> None:
        """Raise NOT_SUPPORTED if the GPU lacks this."""
        self.parent.need(feature)


Device = Gpu | MigDevice
