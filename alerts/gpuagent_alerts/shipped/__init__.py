"""The rules that come with the agent, as files that Prometheus loads unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Final

RULES_FILE = Path(__file__).with_name("gpuagent.rules.yaml")
TESTS_FILE = Path(__file__).with_name("gpuagent.rules.test.yaml")
"""Unit tests of the rules, in promtool's format."""
RUNBOOKS_URL: Final = "https://github.com/gpuagent/gpuagent/blob/main/docs/runbooks/"
"""What the annotation `runbook_url` of each shipped rule begins with; the alert's name and `.md` follow."""
RUNBOOK_ANNOTATION: Final = "runbook_url"
