"""How many workers fit: the same rule as `gpuagent workers`, without an agent and without CUDA."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from gpuagent_client.serving.gunicorn import GIB, NoNvml, count_workers, total_bytes_of_gpus
from tests.tables import table

UUIDS = ("GPU-11111111-aaaa", "GPU-22222222-bbbb", "GPU-22223333-cccc")


class FakeNvml:
    """NVML's entry points, as ctypes calls them."""

    def __init__(self, totals: tuple[int, ...] = (24 * GIB, 24 * GIB, 80 * GIB), *, begins: int = 0) -> None:
        self.totals = totals
        self.begins = begins
        self.open = 0

    def nvmlInit_v2(self) -> int:
        """Begin."""
        self.open += self.begins == 0
        return self.begins

    def nvmlShutdown(self) -> int:
        """End."""
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        """How many GPUs."""
        count._obj.value = len(self.totals)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        """Handles are numbers from 1."""
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        """One MIG instance, on the last GPU."""
        handle._obj.value = len(self.totals)
        return 0 if uuid == b"MIG-known" else 6

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:
        """As the driver has it."""
        buffer.value = UUIDS[handle.value - 1].encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        """Total, in bytes; 3 is "not supported"."""
        memory._obj.total = self.totals[handle.value - 1]
        return 0 if memory._obj.total else 3


def count(nvml: FakeNvml | None = None, *, typical: int = 6 * GIB, cores: int = 64, **environment: str) -> int:
    """With these GPUs and cores."""
    library = nvml or FakeNvml()
    return count_workers(
        typical,
        environment=environment,
        totals=lambda variables: total_bytes_of_gpus(variables, load=lambda: library),
        cores=lambda: cores,
    )


def test_memory_bounds_the_workers() -> None:
    """4 + 4 + 13: a worker lives on one GPU, and cannot be put together from what two leave."""
    assert count() == 21


def test_cores_bound_the_workers() -> None:
    """2 x cores + 1."""
    assert count(cores=4) == 9


@table(
    "visible, workers",
    [
        ("0", 4),
        ("2, 0", 17),
        ("GPU-1", 4),
        ("GPU-22223", 13),
        ("GPU-2222", 1),
        ("0,9,1", 4),
        ("-1", 1),
        ("", 1),
        ("MIG-known", 13),
        ("MIG-unknown,0", 1),
    ],
)
def test_only_visible_gpus_count(visible: str, workers: int) -> None:
    """As CUDA reads the variable: what follows a wrong or ambiguous word does not count; with none it is one worker."""
    assert count(CUDA_VISIBLE_DEVICES=visible) == workers


def test_the_environment_overrides() -> None:
    """And then nobody is asked."""
    assert count_workers(0, environment={"GPUAGENT_WORKERS": "3"}) == 3


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "\u0663"])
def test_an_override_must_be_a_number(text: str) -> None:
    """The start stops: a typing error must not become a number of workers."""
    with pytest.raises(ValueError, match="GPUAGENT_WORKERS"):
        count(GPUAGENT_WORKERS=text)


@pytest.mark.parametrize("size", [0, -1, True, 6.5])
def test_a_size_is_needed(size: Any) -> None:
    """In bytes."""
    with pytest.raises(ValueError, match="no number of bytes"):
        count(typical=size)


def test_a_worker_that_fits_nowhere_is_still_one(caplog: pytest.LogCaptureFixture) -> None:
    """Gunicorn needs one; the log says what will come of it."""
    assert count(typical=100 * GIB) == 1
    assert "not one of 100.00 GiB fits" in caplog.text


def test_gpus_without_memory_of_their_own_are_left_out() -> None:
    """On integrated GPUs NVML does not tell."""
    assert count(FakeNvml((0, 24 * GIB))) == 4


def test_without_a_driver_there_is_one_worker(caplog: pytest.LogCaptureFixture) -> None:
    """A laptop, or a container without the runtime."""

    def absent() -> Any:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    workers = count_workers(
        GIB, environment={}, totals=lambda variables: total_bytes_of_gpus(variables, load=absent), cores=lambda: 4
    )

    assert workers == 1
    assert "cannot open shared object file" in caplog.text
    with pytest.raises(NoNvml, match="nvmlInit_v2 answers error 18"):
        total_bytes_of_gpus({}, load=lambda: FakeNvml(begins=18))


def test_nvml_is_closed_again() -> None:
    """Gunicorn forks after this: nothing of it may live on."""
    nvml = FakeNvml()
    count(nvml)

    assert nvml.open == 0


def test_the_structure_is_nvmls() -> None:
    """Three 64-bit numbers: https://docs.nvidia.com/deploy/nvml-api/structnvmlMemory__t.html."""
    from gpuagent_client.serving.gunicorn import _Memory

    assert ctypes.sizeof(_Memory) == 24
