"""What follows from how busy a GPU is: utilisation, heat, power, energy, clocks.

Each can be given outright.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from gpuagent.simulated.functions import Shape

if TYPE_CHECKING:
    from gpuagent.simulated.device import Gpu

REASON_IDLE, REASON_POWER_CAP = 0x1, 0x4
"""Bits of the clocks event reasons (nvml.h)."""


class Engines:
    """Gauges of one GPU, in NVML's units."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._joules = 0.0
        self._measured_at = 0.0  # also where a new process joins the story in its middle
        self._loaded_at = -math.inf

    def _given_or(self, given: Shape | None, derived: float) -> float:
        return derived if given is None else self._gpu.now(given)

    def percent(self, engine: str) -> int:
        """Utilisation of `gpu`, `memory`, `encoder`, `decoder`, `jpeg` or `ofa`."""
        busy = self._gpu.moment().busy
        derived = busy.sm if engine == "gpu" else getattr(busy, engine)
        given = getattr(self._gpu.spec.utilization, engine)
        return round(min(100.0, max(0.0, self._given_or(given, derived))))

    @property
    def load(self) -> float:
        """0 to 1."""
        return self.percent("gpu") / 100

    def gpu_celsius(self) -> int:
        """Temperature of the chip."""
        heat = self._gpu.spec.temperature
        return round(self._given_or(heat.gpu, heat.idle + heat.rise * self.load))

    def memory_celsius(self) -> int:
        """Temperature of the memory: some degrees above the chip's."""
        return round(self._given_or(self._gpu.spec.temperature.memory, self.gpu_celsius() + 8))

    def margin_celsius(self) -> int:
        """Degrees left until the GPU slows down."""
        return self._gpu.spec.temperature.slowdown - self.gpu_celsius()

    def watts(self) -> float:
        """Power drawn: at full load nearly the limit."""
        power = self._gpu.spec.power
        return self._given_or(power.draw, power.idle + 0.92 * (power.limit - power.idle) * self.load)

    def energy_millijoules(self) -> int:
        """Energy since the driver was loaded: power over the time between two reads."""
        now, loaded_at, watts = self._gpu.story.now(), self._gpu.faults.loaded_at(), self.watts()
        with self._lock:
            if loaded_at != self._loaded_at:
                self._joules, self._measured_at, self._loaded_at = 0.0, loaded_at, loaded_at
            self._joules += watts * max(0.0, now - self._measured_at)
            self._measured_at = max(now, self._measured_at)
            return int(self._joules * 1000)

    def megahertz(self, domain: str) -> int:
        """Clock of `graphics`, `sm`, `memory` or `video`.

        Nearly at most under any load, else at rest.
        """
        clocks = self._gpu.spec.clocks
        resting: float = getattr(clocks.idle, domain)
        fastest: float = getattr(clocks.max, domain)
        if not self.load:
            return round(resting)
        return round(fastest if domain == "memory" else 0.94 * fastest)

    def event_reasons(self) -> int:
        """Why the clocks are not higher, as NVML's bit mask."""
        power, reasons = self._gpu.spec.power, 0
        if not self.load:
            reasons |= REASON_IDLE
        if self.watts() > 0.98 * power.limit:
            reasons |= REASON_POWER_CAP
        return round(self._given_or(self._gpu.spec.clocks.event_reasons, reasons))

    def performance_state(self) -> int:
        """0 (fastest) to 15; a GPU with a fan rests at 8, one of a data centre stays at 0."""
        resting = 8 if self._gpu.spec.fans.count and not self.load else 0
        return round(self._given_or(self._gpu.spec.performance_state, resting))

    def fan_percent(self) -> int:
        """Speed of every fan."""
        derived = max(0.0, (self.gpu_celsius() - 30) * 1.2)
        return round(min(100.0, self._given_or(self._gpu.spec.fans.percent, derived)))
