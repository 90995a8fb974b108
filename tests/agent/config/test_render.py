"""What is in force can be shown, without secrets, and loaded again."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from gpuagent.config.models import Config
from gpuagent.config.reference import effective, to_yaml
from tests.agent.config.loading import COMPLETE, load, write


def test_it_comes_back(tmp_path: Path) -> None:
    """A configuration without secrets in it is written and read back as the same."""
    text = COMPLETE.read_text().replace('url: "https://example.org/gpu"', "url_file: /etc/url")
    config = load(write(tmp_path, text))
    assert load(write(tmp_path, to_yaml(config))) == config


def test_the_defaults_come_back(tmp_path: Path) -> None:
    """The defaults, written out in full, are a configuration file."""
    text = to_yaml(Config())
    assert set(yaml.safe_load(text)) == set(Config.keys)
    assert load(write(tmp_path, text)) == Config()


def test_units_are_readable() -> None:
    """Durations and sizes are shown as people write them."""
    shown = effective(Config())
    assert shown["slow_interval"] == "15s"
    assert shown["http"]["max_header_size"] == "16KiB"
    assert shown["remedies"]["allow"]["min_age"] == "0s"


def test_secrets_are_hidden(tmp_path: Path) -> None:
    """No secret is shown, neither as YAML nor as JSON; a file that holds one is named."""
    text = """
receivers:
  - {name: a, slack: {url: "https://hooks.example/s3cret"}}
  - {name: b, webhook: {url: "https://s3cret.example", secret_file: /etc/key}}
  - {name: c, alertmanager: {url: "https://ada:s3cret@am.example/x"}}
  - {name: d, pagerduty: {routing_key: s3cret}}
  - {name: e, apprise: {url: "mailto://ada:s3cret@example.org"}}
  - {name: f, heartbeat: {url: "https://hc.example/s3cret"}}
"""
    config = load(write(tmp_path, text))
    for shown in (to_yaml(config), json.dumps(effective(config))):
        assert "s3cret" not in shown
        assert shown.count("<hidden>") == 6
        assert "/etc/key" in shown
        assert "am.example/x" in shown
