"""Names of what is pushed: those of the semantic conventions where they exist, gpuagent's own elsewhere."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from opentelemetry.semconv._incubating.attributes import error_attributes, hw_attributes, network_attributes
from opentelemetry.semconv._incubating.metrics import hw_metrics

from gpuagent.core.metrics import FAMILIES
from gpuagent.core.metrics.family import Sample
from gpuagent_exporters.otlp.batch import metrics_of
from gpuagent_exporters.otlp.names import CONVENTIONAL, Kind, attributes_of, name_of

BY_NAME = {family.name: family for family in FAMILIES}
ATTRIBUTES = {
    value
    for module in (hw_attributes, network_attributes, error_attributes)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}
CREATED_AS = {Kind.COUNTER: ".create_counter(", Kind.UP_DOWN_COUNTER: ".create_up_down_counter(", Kind.GAUGE: "gauge"}


def test_conventional_names_are_in_the_conventions() -> None:
    """Name, unit, kind and attributes are those of OpenTelemetry's own package; each series of them exists here."""
    source = inspect.getsource(hw_metrics)
    known = {value for name, value in vars(hw_metrics).items() if name.startswith("HW_")}

    for series, name in CONVENTIONAL.items():
        assert series in BY_NAME
        assert name.name in known
        definition = source.partition(f"def create_{name.name.replace('.', '_')}(")[2].partition("\n\n\n")[0]
        assert f'unit="{name.unit}"' in definition, name
        assert CREATED_AS[name.kind] in definition, name
        assert {*name.attributes, *name.renamed.values()} <= ATTRIBUTES


def test_the_table_of_the_page_is_this() -> None:
    """Each name in the conventions is documented, with its unit and kind."""
    page = (Path(__file__).parents[3] / "docs" / "otlp.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`.* \| `([\w.]+)`.* \| (\S+) \| ([\w -]+) \|$", page, re.MULTILINE)

    assert rows == [(series, name.name, name.unit, name.kind.value) for series, name in CONVENTIONAL.items()]


def test_a_gpu_is_a_piece_of_hardware() -> None:
    """A series of the conventions has the attributes of a device, and only the labels that are left."""
    labels = {"gpu": "0", "uuid": "GPU-1", "error": "corrected", "period": "volatile"}
    errors = BY_NAME["gpuagent_gpu_ecc_errors_total"]
    name = name_of(errors, labels)

    assert (name.name, attributes_of(name, labels)) == (
        "hw.errors",
        {"hw.id": "GPU-1", "hw.type": "gpu", "hw.name": "GPU 0", "error.type": "corrected"},
    )
    lifetime = {**labels, "period": "aggregate"}
    own = name_of(errors, lifetime)
    assert (own.name, own.kind, attributes_of(own, lifetime)) == (errors.name, Kind.COUNTER, lifetime)


def test_families_of_one_name_are_one_metric() -> None:
    """The utilization of encoder and decoder is one metric with a task; a label without a value is left out."""
    labels = ("0", "GPU-1")
    names = ("gpuagent_gpu_encoder_utilization_ratio", "gpuagent_gpu_decoder_utilization_ratio")
    (metric,) = metrics_of((BY_NAME[name], [Sample(labels, 0.5)]) for name in names)
    assert [point.attributes["hw.gpu.task"] for point in metric.points] == ["encoder", "decoder"]

    info = BY_NAME["gpuagent_gpu_info"]
    sample = Sample(tuple("1" if label == "gpu" else None for label in info.labels), 1.0)
    (own,) = metrics_of([(info, [sample])])
    assert (own.name.name, own.points[0].attributes) == ("gpuagent_gpu_info", {"gpu": "1"})


def test_every_family_has_a_unit() -> None:
    """No unit of a family is unknown to the push."""
    assert all(name_of(family, {}).name for family in FAMILIES)
