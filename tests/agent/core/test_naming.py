"""How a node is called."""

from __future__ import annotations

import platform

import pytest

from gpuagent.core.identity import node_name


@pytest.mark.parametrize("environ", [{}, {"GPUAGENT_NODE": ""}, {"GPUAGENT_NODE": "  "}])
def test_a_node_is_called_as_its_host(environ: dict[str, str]) -> None:
    """Without a word from outside, an alert names the host."""
    assert node_name(environ) == platform.node()


def test_a_pod_names_its_node() -> None:
    """An alert from a pod names the node that it runs on, not the pod."""
    assert node_name({"GPUAGENT_NODE": "gpu-7 "}) == "gpu-7"
