"""Templates print what Prometheus prints, to the last digit."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent_alerts.rules.template import parse_template
from tests.alerts.rules import promtool

TEMPLATES = (
    "{{ $value }}",
    "{{ humanize $value }}",
    "{{ $value | humanize1024 }}",
    "{{ $value | humanizePercentage }}",
    "{{ humanizeDuration $value }}",
    '{{ printf "%.1f" $value }}',
    '{{ printf "%.0f|%.3e|%.5g|%g|%v|%f|%e|%%" $value $value $value $value $value $value $value }}',
    '{{ $value | printf "%s: %.2f" $labels.i }}',
    "a {{- $labels.i }} b\n {{- /* c */ -}} d {{ `}}` }} {{ $labels.none }}.",
)
EDGES = (
    0.0, -0.0, 1.0, -1.0, 999.95, 999.9499, 1000.0, 1023.95, 1024.0, 1e6, 123456.0, 999999.5, 1e21, 1e-4, 1e-5,
    math.inf, -math.inf, math.nan, 59.99996, 60.0, 3599.99, 86400.0, -90000.7, 1e19, 9.3e18, 1e300, 5e-324, 0.1 + 0.2,
)  # fmt: skip


@pytest.mark.needs("promtool")
def test_every_number_prints_as_in_prometheus(tmp_path: Path) -> None:
    """Edges and 200 random numbers through every function and verb."""
    rnd = random.Random(1)
    values = [*EDGES, *(_number(rnd) for _ in range(200))]
    annotations = {f"t{number}": text for number, text in enumerate(TEMPLATES)}
    rules = {"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "m", "annotations": annotations}]}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [
            {"series": f'm{{i="{number:04}"}}', "values": _notation(value)} for number, value in enumerate(values)
        ],
        "alert_rule_test": [
            {
                "eval_time": "0s",
                "alertname": "A",
                "exp_alerts": [
                    {
                        "exp_labels": {"i": f"{number:04}"},
                        "exp_annotations": {
                            name: parse_template(text).fill({"i": f"{number:04}"}, value)
                            for name, text in annotations.items()
                        },
                    }
                    for number, value in enumerate(values)
                ],
            }
        ],
    }
    tests = tmp_path / "tests.yaml"
    tests.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}))
    assert promtool.run_unit_tests([tests]) == {tests: ""}


def _number(rnd: random.Random) -> float:
    choices = (rnd.uniform(-2, 2), rnd.uniform(-2000, 2000), 10 ** rnd.uniform(-25, 25), float(rnd.randint(0, 10**9)))
    return rnd.choice(choices)


def _notation(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return f"{'-' if value < 0 else ''}Inf" if math.isinf(value) else repr(value)
