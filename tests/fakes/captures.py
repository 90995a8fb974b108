"""A capture of a simulated node, by a clock that stands still until told."""

from __future__ import annotations

from gpuagent.core.clock import ManualClock
from gpuagent.doctor.capture.redaction import CaptureRedactor
from gpuagent.doctor.capture.session import capture, machine_of
from gpuagent_simulator.captures.node import open_node
from tests.fakes.nvml import use


def captured(scenario: str, redactor: CaptureRedactor | None = None, *, stuck_seconds: float = 20.0) -> str:
    """The text of a capture of a scenario; nothing is redacted unless asked for."""
    clock = ManualClock()
    node = open_node(scenario, clock)
    try:
        with use(None):
            machine = machine_of(node, clock, clock.advance)
            return capture(machine, redactor or CaptureRedactor(None), stuck_seconds=stuck_seconds).text
    finally:
        node.close()
