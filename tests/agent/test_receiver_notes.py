"""Receivers that cannot work are noted before the first message is lost to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.config_notes.receivers import program_problem
from gpuagent_alerts.notify.receivers.registry import KINDS
from gpuagent_alerts.notify.receivers.settings import KeyType, keys_of
from tests.agent.test_config_notes import notes

RECEIVER = "receivers: [{{name: ops, {kind}: {{{key}: /no/such/file{more}}}}}]"
MORE = {"token_file": ", channel: C0123456789", "secret_file": ", url: 'http://127.0.0.1/'"}
"""What a key cannot be without."""


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("sh", ""),
        ("/bin/sh", ""),
        ("no-such-program", "there is no program no-such-program in "),
        ("/no/such/program", "there is no program /no/such/program"),
        ("logger -t gpu", "write logger and each argument as items of a list"),
        ("/etc", "is a directory"),
        ("/etc/passwd", "may not be executed"),
    ],
)
def test_a_program_that_cannot_run(program: str, why: str) -> None:
    """CONF-09: missing, not executable, a directory, or a whole command line in one item."""
    problem = program_problem(program)
    assert why in problem if why else not problem


@pytest.mark.parametrize(
    ("receiver", "content", "why"),
    [
        ("webhook: {url_file: FILE}", "hooks.example/x", "no URL that begins with http"),
        ("webhook: {url_file: FILE}", "http://169.254.169.254/latest", "link-local address"),
        ("webhook: {url_file: FILE}", "http://[fd00:ec2::254]/", "cloud's metadata"),
        ("webhook: {url_file: FILE}", "https://a.example/\nhttps://b.example/", "must be one line"),
        ("webhook: {url: 'http://127.0.0.1/', secret_file: FILE}", "swordfish", "key for signatures must"),
        ("slack: {token_file: FILE, channel: C0123456789}", "https://hooks.example/x", "no token of a bot"),
        ("slack: {token_file: FILE, channel: '#ops'}", "xoxb-1-2-abc", "#ops is no id of a channel"),
        ("pagerduty: {routing_key_file: FILE}", "abc", "has 32 letters and digits"),
        ("alertmanager: {url_file: FILE}", "http://127.0.0.1:9093/api/v2/alerts", "ends before /api"),
    ],
)
def test_a_secret_that_cannot_be_one(tmp_path: Path, receiver: str, content: str, why: str) -> None:
    """CONF-09: with line and reason, and without a part of the secret."""
    (tmp_path / "secret").write_text(content)
    text = f"receivers:\n  - name: ops\n    {receiver.replace('FILE', str(tmp_path / 'secret'))}\n"
    (note,) = notes(tmp_path, text)
    assert note.startswith("gpuagent.yaml:3: receivers[0].")
    assert why in note
    assert content not in note


def test_secrets_of_every_kind_are_looked_at(tmp_path: Path) -> None:
    """A file that is missing is noted by the name of its key, also of a kind that comes later."""
    keys = [
        (name, key)
        for name, kind in KINDS.items()
        for key, declared in keys_of(kind.settings)
        if declared.type is KeyType.SECRET_FILE
    ]
    assert keys
    for name, key in keys:
        found = notes(tmp_path, RECEIVER.format(kind=name, key=key, more=MORE.get(key, "")))
        assert any(f".{name}.{key}: cannot read" in note for note in found), (name, key, found)
