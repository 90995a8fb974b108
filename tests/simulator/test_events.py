"""Event sets and Xids."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pynvml
import pytest

from gpuagent_simulator.faults import Fault, FaultKind
from tests.simulator.conftest import OpenNode, Stage

XID = pynvml.nvmlEventTypeXidCriticalError


def _registered(stage: Stage, *gpus: int) -> Any:
    event_set = pynvml.nvmlEventSetCreate()
    for gpu in gpus:
        pynvml.nvmlDeviceRegisterEvents(stage.handle(gpu), XID, event_set)
    return event_set


def _drain(event_set: Any) -> list[int]:
    """Xids until there are none."""
    found: list[int] = []
    while True:
        try:
            found.append(pynvml.nvmlEventSetWait_v2(event_set, 0).eventData)
        except pynvml.NVMLError_Timeout:
            return found


def test_two_equal_xids_are_two_events(open_node: OpenNode) -> None:
    """ALERT-01: each is delivered once, in the order in which they happened."""
    stage = open_node(
        """
gpus: [{model: h100, count: 2}]
faults:
  - {kind: xid, gpu: 0, xid: 13, at: 10s, count: 2, every: 5s}
  - {kind: xid, gpu: 1, xid: 94, at: 12s}
"""
    )
    event_set = _registered(stage, 0, 1)

    assert _drain(event_set) == []
    stage.clock.advance(10)
    assert _drain(event_set) == [13]
    stage.clock.advance(10)
    assert _drain(event_set) == [94, 13]
    assert _drain(event_set) == []


def test_an_event_tells_its_gpu(open_node: OpenNode) -> None:
    """The device in the event is the handle that callers know; instances are all ones."""
    stage = open_node("gpus: [{model: h100, count: 2}]")
    event_set = _registered(stage, 0, 1)
    stage.clock.advance(1)
    stage.node.inject(Fault(FaultKind.XID, gpu=1, xid=79))

    event = pynvml.nvmlEventSetWait_v2(event_set, 0)

    assert ctypes.addressof(event.device.contents) == ctypes.addressof(stage.handle(1).contents)
    assert (event.eventType, event.eventData) == (XID, 79)
    assert (event.gpuInstanceId, event.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)


def test_only_what_happens_after_registration(open_node: OpenNode) -> None:
    """What happened before is not told; each set is told for itself."""
    stage = open_node("gpus: [{model: h100}]\nfaults: [{kind: xid, xid: 13, at: 5s}]")
    early = _registered(stage, 0)
    stage.clock.advance(6)
    late = _registered(stage, 0)

    assert _drain(late) == []
    assert _drain(early) == [13]


def test_waiting_ends_with_the_event(open_node: OpenNode) -> None:
    """A thread that waits for a minute is woken by the Xid."""
    stage = open_node("gpus: [{model: h100}]")
    event_set = _registered(stage, 0)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(pynvml.nvmlEventSetWait_v2(event_set, 60_000).eventData))
    thread.start()

    stage.clock.advance(1)
    stage.node.inject(Fault(FaultKind.XID, xid=31))
    thread.join(timeout=30)

    assert found == [31]


def test_waiting_follows_the_clock_of_the_story(open_node: OpenNode) -> None:
    """An Xid that the scenario has for later is told when the clock gets there."""
    stage = open_node("gpus: [{model: h100}]\nfaults: [{kind: xid, xid: 13, at: 1h}]")
    event_set = _registered(stage, 0)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(pynvml.nvmlEventSetWait_v2(event_set, 60_000).eventData))
    thread.start()

    stage.clock.advance(3600)
    thread.join(timeout=30)

    assert found == [13]


def test_equal_faults_that_are_injected_are_two_events(open_node: OpenNode) -> None:
    """ALERT-01: the same Xid at the very same time, twice: told twice, also after a `clear`."""
    stage = open_node()
    event_set = _registered(stage, 0)
    stage.clock.advance(1)
    for _ in range(2):
        stage.node.inject(Fault(FaultKind.XID, gpu=0, xid=43))

    assert _drain(event_set) == [43, 43]
    stage.node.clear()
    stage.node.inject(Fault(FaultKind.XID, gpu=0, xid=43))
    assert _drain(event_set) == [43]


def test_a_lost_gpu_ends_the_wait(open_node: OpenNode) -> None:
    """What has happened is told first, then that a GPU of the set is gone."""
    stage = open_node("gpus: [{model: h100, count: 2}]")
    event_set = _registered(stage, 0, 1)
    stage.clock.advance(1)
    stage.node.inject(Fault(FaultKind.XID, gpu=1, xid=79))
    stage.node.inject(Fault(FaultKind.LOST, gpu=1))

    assert pynvml.nvmlEventSetWait_v2(event_set, 0).eventData == 79
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlEventSetWait_v2(event_set, 0)


def test_types_that_are_not_supported_refuse_the_mask(open_node: OpenNode) -> None:
    """One unsupported bit is enough; a GPU without events supports none."""
    stage = open_node("gpus: [{model: h100}, {model: h100, lacks: [events]}]")
    event_set = pynvml.nvmlEventSetCreate()

    assert pynvml.nvmlDeviceGetSupportedEventTypes(stage.handle(0)) & XID
    assert pynvml.nvmlDeviceGetSupportedEventTypes(stage.handle(1)) == 0
    for gpu, mask in ((0, XID | 0x4000), (1, XID)):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceRegisterEvents(stage.handle(gpu), mask, event_set)


def test_a_freed_set_is_no_set(open_node: OpenNode) -> None:
    """Waiting on it, or freeing it again, is INVALID_ARGUMENT."""
    stage = open_node()
    event_set = _registered(stage, 0)
    pynvml.nvmlEventSetFree(event_set)

    for call, *arguments in ((pynvml.nvmlEventSetWait_v2, 0), (pynvml.nvmlEventSetFree,)):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(event_set, *arguments)
