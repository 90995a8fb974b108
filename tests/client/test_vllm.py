"""The entry point that vLLM loads in its engine processes."""

from __future__ import annotations

import importlib
import tomllib

import pytest

from tests.client.conftest import ROOT, Apps
from tests.fakes.agent_socket import FakeAgent


def test_the_entry_point_names_a_function() -> None:
    """What the metadata says can be imported and called, which is all that vLLM does with it."""
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["gpuagent"].partition(":")

    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize(("variable", "app"), [("", "vllm"), ("llama-70b", "llama-70b")])
def test_an_engine_appears_by_its_name(apps: Apps, agent: FakeAgent, variable: str, app: str) -> None:
    """As vllm, unless the environment says which; and it may be loaded twice."""
    source = "import gpuagent_client.vllm as v; v.start(); v.start(); input()\n"
    apps.code(source, **({"GPUAGENT_APP": variable} if variable else {}))
    (client,) = agent.wait_for_client()

    assert client.hello["app"] == app
