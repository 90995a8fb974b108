"""The rules that come with the agent, as files that Prometheus loads unchanged."""

from __future__ import annotations

from pathlib import Path

RULES_FILE = Path(__file__).with_name("gpuagent.rules.yaml")
TESTS_FILE = Path(__file__).with_name("gpuagent.rules.test.yaml")
"""Unit tests of the rules, in promtool's format."""
