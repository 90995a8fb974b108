"""A good file loads as it says, and without one the defaults hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from gpuagent.config.load import ConfigError, ConfigUnreadableError, load_config
from gpuagent.config.models import Config
from tests.agent.config.loading import COMPLETE, NO_ENVIRONMENT, faults_of, keys_of, load, write


def test_the_complete_example_loads() -> None:
    """A file that uses every part of the configuration loads, value by value."""
    config = load(COMPLETE)
    assert config.poll_interval == 1.0
    assert config.client_dir == Path("/run/gpuagent-client")
    assert config.leaks.sensitivity == "balanced"
    assert [receiver.name for receiver in config.receivers] == ["ops", "hook", "fleet"]
    assert config.receivers[1].webhook is not None
    assert config.receivers[1].webhook.url is not None
    assert config.receivers[1].webhook.url.get_secret_value() == "https://example.org/gpu"
    assert config.routes[0].repeat_interval == 4 * 3600
    assert [str(matcher) for matcher in config.routes[0].match] == ['severity="critical"']
    assert config.budgets[0].memory == 6 * 1024**3
    assert config.budgets[0].match.unit == "whisper.service"
    assert config.remedies.allow.min_age == 300
    steps = config.remedies.ladders[1].steps
    assert [set(keys_of(step)) for step in steps] == [{"release_cache"}, {"terminate"}, {"kill"}]
    assert steps[2].kill is not None
    assert steps[2].kill.wait == 60


def test_no_file_is_needed(tmp_path: Path) -> None:
    """Without a file every key has its default, and the defaults are those of the models."""
    config = load_config(environ=NO_ENVIRONMENT, is_root=True, default_path=tmp_path / "missing.yaml")
    assert config == Config()
    assert config.listen == "127.0.0.1:9837"
    assert config.remedies.dry_run


def test_the_default_file_is_used(tmp_path: Path) -> None:
    """The system's file is read where it exists and no other is named."""
    file = write(tmp_path, "poll_interval: 2s\n")
    assert load_config(environ={}, is_root=True, default_path=file).poll_interval == 2.0


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "null\n", "{}\n", "\ufeff\n"])
def test_an_empty_file(tmp_path: Path, text: str) -> None:
    """A file with nothing in it means the defaults."""
    assert load(write(tmp_path, text)) == Config()


def test_what_is_commented_out_is_absent(tmp_path: Path) -> None:
    """A list or section that has nothing left below it is as if it were not there."""
    text = "receivers:\n# - {name: ops}\nremedies:\n  allow:\n  ladders:\nhttp:\n"
    assert load(write(tmp_path, text)) == Config()


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """A file that was asked for is never replaced by the defaults in silence."""
    missing = tmp_path / "missing.yaml"
    with pytest.raises(ConfigUnreadableError, match="there is no such file"):
        load(missing)
    with pytest.raises(ConfigUnreadableError, match="there is no such file"):
        load_config(environ={}, is_root=True, required=True, default_path=missing)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A default file that exists but cannot be read stops the start as well."""
    with pytest.raises(ConfigUnreadableError, match="cannot be read: it is a directory; only a regular file is read"):
        load_config(environ={}, is_root=True, default_path=tmp_path)


_UID = os.getuid()


@pytest.mark.parametrize(
    ("is_root", "environ", "state", "runtime", "client"),
    [
        (True, {}, "/var/lib/gpuagent", "/run/gpuagent", "/run/gpuagent-client"),
        (
            False,
            {
                "STATE_DIRECTORY": "/var/lib/gpuagent",
                "RUNTIME_DIRECTORY": "/run/gpuagent:/run/gpuagent-client",
                "HOME": "/home/ada",
            },
            "/var/lib/gpuagent",
            "/run/gpuagent",
            "/run/gpuagent-client",
        ),
        (
            False,
            {"XDG_STATE_HOME": "/home/ada/.state", "XDG_RUNTIME_DIR": "/run/user/7"},
            "/home/ada/.state/gpuagent",
            "/run/user/7/gpuagent",
            "/run/user/7/gpuagent-client",
        ),
        (
            False,
            {"HOME": "/home/ada", "XDG_STATE_HOME": "relative", "XDG_RUNTIME_DIR": ""},
            "/home/ada/.local/state/gpuagent",
            f"/tmp/gpuagent-{_UID}/run",
            f"/tmp/gpuagent-{_UID}/run-client",
        ),
        (
            False,
            {},
            f"/tmp/gpuagent-{_UID}/state",
            f"/tmp/gpuagent-{_UID}/run",
            f"/tmp/gpuagent-{_UID}/run-client",
        ),
    ],
    ids=["root", "unit", "user", "no-runtime-dir", "bare"],
)
def test_directories(
    is_root: bool, environ: Mapping[str, str], state: str, runtime: str, client: str, tmp_path: Path
) -> None:
    """The directories fit the environment: root, a systemd unit, an ordinary user."""
    config = load_config(environ=environ, is_root=is_root, default_path=tmp_path / "missing")
    found = (config.state_dir, config.runtime_dir, config.client_dir)
    assert [str(directory) for directory in found] == [state, runtime, client]


@pytest.mark.parametrize(
    ("is_root", "environ", "state", "runtime"),
    [
        (True, {}, "/var/lib/gpuagent-simulated", "/run/gpuagent-simulated"),
        (
            False, {"XDG_STATE_HOME": "/home/ada/.state", "XDG_RUNTIME_DIR": "/run/user/7"},
            "/home/ada/.state/gpuagent-simulated", "/run/user/7/gpuagent-simulated",
        ),
        (False, {}, f"/tmp/gpuagent-simulated-{_UID}/state", f"/tmp/gpuagent-simulated-{_UID}/run"),
        (True, {"STATE_DIRECTORY": "/var/lib/lab", "RUNTIME_DIRECTORY": "/run/lab"}, "/var/lib/lab", "/run/lab"),
    ],
    ids=["root", "user", "bare", "unit"],
)  # fmt: skip
def test_directories_of_a_simulated_node(
    is_root: bool, environ: Mapping[str, str], state: str, runtime: str, tmp_path: Path
) -> None:
    """What is made up is kept beside what is real, and never in its place, unless a unit or the file says where."""
    config = load_config(environ=environ, is_root=is_root, default_path=tmp_path / "missing", simulated=True)
    found = (config.state_dir, config.runtime_dir, config.client_dir)
    assert [str(directory) for directory in found] == [state, runtime, f"{runtime}-client"]


def test_the_file_beats_the_environment(tmp_path: Path) -> None:
    """A directory in the file counts more than one that systemd names."""
    file = write(tmp_path, "state_dir: /srv/gpu\n")
    environ = {"STATE_DIRECTORY": "/var/lib/other"}
    assert load_config(file, environ=environ, is_root=True).state_dir == Path("/srv/gpu")


def test_paths_start_at_the_file(tmp_path: Path) -> None:
    """A relative path does not depend on where the agent was started."""
    config = load(write(tmp_path, "rule_files: [rules/a.yml, /b.yml]\nweb_config_file: web.yml\n"))
    assert config.rule_files == (tmp_path / "rules/a.yml", Path("/b.yml"))
    assert config.web_config_file == tmp_path / "web.yml"


def test_anchors_and_merges(tmp_path: Path) -> None:
    """Aliases and `<<` work as in any YAML, and what stands beside `<<` wins."""
    text = """
receivers:
  - &first {name: one, slack: &slack {url_file: /a}}
  - {<<: *first, name: two}
  - {name: three, slack: *slack}
  - {<<: [{name: four}, *first]}
"""
    receivers = load(write(tmp_path, text)).receivers
    assert [receiver.name for receiver in receivers] == ["one", "two", "three", "four"]
    assert {receiver.slack.url_file for receiver in receivers if receiver.slack} == {Path("/a")}
    assert all(receiver.slack for receiver in receivers)


def test_a_config_is_frozen() -> None:
    """Nobody changes a configuration behind another's back."""
    with pytest.raises(FrozenInstanceError):
        Config().poll_interval = 2.0  # type: ignore[misc]


def test_no_secret_in_a_repr(tmp_path: Path) -> None:
    """A configuration that ends up in a log line shows no secret."""
    text = """
receivers:
  - {name: a, slack: {url: "https://hooks.example/s3cret"}}
  - {name: b, alertmanager: {url: "https://ada:s3cret@am.example"}}
  - {name: c, pagerduty: {routing_key: s3cret}}
  - {name: d, apprise: {url: "mailto://ada:s3cret@example.org"}}
"""
    config = load(write(tmp_path, text))
    assert "s3cret" not in repr(config)
    assert "s3cret" not in str(config)


@pytest.mark.parametrize(
    ("key", "name"),
    [("users", "x"), ("units", "x.service"), ("shared_units", "x.service"), ("containers", "lxc/x")],
)
def test_any_name_is_permission(tmp_path: Path, key: str, name: str) -> None:
    """To act for real it is enough to name something by one of the keys; a GPU alone is not enough."""
    ladder = "ladders: [{match: ['a=\"b\"'], steps: [{restart_unit: {}}]}]"
    assert load(write(tmp_path, f"remedies: {{dry_run: false, allow: {{{key}: [{name}]}}, {ladder}}}\n"))
    (fault,) = faults_of(write(tmp_path, f"remedies: {{dry_run: false, allow: {{gpus: ['0']}}, {ladder}}}\n"))
    assert "nothing may be acted on" in fault.problem


def test_a_bad_file_leaves_the_old_configuration_usable(tmp_path: Path) -> None:
    """Loading again is a new value or an error: nothing of the old one changes."""
    file = write(tmp_path, "poll_interval: 2s\n")
    old = load(file)
    write(tmp_path, "poll_interval: 3s\nlisten: nowhere\n")
    with pytest.raises(ConfigError):
        load(file)
    assert old.poll_interval == 2.0


def test_a_relative_secret_is_a_credential_under_systemd(tmp_path: Path) -> None:
    """`LoadCredential=slack_url:/a/file` in the unit, `url_file: slack_url` here; elsewhere it is beside the file."""
    text = (
        "rule_files: [rules.yaml]\nreceivers:\n"
        "- {name: a, slack: {url_file: slack_url}}\n"
        "- {name: b, webhook: {url_file: /etc/b, secret_file: key}}\n"
        "- {name: c, pagerduty: {routing_key_file: pd}}\n"
        "- {name: d, heartbeat: {url_file: beat}}\n"
    )
    file = write(tmp_path, text)

    def files(environ: Mapping[str, str]) -> list[str]:
        config = load_config(file, environ=environ, is_root=True)
        slack, hook, pager, beat = config.receivers
        assert slack.slack is not None
        assert hook.webhook is not None
        assert pager.pagerduty is not None
        assert beat.heartbeat is not None
        found = (
            slack.slack.url_file, hook.webhook.url_file, hook.webhook.secret_file, pager.pagerduty.routing_key_file,
            beat.heartbeat.url_file, config.rule_files[0],
        )  # fmt: skip
        return [str(path).replace(str(tmp_path), "HERE") for path in found]

    assert files(NO_ENVIRONMENT) == [
        "HERE/slack_url", "/etc/b", "HERE/key", "HERE/pd", "HERE/beat", "HERE/rules.yaml",
    ]  # fmt: skip
    assert files({"CREDENTIALS_DIRECTORY": "/run/credentials/gpuagent.service"}) == [
        "/run/credentials/gpuagent.service/slack_url", "/etc/b", "/run/credentials/gpuagent.service/key",
        "/run/credentials/gpuagent.service/pd", "/run/credentials/gpuagent.service/beat", "HERE/rules.yaml",
    ]  # fmt: skip
