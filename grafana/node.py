"""Writes `dashboards/gpu-node.json`, the Grafana board of one or more GPU nodes: python grafana/node.py > FILE.

The board is Grafana's classic JSON, which file provisioning and the import page both take. Rules it keeps: everything
through variables, base units, a description on every panel, and no panel that looks calm when nothing is collected
(`noValue` says so).
"""
# ruff: noqa: INP001  a program, not a module of a package

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import count

import hardware
import usage
from panels import NODE, Json, variable

ROWS = (
    # title, panels, width and height of each
    ("Now", usage.now, (3, 4)),
    ("", usage.state, (24, 5)),
    ("Memory", usage.memory, (12, 10)),
    ("Processes", usage.processes, (24, 10)),
    ("Utilisation", hardware.utilization, (8, 9)),
    ("Power, temperature, clocks", hardware.physics, (12, 9)),
    ("Health", hardware.health, (12, 9)),
)


def panels() -> Iterator[Json]:
    """All panels with their places. Ids follow the order: links and `viewPanel` need them."""
    ids = count(1)
    top = 0
    for title, make, (width, height) in ROWS:
        if title:
            place = {"x": 0, "y": top, "w": 24, "h": 1}
            yield {"id": next(ids), "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
            top += 1
        left = 0
        for made in make():
            if left + width > 24:
                left, top = 0, top + height
            yield {"id": next(ids), **made, "gridPos": {"x": left, "y": top, "w": width, "h": height}}
            left += width
        top += height


def dashboard() -> Json:
    """The whole board."""
    source = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "refresh": 1}
    choices = [
        source,
        variable("job", "Job", "label_values(gpuagent_build_info, job)"),
        variable("instance", "Instance", 'label_values(gpuagent_build_info{job=~"$job"}, instance)'),
        # From the info metric, which a GPU has also while no reading of it can be had.
        variable("gpu", "GPU", f"label_values(gpuagent_gpu_info{{{NODE}}}, gpu)"),
    ]
    return {
        "id": None,
        "uid": "gpuagent-node",
        "title": "GPU node",
        "description": "GPU memory of a node: what is wrong, who holds it, and whether the figures can be trusted.",
        "tags": ["gpu", "gpuagent"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,  # one crosshair for all panels
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": choices},
        "annotations": {"list": []},
        "links": [],
        "panels": list(panels()),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=1) + "\n")
