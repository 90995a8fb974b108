"""What the doctor says of the configuration, and of the files that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.doctor.finding import Finding, Level
from gpuagent.doctor.service import configuration

RULE = "groups: [{{name: own, rules: [{{alert: Own, expr: '{expression}'}}]}}]\n"


def found(folder: Path, text: str) -> list[Finding]:
    """The findings of a file with this text."""
    path = folder / "gpuagent.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return configuration(path)[1]


def test_a_clean_one(tmp_path: Path) -> None:
    """One line, with the file's name."""
    assert found(tmp_path, "poll_interval: 2s\n") == [
        Finding("configuration", Level.OK, str(tmp_path / "gpuagent.yaml"))
    ]


def test_a_fault_of_its_own(tmp_path: Path) -> None:
    """With its line, and the defaults are examined."""
    (finding,) = found(tmp_path, "poll_intervall: 2s\n")

    assert finding.level is Level.FAILURE
    assert "gpuagent.yaml:1" in finding.text


def test_every_fault_of_the_files_that_it_names(tmp_path: Path) -> None:
    """A rule file that cannot be parsed and a missing certificate are both told: neither lets the agent start."""
    (tmp_path / "own.yml").write_text(RULE.format(expression="gpuagent_up =="))
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: none.crt, key_file: none.key}\n")

    findings = found(tmp_path, f"rule_files: [{tmp_path}/own.yml]\nweb_config_file: {tmp_path}/web.yml\n")

    assert {finding.level for finding in findings} == {Level.FAILURE}
    assert any("own.yml" in finding.text for finding in findings)
    assert any("none.crt" in finding.text for finding in findings)


def test_a_rule_that_can_never_fire(tmp_path: Path) -> None:
    """A warning: the agent starts with it."""
    (tmp_path / "own.yml").write_text(RULE.format(expression="gpuagent_no_such_metric > 1"))

    (finding,) = found(tmp_path, f"rule_files: [{tmp_path}/own.yml]\n")

    assert finding.level is Level.WARNING
    assert "gpuagent_no_such_metric" in finding.text


def test_a_ladder_that_can_never_act(tmp_path: Path) -> None:
    """A warning for each; of a simulated node no user is looked up here."""
    text = (
        "remedies:\n  allow: {users: [no-such-user]}\n"
        "  ladders: [{match: ['alertname=\"GpuMemoryHigh\"'], steps: [{terminate: {}}]}]\n"
    )

    here = found(tmp_path, text)
    simulated = configuration(tmp_path / "gpuagent.yaml", simulated=True)[1]

    assert {finding.level for finding in here} == {Level.WARNING}
    assert ["no user no-such-user" in finding.text for finding in here] == [True, False]
    assert ["without victim nobody is chosen" in finding.text for finding in simulated] == [True]


@pytest.mark.parametrize("text", ["", "{}\n"])
def test_an_empty_one(tmp_path: Path, text: str) -> None:
    """The defaults, and no fault."""
    assert [finding.level for finding in found(tmp_path, text)] == [Level.OK]
