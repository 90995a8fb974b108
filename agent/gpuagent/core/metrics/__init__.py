"""Every metric there is.

This is the single source of names, help, units and labels for `/metrics`, for rules and for the documentation.

`family` says what a metric is; the others declare them beside the code that fills them; `series` turns a snapshot into
samples; `reference` writes the documentation.
"""

from __future__ import annotations

from typing import Any

from gpuagent.core.metrics.alerting import ALERTING_FAMILIES
from gpuagent.core.metrics.clients import CLIENT_FAMILIES, SOURCE_FAMILIES, TORCH_FAMILIES
from gpuagent.core.metrics.family import Family
from gpuagent.core.metrics.gpu import GPU_FAMILIES, MIG_FAMILIES
from gpuagent.core.metrics.growth import DETECTOR_FAMILIES, GPU_GROWTH_FAMILIES, GROWTH_FAMILIES, MIG_GROWTH_FAMILIES
from gpuagent.core.metrics.host import HOST_FAMILIES
from gpuagent.core.metrics.node import NODE_FAMILIES
from gpuagent.core.metrics.process import FRAMEWORK_FAMILIES, PROCESS_FAMILIES
from gpuagent.core.metrics.remedies import REMEDY_FAMILIES
from gpuagent.core.metrics.usage import USAGE_FAMILIES

FAMILIES: tuple[Family[Any], ...] = (
    *NODE_FAMILIES,
    *HOST_FAMILIES,
    *GPU_FAMILIES,
    *MIG_FAMILIES,
    *PROCESS_FAMILIES,
    *FRAMEWORK_FAMILIES,
    *GPU_GROWTH_FAMILIES,
    *MIG_GROWTH_FAMILIES,
    *GROWTH_FAMILIES,
    *DETECTOR_FAMILIES,
    *ALERTING_FAMILIES,
    *CLIENT_FAMILIES,
    *SOURCE_FAMILIES,
    *TORCH_FAMILIES,
    *REMEDY_FAMILIES,
    *USAGE_FAMILIES,
)
