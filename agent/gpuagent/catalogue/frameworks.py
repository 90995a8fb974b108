"""Which framework or server a process is, and whether it takes most of the GPU when it starts, by design.

From outside there are the name and the command line, no more: its environment, and which libraries it has mapped, the
kernel tells nobody but its own user and root (proc(5), ptrace access mode). Servers are known by these two, also where
they rename themselves: vLLM's engines are `VLLM::EngineCore`, SGLang's `sglang::scheduler`. A Python program of
TensorFlow or JAX looks like any other: its embedded client tells, else `processes.preallocates` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from gpuagent.catalogue.family import Family, Kind, Labelled
from gpuagent.catalogue.process import PROCESS_LABELS
from gpuagent.embedded import ClientReading
from gpuagent.reading import ProcessInfo, ProcessReading
from gpuagent.regexes import TextRegex

CONFIGURED = "configured"
"""The framework of a process that a pattern of the user's names."""


class Framework(NamedTuple):
    """What a process runs."""

    name: str
    preallocates: bool
    """It takes most of the GPU at its start, and then looks the same whether it works or not."""
    confirmed: bool = False
    """The systemd unit says what it is, which root wrote; name and command line are what a process calls itself."""


Recognise = Callable[[ProcessInfo], Framework | None]

_KNOWN = (
    # 90 % by default (--gpu-memory-utilization), 88 % or so (--mem-fraction-static), 90 % of what is free.
    ("vllm", "vllm", r"(?i)\bvllm\b", True),
    ("sglang", "sglang", r"(?i)\bsglang\b", True),
    ("tensorrt-llm", "trtllm-serve", r"\btrtllm-serve\b", True),
    ("lmdeploy", "lmdeploy", r"\blmdeploy\b.*\bserve\b", True),
    ("tgi", "text-generation-", r"\btext-generation-(server|launcher)\b", True),
    # All of it, as every program of TensorFlow's that is not told otherwise.
    ("tensorflow-serving", "tensorflow_model_server", r"\btensorflow_model_server\b", True),
    # JAX takes 75 %: https://docs.jax.dev/en/latest/gpu_memory_allocation.html
    ("maxtext", "maxtext", r"\b[Mm]ax[Tt]ext\b", True),
    # These take what their models need.
    ("ollama", "ollama", r"\bollama\b.*\brunner\b|\bollama_llama_server\b", False),
    ("triton", "triton", r"\btritonserver\b|\btriton_python_backend_stub\b", False),
)
"""Name, a part in lower case without which there is no match, the pattern, and whether it takes most of the GPU."""
_REMEMBERED = 1024
"""Command lines, some 0.5 MiB of them: of a day's ten thousand, most are never asked for again."""


@lru_cache(maxsize=8)
def recogniser(patterns: tuple[str, ...] = ()) -> Recognise:
    """A function that tells what a process runs, as far as its name and command line tell.

    `patterns` are regular expressions of the configuration for processes that preallocate: by name and command line, or
    by the unit of the system's manager that runs them. Raises ValueError.
    """
    known = [(name, part, TextRegex(pattern), takes) for name, part, pattern, takes in _KNOWN]
    configured = [TextRegex(pattern) for pattern in patterns]

    @lru_cache(maxsize=_REMEMBERED)
    def look(name: str, command: str, unit: str) -> Framework | None:
        text = f"{name} {command}"
        lower = text.lower()
        found = next(
            # Mostly none is there: that takes 5 µs where nine searches take up to 100.
            (Framework(each, takes) for each, part, pattern, takes in known if part in lower and pattern.is_in(text)),
            None,
        )
        confirmed = bool(unit) and any(pattern.is_in(unit) for pattern in configured)
        if confirmed or any(pattern.is_in(text) for pattern in configured):
            return Framework(found.name if found else CONFIGURED, preallocates=True, confirmed=confirmed)
        return found

    return lambda info: look(info.name, info.command, _system_unit(info))


def _system_unit(info: ProcessInfo) -> str:
    """Return the unit if root wrote it: `user@1000.service/a.service` is of a user's own manager."""
    return "" if "/" in info.unit else info.unit


def framework_of(
    process: ProcessReading, clients: Mapping[int, ClientReading], recognise: Recognise
) -> Framework | None:
    """What a process runs; the word of its embedded client counts more than how it looks."""
    found = recognise(process.info) if process.info is not None else None
    client = clients.get(process.pid)
    if client is None or not client.frameworks:
        return found
    name, takes = max(client.frameworks.items(), key=lambda each: each[1])
    return Framework(found.name if found else name, takes, confirmed=found is not None and found.confirmed)


def _preallocates(framework: Framework) -> Iterable[Labelled]:
    return (((framework.name,), framework.preallocates),)


FRAMEWORK_FAMILIES: tuple[Family[Framework], ...] = (
    Family(
        "gpuagent_process_preallocates",
        Kind.GAUGE,
        "Of processes whose framework or server is known: 1 if it takes most of the GPU when it starts, by design.",
        "procfs",
        (*PROCESS_LABELS, "framework"),
        _preallocates,
    ),
)
