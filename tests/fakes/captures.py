"""A capture of a simulated node, by a clock that stands still until told."""

from __future__ import annotations

from gpuagent.core.clock import ManualClock
from gpuagent.doctor.capture.redaction import CaptureRedactor
from gpuagent.doctor.capture.session import MachineToCapture, capture
from gpuagent_simulator.captures.node import open_node
from gpuagent_simulator.node import SimulatedNode
from tests.fakes.nvml import use


def machine_of(node: SimulatedNode, clock: ManualClock) -> MachineToCapture:
    """The node as the machine that is captured."""
    return MachineToCapture(
        node.library,
        node.proc,
        lambda uid: node.proc.user_name(uid) or str(uid),
        clock,
        max_pid=node.max_pid,
        facts={"pci_gpus": node.pci_gpu_count(), "pid_namespace": "host" if node.host_pid_namespace else "container"},
        sleep=clock.advance,
    )


def captured(scenario: str, redactor: CaptureRedactor | None = None, *, stuck_seconds: float = 20.0) -> str:
    """The text of a capture of a scenario; nothing is redacted unless asked for."""
    clock = ManualClock()
    node = open_node(scenario, clock)
    try:
        with use(None):
            return capture(machine_of(node, clock), redactor or CaptureRedactor(None), stuck_seconds=stuck_seconds).text
    finally:
        node.close()
