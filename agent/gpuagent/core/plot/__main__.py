"""Draws the evidence of a leak: JSON from standard input, PNG to standard output."""

from __future__ import annotations

import json
import sys

from gpuagent.core.plot.evidence import plot_of_evidence
from gpuagent.core.plot.memory_plot import draw
from gpuagent.core.plot.png import to_png

if __name__ == "__main__":
    sys.stdout.buffer.write(to_png(draw([plot_of_evidence(json.load(sys.stdin))])))
