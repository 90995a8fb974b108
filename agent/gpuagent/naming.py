"""How this node is called where people and messages name it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

VARIABLE = "GPUAGENT_NODE"
SIMULATED_NAME = "gpuagent-simulated"
"""Of the directories of a simulated node: what is made up is kept beside what is real."""


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """The host's name, or `$GPUAGENT_NODE`: in a pod the host's name is the pod's, and says nothing about the node."""
    return environ.get(VARIABLE, "").strip() or platform.node()
