"""Metric families that excuse the processes of a GPU: nobody's memory, readings that fail, and defects.

A rule that is true because more memory has no living owner, because less can be read, or because of a defect that
stays, is no reason to end a process: its end gives none of that memory back, and mends no reading and no GPU. Each
family has plausible values from the worst to the best, as a rule may ask for a GPU without them
(`... and gpuagent_gpu_memory_dead_processes_bytes == 0`).
"""

from __future__ import annotations

from collections.abc import Mapping

_Values = tuple[float | None, ...]
_BYTES: _Values = (2.0**40, 2.0**38, 2.0**36, 2.0**34, 2.0**33, 2.0**32, 2.0**30, 2.0**28, 2.0**20, 0.0)
_SECONDS: _Values = (86400.0, 3600.0, 600.0, 120.0, 60.0, 30.0, 10.0, 5.0, 1.0, 0.1, 0.0)

NOBODYS: Mapping[str, _Values] = {
    "gpuagent_gpu_memory_dead_processes_bytes": _BYTES,
    "gpuagent_gpu_memory_unattributed_bytes": _BYTES,
    "gpuagent_gpu_memory_host_bytes": _BYTES,
    "gpuagent_dead_processes": (100.0, 10.0, 3.0, 2.0, 1.0, 0.0),
    "gpuagent_dead_process_memory_used_bytes": (*_BYTES[:-1], None),
    "gpuagent_gpu_memory_processes_bytes": tuple(reversed(_BYTES)),
}
"""Memory that no living process holds; what living ones hold is its complement."""
UNREAD: Mapping[str, _Values] = {
    "gpuagent_gpu_reading_age_seconds": _SECONDS,
    "gpuagent_collector_duration_seconds": _SECONDS,
    "gpuagent_collector_success": (0.0, 1.0),
    "gpuagent_gpu_blind": (1.0, 0.0),
    "gpuagent_gpu_lost": (1.0, 0.0),
    "gpuagent_gpu_processes_trusted": (0.0, 1.0),
    "gpuagent_gpu_figures_trusted": (0.0, 1.0),
}
"""How well a GPU can be read."""
_FLAG: _Values = (1.0, 0.0)
_ROWS: _Values = (512.0, 64.0, 8.0, 2.0, 1.0, 0.0)
LASTING: Mapping[str, _Values] = {
    "gpuagent_gpu_ecc_sram_threshold_exceeded": _FLAG,
    "gpuagent_gpu_remapped_rows": _ROWS,
    "gpuagent_gpu_row_remap_pending": _FLAG,
    "gpuagent_gpu_row_remap_failed": _FLAG,
    "gpuagent_gpu_retired_pages": _ROWS,
    "gpuagent_gpu_retired_pages_pending": _FLAG,
    "gpuagent_gpu_recovery_action": (7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0),
    "gpuagent_gpu_recovery_action_advised": (1.0, None),
    "gpuagent_gpu_nvlink_links": (0.0, 1.0, 2.0, 4.0, 6.0, 12.0, 18.0),
    "gpuagent_gpu_nvlink_active": (0.0, 1.0),
    "gpuagent_gpu_nvlink_speed_bytes_per_second": (0.0, 25e9, 100e9, 300e9, 450e9, 900e9),
    "gpuagent_gpu_c2c_active": (0.0, 1.0),
    "gpuagent_gpu_c2c_speed_bytes_per_second": (0.0, 100e9, 400e9, 450e9),
}
"""Defects of a GPU. They stay until it is reset, repaired or replaced, whoever came to it since, like a count."""
