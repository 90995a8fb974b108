"""What a request needed, from two looks at figures that belong to the whole process."""

from __future__ import annotations

from gpuagent_client.allocator import Torch
from gpuagent_client.serving.meter import LOOK_FOR_GPUS_EVERY, Change, Figures, Meter, compare
from tests.client.apps.faketorch import GIB, FakeTorch
from tests.tables import table


def look(allocated: int, peak: int, churned: int) -> Figures:
    """Figures in bytes; what is reserved plays no part."""
    return Figures(allocated, 10_000, peak, churned)


@table(
    "before, after, alone, change",
    [
        (look(100, 100, 100), look(150, 400, 500), True, Change(50, 400, 300, exact=True)),
        (look(100, 100, 100), look(150, 400, 500), False, Change(50, 400, 300, exact=False)),
        (look(100, 900, 1000), look(150, 900, 1080), True, Change(50, 180, 80, exact=False)),
        (look(100, 900, 1000), look(150, 900, 1050), True, Change(50, 150, 50, exact=True)),
        (look(100, 900, 1000), look(100, 900, 1000), True, Change(0, 100, 0, exact=True)),
        (look(100, 900, 1000), look(100, 900, 9000), True, Change(0, 900, 800, exact=False)),
        (look(100, 900, 1000), look(150, 200, 1200), True, Change(50, 200, 100, exact=False)),
        (look(100, 100, 1000), look(40, 100, 1000), True, Change(-60, 100, 0, exact=True)),
    ],
)
def test_a_request_between_two_looks(*, before: Figures, after: Figures, alone: bool, change: Change) -> None:
    """Exact where it can be known, else an upper bound, and marked so."""
    assert compare(before, after, alone=alone) == change


def test_all_gpus_count() -> None:
    """Those in use; the others are not asked, for that would start CUDA there."""
    fake = FakeTorch(devices=3).start_cuda()
    fake.allocate(GIB, device=0)
    fake.allocate(2 * GIB, device=2)
    meter = Meter(Torch(fake.modules))

    assert meter.read() == Figures(3 * GIB, 3 * GIB, 3 * GIB, 3 * GIB)
    assert fake.calls.count("_cuda_memoryStats") == 2


def test_a_gpu_that_is_used_later_is_seen() -> None:
    """Within a hundred readings."""
    fake = FakeTorch(devices=2).start_cuda()
    fake.allocate(GIB, device=0)
    meter = Meter(Torch(fake.modules))
    meter.read()
    fake.allocate(GIB, device=1)

    readings = [meter.read() for _ in range(LOOK_FOR_GPUS_EVERY)]
    assert readings[-1] is not None
    assert readings[-1].allocated_bytes == 2 * GIB


def test_an_allocator_without_figures_is_asked_once() -> None:
    """A pluggable allocator raises each time."""
    fake = FakeTorch(backend="pluggable").start_cuda()
    fake.allocate(GIB)
    meter = Meter(Torch(fake.modules))

    assert [meter.read() for _ in range(3)] == [None] * 3
    assert fake.calls.count("_cuda_memoryStats") == 1


def test_a_gpu_that_fails_may_come_back() -> None:
    """Any other error is of this moment."""
    fake = FakeTorch().start_cuda()
    fake.allocate(GIB)
    meter = Meter(Torch(fake.modules))
    fake.broken = "CUDA error: unspecified launch failure"
    assert meter.read() is None
    fake.broken = ""

    assert meter.read() is not None
