"""Which NVML calls the agent makes, found by looking over its shoulder on nodes that are well."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from gpuagent_simulator.faults import Fault, FaultKind
from gpuagent_simulator.library import TABLES
from tests.fakes.rig import Rig, rig

_HANDLE = "nvmlDeviceGetHandleByIndex_v2"
_EVENTS = ("nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents")

_GPU_0 = "{model: h100, nvlink: {links: 1}, processes: [{name: a, memory: 1GiB, utilization: {sm: 5}}]}"
_GPU_1 = {
    "new": """{model: h100, nvlink: {links: 1}, lacks: [], fans: {count: 1},
              processes: [{name: a, memory: 2GiB, kind: CG, utilization: {sm: 60}}]}""",
    "mig": """{model: h100, nvlink: {links: 1},
              mig: [{gpu_instance: 3, profile: 1c.2g.20gb, memory: 20GiB},
                    {gpu_instance: 3, compute_instance: 1, profile: 1c.2g.20gb, memory: 20GiB}],
              processes: [{name: a, memory: 2GiB, gpu_instance: 3}]}""",
    "old": """{model: h100, nvlink: {links: 1}, lacks: [gpm], fans: {count: 1},
              processes: [{name: a, memory: 2GiB, utilization: {sm: 60}}]}""",
}
_MISSING_IN_OLD = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGet*RunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetNumFans",
)
"""What drivers lack, so that the agent takes the older way."""


class Call(NamedTuple):
    """One C function that the agent calls, and the kind of node on which it does."""

    symbol: str
    kind: str
    of_gpu: bool
    """It concerns one GPU; the others concern the whole node."""
    recurs: bool
    """It is called at each slow tick, not just when a GPU is opened."""

    @property
    def scenario(self) -> str:
        """Two GPUs, the second of which makes the call."""
        return f"gpus:\n  - {_GPU_0}\n  - {_GPU_1[self.kind]}\n"

    @property
    def faults(self) -> list[Fault]:
        """What makes the node of this kind."""
        return old_driver() if self.kind == "old" else []

    @property
    def of_events(self) -> bool:
        """It is made by the thread that waits for Xids."""
        return self.symbol in (*_EVENTS, "nvmlEventSetFree")


def old_driver() -> list[Fault]:
    """A driver without the newer functions."""
    return [Fault(FaultKind.MISSING, calls=_MISSING_IN_OLD)]


class Recorder:
    """Between pynvml and the library: notes each call."""

    def __init__(self, library: object) -> None:
        self.called: list[str] = []
        self.waiting_for_events = threading.Event()
        self._library = library

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        function = getattr(self._library, symbol)

        def call(*args: Any) -> Any:
            self.called.append(symbol)
            if symbol == "nvmlEventSetWait_v2":
                self.waiting_for_events.set()
            return function(*args)

        return call


async def _record(kind: str) -> tuple[set[str], set[str]]:
    """All calls on a node of this kind, and those of a later slow tick."""
    recorders: list[Recorder] = []

    def wrap(library: object) -> Recorder:
        recorders.append(Recorder(library))
        return recorders[0]

    example = Call("", kind, of_gpu=True, recurs=True)
    async with rig(example.scenario, faults=example.faults, wrap=wrap) as stage:
        (recorder,) = recorders
        await _two_slow_ticks(stage)
        assert recorder.waiting_for_events.wait(20)
        before = len(recorder.called)
        await stage.tick(slow=True)
        later = set(recorder.called[before:])
    return set(recorder.called), later


async def _two_slow_ticks(stage: Rig) -> None:
    """Two, since profiles and utilization are told between two readings."""
    for _ in range(2):
        await stage.tick(slow=True)


@cache
def every_call() -> tuple[Call, ...]:
    """Each C function that the agent calls on any kind of node, once."""
    of_gpu = {symbol for table in TABLES for symbol, entry in table.items() if entry.takes_device} | {_HANDLE}
    calls: dict[str, Call] = {}
    for kind in _GPU_1:
        called, later = asyncio.run(_record(kind))
        for symbol in sorted(called - calls.keys()):
            calls[symbol] = Call(symbol, kind, of_gpu=symbol in of_gpu, recurs=symbol in later - set(_EVENTS))
    return tuple(calls.values())
