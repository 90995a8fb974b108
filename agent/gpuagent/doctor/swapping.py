"""Whether GPU memory may be swapped to the host's: then nothing fails for lack of memory, it only gets slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuagent.core.units import format_bytes
from gpuagent.doctor.finding import Finding, Level

_ADVICE = "start fewer programs, or limit each of them: gpuagent_client.limit_memory(0.9)"


def wsl(proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> Iterator[Finding]:
    """WSL's driver does not tell about processes, and falls back to the host's memory.

    The setting against that in Windows' control panel has no effect there (microsoft/WSL#11050).
    """
    try:
        version = (proc / "version").read_text(errors="replace").lower()
    except OSError:
        version = ""
    if "microsoft" in version or (dev / "dxg").exists():
        text = (
            "this driver does not tell which process holds memory, and swaps GPU memory to the host's instead of "
            "saying that there is no more"
        )
        yield Finding("WSL", Level.WARNING, text, _ADVICE)


def managed_memory(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Programs that have more than the GPU holds, by the running agent's status: only managed memory allows that."""
    reserved: dict[Any, int] = {}
    for process in status.get("processes", ()):
        reserved[process.get("gpu")] = reserved.get(process.get("gpu"), 0) + (process.get("reserved_bytes") or 0)
    for gpu in status.get("gpus", ()):
        total = gpu.get("memory_total_bytes")
        if total and reserved.get(gpu.get("index"), 0) > total:
            text = (
                f"GPU {gpu['index']}: programs have reserved {format_bytes(reserved[gpu['index']])} of "
                f"{format_bytes(total)}: it is managed memory, which the driver swaps to the host's"
            )
            yield Finding("managed memory", Level.WARNING, text, _ADVICE)
