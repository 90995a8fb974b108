"""`gpuagent config check` and `show`, as a shell sees them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml
from typer.testing import CliRunner

from gpuagent.cli.config import config_app
from tests.agent.config.loading import COMPLETE, write

RUNNER = CliRunner()


def test_check_a_good_file() -> None:
    """A file without faults is ok, in one line on standard output; what this machine lacks of it are notes."""
    result = RUNNER.invoke(config_app, ["check", str(COMPLETE)])
    assert (result.exit_code, result.stdout) == (0, f"{COMPLETE}: ok\n")
    told = [note.removeprefix(f"note: {COMPLETE}:").partition(": ")[2] for note in result.stderr.splitlines()]
    missing = ("receivers[0].slack.url_file: ", "receivers[1].webhook.secret_file: ", "budgets[0].match.unit: ")
    assert all(note.startswith(missing) for note in told)
    assert {place for place in missing if any(note.startswith(place) for note in told)} >= set(missing[:2])


def test_check_a_bad_file(tmp_path: Path) -> None:
    """Every fault is a line on standard error, nothing is on standard output, the status is 1."""
    file = write(tmp_path, "poll_intervall: 1s\nlisten: nowhere\n")
    for arguments in (["check", str(file)], ["check", "--config", str(file)], ["show", "-c", str(file)]):
        result = RUNNER.invoke(config_app, arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        first, second = result.stderr.splitlines()
        assert first.startswith(f"{file}:1: poll_intervall: unknown key; did you mean poll_interval?")
        assert second.startswith(f"{file}:2: listen: has no port")


def test_check_the_files_that_it_names(tmp_path: Path) -> None:
    """What the agent would not start with is told here, all of it: rules, TLS, who may write what names a victim."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("groups: [{name: g, rules: [{alert: A, expr: 1 +}]}]\n")
    rules.chmod(0o646)
    file = write(
        tmp_path,
        "rule_files: [rules.yaml]\nweb_config_file: web.yaml\nremedies:\n  dry_run: false\n  allow: {users: [ada]}\n"
        "  ladders: [{match: ['alertname=\"A\"'], steps: [{terminate: {}}]}]\n",
    )
    result = RUNNER.invoke(config_app, ["check", str(file)])

    assert (result.exit_code, result.stdout) == (1, "")
    told = result.stderr.splitlines()
    assert len(told) == 3
    assert told[0].startswith(f'{rules}:1: group "g", rule "A": expr:')
    assert told[1].startswith(f"{rules} is writable by everybody")
    assert told[2] == f"{tmp_path}/web.yaml: cannot be read: No such file or directory"


def test_check_notes_rules_that_can_never_fire(tmp_path: Path) -> None:
    """ALERT-06: a metric that the agent does not have is a note with the rule and its line, no fault."""
    (tmp_path / "rules.yaml").write_text(
        "groups:\n- name: g\n  rules:\n  - {alert: Typo, expr: gpuagent_gpu_memory_used_byte > 1}\n"
        "  - {alert: Percent, expr: gpuagent_gpu_memory_used_ratio > 90}\n"
    )
    file = write(tmp_path, "rule_files: [rules.yaml]\n")
    result = RUNNER.invoke(config_app, ["check", str(file)])

    assert (result.exit_code, result.stdout) == (0, f"{file}: ok\n")
    assert result.stderr == (
        f'note: {tmp_path}/rules.yaml:4: group "g", rule "Typo": the agent has no metric '
        "gpuagent_gpu_memory_used_byte: here this rule may never fire; did you mean gpuagent_gpu_memory_used_bytes?\n"
        f'note: {tmp_path}/rules.yaml:5: group "g", rule "Percent": gpuagent_gpu_memory_used_ratio > 90 '
        "can never be true: a ratio is between 0 and 1; write 0.9\n"
    )


def test_check_notes_ladders_that_can_never_act(tmp_path: Path) -> None:
    """A ladder that no alert can get is a note, no fault: the status is 0."""
    file = write(
        tmp_path,
        "remedies:\n  allow: {users: [root]}\n  ladders:\n"
        "  - {match: ['alertname=\"GpuMemroyHigh\"'], victim: largest, steps: [{terminate: {}}]}\n",
    )
    result = RUNNER.invoke(config_app, ["check", str(file)])

    assert (result.exit_code, result.stdout) == (0, f"{file}: ok\n")
    assert result.stderr == (
        f"note: {file}:4: remedies.ladders[0].match: there is no rule GpuMemroyHigh; did you mean GpuMemoryHigh?\n"
    )


def test_check_a_disabled_rule_that_is_none(tmp_path: Path) -> None:
    """ALERT-06: a fault with file and line, and what was probably meant."""
    file = write(tmp_path, "poll_interval: 1s\ndisabled_rules: [GpuLots]\n")
    result = RUNNER.invoke(config_app, ["check", str(file)])

    assert result.exit_code == 1
    assert result.stderr == (
        f'{file}:2: disabled_rules: no shipped rule is named "GpuLots"; did you mean GpuLost?\n'
    )  # fmt: skip


def test_check_what_cannot_be_read(tmp_path: Path) -> None:
    """A file that cannot be read is not the same as one with faults: the status is 2."""
    for arguments in (["check", str(tmp_path)], ["show", "--config", str(tmp_path / "missing")]):
        result = RUNNER.invoke(config_app, arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert len(result.stderr.splitlines()) == 1


def test_show() -> None:
    """`show` prints the file with the defaults, as YAML or JSON, the same either way."""
    as_yaml = RUNNER.invoke(config_app, ["show", "--config", str(COMPLETE)])
    as_json = RUNNER.invoke(config_app, ["show", "--config", str(COMPLETE), "--json"])
    assert (as_yaml.exit_code, as_json.exit_code) == (0, 0)
    assert yaml.safe_load(as_yaml.stdout) == json.loads(as_json.stdout)
    assert json.loads(as_json.stdout)["nvml"] == {"stuck_after": "2s", "memory_kind": "auto", "let_sleep": True}
    assert "https://example.org/gpu" not in as_yaml.stdout + as_json.stdout


def test_imports_stay_light() -> None:
    """Importing the command does not load YAML: other commands must start fast."""
    program = "import sys, gpuagent.cli.config;sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
