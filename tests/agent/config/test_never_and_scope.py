"""Entries of the never-list that can never match, and programs that are given more than their ladder's scope judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.config.load import ConfigError
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


@pytest.mark.parametrize("entry", ['""', '"  "', '"a\\0b"', "/", "//"])
def test_an_entry_that_protects_nobody(tmp_path: Path, entry: str) -> None:
    """KILL-01: whoever writes it believes that something is spared: it is a fault."""
    with pytest.raises(ConfigError, match="never"):
        config(tmp_path, f"remedies: {{never: [{entry}]}}")


@pytest.mark.parametrize(
    ("entry", "instead"),
    [
        ("prodserver ", "write prodserver \\(allowed"),
        (" prodserver", "write prodserver \\(allowed"),
        ("prodserver 1000000", r"write prodserver, or prodserver\*1000000 if the name has a blank"),
        ("python /opt/serve.py", "write python, or"),
        ("prod.*", r"write prod\* \(allowed"),
        ("^prod.+$", r"write prod\* \(allowed"),
        (r"serve\.py", r"write serve\.py \(allowed"),
        ("prod[0-9]+", r"write one entry for each name, with \* for any rest"),
        ("prod|serve", "write one entry for each name"),
        ("/opt/prod/.*", r"write /opt/prod/\* \(allowed"),
        ("~/serve", "write it from / on"),
        ("./serve", "write it from / on"),
        ('"prodserver"', r"write prodserver \(allowed"),
        ("prodserver,trainer", "write one entry for each"),
        ("/opt/{prod,test}/serve", "write one entry for each"),
        ("user:alice", r"spared by leaving them out of remedies\.allow"),
        ("UID=1000", r"spared by leaving them out of remedies\.allow"),
        ("container: web", r"spared by leaving them out of remedies\.allow"),
        ("comm:prodserver", "begins with comm:, which no name has: write prodserver \\(allowed"),
        ("unit:prod.service", r"write prod\.service \(allowed"),
    ],
)
def test_an_entry_that_is_no_name(tmp_path: Path, entry: str, instead: str) -> None:
    """KILL-01: blanks, regular expressions, command lines and prefixes spare nobody: a fault says what to write."""
    with pytest.raises(ConfigError, match=instead):
        config(tmp_path, f"remedies: {{never: ['{entry}']}}")


@pytest.mark.parametrize(
    "entry",
    [
        "protected_inference_server", "/opt/app/*", "/opt/app/", "important.py", "b?n", "g++", "VLLM::Worker*",
        "prod.wsgi:app",
        "prod[0-9]", "/opt/app/1.*/serve", "/opt/My App/serve", "(sd-pam)", "a-b_c.d@1",
    ],
)  # fmt: skip
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


MATCH = """
remedies:
  ladders:
    - match: ['alertname="Full"', '{matcher}']
      steps: [{{notify: {{}}}}, {{{step}: {{}}}}]
"""


@pytest.mark.parametrize(
    ("matcher", "fault"),
    [
        ('process!="vllm"', "everybody but some of a process"),
        ('process!~"vllm|prod.*"', "everybody but some of a process"),
        ('process=~"[^v].*"', "everybody but some of a process"),
        ('command!~".*prod.*"', "everybody but some of a command"),
        ('pid="4242"', "by pid"),
        ('parent_pid="1"', "by parent_pid"),
    ],
)
def test_a_ladder_names_whom_it_means(tmp_path: Path, matcher: str, fault: str) -> None:
    """KILL-01: what processes write of themselves, or is given again, chooses nobody, in a ladder as in a rule."""
    with pytest.raises(ConfigError, match=fault):
        config(tmp_path, MATCH.format(matcher=matcher, step="terminate"))
    assert config(tmp_path, MATCH.format(matcher=matcher, step="release_cache")).remedies.ladders


@pytest.mark.parametrize(
    "matcher", ['unit!=""', 'unit=""', 'user!="root"', 'process="whisper"', 'uuid!="GPU-1"', 'process!="[dead]"']
)
def test_whom_a_ladder_may_mean(tmp_path: Path, matcher: str) -> None:
    """KILL-01: by a name, by what the kernel says, and by having a unit at all."""
    assert config(tmp_path, MATCH.format(matcher=matcher, step="kill")).remedies.ladders
