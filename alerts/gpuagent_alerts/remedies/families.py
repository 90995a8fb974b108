"""What each metric family may be to a rule that disrupts a process: a finding, a label to join, or no reason at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuagent.catalogue import FAMILIES
from gpuagent.catalogue.alerting import ALERTING_FAMILIES
from gpuagent.catalogue.clients import CLIENT_FAMILIES
from gpuagent.catalogue.family import Family
from gpuagent.catalogue.frameworks import FRAMEWORK_FAMILIES
from gpuagent.catalogue.growth import GPU_GROWTH_FAMILIES, GROWTH_FAMILIES, MIG_GROWTH_FAMILIES
from gpuagent.catalogue.process import PROCESS_FAMILIES
from gpuagent.catalogue.remedies import REMEDY_FAMILIES
from gpuagent.catalogue.sources import SOURCE_FAMILIES
from gpuagent.catalogue.torch import TORCH_FAMILIES


def _names(*groups: Sequence[Family[Any]]) -> frozenset[str]:
    return frozenset(family.name for families in groups for family in families)


OWNER_LABELS = frozenset({"user", "uid", "unit", "container_id", "slurm_job"})
"""Labels of process series that say whose a process is, as far as that is known."""
NODE = frozenset({"job", "instance"})
"""Labels that Prometheus adds."""
PLACE = frozenset({"gpu", "uuid", "gpu_instance_id", "compute_instance_id"})
"""Labels that say on which GPU, or part of one, something is."""
LABELS = {family.name: frozenset(family.labels) for family in FAMILIES}
"""Labels of every family that the agent has."""
INFO = "gpuagent_process_info"
EVIDENCE = "gpuagent_process_memory_leak_evidence"
"""Has a series only while a process leaks: that there is one is a finding of its own."""
BUDGETS = frozenset(family.name for family in REMEDY_FAMILIES if "budget" in family.labels)
TOLD = _names(CLIENT_FAMILIES, SOURCE_FAMILIES, TORCH_FAMILIES, FRAMEWORK_FAMILIES)
"""Families whose values come from what apps and model servers say of themselves."""
RECORDS = _names(ALERTING_FAMILIES, REMEDY_FAMILIES) - BUDGETS
"""Families that tell what the agent itself concluded or did: other rules' expressions stand behind them."""
PROCESSES = _names(PROCESS_FAMILIES, GROWTH_FAMILIES)
"""Families of processes."""
GROWTH = _names(GROWTH_FAMILIES, GPU_GROWTH_FAMILIES, MIG_GROWTH_FAMILIES)
"""Families of the leak detector: who acts on them acts on a leak."""
UTILIZATION = frozenset(family.name for family in PROCESS_FAMILIES if family.collector == "process_utilization")
"""Families that tell how busy a process is, each in one engine."""
FORECASTS = frozenset(name for name in GROWTH if name.endswith("exhaustion_seconds"))
"""Families that tell what would be if growth went on: whatever loads a model looks the same until it stops."""
UNIX_TIMES = frozenset(
    name for name in LABELS if name.endswith(("_timestamp_seconds", "_start_time_seconds", "_since_seconds"))
)
"""Families whose values are moments of the wall clock."""
FLAGS = frozenset(family.name for family in FAMILIES if family.help.startswith("1 "))
"""Families whose value is 1 where something is so; most are 0 where it is not."""
PROCESS_LABELS = frozenset[str]().union(*(LABELS[name] for name in PROCESSES)) - {"pid"} - PLACE - NODE
"""Labels of process series that say more than which process it is, and on which GPU."""
WITHHOLDING = frozenset({"gpuagent_gpu_memory_preallocated", "gpuagent_gpu_memory_fast_growth_expected"})
"""Families of GPUs that depend on the names of processes: they may keep an alert from firing, never cause one."""
NARROWER = frozenset(name for name, labels in LABELS.items() if "gpu_instance_id" in labels) - PROCESSES
"""Families of parts of a GPU."""
CAN_BE_MISSING = (
    UTILIZATION
    | {"gpuagent_process_resident_memory_bytes", "gpuagent_process_start_time_seconds"}
    | _names(GROWTH_FAMILIES)
)
"""Families without a sample for some processes that are alive."""
_GPU_MEMORY = frozenset(
    f"gpuagent_gpu_memory_{name}" for name in ("total_bytes", "used_bytes", "free_bytes", "used_ratio")
)
ALWAYS_THERE = _GPU_MEMORY | WITHHOLDING
"""Families of GPUs that have a sample wherever the GPU can be read at all."""
MEMORY = (_GPU_MEMORY - {"gpuagent_gpu_memory_total_bytes"}) | {
    "gpuagent_mig_memory_used_bytes",
    "gpuagent_mig_memory_free_bytes",
    "gpuagent_budget_used_bytes",
    "gpuagent_gpu_memory_growth_bytes_per_second",
    "gpuagent_gpu_memory_leak_suspected",
}
"""Families of GPUs that tell how much memory is in use which ending a process could give back. What a GPU, an instance
or a budget has at most is none: it is the same whoever holds it."""
VERDICT = "gpuagent_process_memory_verdict"
"""Is always 1: what is so of the process stands in its label `verdict`."""
TELLING = MEMORY | (PROCESSES - UNIX_TIMES - {INFO, VERDICT})
"""Families whose values, compared with something, are a finding about a process or the memory of a GPU."""
