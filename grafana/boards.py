"""Writes the Grafana boards: python grafana/boards.py [FOLDER], by default to `dashboards` beside this file.

Classic JSON, which file provisioning and the import page both take. Rules that all boards keep: everything through
variables, base units, a description on every panel, and no panel that looks calm when nothing is collected.
"""
# ruff: noqa: INP001  a program, not a module of a package

from __future__ import annotations

import json
import sys
from pathlib import Path

from agents import agent
from details import details
from efficiency import efficiency
from fleet import fleet
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from node import node
from process import process

BOARDS = {
    "gpu-fleet": fleet,
    "gpu-node": node,
    "gpu-efficiency": efficiency,
    "gpu-process": process,
    "gpu-details": details,
    "gpu-agent": agent,
}


def main(folder: Path) -> None:
    """Write all of them; the same bytes at every run."""
    for name, make in BOARDS.items():
        text = json.dumps(make(), cls=JSONEncoder, indent=1)
        (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "dashboards")
