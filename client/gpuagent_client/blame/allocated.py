"""What the CUDA allocator says it has handed out; nothing before the app itself has CUDA up."""

from __future__ import annotations

from types import ModuleType


def allocated_bytes(torch: ModuleType) -> dict[str, int]:
    """Bytes in tensors, by device; empty without CUDA, or with an allocator that does not tell."""
    if not torch.cuda.is_initialized():
        return {}
    found = {}
    for index in range(torch.cuda.device_count()):
        try:
            stats = torch._C._cuda_memoryStats(index)  # noqa: SLF001 - memory_stats() costs ten times as much
            found[f"cuda:{index}"] = int(stats["allocated_bytes"]["all"]["current"])
        except (RuntimeError, KeyError, TypeError):
            continue
    return {device: used for device, used in found.items() if used}
