"""Asking a GPU: what it does not support is asked once, and one bad answer costs one value."""

from __future__ import annotations

import pytest

from gpuagent.driver.nvml.device import REFUSED_SECONDS
from gpuagent.driver.nvml.library import NvmlFailure
from gpuagent_simulator.abi import Code, NvmlError
from gpuagent_simulator.entries_fields import FIELDS
from gpuagent_simulator.faults import FaultKind
from tests.agent.driver.nvml.conftest import Open

POWER = "nvmlDeviceGetPowerUsage"


@pytest.mark.parametrize("code", [Code.NOT_SUPPORTED, Code.NO_PERMISSION, Code.FUNCTION_NOT_FOUND, Code.DEPRECATED])
def test_what_is_not_there_is_asked_once(open_gpu: Open, code: Code) -> None:
    """GPU-09: and told with its reason."""
    bench = open_gpu()
    bench.fail(FaultKind.ERROR, calls=(POWER,), code=code)
    assert bench.device.ask(POWER) is None
    bench.node.clear()

    assert bench.device.ask(POWER) is None
    assert not bench.device.supports(POWER)
    assert [name for name, _ in bench.device.unsupported()] == [POWER]
    assert bench.device.failures == []


@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.TIMEOUT, Code.RESET_REQUIRED, Code.IN_USE, 4711])
def test_what_fails_is_asked_again(open_gpu: Open, code: int) -> None:
    """GPU-08: and told as a failure until then."""
    bench = open_gpu()
    bench.fail(FaultKind.ERROR, calls=(POWER,), code=code)
    assert bench.device.ask(POWER) is None
    assert [failure.code for failure in bench.device.failures] == [code]
    bench.node.clear()

    assert bench.device.ask(POWER) is not None
    assert bench.device.unsupported() == ()


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.GPU_NOT_FOUND])
def test_what_ends_everything_is_raised(open_gpu: Open, code: Code) -> None:
    """GPU-01: nothing that this handle says can be trusted from there on."""
    bench = open_gpu()
    bench.fail(FaultKind.ERROR, calls=(POWER, "nvmlDeviceGetUUID", "nvmlDeviceGetFieldValues"), code=code)

    for ask in (
        lambda: bench.device.ask(POWER),
        lambda: bench.device.ask_text("nvmlDeviceGetUUID"),
        lambda: bench.device.fields(91),
    ):
        with pytest.raises(NvmlFailure) as caught:
            ask()
        assert caught.value.code == code


def test_one_argument_not_supported_is_not_all(open_gpu: Open) -> None:
    """GPU-09: a call is remembered with its arguments."""
    bench = open_gpu("{model: rtx-4080-super}")

    assert bench.device.ask("nvmlDeviceGetTemperatureThreshold", 1) is not None
    assert bench.device.ask("nvmlDeviceGetTemperatureThreshold", 2) is None
    assert bench.device.supports("nvmlDeviceGetTemperatureThreshold", 1)


def test_fields_that_the_gpu_lacks(open_gpu: Open) -> None:
    """GPU-09: the others of the same call are answered, and what is lacking is named once."""
    bench = open_gpu("{model: l40s}")
    values = bench.device.fields(82, 142, 94)

    assert set(values) == {142, 94}
    assert ("field 82", "not supported") in bench.device.unsupported()
    assert bench.device.failures == []


def test_a_field_that_is_newer_than_the_driver(open_gpu: Open) -> None:
    """GPU-09: an id that no driver knows is absent, whatever the driver calls that."""
    bench = open_gpu("{model: h100, nvlink: {links: 2}}")

    assert bench.device.fields(9999, (138, 99)) == {}
    assert bench.device.failures == []
    assert bench.device.unsupported() == (("field 138", "invalid argument"), ("field 9999", "not supported"))


def test_fields_of_a_link(open_gpu: Open) -> None:
    """A field with its scope is a field of its own."""
    bench = open_gpu("{model: h100, nvlink: {links: 2, transmit: 2048}}")

    assert bench.device.fields((138, 0), (138, 1)) == {(138, 0): 2, (138, 1): 2}


def test_a_function_that_the_binding_lacks(open_gpu: Open) -> None:
    """GPU-09: an older or newer nvidia-ml-py is like an older driver."""
    bench = open_gpu()

    assert bench.device.ask("nvmlDeviceGetNothing") is None
    assert bench.device.unsupported() == (("nvmlDeviceGetNothing", "this nvidia-ml-py lacks the function"),)


def test_a_field_that_was_refused_is_asked_again(open_gpu: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU-09: after a minute, as an administrator may have given leave meanwhile."""

    def refuse(*_: object) -> float:
        raise NvmlError(Code.NO_PERMISSION)

    bench = open_gpu()
    with monkeypatch.context() as patch:
        patch.setitem(FIELDS, 142, (*FIELDS[142][:2], refuse))
        assert bench.device.fields(142) == {}
    assert bench.device.fields(142) == {}
    bench.clock.advance(REFUSED_SECONDS)

    assert bench.device.fields(142).keys() == {142}
    assert bench.device.failures == []
