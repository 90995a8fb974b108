"""The figures of torch's allocator, of several versions and back ends; and that asking never starts CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gpuagent_client.allocator import PICKED, Allocator, Reading, Torch, TorchFunctionMissing, pick_figures, to_wire
from tests.client.apps.faketorch import GIB, FakeTorch

FIGURES = {name for name, _ in PICKED}


def reading_of(fake: FakeTorch) -> Reading:
    """What is read there now."""
    return Allocator(Torch(fake.modules)).read()


def test_figures_of_the_native_allocator() -> None:
    """Every figure is there, under the names of the protocol, with the device's identity as torch tells it."""
    fake = FakeTorch().start_cuda()
    fake.allocate(3 * GIB)
    fake.free(2 * GIB)

    (device,) = reading_of(fake).devices

    assert set(device.figures) == FIGURES
    assert device.figures["allocated_bytes"] == GIB
    assert device.figures["allocated_peak_bytes"] == device.figures["reserved_bytes"] == 3 * GIB
    assert device.properties == ("1f8b4a3e-7c2d-4e5f-9a0b-000000000000", "NVIDIA GeForce RTX 4090", 24 * GIB)
    assert to_wire(device)["uuid"] == device.properties.uuid


def test_figures_that_cuda_malloc_async_does_not_keep_are_absent() -> None:
    """Its zeros mean that nobody counts: zero retries would be a lie."""
    fake = FakeTorch(backend="cudaMallocAsync").start_cuda()
    fake.allocate(GIB)

    (device,) = reading_of(fake).devices

    assert set(device.figures) == FIGURES - {
        "requested_bytes",
        "inactive_split_bytes",
        "segments",
        "alloc_retries",
        "ooms",
    }


def test_an_allocator_without_figures_is_asked_once() -> None:
    """A pluggable allocator raises at each call: once is enough to know."""
    fake = FakeTorch(backend="pluggable").start_cuda()
    allocator = Allocator(Torch(fake.modules))
    fake.allocate(GIB)

    readings = [allocator.read() for _ in range(3)]

    assert {reading.error for reading in readings} == {"unsupported"}
    assert fake.calls.count("_cuda_memoryStats") == 1


def test_a_gpu_that_failed_is_asked_again() -> None:
    """A CUDA error is no property of the allocator: when it goes away, the figures come back."""
    fake = FakeTorch().start_cuda()
    fake.allocate(GIB)
    allocator = Allocator(Torch(fake.modules))
    fake.broken = "CUDA error: unspecified launch failure"
    failed = allocator.read()
    fake.broken = ""

    assert failed == Reading(initialized=True, error="failed")
    assert len(allocator.read().devices) == 1


def test_an_old_torch_tells_less() -> None:
    """Torch 2.2 has no uuid and no limit to read: then the ordinal is all there is."""
    fake = FakeTorch(version="2.2.2+cu121").start_cuda()
    fake.allocate(GIB)

    (device,) = reading_of(fake).devices

    assert "uuid" not in to_wire(device)
    assert to_wire(device)["index"] == 0
    assert device.limit_ratio is None


def test_only_devices_with_memory_are_told() -> None:
    """On a node with eight GPUs an app shows on the one that it uses, and is not asked about the others."""
    fake = FakeTorch(devices=8).start_cuda()
    fake.allocate(GIB, device=5)

    reading = reading_of(fake)

    assert [device.ordinal for device in reading.devices] == [5]
    assert fake.calls.count("_cuda_memoryStats") == 1


def test_a_reading_is_one_call_into_the_allocator_per_device() -> None:
    """The app pays for this each second."""
    fake = FakeTorch(devices=2).start_cuda()
    fake.allocate(GIB, device=0)
    fake.allocate(GIB, device=1)
    allocator = Allocator(Torch(fake.modules))
    allocator.read()
    fake.calls.clear()

    allocator.read()

    assert fake.calls == ["_cuda_getDeviceCount", "_cuda_memoryStats", "_cuda_memoryStats"]


def test_a_limit_is_told_where_there_is_one() -> None:
    """Half of the GPU is a limit, all of it is none."""
    fake = FakeTorch().start_cuda()
    fake.allocate(GIB)
    allocator = Allocator(Torch(fake.modules))
    assert allocator.read().devices[0].limit_ratio is None
    fake.fraction = [0.5]
    allocator.forget_limits()

    assert allocator.read().devices[0].limit_ratio == 0.5


def test_before_cuda_is_up_nothing_is_asked() -> None:
    """Each of torch's memory functions has its own way to start CUDA: not one is called."""
    fake = FakeTorch()
    torch = Torch(fake.modules)

    assert Allocator(torch).read() == Reading(initialized=False)
    assert (torch.backend(), torch.device_count(), torch.capturing()) == ("", 0, False)
    assert fake.calls == []


def test_a_forked_child_of_a_process_with_cuda_has_none() -> None:
    """Torch says so itself; the raw figures there would be the parent's, from before the fork."""
    fake = FakeTorch().start_cuda()
    fake.allocate(GIB)
    pid = os.fork()
    if pid == 0:
        unseen = reading_of(fake) == Reading(initialized=False) and "_cuda_memoryStats" not in fake.calls
        os._exit(0 if unseen else 1)

    assert os.waitpid(pid, 0)[1] == 0


def test_a_torch_that_is_not_there_yet_is_no_error() -> None:
    """Not imported, or imported by half by another thread: there is simply nothing to see."""
    half: dict[str, types.ModuleType] = {
        "torch": types.ModuleType("torch"),
        "torch.cuda": types.ModuleType("torch.cuda"),
    }

    for modules in ({}, half):
        torch = Torch(modules)
        assert Allocator(torch).read() == Reading(initialized=False)
        assert torch.version() == ""


def test_a_module_that_imports_at_a_look_is_not_looked_at() -> None:
    """A lazy module's own __getattr__ would import what the app has not asked for."""
    lazy = types.ModuleType("torch.cuda")
    looked: list[str] = []
    lazy.__dict__["__getattr__"] = looked.append

    with pytest.raises(TorchFunctionMissing):
        Torch({"torch.cuda": lazy}).find("torch.cuda", "is_initialized")
    assert looked == []


def test_a_capture_is_seen_on_the_stream_that_torch_keeps() -> None:
    """`torch.cuda.graph` captures on a stream of its own, from whichever thread."""
    fake = FakeTorch().start_cuda()
    torch = Torch(fake.modules)
    assert not torch.capturing()
    fake.stream.capturing = True

    assert torch.capturing()


def test_a_capture_is_asked_about_on_a_gpu_that_the_app_uses() -> None:
    """On a GPU that the app does not use, the question would make a context and take some 300 MiB."""
    fake = FakeTorch().start_cuda()
    torch = Torch(fake.modules)
    asked: list[object] = []
    fake.modules["torch._C"].__dict__.update(
        _cuda_getDevice=lambda: 0, _cuda_getDeviceCount=lambda: 2, _cuda_hasPrimaryContext=lambda device: device == 1
    )

    def device(number: int) -> nullcontext[None]:
        asked.append(number)
        return nullcontext()

    fake.modules["torch.cuda"].__dict__["device"] = device

    assert not torch.capturing()
    assert asked == [1]


def test_a_failed_cuda_counts_as_a_capture() -> None:
    """Where CUDA cannot be asked any more, nothing is done that a capture would forbid, and nothing raises."""
    fake = FakeTorch().start_cuda()

    def fail() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    fake.modules["torch.cuda"].__dict__["is_current_stream_capturing"] = fail

    assert Torch(fake.modules).capturing()


@pytest.mark.parametrize("nested", [{}, {"allocated_bytes": 7}, {"allocated_bytes": {"all": {}}}, {"num_ooms": "many"}])
def test_figures_of_another_shape_are_absent(nested: dict[str, Any]) -> None:
    """A torch of next year may have other keys: what is not understood is left out."""
    assert pick_figures(nested) == {}


@pytest.mark.slow
def test_the_real_torch_is_asked_and_cuda_stays_down(apps_python: Path) -> None:
    """On a real build nothing raises, and afterwards CUDA is as far down as before."""
    probe = (
        "import torch\n"
        "from gpuagent_client.allocator import Allocator\n"
        "from gpuagent_client.allocator import Torch\n"
        "door = Torch()\n"
        "found = Allocator(door).read()\n"
        "print(found, door.version() == torch.__version__, door.backend(), torch.cuda.is_initialized())\n"
    )

    run = subprocess.run([apps_python, "-W", "ignore", "-c", probe], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "Reading(initialized=False, devices=(), error='') True  False"


def test_the_fake_refuses_what_the_real_one_does() -> None:
    """The tests above rest on it: a call that starts CUDA too early is noted."""
    fake = FakeTorch()
    fake.modules["torch.cuda"].__dict__["mem_get_info"]()

    assert fake.forbidden_calls() == ["FORBIDDEN mem_get_info"]
    assert sys.modules.get("torch") is not fake.modules["torch"]
