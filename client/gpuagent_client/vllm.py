"""The entry point in vLLM's group of general plugins: its engine processes load it, which the server never sees.

vLLM calls it in every process that it starts: https://docs.vllm.ai/en/latest/design/plugin_system.html. Where the
client is installed, it starts; GPUAGENT_DISABLE=1 or VLLM_PLUGINS keep it out.
"""

from __future__ import annotations

import os

from gpuagent_client import lifecycle


def start() -> None:
    """Start the client, under the name that the environment gives or `vllm`."""
    lifecycle.start(app=os.environ.get("GPUAGENT_APP") or "vllm")
