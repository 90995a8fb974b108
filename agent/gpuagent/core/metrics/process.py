"""Families of one process on one GPU, and which framework or server it is.

Labels are few and do not change while a process lives, but for its owner's: they are empty while it has not been shown
to hold its memory. Everything else about it is in `gpuagent_process_info`, to be joined on (gpu, uuid, pid).

Of a framework there are from outside the name and the command line, no more: its environment, and which libraries it
has mapped, the kernel tells nobody but its own user and root (proc(5), ptrace access mode). Servers are known by these
two, also where they rename themselves: vLLM's engines are `VLLM::EngineCore`, SGLang's `sglang::scheduler`. A Python
program of TensorFlow or JAX looks like any other: its embedded client tells, else `processes.preallocates` names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.matchers import TextRegex
from gpuagent.core.metrics.family import Family, LabeledValue, MetricType, Sample, Value, single
from gpuagent.core.metrics.gpu import GPU_LABELS
from gpuagent.core.process_labels import ORIGIN_LABELS
from gpuagent.core.snapshot import ClientReading, ProcessInfo, ProcessReading, ProcessState

PROCESS_LABELS = (*GPU_LABELS, "pid", "process", "user", "gpu_instance_id", "compute_instance_id")
OTHER = "other"
"""`process` of the series that sums up the processes below the `processes.top` largest of a GPU."""

ProcessFamily = Family[ProcessReading]


def base_labels(process: ProcessReading) -> tuple[str | None, ...]:
    """Return values of `PROCESS_LABELS`; the MIG ones are left out where there is no MIG.

    Memory whose holder is unproven is nobody's: it must not count in a sum over what a user holds.
    """
    info = process.info
    mig = process.gpu_instance_id != NO_INSTANCE
    return (
        str(process.gpu_index),
        process.gpu_uuid,
        str(process.pid),
        info.name if info else f"[{process.state}]",
        info.user if info and not process.holder_unproven else "",
        str(process.gpu_instance_id) if mig else None,
        str(process.compute_instance_id) if mig else None,
    )


def split_top(
    processes: Iterable[ProcessReading], top: int | None, first: Container[MemoryKey] = ()
) -> tuple[list[ProcessReading], list[Sample]]:
    """Return `top` processes of each GPU (`first`, then the largest), and one memory sample per GPU for the rest."""
    if top is None:
        return list(processes), []
    by_gpu: dict[tuple[int, str], list[ProcessReading]] = {}
    for process in processes:
        by_gpu.setdefault((process.gpu_index, process.gpu_uuid), []).append(process)
    shown: list[ProcessReading] = []
    rest: list[Sample] = []
    for (index, uuid), group in by_gpu.items():
        if len(group) <= top:
            shown += group
            continue
        group.sort(key=lambda process: (process.key not in first, -(process.used_bytes or 0), process.pid))
        shown += group[:top]
        others = float(sum(process.used_bytes or 0 for process in group[top:]))
        rest.append(Sample((str(index), uuid, "", OTHER, "", None, None), others))
    return shown, rest


def _utilization(field: int) -> Callable[[ProcessReading], Iterable[LabeledValue]]:
    def value(process: ProcessReading) -> Value:
        utilization = process.utilization
        return None if utilization is None else utilization[field]

    return single(value)


def _state(letter: str) -> Callable[[ProcessReading], Iterable[LabeledValue]]:
    """Return the reader of one state, a series only while the process is in it: nearly every process never is."""
    return single(lambda process: 1 if process.info and process.info.state == letter else None)


def _zombie(process: ProcessReading) -> int | None:
    return 1 if process.is_zombie or (process.info and process.info.state == "Z") else None


_INFO_LABELS = ("uid", "command", *(label.name for label in ORIGIN_LABELS), "parent_pid", "type", "state")
_ORIGIN = tuple(label.of for label in ORIGIN_LABELS)


def _info(process: ProcessReading) -> Iterable[LabeledValue]:
    info, kinds, state = process.info, process.kinds, process.state
    if info is None:
        return (((*[""] * (len(_INFO_LABELS) - 2), kinds, state), 1),)
    if process.holder_unproven:  # nobody's
        return ((("", info.command, *[""] * (len(_INFO_LABELS) - 5), str(info.parent_pid), kinds, state), 1),)
    return (((str(info.uid), info.command, *[of(info) for of in _ORIGIN], str(info.parent_pid), kinds, state), 1),)


def _family(
    name: str, collector: str, text: str, of: Callable[[ProcessReading], Iterable[LabeledValue]],
    labels: Sequence[str] = (),
) -> ProcessFamily:  # fmt: skip
    return Family(f"gpuagent_process_{name}", MetricType.GAUGE, text, collector, (*PROCESS_LABELS, *labels), of)


USED = _family("memory_used_bytes", "processes", "Device memory of the process as the driver counts it.",
               single(lambda process: process.used_bytes))  # fmt: skip

PROCESS_FAMILIES: tuple[ProcessFamily, ...] = (
    USED,
    _family("sm_utilization_ratio", "process_utilization",
            "Share of the multiprocessors' time, 0 to 1; absent unless the driver sampled it or the GPU is at 0.",
            _utilization(0)),
    _family("memory_utilization_ratio", "process_utilization",
            "Share of the memory's time, 0 to 1; absent while unknown.", _utilization(1)),
    _family("encoder_utilization_ratio", "process_utilization",
            "Share of the video encoder's time, 0 to 1; absent while unknown.", _utilization(2)),
    _family("decoder_utilization_ratio", "process_utilization",
            "Share of the video decoder's time, 0 to 1; absent while unknown.", _utilization(3)),
    _family("resident_memory_bytes", "procfs", "Host memory resident.",
            single(lambda process: process.info.resident_bytes if process.info else None)),
    _family("start_time_seconds", "procfs", "Unix time at which the process started.",
            single(lambda process: process.info.start_time_seconds if process.info else None)),
    _family("uninterruptible", "procfs", "1 while the process is in D state: only SIGKILL may reach it.", _state("D")),
    _family("zombie", "procfs", "1 if the process has ended and its parent has not taken note.", single(_zombie)),
    _family("info", "procfs", "What the process is; always 1.", _info, _INFO_LABELS),
)  # fmt: skip


def is_dead(process: ProcessReading) -> bool:
    """Return whether the driver lists what /proc does not know."""
    return process.state is ProcessState.DEAD


CONFIGURED = "configured"
"""The framework of a process that a pattern of the user's names."""


class Framework(NamedTuple):
    """What a process runs."""

    name: str
    preallocates: bool
    """Whether it takes most of the GPU at its start, and then looks the same whether it works or not."""
    confirmed: bool = False
    """The systemd unit says what it is, which root wrote; name and command line are what a process calls itself."""


FrameworkRecognizer = Callable[[ProcessInfo], Framework | None]

_KNOWN_FRAMEWORKS = (
    # 90 % by default (--gpu-memory-utilization), 88 % or so (--mem-fraction-static), 90 % of what is free.
    ("vllm", ("vllm",), True),
    ("sglang", ("sglang",), True),
    ("tensorrt-llm", ("trtllm-serve",), True),
    ("lmdeploy", ("lmdeploy", "serve"), True),
    ("tgi", ("text-generation-server",), True),
    ("tgi", ("text-generation-launcher",), True),
    # All of it, as every program of TensorFlow's that is not told otherwise.
    ("tensorflow-serving", ("tensorflow_model_server",), True),
    # JAX takes 75 %: https://docs.jax.dev/en/latest/gpu_memory_allocation.html
    ("maxtext", ("maxtext",), True),
    # These take what their models need.
    ("ollama", ("ollama", "runner"), False),
    ("ollama", ("ollama_llama_server",), False),
    ("triton", ("tritonserver",), False),
    ("triton", ("triton_python_backend_stub",), False),
)
"""Name, the words that are all in the name or the command line, and whether it takes most of the GPU."""
_REMEMBERED = 1024
"""Command lines, some 0.5 MiB of them: of a day's ten thousand, most are never asked for again."""


@lru_cache(maxsize=8)
def framework_recognizer(patterns: tuple[str, ...] = ()) -> FrameworkRecognizer:
    """Return a function that recognizes what a process runs, by its name and command line.

    `patterns` are regular expressions of the configuration for processes that preallocate: by name and command line, or
    by the unit of the system's manager that runs them. Raises ValueError.
    """
    configured = [TextRegex(pattern) for pattern in patterns]

    @lru_cache(maxsize=_REMEMBERED)
    def recognize(name: str, command: str, unit: str) -> Framework | None:
        text = f"{name} {command}"
        lower = text.lower()
        found = next(
            (
                Framework(each, takes)
                for each, words, takes in _KNOWN_FRAMEWORKS
                if all(_is_in(w, lower) for w in words)
            ),
            None,
        )
        confirmed = bool(unit) and any(pattern.is_in(unit) for pattern in configured)
        if confirmed or any(pattern.is_in(text) for pattern in configured):
            return Framework(found.name if found else CONFIGURED, preallocates=True, confirmed=confirmed)
        return found

    return lambda info: recognize(info.name, info.command, _system_unit(info))


def _is_in(word: str, text: str) -> bool:
    """Return whether a word stands in the text by itself. Mostly it does not, and no search for its edges is made."""
    return word in text and re.search(rf"\b{re.escape(word)}\b", text) is not None


def _system_unit(info: ProcessInfo) -> str:
    """Return the unit if root wrote it: `user@1000.service/a.service` is of a user's own manager."""
    return "" if "/" in info.unit else info.unit


def framework_of(
    process: ProcessReading, clients: Mapping[int, ClientReading], recognize: FrameworkRecognizer
) -> Framework | None:
    """Return what a process runs; what its embedded client reports counts more than how it looks."""
    found = recognize(process.info) if process.info is not None else None
    client = clients.get(process.pid)
    if client is None or not client.frameworks:
        return found
    name, takes = max(client.frameworks.items(), key=lambda each: each[1])
    return Framework(found.name if found else name, takes, confirmed=found is not None and found.confirmed)


def _preallocates(framework: Framework) -> Iterable[LabeledValue]:
    return (((framework.name,), framework.preallocates),)


FRAMEWORK_FAMILIES: tuple[Family[Framework], ...] = (
    Family(
        "gpuagent_process_preallocates",
        MetricType.GAUGE,
        "Of processes whose framework or server is known: 1 if it takes most of the GPU when it starts, by design.",
        "procfs",
        (*PROCESS_LABELS, "framework"),
        _preallocates,
    ),
)
