"""A Slack channel in the configuration: by an incoming webhook or by a bot's token."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.config.loading import faults_of, load, write


@pytest.mark.parametrize("keys", ["url_file: /etc/url", "token_file: /etc/token, channel: C0123456789"])
def test_either_way(tmp_path: Path, keys: str) -> None:
    """An incoming webhook has its channel; a bot has to be told."""
    found = load(write(tmp_path, f"receivers: [{{name: ops, slack: {{{keys}}}}}]"))
    assert found.receivers[0].kind == "slack"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("token_file: /etc/token", "needs `channel`"),
        ("url_file: /etc/url, channel: C1", "an incoming webhook has its own channel"),
        ("url_file: /etc/url, token_file: /etc/token, channel: C1", "cannot stand beside url_file"),
        ("channel: C1", "needs one of"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, keys: str, problem: str) -> None:
    """A token without a channel, a channel without a token, both ways at once, neither."""
    faults = faults_of(write(tmp_path, f"receivers: [{{name: ops, slack: {{{keys}}}}}]"))
    assert any(problem in str(fault) for fault in faults)
