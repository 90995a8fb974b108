"""Every NVML call that the agent makes, in turn, goes wrong on one GPU: the other one is measured as ever.

The calls are recorded from runs on nodes that are well, so that a new call is covered by itself.
"""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import AbstractAsyncContextManager
from itertools import product

import pytest

from gpuagent.core.snapshot import GpuReading, GpuState, NvmlState
from gpuagent.driver.nvml.driver import COLLECTORS
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import Fault, FaultKind
from tests.agent.collector.calls import Call, every_call
from tests.fakes.rig import Rig, at, failing, rig, state
from tests.tables import table, table_evenly

pytestmark = pytest.mark.slow

CALLS = {call.symbol: call for call in every_call()}
OF_GPU = [call.symbol for call in CALLS.values() if call.of_gpu and not call.of_events]
OF_NODE = [call.symbol for call in CALLS.values() if not call.of_gpu]
RECURRING = [symbol for symbol in OF_GPU if CALLS[symbol].recurs]
ESSENTIAL = {"nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}
"""Without these no GPU can be read at all."""
TRANSIENT = (Code.UNKNOWN, Code.TIMEOUT)
LASTING = (Code.NOT_SUPPORTED, Code.NO_PERMISSION)


def on_second(call: Call, kind: FaultKind, **details: object) -> Fault:
    """A fault of this call on the GPU that makes it."""
    return Fault(kind, gpu=1 if call.of_gpu else None, calls=(call.symbol,), **details)  # type: ignore[arg-type]


def nodes(call: Call, *faults: Fault) -> AbstractAsyncContextManager[Rig]:
    """Two GPUs, the second of which makes the call."""
    return rig(call.scenario, faults=[*call.faults, *faults], events=call.of_events)


async def recovers(stage: Rig) -> bool:
    """With all faults gone, both GPUs are read again, at the latest when the longest back-off is over."""
    await stage.mend()
    await stage.tick(120, slow=True)
    snapshot = await stage.tick(slow=True)
    return [gpu.state for gpu in snapshot.gpus] == [GpuState.OK, GpuState.OK]


def told(symbol: str, code: Code, reading: GpuReading) -> bool:
    """Whether the reading names the call among what the GPU does not answer; the older list does as well as the new."""
    if symbol.endswith("RunningProcesses_v3") and code is Code.NOT_SUPPORTED:
        return reading.processes_known
    names = (symbol, re.sub(r"_v\d$", "", symbol))
    return any(name in names or name.startswith("MIG device") for name, _ in reading.unsupported)


@table_evenly("symbol", OF_GPU, 8)
def test_a_call_that_hangs_when_a_gpu_is_opened(symbol: str) -> None:
    """GPU-04: the tick ends, the other GPU is read, and nothing piles up behind the call."""
    call = CALLS[symbol]

    async def run() -> None:
        async with nodes(call, on_second(call, FaultKind.HANG)) as stage:
            await stage.hasty_tick()
            threads = threading.active_count()
            snapshot = await stage.hasty_tick()

            assert state(snapshot, 0) is GpuState.OK
            assert at(snapshot, 1).memory is None
            assert threading.active_count() <= threads + 1  # the one that waits for events may have begun
            assert await recovers(stage)

    asyncio.run(run())


@table_evenly("symbol", RECURRING, 6)
def test_a_call_that_hangs_later(symbol: str) -> None:
    """GPU-04: a GPU that was read and then hangs is blind, with no value of its own left over."""
    call = CALLS[symbol]

    async def run() -> None:
        async with nodes(call) as stage:
            await stage.tick()
            stage.node.inject(on_second(call, FaultKind.HANG))
            await stage.hasty_tick(slow=True)
            snapshot = await stage.hasty_tick(2)

            assert state(snapshot, 0) is GpuState.OK
            assert state(snapshot, 1) is GpuState.BLIND
            assert failing(at(snapshot, 1)).keys() == set(COLLECTORS)
            assert stage.value("gpuagent_gpu_blind", gpu="1") == 1
            assert stage.value("gpuagent_gpu_memory_used_bytes", gpu="1") is None
            assert stage.value("gpuagent_gpu_memory_used_bytes", gpu="0") is not None
            assert await recovers(stage)

    asyncio.run(run())


@table("symbol", OF_NODE)
def test_a_call_of_the_whole_node_that_hangs(symbol: str) -> None:
    """GPU-06: the tick ends with a snapshot all the same, and all is read once the call comes back."""
    call = CALLS[symbol]

    async def run() -> None:
        async with nodes(call, on_second(call, FaultKind.HANG)) as stage:
            await stage.hasty_tick(well=())
            snapshot = await stage.hasty_tick(well=())

            assert snapshot.ticks == 2
            assert await recovers(stage)

    asyncio.run(run())


@table_evenly("symbol, code", product(OF_GPU, TRANSIENT), 16)
def test_a_call_that_fails(symbol: str, code: Code) -> None:
    """GPU-08: the failure is told, costs the other GPU nothing, and is over when the call works again."""
    call = CALLS[symbol]

    async def run() -> None:
        async with nodes(call, on_second(call, FaultKind.ERROR, code=code)) as stage:
            snapshot = await stage.tick(slow=True)

            assert state(snapshot, 0) is GpuState.OK
            assert failing(at(snapshot, 0)) == {}
            if call.recurs and (symbol, code) != ("nvmlDeviceGetMemoryInfo_v2", Code.UNKNOWN):  # WSL: version 1 will do
                assert failing(at(snapshot, 1))
            assert await recovers(stage)

    asyncio.run(run())


@table_evenly("symbol, code", product([symbol for symbol in OF_GPU if symbol not in ESSENTIAL], LASTING), 16)
def test_a_call_that_the_gpu_does_not_answer(symbol: str, code: Code) -> None:
    """GPU-09: what a GPU, driver or permission lacks is absent: no failure, and the reason is told."""
    call = CALLS[symbol]

    async def run() -> None:
        async with nodes(call, on_second(call, FaultKind.ERROR, code=code)) as stage:
            snapshot = await stage.tick(slow=True)
            reading = at(snapshot, 1)

            assert [gpu.state for gpu in snapshot.gpus] == [GpuState.OK, GpuState.OK]
            assert failing(reading) == {}
            assert told(symbol, code, reading)
            assert await recovers(stage)

    asyncio.run(run())


@table_evenly("symbol", OF_GPU, 8)
def test_a_gpu_lost_in_the_middle_of_a_tick(symbol: str) -> None:
    """GPU-01: whichever call says so, that GPU is lost, with its UUID, and shows nothing; the other goes on."""
    call = CALLS[symbol]

    async def run() -> None:
        async with nodes(call) as stage:
            uuid = at(await stage.tick(), 1).identity.uuid
            if not call.recurs:
                stage.monitor.session.end("for this test")
            stage.node.inject(on_second(call, FaultKind.ERROR, code=Code.GPU_IS_LOST))
            snapshot = await stage.tick(2, slow=True)

            assert (state(snapshot, 0), state(snapshot, 1)) == (GpuState.OK, GpuState.LOST)
            assert stage.value("gpuagent_gpu_lost", gpu="1", uuid=uuid) == 1
            assert stage.value("gpuagent_gpu_memory_used_bytes", gpu="1") is None
            assert not any(process.gpu_index == 1 for process in snapshot.processes)
            assert await recovers(stage)

    asyncio.run(run())


@table_evenly("symbol", RECURRING, 6)
def test_a_call_that_says_that_the_session_has_ended(symbol: str) -> None:
    """GPU-07: all handles are dropped, NVML is initialized again, and both GPUs come back."""
    call = CALLS[symbol]

    async def run() -> None:
        async with nodes(call) as stage:
            await stage.tick()
            stage.node.inject(on_second(call, FaultKind.ERROR, code=Code.UNINITIALIZED))
            snapshot = await stage.tick(slow=True)

            assert snapshot.node.nvml_state is NvmlState.FAILED
            assert snapshot.node.nvml_reason.endswith("NVML is not initialized")
            assert {gpu.state for gpu in snapshot.gpus} == {GpuState.FAILED}
            assert not snapshot.processes
            assert await recovers(stage)

    asyncio.run(run())


@table_evenly("symbol", CALLS, 10)
def test_a_symbol_that_the_library_lacks(symbol: str) -> None:
    """GPU-09: only its own values are missing, unless no GPU can be read without it; nothing counts as failed."""
    call = CALLS[symbol]

    async def run() -> None:
        async with nodes(call, Fault(FaultKind.MISSING, calls=(symbol,))) as stage:
            await stage.tick(slow=True)
            snapshot = await stage.tick(slow=True)

            assert snapshot.ticks == 2
            if symbol in ESSENTIAL:
                assert GpuState.OK not in {gpu.state for gpu in snapshot.gpus}
                assert snapshot.node.nvml_reason or all(gpu.reason for gpu in snapshot.gpus)
            else:
                assert {gpu.state for gpu in snapshot.gpus} == {GpuState.OK}
                assert [failing(gpu) for gpu in snapshot.gpus] == [{}, {}]

    asyncio.run(run())
