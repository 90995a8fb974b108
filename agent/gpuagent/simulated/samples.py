"""The driver's ring of per-process utilisation samples.

A new batch each full second of the story.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuagent.simulated.codes import Code, Refusal
from gpuagent.simulated.device import Gpu
from gpuagent.simulated.faults import Kind

RING_SIZE = 100
"""What the size call answers, however many processes there are (https://github.com/NVIDIA/go-nvml/issues/11)."""
_MINUTE = 60_000_000


class Sample(NamedTuple):
    """`stamp` in unix microseconds; percent of SM, memory, encoder, decoder, jpeg, ofa."""

    pid: int
    stamp: int
    percent: tuple[int, ...]


def samples(gpu: Gpu, since: int) -> list[Sample]:
    """Busy processes sampled after `since` (unix microseconds).

    Raises:
        Refusal: NOT_FOUND, nobody was active since
        (https://github.com/rust-nvml/nvml-wrapper/issues/56).
    """
    found = _garbage(gpu) if gpu.faults.find(Kind.GARBAGE_SAMPLES, gpu.index) else []
    stamp = gpu.story.batch_stamp()
    if stamp > since:
        found += [Sample(row.pid, stamp, tuple(row.load)) for row in gpu.rows() if any(row.load)]
    if not found:
        raise Refusal(Code.NOT_FOUND)
    return found


def _garbage(gpu: Gpu) -> list[Sample]:
    """What drivers have been seen to answer, whatever `since` says (https://github.com/Syllo/nvtop/issues/110)."""
    now = gpu.story.batch_stamp()
    listed = gpu.rows()[0].pid if gpu.rows() else 1
    return [
        Sample(listed, now, (37100, 0, 0, 0, 0, 0)),
        Sample(listed, now, (2**32 - 1,) * 6),
        Sample(listed, now + _MINUTE, (55, 0, 0, 0, 0, 0)),
        Sample(listed, now - 10 * _MINUTE, (99, 0, 0, 0, 0, 0)),
        Sample(999_999, now, (50, 0, 0, 0, 0, 0)),
        Sample(0, now, (50, 0, 0, 0, 0, 0)),
    ]
