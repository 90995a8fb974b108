"""Traces of machines whose GPU shares their memory, written by hand after public reports, and healthy twins.

The reports give figures such as what was available before the host stopped answering, over how long, with how much
swap, and what was said of the kernel meanwhile; what lies between is filled in. A trace has points, between which lines
are drawn: seconds, GiB available, GiB free, percent of the time in which some programs waited, in which all did, and
direct reclaims a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gpuagent.core.hardware import HostMemory, MemoryPressure

GIB = 2**30
_STEP = 0.05


@dataclass(frozen=True)
class Trace:
    """One machine for a while."""

    name: str
    source: str
    points: tuple[tuple[float, ...], ...]
    stalls_at: float | None = None
    """Second at which the host stopped answering; None for a healthy one."""
    total_gib: float = 121.7

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.points[-1][0]

    def at(self, seconds: float) -> tuple[HostMemory, MemoryPressure]:
        """What /proc tells at a moment."""
        available, free, *_ = self._values(seconds)
        some, full, reclaims = self._totals[int(seconds / _STEP)]
        memory = HostMemory(
            int(self.total_gib * GIB), int(available * GIB), int(free * GIB), int(max(0, available - free) * GIB), GIB
        )
        return memory, MemoryPressure(0.0, 0.0, some / 100, full / 100, int(reclaims))

    @cached_property
    def _totals(self) -> list[tuple[float, ...]]:
        """Sums of the last three columns over time, at each step."""
        totals: list[tuple[float, ...]] = [(0.0, 0.0, 0.0)]
        for step in range(int(self.seconds / _STEP) + 1):
            totals.append(
                tuple(
                    before + _STEP * value
                    for before, value in zip(totals[-1], self._values(step * _STEP)[2:], strict=True)
                )
            )
        return totals

    def _values(self, seconds: float) -> tuple[float, ...]:
        before = self.points[0]
        for after in self.points[1:]:
            if seconds <= after[0]:
                part = (seconds - before[0]) / (after[0] - before[0])
                return tuple(low + part * (high - low) for low, high in zip(before[1:], after[1:], strict=True))
            before = after
        return before[1:]


_KERNEL = "NVIDIA/open-gpu-kernel-modules#1358"
STALLS = (
    Trace("gemma profiling run at 0.70", "vllm-project/vllm#46307",
          ((0, 60, 40, 0, 0, 0), (20, 58, 30, 1, 0, 0), (30, 16, 3, 8, 2, 5), (33, 9, 1, 30, 14, 40),
           (37, 7, 1, 60, 40, 90), (42, 6.9, 1, 95, 90, 200)), 40, 119.0),
    Trace("nemotron long prefill burst", _KERNEL,
          ((0, 8, 3, 0, 0, 0), (20, 8, 3, 0, 0, 0), (24, 4, 1.2, 20, 8, 20), (28, 2, 0.8, 55, 38, 90),
           (34, 1.6, 0.6, 97, 92, 300)), 31),
    Trace("gpt-oss-120b evicts userspace into swap", _KERNEL,
          ((0, 12, 4, 0, 0, 0), (30, 6, 1.5, 6, 2, 4), (60, 3, 0.9, 25, 13, 40), (90, 2, 0.7, 60, 45, 120),
           (120, 1.5, 0.6, 95, 90, 300)), 105),
    Trace("hashcat", _KERNEL,
          ((0, 20, 15, 0, 0, 0), (15, 20, 14, 0, 0, 0), (24, 6, 2, 15, 7, 10), (28, 2.5, 0.9, 50, 35, 70),
           (32, 1.2, 0.5, 95, 90, 200)), 30),
    Trace("deepseek-v4-flash serving", _KERNEL,
          ((0, 9, 2, 1, 0, 0), (40, 7, 1.5, 3, 1, 1), (50, 5, 1, 22, 12, 30), (58, 3, 0.7, 65, 50, 150),
           (64, 2.5, 0.6, 98, 95, 400)), 61),
    Trace("131K-token prefill after 32K and 64K", "NVIDIA/dgx-spark-playbooks#97",
          ((0, 18, 8, 0, 0, 0), (20, 13, 5, 2, 0, 0), (22, 18, 8, 0, 0, 0), (40, 10, 3, 4, 1, 2),
           (42, 17, 7, 0, 0, 0),
           (60, 7, 2, 9, 3, 6), (66, 3, 1, 40, 25, 60), (72, 1.2, 0.5, 95, 90, 200)), 70),
    Trace("engine startup with 22 GiB of MemAvailable", "vllm-project/vllm#56824",
          ((0, 70, 20, 1, 0, 0), (30, 35, 2, 8, 3, 5), (40, 24, 1.6, 30, 20, 60), (46, 22, 1.4, 70, 60, 200),
           (55, 22, 1.3, 97, 95, 500)), 52),
    Trace("99.8 % used under load", "AEON-7/vllm-ultimate-dgx-spark#9",
          ((0, 6, 2, 0, 0, 0), (30, 3, 1, 10, 4, 10), (40, 1, 0.5, 45, 30, 90), (48, 0.3, 0.2, 96, 92, 300)), 45),
    Trace("93.7 % used at rest, swapping", "AEON-7/vllm-ultimate-dgx-spark#9",
          ((0, 9, 2, 0, 0, 0), (30, 8, 1.2, 20, 12, 30), (45, 7.7, 0.9, 60, 48, 120),
           (55, 7.6, 0.8, 96, 92, 300)), 50),
    Trace("95 % used under load", "AEON-7/vllm-ultimate-dgx-spark#9",
          ((0, 10, 3, 0, 0, 0), (20, 8, 1.6, 6, 2, 5), (30, 6.4, 1, 40, 26, 80), (38, 6.1, 0.7, 96, 92, 300)), 35),
    Trace("cudf on 1.8 billion edges, hours of thrashing", "graphistry/pygraphistry#1671",
          ((0, 80, 60, 0, 0, 0), (30, 20, 6, 4, 1, 2), (40, 5, 1.2, 30, 18, 50), (60, 2, 0.7, 70, 55, 200),
           (90, 1.5, 0.5, 97, 94, 400)), 75, 119.0),
    Trace("torch allocates without end", "pytorch/pytorch#174358",
          ((0, 100, 95, 0, 0, 0), (20, 30, 25, 0, 0, 0), (26, 9, 4, 12, 5, 8), (29, 3, 1, 50, 38, 80),
           (32, 0.8, 0.4, 97, 93, 200)), 31),
    Trace("148 GiB checkpoint mapped, then KV cache", "tobias-weiss.org, DGX Spark OOM",
          ((0, 110, 100, 0, 0, 0), (60, 46, 2, 10, 4, 6), (70, 44, 1.5, 6, 2, 3), (78, 14, 1, 35, 24, 60),
           (82, 6, 0.8, 75, 60, 150), (86, 4, 0.6, 97, 94, 300)), 84),
    Trace("no free 2 MiB blocks on a worker", "MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks#23",
          ((0, 26, 3, 2, 0, 1), (30, 24, 0.9, 20, 12, 40), (40, 23, 0.4, 60, 50, 200),
           (50, 22, 0.14, 97, 95, 500)), 46),
    Trace("Ollama grows beside vLLM", "al-engr.com, Spark config rethink",
          ((0, 16, 6, 0, 0, 0), (40, 12, 3, 2, 1, 1), (55, 6, 1.2, 18, 9, 20), (65, 3, 0.8, 55, 40, 100),
           (75, 2, 0.6, 96, 92, 300)), 70, 119.7),
    Trace("an engine takes 117 GiB whatever is set", "lab-stack.com, DGX Spark memory",
          ((0, 112, 108, 0, 0, 0), (10, 60, 55, 0, 0, 0), (20, 10, 4, 6, 2, 3), (25, 4, 1, 40, 28, 60),
           (32, 2, 0.6, 96, 92, 200)), 29, 119.7),
    Trace("other containers take the reserve", "MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark#54",
          ((0, 30, 10, 0, 0, 0), (60, 8, 2, 5, 2, 2), (70, 3, 1, 30, 20, 50), (80, 1.5, 0.6, 95, 90, 300)), 76),
    Trace("preprocessing of experts livelocks the host", "sudoprivacy/sudowork#998",
          ((0, 40, 20, 0, 0, 0), (20, 18, 4, 6, 2, 3), (28, 5, 1.2, 32, 20, 60), (34, 2, 0.7, 80, 70, 200),
           (40, 1.8, 0.6, 98, 96, 400)), 37),
    Trace("29 to 2.5 GiB in 9 s", "seen on a GB10",
          ((0, 29, 24, 0, 0, 0), (5, 29, 24, 0, 0, 0), (11, 11, 7, 4, 1, 0), (14, 2.5, 1, 40, 28, 50),
           (17, 1, 0.4, 96, 92, 200)), 16),
    Trace("a leak of 60 MiB/s to the end", "twin of the leak traces",
          ((0, 12, 8, 0, 0, 0), (120, 5, 1.4, 3, 1, 1), (170, 2.4, 0.9, 22, 13, 30), (200, 1, 0.5, 75, 62, 200),
           (215, 0.6, 0.3, 97, 93, 400)), 208),
    Trace("allocations churn, 2 GB free", "MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#17",
          ((0, 5, 2.2, 2, 1, 1), (20, 4, 2, 12, 6, 15), (30, 3, 1.6, 40, 28, 90), (40, 2.4, 1.2, 97, 95, 400)), 36),
    Trace("without swap, a second server starts", "llamastash/llamastash#80",
          ((0, 52, 3, 0, 0, 0), (20, 25, 2, 8, 3, 4), (30, 6, 1, 45, 34, 80), (34, 2, 0.5, 85, 75, 200),
           (38, 1, 0.3, 98, 96, 400)), 35),
    Trace("a 64 GB Jetson with a camera pipeline that leaks", "twin of the leak traces",
          ((0, 9, 5, 0, 0, 0), (60, 3, 1, 8, 4, 8), (80, 1.5, 0.6, 40, 30, 80),
           (95, 0.5, 0.3, 96, 92, 300)), 88, 61.3),
    Trace("one block of 9 GiB within a second, with a spare of 10", "worst case: nothing tells of it before",
          ((0, 10, 8, 0, 0, 0), (20, 10, 8, 0, 0, 0), (20.8, 0.6, 0.3, 60, 55, 50), (21.2, 0.3, 0.2, 99, 99, 400)),
          21.2),
)  # fmt: skip
HEALTHY = (
    Trace("a mapped model of 60 GiB", "llama.cpp with mmap",
          ((0, 118, 110, 0, 0, 0), (40, 62, 1.4, 5, 2, 3), (60, 62, 1.1, 1, 0, 0), (120, 62, 1.1, 0, 0, 0))),
    Trace("a copy fills the page cache", "any file server",
          ((0, 70, 60, 0, 0, 0), (30, 68, 1.2, 6, 3, 5), (120, 66, 1.0, 8, 4, 8))),
    Trace("a build beside a model", "20 compilers",
          ((0, 20, 9, 0, 0, 0), (10, 11, 3, 14, 1, 4), (16, 18, 6, 6, 0, 1), (26, 9.5, 2, 17, 2, 8),
           (32, 17, 5, 5, 0, 1),
           (42, 10, 2, 16, 2, 6), (60, 18, 6, 2, 0, 0))),
    Trace("1.7 GiB left by design", "Blackwellboy/model-serving-minefield#134",
          ((0, 30, 20, 0, 0, 0), (20, 4, 2, 4, 1, 1), (26, 1.8, 0.9, 5, 2, 2), (60, 1.7, 0.8, 0, 0, 0),
           (120, 1.5, 0.7, 1, 0, 0))),
    Trace("swap in use, and idle", "any server that is up for weeks",
          ((0, 6, 1, 0, 0, 0), (120, 5.8, 1, 0.3, 0.1, 0))),
    Trace("one request holds MemFree under 2 GiB", "MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark#54",
          ((0, 9, 3, 0, 0, 0), (5, 7.1, 1.46, 3, 2, 3), (10, 7.0, 1.22, 4, 2, 3), (14, 9, 3, 0, 0, 0))),
    Trace("a model loads, 30 GiB stay", "any start of a server",
          ((0, 112, 100, 0, 0, 0), (40, 32, 2, 14, 6, 10), (45, 30, 1.5, 8, 3, 3), (90, 30, 1.5, 0, 0, 0))),
    Trace("a model loads, 9 GiB stay", "any start of a server",
          ((0, 112, 100, 0, 0, 0), (48, 16, 2, 12, 5, 6), (53, 9, 1.5, 14, 6, 8), (58, 9, 1.5, 3, 1, 1),
           (90, 9, 1.5, 0, 0, 0))),
    Trace("9.7 % available, models pinned", "rwlove/home-ops#12497",
          ((0, 11.8, 4, 0, 0, 0), (120, 11.8, 4, 0.2, 0, 0)), total_gib=121.6),
    Trace("a checkpoint streams while a guard drops caches", "GLM-5.3-Flash field report",
          ((0, 100, 80, 0, 0, 0), (30, 50, 3, 15, 6, 10), (40, 40, 9, 4, 1, 1), (60, 22, 2.6, 16, 7, 10),
           (70, 22, 8, 1, 0, 0))),
    Trace("a build throttled by memory.high of its cgroup", "systemd-run -p MemoryHigh=8G",
          ((0, 22, 2, 0, 0, 0), (10, 21, 2, 60, 45, 0), (60, 21, 2, 80, 60, 0))),
    Trace("a container at its memory.max, 5 GiB left beside", "kubelet, OOM in the cgroup",
          ((0, 6, 2, 0, 0, 0), (10, 5, 1.5, 40, 30, 0), (60, 5, 1.5, 45, 35, 0))),
    Trace("the KV cache is taken at once", "vLLM after profiling",
          ((0, 86, 80, 0, 0, 0), (20, 86, 80, 0, 0, 0), (22, 11, 6, 2, 1, 0), (60, 11, 6, 0, 0, 0))),
    Trace("a checkpoint is written", "torch.save of 40 GiB",
          ((0, 20, 10, 0, 0, 0), (20, 15, 1.6, 9, 5, 6), (40, 14, 1.2, 10, 6, 8), (50, 18, 4, 1, 0, 0))),
    Trace("prefills come and go", "vLLM with 3 GiB to spare",
          ((0, 6, 3, 0, 0, 0), (4, 3, 1.2, 4, 2, 2), (6, 6, 3, 0, 0, 0), (10, 3.2, 1.3, 5, 2, 3), (12, 6, 3, 0, 0, 0),
           (16, 2.8, 1.1, 6, 3, 4), (18, 6, 3, 0, 0, 0), (30, 6, 3, 0, 0, 0))),
    Trace("a server is restarted", "systemctl restart",
          ((0, 9, 2, 0, 0, 0), (5, 110, 60, 0, 0, 0), (40, 30, 2, 12, 5, 8), (50, 9, 1.6, 12, 5, 6),
           (60, 9, 2, 0, 0, 0))),
    Trace("a backup reads the disk, 5 GiB left", "rsync at night",
          ((0, 5, 1.2, 0, 0, 0), (20, 5, 1, 7, 3, 6), (100, 4.8, 1, 8, 4, 8))),
    Trace("a desktop is swapped in again", "somebody comes back",
          ((0, 40, 12, 0, 0, 0), (3, 38, 8, 25, 18, 2), (10, 36, 6, 20, 12, 2), (20, 36, 6, 1, 0, 0))),
    Trace("half a second of compaction, 6 GiB left", "huge pages on demand",
          ((0, 6, 1, 1, 0, 1), (10, 6, 1, 1, 0, 1), (10.2, 6, 1, 50, 30, 60), (10.6, 6, 1, 50, 30, 60),
           (10.8, 6, 1, 1, 0, 1),
           (40, 6, 1, 1, 0, 1))),
    Trace("training with pinned buffers at 94 %", "any trainer",
          ((0, 7.5, 2, 1, 0, 0), (30, 7, 1.8, 2, 1, 1), (60, 7.6, 2, 1, 0, 0), (90, 6.9, 1.7, 2, 1, 1))),
)  # fmt: skip
