"""The catalogue: every metric there is.

It is the single source of names, help, units and labels for `/metrics`, for rules and for the documentation.

`family` says what a metric is; `gpu`, `mig`, `process` and `node` declare them beside the code that fills them;
`series` turns a snapshot into samples; `reference` writes the documentation.
"""

from __future__ import annotations

from typing import Any

from gpuagent.catalogue.alerting import ALERTING_FAMILIES
from gpuagent.catalogue.clients import CLIENT_FAMILIES
from gpuagent.catalogue.family import Family
from gpuagent.catalogue.frameworks import FRAMEWORK_FAMILIES
from gpuagent.catalogue.gpu import GPU_FAMILIES
from gpuagent.catalogue.growth import GPU_GROWTH_FAMILIES, GROWTH_FAMILIES, MIG_GROWTH_FAMILIES, WATCHING_FAMILIES
from gpuagent.catalogue.mig import MIG_FAMILIES
from gpuagent.catalogue.node import NODE_FAMILIES
from gpuagent.catalogue.process import PROCESS_FAMILIES
from gpuagent.catalogue.remedies import REMEDY_FAMILIES
from gpuagent.catalogue.sources import SOURCE_FAMILIES
from gpuagent.catalogue.torch import TORCH_FAMILIES

FAMILIES: tuple[Family[Any], ...] = (
    *NODE_FAMILIES,
    *GPU_FAMILIES,
    *MIG_FAMILIES,
    *PROCESS_FAMILIES,
    *FRAMEWORK_FAMILIES,
    *GPU_GROWTH_FAMILIES,
    *MIG_GROWTH_FAMILIES,
    *GROWTH_FAMILIES,
    *WATCHING_FAMILIES,
    *ALERTING_FAMILIES,
    *CLIENT_FAMILIES,
    *SOURCE_FAMILIES,
    *TORCH_FAMILIES,
    *REMEDY_FAMILIES,
)
