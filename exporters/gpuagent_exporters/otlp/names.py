"""Which series has a name in OpenTelemetry's semantic conventions; every other keeps its name on `/metrics`.

https://opentelemetry.io/docs/specs/semconv/hardware/gpu/ and the hardware metrics that all kinds of devices share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpuagent.core.metrics.family import Family, MetricType

Attributes = Mapping[str, str]


class Kind(Enum):
    """Kind of an OTLP metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    UP_DOWN_COUNTER = "up-down counter"
    """A sum that may fall: amounts that add up over GPUs."""


@dataclass(frozen=True, slots=True)
class Name:
    """Name, unit (UCUM) and kind of a metric, and the attributes that every point of it has."""

    name: str
    unit: str
    kind: Kind
    attributes: Attributes = field(default_factory=dict)
    only: Attributes = field(default_factory=dict)
    """Labels that a series must have to be among them; others keep their own name."""
    renamed: Attributes = field(default_factory=dict)
    """Labels that have another name in the conventions."""
    of_hardware: bool = False
    """Whether the points have the attributes of a device instead of the labels `gpu` and `uuid`."""


def _hardware(name: str, unit: str, kind: Kind, attributes: Attributes | None = None) -> Name:
    return Name(name, unit, kind, attributes or {}, of_hardware=True)


CONVENTIONAL: Mapping[str, Name] = {
    "gpuagent_gpu_memory_total_bytes": _hardware("hw.gpu.memory.limit", "By", Kind.UP_DOWN_COUNTER),
    "gpuagent_gpu_memory_used_bytes": _hardware("hw.gpu.memory.usage", "By", Kind.UP_DOWN_COUNTER),
    "gpuagent_gpu_memory_used_ratio": _hardware("hw.gpu.memory.utilization", "1", Kind.GAUGE),
    "gpuagent_gpu_utilization_ratio": _hardware("hw.gpu.utilization", "1", Kind.GAUGE, {"hw.gpu.task": "general"}),
    "gpuagent_gpu_encoder_utilization_ratio": _hardware(
        "hw.gpu.utilization", "1", Kind.GAUGE, {"hw.gpu.task": "encoder"}
    ),
    "gpuagent_gpu_decoder_utilization_ratio": _hardware(
        "hw.gpu.utilization", "1", Kind.GAUGE, {"hw.gpu.task": "decoder"}
    ),
    "gpuagent_gpu_pcie_transmit_bytes_total": _hardware(
        "hw.gpu.io", "By", Kind.COUNTER, {"network.io.direction": "transmit"}
    ),
    "gpuagent_gpu_pcie_receive_bytes_total": _hardware(
        "hw.gpu.io", "By", Kind.COUNTER, {"network.io.direction": "receive"}
    ),
    "gpuagent_gpu_power_watts": _hardware("hw.power", "W", Kind.GAUGE),
    "gpuagent_gpu_energy_joules_total": _hardware("hw.energy", "J", Kind.COUNTER),
    "gpuagent_gpu_temperature_celsius": _hardware("hw.temperature", "Cel", Kind.GAUGE),
    "gpuagent_gpu_ecc_errors_total": Name(
        "hw.errors",
        "{error}",
        Kind.COUNTER,
        only={"period": "volatile"},
        renamed={"error": "error.type"},
        of_hardware=True,
    ),
}
_UNITS = {
    "": "",
    "bytes": "By",
    "bytes/s": "By/s",
    "ratio": "1",
    "celsius": "Cel",
    "watts": "W",
    "joules": "J",
    "hertz": "Hz",
    "seconds": "s",
}


def own_name(family: Family[object]) -> Name:
    """Return a family's name as it is on `/metrics`."""
    kind = Kind.COUNTER if family.kind is MetricType.COUNTER else Kind.GAUGE
    return Name(family.name, _UNITS[family.unit], kind)


def name_of(family: Family[object], labels: Mapping[str, str]) -> Name:
    """Return the conventional name of a series with these labels, or else its own."""
    name = CONVENTIONAL.get(family.name)
    if name is None or any(labels.get(label) != value for label, value in name.only.items()):
        return own_name(family)
    return name


def attributes_of(name: Name, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a point: those of the name, and the labels of the series."""
    found = dict(name.attributes)
    if name.of_hardware:
        found |= {"hw.id": labels.get("uuid", ""), "hw.type": "gpu", "hw.name": f"GPU {labels.get('gpu', '')}"}
    left_out = {"uuid", "gpu", *name.only} if name.of_hardware else set()
    found |= {name.renamed.get(label, label): value for label, value in labels.items() if label not in left_out}
    return found
