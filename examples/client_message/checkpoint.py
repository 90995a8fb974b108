"""Report each checkpoint that a training writes: an event, which the agent shows without knowing what it is about."""

from __future__ import annotations

import sys

import gpuagent_client

gpuagent_client.start(app="trainer")
for step in (100, 200):
    gpuagent_client.report(f"checkpoint {step}")
print("reported", flush=True)
sys.stdin.read()
gpuagent_client.stop()
