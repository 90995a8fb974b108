"""What can never permit, count or be filled in, on whatever node, is a fault with the way out, and not silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.config.remedies import PLACEHOLDERS
from gpuagent_alerts.remedies.execution.executor import _filled
from tests.agent.config.loading import faults_of, lines_of, load, write

SOCKET = "processes: {container_socket: /run/docker.sock}\n"
ARGUMENT = "remedies.ladders[0].steps[0].exec.command[1]"
EXEC = "remedies: {{ladders: [{{match: [a=b], steps: [{{exec: {{command: [/bin/true, {0}]}}}}]}}]}}\n"


def allow(key: str, *names: str) -> str:
    """An allow list with these."""
    return f"remedies: {{allow: {{{key}: [{', '.join(names)}]}}}}\n"


def budget(match: str, memory: str = "1GiB") -> str:
    """One budget."""
    return f"budgets: [{{match: {{{match}}}, memory: {memory}}}]\n"


PATTERN = "is a pattern, and patterns are not taken here: name each"
NO_ID = "is no id of 12 digits or more, and no runtime is asked for the names of containers"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (allow("users", "'*'"), f"remedies.allow.users[0]: '*' {PATTERN}"),
        (
            allow("users", "'@ml'"),
            "remedies.allow.users[0]: '@ml' names no user, and groups of users are not taken: name each user",
        ),
        (allow("units", "fastapi"), "remedies.allow.units[0]: 'fastapi' has no suffix: write fastapi.service"),
        (allow("shared_units", "hub"), "remedies.allow.shared_units[0]: 'hub' has no suffix: write hub.service"),
        (allow("units", "'jupyter-*.service'"), f"remedies.allow.units[0]: 'jupyter-*.service' {PATTERN}"),
        (
            allow("units", "session-2.scope"),
            "remedies.allow.units[0]: 'session-2.scope' is no service, and no other unit can be restarted",
        ),
        (
            allow("units", "'jupyter@.service'"),
            "remedies.allow.units[0]: 'jupyter@.service' is a template, in which nothing runs: name an instance of it",
        ),
        (allow("units", "a b.service"), "remedies.allow.units[0]: 'a b.service' cannot be the name of a service"),
        (allow("containers", "'trainer*'"), f"remedies.allow.containers[0]: 'trainer*' {PATTERN}"),
        (allow("containers", "3f4e1c"), f"remedies.allow.containers[0]: '3f4e1c' {NO_ID}"),
        (allow("containers", "trainer"), f"remedies.allow.containers[0]: 'trainer' {NO_ID}"),
        (
            allow("containers", "docker://3f4e1c9a7b20"),
            "remedies.allow.containers[0]: 'docker://3f4e1c9a7b20' is no id: leave out what stands before the digits",
        ),
        (allow("gpus", "'GPU-*'"), f"remedies.allow.gpus[0]: 'GPU-*' {PATTERN}"),
        (
            "remedies: {allow: {min_memory: 20}}\n",
            "remedies.allow.min_memory: is less than 1MiB: nearly every process holds that",
        ),
        (budget("user: '*'"), f"budgets[0].match.user: '*' {PATTERN}"),
        (budget("unit: 'j-*.service'"), f"budgets[0].match.unit: 'j-*.service' {PATTERN}"),
        (budget("unit: fastapi"), "budgets[0].match.unit: 'fastapi' has no suffix: write fastapi.service"),
        (budget("container: 3f4e1c"), f"budgets[0].match.container: '3f4e1c' {NO_ID}"),
        (
            budget("user: ada, container: 3f4e1c9a7b20"),
            "budgets[0].match.user: cannot stand beside container: in containers no user counts",
        ),
        (budget("user: ada", "20"), "budgets[0].memory: 20B is too little: it must be at least 1MiB"),
        (
            EXEC.format("'{container}'"),
            f"{ARGUMENT}: '{{container}}' is not filled in; did you mean {{container_id}}?",
        ),
        (EXEC.format("'--user={user}'"), f"{ARGUMENT}: '{{user}}' is not filled in"),
    ],
)  # fmt: skip
def test_a_fault(tmp_path: Path, text: str, line: str) -> None:
    """Each is told once, on its line, with what to write instead."""
    file = write(tmp_path, text)
    assert lines_of(file) == [f"1: {line}"]
    assert all(fault.allowed for fault in faults_of(file))


def test_an_id_that_is_too_long(tmp_path: Path) -> None:
    """More digits than an id has are no id, and nothing that is all digits is taken for a name."""
    assert "has 65 digits, and an id has 64" in lines_of(write(tmp_path, allow("containers", "a" * 65)))[0]


@pytest.mark.parametrize(
    "text",
    [
        allow("users", "svc-ml", "'1001'", '"CORP\\\\ada"'),
        allow("units", "fastapi.service", "jupyter@ada.service", "user@1000.service/nb.service"),
        allow("containers", "3f4e1c9a7b20", "a" * 64, "ml/trainer-0/main", "lxc/web", "systemd-nspawn/web"),
        SOCKET + allow("containers", "trainer", "db2024"),
        SOCKET + budget("container: trainer"),
        allow("gpus", "'0'", "GPU-5c3e0f4e-4c4f-4a58-9d21-5a8d3f6f2f11"),
        budget("user: ada, unit: a.service", "1MiB"),
        "remedies: {allow: {min_memory: 0}}\n",
        "remedies: {allow: {min_memory: 1MiB}}\n",
        "remedies: {limits: {per_hour: 0}}\n",
        EXEC.format("'{pid}', '--format={{.ID}}', '${HOME}', '{\"a\": 1}'"),
    ],
)
def test_no_fault(tmp_path: Path, text: str) -> None:
    """What may mean something on some node loads."""
    assert load(write(tmp_path, text))


def test_each_placeholder_is_filled_in() -> None:
    """What the configuration takes for one is one."""

    class _Target:
        pid, proven_container_id = 7, "c"

    assert _filled(PLACEHOLDERS, _Target(), "9_1") == ("7", "c", "9_1")  # type: ignore[arg-type]
