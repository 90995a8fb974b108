"""Tell what GPU models have and lack, from `models.yaml`. A scenario names a model and gives what differs."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

import yaml

DEFAULT_MODEL = "h100"


class Feature(StrEnum):
    """What a GPU may lack: the calls behind it answer NOT_SUPPORTED."""

    ACCOUNTING = "accounting"
    BAR1 = "bar1"
    CLOCK_REASONS = "clock_reasons"
    ECC = "ecc"
    ENERGY = "energy"
    EVENTS = "events"
    FAN = "fan"
    GPM = "gpm"
    JPEG_OFA = "jpeg_ofa"
    MARGIN = "margin"
    MEMORY = "memory"
    MEMORY_TEMPERATURE = "memory_temperature"
    MIG = "mig"
    NVLINK = "nvlink"
    PCIE = "pcie"
    POWER_AVERAGE = "power_average"
    POWER_LIMITS = "power_limits"
    PROCESS_UTILIZATION = "process_utilization"
    RECOVERY_ACTION = "recovery_action"
    REMAPPED_ROWS = "remapped_rows"
    RETIRED_PAGES = "retired_pages"
    SERIAL = "serial"
    UTILIZATION = "utilization"


LOST_UNDER_MIG = frozenset(
    {
        Feature.ACCOUNTING,
        Feature.JPEG_OFA,
        Feature.PROCESS_UTILIZATION,
        Feature.REMAPPED_ROWS,
        Feature.UTILIZATION,
    }
)
"""What a GPU in MIG mode does not tell (nvml.h, and nvidia-smi of an H100 and H200 with MIG)."""


@cache
def models() -> dict[str, dict[str, Any]]:
    """Return the models by name."""
    text = resources.files(__package__).joinpath("models.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return loaded


def with_model(given: dict[str, Any]) -> dict[str, Any]:
    """Return the GPU of a scenario, completed from its model.

    Raises:
        ValueError: there is no such model.
    """
    name = given.get("model", DEFAULT_MODEL)
    if not isinstance(name, str) or name not in models():
        raise ValueError(f"unknown model {name!r}; one of {', '.join(models())}")
    return _over(models()[name], {"model": name, **given})


def _over(base: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Merge key by key; a function of time is replaced whole."""
    merged = dict(base)
    for key, value in given.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict) and "shape" not in value | below:
            merged[key] = _over(below, value)
        else:
            merged[key] = value
    return merged
