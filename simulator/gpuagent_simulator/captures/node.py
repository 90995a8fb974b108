"""Make a node of a capture: its library answers as the driver did, and its processes exist with the captured facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuagent.core.clock import Clock
from gpuagent.core.hardware import HostMemory, MemoryPressure
from gpuagent.core.problems import explain, write_path
from gpuagent.core.regular_files import read_regular_file
from gpuagent.core.sections import read_section
from gpuagent_simulator.abi import NO_INSTANCE
from gpuagent_simulator.captures.arguments import bytes_of, whole
from gpuagent_simulator.captures.file import (
    MAX_FILE_BYTES,
    Answers,
    Capture,
    CapturedDevice,
    is_capture,
    parse_capture,
)
from gpuagent_simulator.captures.library import ReplayedLibrary
from gpuagent_simulator.captures.lists import PROCESS_LISTS, made_up_pid
from gpuagent_simulator.curves import Constant
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.process import FallbackProc, Process
from gpuagent_simulator.scenario import ScenarioError, load_scenario
from gpuagent_simulator.spec import ProcessSpec, Scenario

PROCESS_FACTS = frozenset(
    {"name", "command", "user", "uid", "cgroup", "state", "resident_bytes", "age_seconds", "gone"}
)
_INSTANCE_IDS = (
    ("gpu_instance", "nvmlDeviceGetGpuInstanceId"),
    ("compute_instance", "nvmlDeviceGetComputeInstanceId"),
)
_INSTANCE_MEMORY_BYTES = 2**30
"""The memory of a MIG device of the session behind a capture, which nobody is told."""


def open_node(
    name_or_path: str, clock: Clock, start: float | None = None, *, fallback: FallbackProc | None = None
) -> SimulatedNode:
    """Make the node of a shipped scenario by its name, or of a file: a scenario or a capture, as its content says.

    Raises:
        ScenarioError: there is no such scenario, or the file has mistakes.
    """
    capture = read_capture(Path(name_or_path))
    if capture is None:
        return SimulatedNode(load_scenario(name_or_path), clock, start, fallback=fallback)
    return CapturedNode(capture, clock, start, fallback=fallback)


def read_capture(path: Path) -> Capture | None:
    """Read a capture; None if the file is none.

    Raises:
        ScenarioError: it has mistakes.
    """
    text = _text_of_capture(path)
    return None if text is None else parse_capture(text, file=str(path), name=path.name.removesuffix(".yaml"))


def _text_of_capture(path: Path) -> str | None:
    """Return the text of a file that is a capture; None for anything else, which is for others to read."""
    try:
        data = read_regular_file(path, MAX_FILE_BYTES)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if not is_capture(text):
        return None
    if len(data) > MAX_FILE_BYTES:
        raise ScenarioError([f"{path}: larger than {MAX_FILE_BYTES // 1024**2} MiB"])
    return text


class CapturedNode(SimulatedNode):
    """A node that answers as a capture has it: by the first pass until as much time is over as lay between the two."""

    def __init__(
        self, capture: Capture, clock: Clock, start: float | None = None, *, fallback: FallbackProc | None = None
    ) -> None:
        processes = list(_processes(capture))
        super().__init__(_scenario(capture), clock, start, fallback=fallback, others=processes)
        self.capture = capture
        self.host_pid_namespace = capture.host.get("pid_namespace", "host") == "host"
        self.library = ReplayedLibrary(capture, self.session, self.library, self._pass_number)

    def _pass_number(self) -> int:
        return int(self.scenario_clock.now() >= self.capture.seconds_between_passes)

    def host_memory(self) -> HostMemory | None:  # type: ignore[override]  # it may not be told
        """Return the memory of the captured machine; None where the capture does not tell it."""
        given = self.capture.host.get("memory")
        if not isinstance(given, Mapping):
            return None
        found = {name: int(whole(value)) for name, value in given.items()}
        found = {"page_cache_bytes": 0, "kernel_bytes": 0} | found
        free = max(0, found["available_bytes"] - found["page_cache_bytes"])
        return HostMemory(**({"free_bytes": free} | found))

    def memory_pressure(self) -> MemoryPressure | None:  # type: ignore[override]
        """Return the pressure on it, None as above."""
        given = self.capture.host.get("memory_pressure")
        return MemoryPressure(**given) if isinstance(given, Mapping) else None

    def pci_gpu_count(self) -> int:
        """Count the GPUs on the PCI bus of the captured machine; where that is not known, those of the capture."""
        return int(self.capture.host.get("pci_gpus", super().pci_gpu_count()))


def _scenario(capture: Capture) -> Scenario:
    """Return the scenario behind a capture: it gives out handles, and answers what is left to a base."""
    given: dict[str, Any] = {
        "name": capture.name,
        "description": capture.description,
        "gpus": tuple(_gpu(device) for device in capture.gpus),
        "faults": capture.faults,
    }
    driver = capture.system.find("nvmlSystemGetDriverVersion", 0)
    if isinstance(driver, str):
        given["driver"] = driver
    scenario, problems = read_section(Scenario, given)
    if scenario is None:
        raise ScenarioError(
            [
                f"{capture.name}: {write_path(each.path)}: {explain(each.problem, each.allowed, each.suggestion)}"
                for each in problems
            ]
        )
    return scenario


def _gpu(device: CapturedDevice) -> dict[str, Any]:
    given = dict(device.base or {})
    for key, call in (("uuid", "nvmlDeviceGetUUID"), ("serial", "nvmlDeviceGetSerial")):
        found = device.calls.find(call, 0)
        if isinstance(found, str):
            given[key] = found
    found = device.calls.find("nvmlDeviceGetPciInfo_v3", 0)
    if isinstance(found, Mapping) and isinstance(found.get("busId"), str):
        given["pci_bus_id"] = found["busId"]
    if device.instances:
        given["mig"] = tuple(_instance(device.instances[slot].calls) for slot in sorted(device.instances))
    return given


def _instance(calls: Answers) -> dict[str, Any]:
    instance: dict[str, Any] = {"profile": "captured", "memory": _INSTANCE_MEMORY_BYTES}
    for key, call in _INSTANCE_IDS:
        found = calls.find(call, 0)
        instance[key] = found if isinstance(found, int) and found != NO_INSTANCE else 0
    uuid = calls.find("nvmlDeviceGetUUID", 0)
    return instance | ({"uuid": uuid} if isinstance(uuid, str) else {})


# ---- processes -----------------------------------------------------------------------------------


def _processes(capture: Capture) -> Iterator[Process]:
    listed = _listed_pids(capture)
    for pid, facts in capture.processes.items():
        if not isinstance(facts, Mapping) or set(facts) - PROCESS_FACTS:
            raise ScenarioError([f"{capture.name}: processes.{pid}: facts are {', '.join(sorted(PROCESS_FACTS))}"])
        if not facts.get("gone"):
            yield _process(made_up_pid(pid), facts, listed.get(pid, 0))


def _listed_pids(capture: Capture) -> dict[int, int]:
    """Return the index of the first GPU that lists each pid."""
    found: dict[int, int] = {}
    for index, gpu in enumerate(capture.gpus):
        for calls in (gpu.calls, *(each.calls for each in gpu.instances.values())):
            for symbol in PROCESS_LISTS:
                for number in (0, 1):
                    answer = calls.find(symbol, number)
                    rows = answer.get("processes", ()) if isinstance(answer, Mapping) else ()
                    for row in rows:
                        found.setdefault(row[0], index)
    return found


def _process(pid: int, facts: Mapping[str, Any], gpu: int) -> Process:
    name = _escaped(facts.get("name", ""))
    spec = ProcessSpec(
        name=name,
        command=tuple(_escaped(word) for word in facts.get("command") or ()),
        user=str(facts.get("user", "root")),
        uid=int(facts.get("uid", 0)),
        cgroup=str(facts.get("cgroup", "/")),
        state=facts.get("state", "S"),
        resident=Constant(float(whole(facts.get("resident_bytes", 0)))),
        age=float(facts.get("age_seconds", 60.0)),
        memory=None,
        pid=pid,
    )
    return Process(spec, gpu, 0, pid)


def _escaped(value: Any) -> str:
    r"""Return a text in which bytes that are none are written `\xNN`, as a scenario has them."""
    data = bytes_of(value)
    return "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in data)
