"""The one door to pynvml: every kind of failure is one kind of failure."""

from __future__ import annotations

import ctypes

import pynvml
import pytest

from gpuagent.driver.nvml.library import FUNCTION_NOT_FOUND, Library, NvmlFailure
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import Fault, FaultKind
from tests.agent.driver.nvml.conftest import Open
from tests.fakes.nvml import use
from tests.tables import table


class Mute:
    """A library without a single function."""


def test_initializations_are_counted(open_gpu: Open) -> None:
    """EXP-01: so that it can be seen that there was one."""
    bench = open_gpu()
    assert bench.library.initializations == 1
    bench.fail(FaultKind.INIT_ERROR, code=Code.DRIVER_NOT_LOADED)

    with pytest.raises(NvmlFailure, match="not loaded"):
        bench.library.initialize()
    assert bench.library.initializations == 1


@pytest.mark.slow
@table("code", [code for code in Code if code])
def test_every_error_is_one_kind_of_exception(open_gpu: Open, code: Code) -> None:
    """GPU-08: with the code, the call and words for it, whichever way it was called."""
    bench = open_gpu()
    bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetPowerUsage", "nvmlDeviceGetUUID"), code=code)

    with pytest.raises(NvmlFailure, match=r"^nvmlDeviceGetPowerUsage: .") as called:
        bench.library.call("nvmlDeviceGetPowerUsage", bench.device.handle)
    with pytest.raises(NvmlFailure, match=r"^nvmlDeviceGetUUID: .") as text:
        bench.library.text("nvmlDeviceGetUUID", bench.device.handle)
    assert called.value.code == text.value.code == code
    assert bench.library.raw("nvmlDeviceGetUUID", bench.device.handle, None, ctypes.c_uint(0)) == code


def test_a_wrapper_that_fails_in_python(open_gpu: Open) -> None:
    """GPU-09: pynvml's own mismatch error and strict decoding are failures like any other."""
    bench = open_gpu("{model: h100}", Fault(FaultKind.NON_UTF8_NAME))

    with pytest.raises(NvmlFailure) as caught:
        bench.library.call("nvmlDeviceGetName", bench.device.handle)
    assert caught.value.code == -1

    bench.fail(FaultKind.MISSING, calls=("nvmlDeviceGetComputeRunningProcesses_v3",))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    with pytest.raises(NvmlFailure):
        bench.library.call("nvmlDeviceGetComputeRunningProcesses", bench.device.handle)


def test_a_library_without_functions() -> None:
    """GPU-09: FUNCTION_NOT_FOUND, by either way of calling."""
    with use(Mute()):
        library = Library()
        with pytest.raises(NvmlFailure) as caught:
            library.initialize()
        assert caught.value.code == FUNCTION_NOT_FOUND
        assert library.raw("nvmlDeviceGetCount_v2", None) == FUNCTION_NOT_FOUND


def test_shutting_down_twice_is_harmless(open_gpu: Open) -> None:
    """GPU-11: leaving never fails."""
    bench = open_gpu()
    bench.library.shutdown()
    bench.library.shutdown()

    with pytest.raises(NvmlFailure):
        bench.library.call("nvmlDeviceGetCount")


def test_an_implementation_takes_the_place_of_the_driver_s() -> None:
    """The simulated node is placed under pynvml, and nothing is left of what was cached before."""
    with use(Mute()):
        mute = Mute()
        Library(mute, max_pid=7)

        assert pynvml.nvmlLib is mute
        assert Library(mute, max_pid=7).max_pid == 7
        assert not pynvml._nvmlGetFunctionPointer_cache
