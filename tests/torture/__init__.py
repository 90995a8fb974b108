"""How often the long tests repeat themselves: `make torture` sets GPUAGENT_TORTURE=1 and gets the full counts."""

from __future__ import annotations

import os

FULL = os.environ.get("GPUAGENT_TORTURE", "") not in {"", "0"}


def times(usual: int, full: int) -> int:
    """`full` under torture, `usual` otherwise."""
    return full if FULL else usual
