"""Entries of the never-list that can never match, and programs that are given more than their ladder's scope judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.config.faults import ConfigError
from gpuagent.config.models import Config
from tests.agent.config.loading import load, write

LADDER = """
remedies:
  ladders:
    - match: ['alertname="Full"']
      scope: {scope}
      steps: [{{exec: {{command: [/usr/bin/docker, restart, "{argument}"]}}}}]
"""


def config(folder: Path, text: str) -> Config:
    """From a file."""
    return load(write(folder, text))


@pytest.mark.parametrize("entry", ['""', '"  "', '"a\\0b"', "/opt/app/"])
def test_an_entry_that_protects_nobody(tmp_path: Path, entry: str) -> None:
    """KILL-01: whoever writes it believes that something is spared: it is a fault."""
    with pytest.raises(ConfigError, match="never"):
        config(tmp_path, f"remedies: {{never: [{entry}]}}")


@pytest.mark.parametrize("entry", ["protected_inference_server", "/opt/app/*", "important.py", "b?n"])
def test_an_entry_that_may_match(tmp_path: Path, entry: str) -> None:
    """Names of any length, paths, scripts and patterns are taken."""
    assert config(tmp_path, f"remedies: {{never: ['{entry}']}}").remedies.never == (entry,)


SCOPES = {"process": "{pid}", "container": "{container_id}", "job": "{slurm_job}"}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("argument", SCOPES.values())
def test_a_program_that_is_given_a_whole_group(tmp_path: Path, scope: str, argument: str) -> None:
    """KILL-03: the scope has to be what its id names: else nobody judges who else holds memory in there."""
    text = LADDER.format(scope=scope, argument=argument)
    if argument in {"{pid}", SCOPES[scope]}:
        assert config(tmp_path, text).remedies.ladders[0].scope == scope
        return
    with pytest.raises(ConfigError, match="hands over the whole"):
        config(tmp_path, text)
