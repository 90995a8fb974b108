"""Lints and renders charts with Helm's own library: a list of cases in, one of answers out, both JSON.

A program of its own, because the library is Go's runtime, which a process that forks is better off without.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python


def render(case: dict[str, Any]) -> dict[str, Any]:
    """Return what `helm lint` and `helm template` say of a chart with these values, or why they refuse."""
    values, release = case.get("values", {}), case.get("release", "gpuagent")
    try:
        linted = helm_python.lint(case["chart"], values, strict=True)
        with helm_python.Chart.load(case["chart"]) as chart:
            rendered = chart.render(values, name=release, namespace=case.get("namespace", "gpuagent"))
    except helm_python.HelmError as error:
        return {"refused": str(error)}
    return {"lint": linted["messages"], "rendered": rendered}


if __name__ == "__main__":
    json.dump([render(case) for case in json.load(sys.stdin)], sys.stdout)
