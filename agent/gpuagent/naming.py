"""How this node, and a container on it, are called where people and messages name it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping

VARIABLE = "GPUAGENT_NODE"
_CONTAINER_ID = re.compile(r"((?:unproven/)?)([0-9a-f]{64})")
SHORT_ID = 12
"""Digits of a container's id that runtimes show."""
SIMULATED_NAME = "gpuagent-simulated"
"""Of the directories of a simulated node: what is made up is kept beside what is real."""


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """The host's name, or `$GPUAGENT_NODE`: in a pod the host's name is the pod's, and says nothing about the node."""
    return environ.get(VARIABLE, "").strip() or platform.node()


def format_container(container_id: str) -> str:
    """Shorten an id of a container to the digits that runtimes show; a name stays whole."""
    found = _CONTAINER_ID.fullmatch(container_id)
    return container_id if found is None else f"{found[1]}{found[2][:SHORT_ID]}"
