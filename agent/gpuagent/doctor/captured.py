"""Checks of a captured machine: what its file says of the host, in place of what holds of the one that replays it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuagent.doctor.finding import Finding, Level
from gpuagent.node import NoSuchNode
from gpuagent.procfs.machine import CAP_KILL, CAP_SYS_PTRACE, COST
from gpuagent_simulator.captures.node import read_capture
from gpuagent_simulator.scenario import ScenarioError


def captured_host(simulate: str | None) -> Mapping[str, Any] | None:
    """Return what a capture says of its host; None where nothing, or no capture, is simulated. Raises NoSuchNode."""
    if simulate is None:
        return None
    try:
        capture = read_capture(Path(simulate))
    except ScenarioError as error:
        raise NoSuchNode(str(error)) from None
    return None if capture is None else capture.host


def captured_machine(host: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what is found about the host of a capture."""
    if "kernel" in host:
        yield Finding("captured machine", Level.INFO, str(host["kernel"]))
    if host.get("container"):
        yield Finding("captured machine", Level.INFO, f"a container ({', '.join(map(str, host['container']))})")
    if host.get("wsl"):
        yield Finding("captured machine", Level.INFO, "WSL: this driver does not tell which process holds memory")
    if host.get("pid_namespace", "host") != "host":
        yield Finding("pid namespace", Level.WARNING, COST, "hostPID: true in Kubernetes, --pid=host in Docker")
    refused = [str(file.get("path")) for file in host.get("device_files", ()) if file.get("usable") is False]
    if refused:
        yield Finding("device nodes", Level.FAILURE, f"no permission for {', '.join(refused)}")
    yield from _capabilities(host)


def _capabilities(host: Mapping[str, Any]) -> Iterator[Finding]:
    if "capabilities" not in host:
        return
    effective = int(str(host["capabilities"]), 16)
    names = (("CAP_KILL", CAP_KILL), ("CAP_SYS_PTRACE", CAP_SYS_PTRACE))
    missing = [name for name, bit in names if not effective >> bit & 1]
    text = f"without {' and '.join(missing)}" if missing else "all that remedies may need"
    yield Finding("capabilities", Level.INFO if missing else Level.OK, text)
