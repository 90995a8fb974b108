"""What goes wrong: each kind of fault as a caller meets it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from struct import Struct
from typing import Any

import pynvml
import pytest

from gpuagent_simulator.faults import Fault, FaultKind
from tests.simulator.conftest import TWO_H100, OpenNode, Stage

MEMORY = "nvmlDeviceGetMemoryInfo_v2"


def _codes(*calls: Callable[[], Any]) -> list[int]:
    """What each call answers; 0 for success."""
    codes = []
    for call in calls:
        try:
            call()
        except pynvml.NVMLError as error:
            codes.append(int(error.value))
        else:
            codes.append(0)
    return codes


def _with(fault: str) -> str:
    return TWO_H100 + f"faults: [{{{fault}}}]"


def _blocks(call: Callable[[], Any]) -> threading.Thread:
    """A thread that is inside the call; it does not keep a failed test from ending."""
    entered = threading.Event()

    def run() -> None:
        entered.set()
        call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert entered.wait(10)
    return thread


def test_a_lost_gpu(open_node: OpenNode) -> None:
    """GPU-01: the handle cannot be had, the count stays, the other GPU answers; old handles too."""
    stage = open_node(_with("kind: lost, gpu: 1, at: 5s"))
    handle = stage.handle(1)
    stage.clock.advance(5)

    assert pynvml.nvmlDeviceGetCount() == 2
    assert _codes(lambda: stage.handle(1), lambda: pynvml.nvmlDeviceGetName(handle), lambda: stage.used_bytes(0)) == [
        15,
        15,
        0,
    ]
    assert stage.node.pci_gpu_count() == 2


def test_a_lost_gpu_with_another_face(open_node: OpenNode) -> None:
    """Some drivers say UNKNOWN instead of GPU_IS_LOST."""
    stage = open_node(_with("kind: lost, gpu: 1, code: unknown"))

    assert _codes(lambda: stage.handle(1)) == [999]


def test_a_gpu_vanishes(open_node: OpenNode) -> None:
    """GPU-02: no error, it is not counted any more; those behind it move up, PCI still has it."""
    stage = open_node(_with("kind: vanish, gpu: 0, at: 5s"))
    first, second = stage.handle(0), stage.handle(1)
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in (first, second)]
    stage.clock.advance(5)

    assert pynvml.nvmlDeviceGetCount() == 1
    assert pynvml.nvmlDeviceGetUUID(stage.handle(0)) == uuids[1]
    assert pynvml.nvmlDeviceGetIndex(second) == 0
    assert _codes(
        lambda: stage.handle(1),
        lambda: pynvml.nvmlDeviceGetName(first),
        lambda: pynvml.nvmlDeviceGetHandleByUUID(uuids[0]),
    ) == [2, 15, 6]
    assert stage.node.pci_gpu_count() == 2


def test_all_gpus_vanish(open_node: OpenNode) -> None:
    """GPU-02: without `gpu` a fault is for all of them."""
    stage = open_node(_with("kind: vanish"))

    assert (pynvml.nvmlDeviceGetCount(), stage.node.pci_gpu_count()) == (0, 2)


def test_a_call_hangs_on_one_gpu_until_released(open_node: OpenNode) -> None:
    """GPU-04: the call does not come back, on that GPU alone; other calls and GPUs go on."""
    stage = open_node()
    stage.node.inject(Fault(FaultKind.HANG, gpu=1, calls=(MEMORY,)))

    thread = _blocks(lambda: stage.used_bytes(1))
    assert stage.used_bytes(0) > 0
    assert pynvml.nvmlDeviceGetName(stage.handle(1)).startswith("NVIDIA")
    thread.join(0.05)
    assert thread.is_alive()
    stage.node.release()
    thread.join(30)
    assert not thread.is_alive()


def test_a_hang_ends_by_the_clock_of_the_story(open_node: OpenNode) -> None:
    """GPU-05: at `until` the call comes back with its answer."""
    stage = open_node(_with("kind: hang, gpu: 0, until: 1h"))
    thread = _blocks(lambda: stage.used_bytes(0))

    stage.clock.advance(3600)
    thread.join(30)

    assert not thread.is_alive()
    assert stage.used_bytes(0) > 0


def test_a_hang_ends_when_it_is_taken_back(open_node: OpenNode) -> None:
    """`clear` is enough."""
    stage = open_node()
    stage.node.inject(Fault(FaultKind.HANG))
    thread = _blocks(pynvml.nvmlDeviceGetCount)

    stage.node.clear()
    thread.join(30)

    assert not thread.is_alive()


def test_init_hangs(open_node: OpenNode) -> None:
    """GPU-06: nvmlInit itself can hang."""
    stage = open_node(_with("kind: hang, calls: nvmlInitWithFlags"), initialize=False)
    thread = _blocks(pynvml.nvmlInit)

    thread.join(0.05)
    assert thread.is_alive()
    stage.node.release()
    thread.join(30)
    assert pynvml.nvmlDeviceGetCount() == 2


def test_a_slow_call_is_let_go_too(open_node: OpenNode) -> None:
    """A slow call takes its real time, unless it is released before."""
    stage = open_node()
    stage.node.inject(Fault(FaultKind.SLOW, gpu=0, calls=(MEMORY,), seconds=3600))
    thread = _blocks(lambda: stage.used_bytes(0))

    thread.join(0.05)
    assert thread.is_alive()
    stage.node.release()
    thread.join(30)
    assert not thread.is_alive()


def test_a_slow_call_answers(open_node: OpenNode) -> None:
    """After its time it answers as ever."""
    stage = open_node(_with("kind: slow, calls: nvmlDeviceGetMemoryInfo*, seconds: 1ms"))

    assert stage.used_bytes(0) > 0


def test_an_error_for_some_calls_for_some_time(open_node: OpenNode) -> None:
    """PROC-11: the code of one's choice, for the calls that match, on the GPU that is meant."""
    stage = open_node(
        _with("kind: error, gpu: 0, calls: [nvmlDeviceGet*RunningProcesses_v3], code: no_permission, until: 5s")
    )

    calls = (lambda: stage.pids(0), lambda: stage.used_bytes(0), lambda: stage.pids(1))
    assert _codes(*calls) == [4, 0, 0]
    stage.clock.advance(5)
    assert _codes(*calls) == [0, 0, 0]


def test_an_error_when_the_handle_is_taken(open_node: OpenNode) -> None:
    """The calls that find a device concern the GPU that they find."""
    stage = open_node(_with("kind: error, gpu: 1, calls: nvmlDeviceGetHandleByIndex_v2, code: 999"))

    assert _codes(lambda: stage.handle(0), lambda: stage.handle(1)) == [0, 999]


def test_missing_symbols(open_node: OpenNode) -> None:
    """GPU-09: a symbol the library lacks; even if a caller had found it before."""
    stage = open_node(_with("kind: missing, calls: nvmlDeviceGetMemoryInfo_v2"))
    handle = stage.handle()

    assert not hasattr(stage.node.library, MEMORY)
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).total > 0
    assert _codes(lambda: stage.used_bytes(0)) == [13]
    pynvml.nvmlDeviceGetName(handle)
    stage.node.inject(Fault(FaultKind.MISSING, calls=("nvmlDeviceGetName",)))
    assert _codes(lambda: pynvml.nvmlDeviceGetName(handle)) == [13]


def test_the_driver_is_reloaded(open_node: OpenNode) -> None:
    """GPU-07: away for a while, then a new init is needed, and every old handle is dead."""
    stage = open_node(
        """
driver: "1"
gpus: [{model: h100, power: {draw: 100}, ecc: {volatile_corrected: {shape: ramp, rate: 1}}}]
faults: [{kind: driver_reload, at: 10s, down: 5s, version: "2"}]
"""
    )
    handle = stage.handle()
    event_set = pynvml.nvmlEventSetCreate()
    stage.clock.advance(10)
    assert _codes(pynvml.nvmlDeviceGetCount, pynvml.nvmlInit) == [9, 9]
    stage.clock.advance(5)
    assert _codes(pynvml.nvmlDeviceGetCount, lambda: pynvml.nvmlDeviceGetName(handle)) == [1, 1]
    pynvml.nvmlInit()
    assert pynvml.nvmlSystemGetDriverVersion() == "2"
    assert _codes(lambda: pynvml.nvmlDeviceGetName(handle), lambda: pynvml.nvmlEventSetWait_v2(event_set, 0)) == [2, 2]
    fresh = stage.handle()
    assert ctypes.addressof(fresh.contents) != ctypes.addressof(handle.contents)
    stage.clock.advance(3)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(fresh) == 300_000
    assert pynvml.nvmlDeviceGetTotalEccErrors(fresh, 0, 0) == 3


def test_a_reload_stays_done_when_faults_are_taken_back(open_node: OpenNode) -> None:
    """`clear` brings no driver back from the past: the session is over."""
    stage = open_node()
    stage.clock.advance(1)
    stage.node.inject(Fault(FaultKind.DRIVER_RELOAD, down=0))
    stage.node.clear()

    assert _codes(pynvml.nvmlDeviceGetCount) == [1]
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2


def test_another_driver_version_needs_a_new_process(open_node: OpenNode) -> None:
    """GPU-07: this process keeps the old library for ever; one that starts later has the new one."""
    stage = open_node(_with("kind: version_mismatch, at: 10s"))
    stage.clock.advance(10)

    assert _codes(pynvml.nvmlDeviceGetCount, pynvml.nvmlInit) == [18, 18]
    later = type(stage.node)(stage.node.scenario, stage.clock, start=stage.node.scenario_clock.start)
    assert later.library.nvmlInitWithFlags(0) == 0


def test_a_mismatch_from_the_start_is_for_everyone(open_node: OpenNode) -> None:
    """Installed, but not loaded: nothing but a reboot or reload helps."""
    stage = open_node(_with("kind: version_mismatch"), initialize=False)
    later = type(stage.node)(stage.node.scenario, stage.clock, start=stage.clock.now() - 50)

    assert _codes(pynvml.nvmlInit) == [18]
    assert later.library.nvmlInitWithFlags(0) == 18


def test_init_fails_for_a_while(open_node: OpenNode) -> None:
    """GPU-06: no driver yet at the start, and later there is one."""
    stage = open_node(_with("kind: init_error, code: driver_not_loaded, until: 5s"), initialize=False)

    assert _codes(pynvml.nvmlInit) == [9]
    stage.clock.advance(5)
    assert _codes(pynvml.nvmlInit) == [0]


def test_the_process_list_grows_between_two_calls(open_node: OpenNode) -> None:
    """NUM-09: pynvml's two tries are not enough; who keeps asking gets the list."""
    stage = open_node(_with("kind: process_list_grows, gpu: 0, by: 40"))

    assert _codes(lambda: stage.pids(0)) == [7]
    call = stage.node.library.nvmlDeviceGetComputeRunningProcesses_v3
    count, code, tries = ctypes.c_uint(4), 7, 0
    while code == 7:
        buffer = (ctypes.c_char * (count.value * 32))()
        code = call(stage.handle(0), ctypes.byref(count), buffer)
        count.value += code and 80
        tries += 1
    assert code == 0
    assert 2 <= tries <= 8
    assert count.value > 2
    assert len(stage.pids(1)) == 2


def test_garbage_among_the_samples(open_node: OpenNode) -> None:
    """NUM-03: absurd values, a stamp of the future, an old one, an unknown pid and pid 0."""
    stage = open_node(_with("kind: garbage_samples"))
    wall = 1_700_000_000_000_000
    samples = pynvml.nvmlDeviceGetProcessUtilization(stage.handle(), 0)

    assert {37100, 2**32 - 1} <= {sample.smUtil for sample in samples}
    assert {wall + 60_000_000, wall - 600_000_000} <= {sample.timeStamp for sample in samples}
    assert {0, 999_999} <= {sample.pid for sample in samples}
    assert (4194305, 60) in {(sample.pid, sample.smUtil) for sample in samples}


def test_a_name_that_is_not_utf_8(open_node: OpenNode) -> None:
    """A byte that no text has: pynvml's wrapper fails on it, the raw call does not."""
    stage = open_node(_with("kind: non_utf8_name, gpu: 0"))
    buffer = ctypes.create_string_buffer(96)

    with pytest.raises(UnicodeDecodeError):
        pynvml.nvmlDeviceGetName(stage.handle(0))
    assert stage.node.library.nvmlDeviceGetName(stage.handle(0), buffer, ctypes.c_uint(96)) == 0
    assert buffer.value == b"NVIDIA \xff\xfe\x80"
    assert pynvml.nvmlDeviceGetName(stage.handle(1)).endswith("HBM3")


def _entries(stage: Stage, symbol: str, entry: Struct) -> list[tuple[int, ...]]:
    buffer = (ctypes.c_char * (8 * 32))()
    count = ctypes.c_uint(8)
    assert getattr(stage.node.library, symbol)(stage.handle(), ctypes.byref(count), buffer) == 0
    return list(entry.iter_unpack(memoryview(buffer)[: count.value * entry.size]))


def test_the_abi_break_of_some_535_drivers(open_node: OpenNode) -> None:
    """NUM-10: version 3 has 32-byte entries, version 2 the documented 24, and no detail list."""
    stage = open_node(_with("kind: process_stride"))
    narrow, wide = Struct("<IxxxxQII"), Struct("<IxxxxQIIQ")

    version_2 = _entries(stage, "nvmlDeviceGetComputeRunningProcesses_v2", narrow)
    version_3 = _entries(stage, "nvmlDeviceGetComputeRunningProcesses_v3", wide)

    assert [entry[:4] for entry in version_3] == version_2
    assert _codes(
        lambda: pynvml.nvmlDeviceGetRunningProcessDetailList(stage.handle(), 0x1000018, 0),
        lambda: pynvml.nvmlDeviceGetConfComputeMemSizeInfo(stage.handle()),
    ) == [13, 3]


def test_a_wide_list_never_overruns_a_known_buffer(open_node: OpenNode) -> None:
    """The real driver writes beyond a full buffer of 24-byte entries; a simulation must not."""
    stage = open_node(_with("kind: process_stride"))
    memory = ctypes.create_string_buffer(b"." * 64, 64)
    buffer = (ctypes.c_char * 48).from_buffer(memory)
    count = ctypes.c_uint(2)

    stage.node.library.nvmlDeviceGetComputeRunningProcesses_v3(stage.handle(), ctypes.byref(count), buffer)

    assert memory.raw[48:] == b"." * 16


def test_memory_of_processes_is_not_available(open_node: OpenNode) -> None:
    """NUM-01: every process has 2^64-1 in the list; the GPU's own numbers stand."""
    stage = open_node(_with("kind: unavailable_memory"))
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(stage.handle())

    assert [process.usedGpuMemory for process in processes] == [None, None]
    assert stage.used_bytes() == 3 * 1024**3


def test_faults_for_what_there_is_not_are_refused(open_node: OpenNode) -> None:
    """A test that misspells a call, or means a GPU too many, hears of it."""
    node = open_node().node

    with pytest.raises(ValueError, match="did you mean nvmlDeviceGetName"):
        node.inject(Fault(FaultKind.HANG, calls=("nvmlDeviceGetNam",)))
    with pytest.raises(ValueError, match="no GPU 2: the node has 2"):
        node.inject(Fault(FaultKind.LOST, gpu=2))


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (FaultKind.ERROR, {}, "error needs code"),
        (FaultKind.SLOW, {}, "slow needs seconds"),
        (FaultKind.MISSING, {}, "missing needs calls"),
        (FaultKind.XID, {"gpu": 0}, "xid needs xid"),
        (FaultKind.LOST, {"calls": ("nvmlInit_v2",)}, "lost takes no calls"),
        (FaultKind.DRIVER_RELOAD, {"gpu": 0}, "the whole node"),
        (FaultKind.HANG, {"at": 9.0, "until": 3.0}, "until must be later"),
    ],
)
def test_faults_that_make_no_sense_are_refused(kind: FaultKind, fields: dict[str, Any], said: str) -> None:
    """Each kind has its own fields; others would be without effect."""
    with pytest.raises(ValueError, match=said):
        Fault(kind, **fields)
