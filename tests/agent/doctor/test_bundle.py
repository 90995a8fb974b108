"""The archive for a report: complete, listed before it is written, and without what names somebody."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuagent.cli.app import app
from gpuagent.config.load import load_config
from gpuagent.core.api_client import AgentUnreachable
from gpuagent.doctor.bundle import Bundle, BundleSources, gather, write
from gpuagent.doctor.capture.redaction import CaptureRedactor
from gpuagent.doctor.finding import Finding, Level
from tests.fakes.captures import captured
from tests.fakes.nvml import use

STATUS = {
    "processes": [{"pid": 5, "process": "secret-app", "user": "alice", "uid": 1001, "command": "secret-app --key 1"}],
    "problems": [{"text": "process secret-app (alice) leaks on GPU-0a1b2c3d-0000-4000-8000-00000000000f"}],
    "gpus": [{"uuid": "GPU-0a1b2c3d-0000-4000-8000-00000000000f"}],
}
LOG = "12:00:01 warning: secret-app of alice grows on GPU-0a1b2c3d-0000-4000-8000-00000000000f; root is fine"


def answering(_socket: Path, path: str) -> Any:
    """A running agent."""
    return STATUS if path.endswith("status") else {"alerts": [{"labels": {"process": "secret-app", "user": "alice"}}]}


def gathered(
    folder: Path, *, redact: bool = True, fetch: Callable[[Path, str], Any] = answering, **sources: Any
) -> Bundle:
    """A bundle of the simulated healthy node, with an agent and a journal that tell of somebody."""
    config = folder / "gpuagent.yaml"
    config.write_text("receivers:\n  - {name: team, slack: {url: https://hooks.slack.com/services/T0/B0/hush}}\n")
    given = {"findings": lambda: [Finding("group", Level.INFO, "alice is in no group")], "journal": lambda: LOG}
    return gather(
        BundleSources(
            config=load_config(config, is_root=False),
            capture=lambda redactor: captured("healthy", redactor),
            fetch=fetch,
            **(given | sources),
        ),
        CaptureRedactor.with_new_key() if redact else CaptureRedactor(None),
    )


def texts(bundle: Bundle) -> dict[str, str]:
    """The files of a bundle."""
    return {member.name: member.data.decode() for member in bundle.members}


def test_everything_is_in_it_and_listed(tmp_path: Path) -> None:
    """Capture, states, configuration, findings, log and versions are in the archive, each with a line that names it."""
    bundle = gathered(tmp_path)
    names = ["capture.yaml", "status.json", "alerts.json", "config.yaml", "doctor.txt", "log.txt", "about.json"]
    assert [member.name for member in bundle.members] == names
    assert [line.split()[0] for line in bundle.lines()] == names

    path = tmp_path / "report.tar.gz"
    write(bundle, path)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        assert archive.getnames() == [f"gpuagent-report/{name}" for name in names]
    with pytest.raises(FileExistsError):
        write(bundle, path)


def test_nobody_is_named(tmp_path: Path) -> None:
    """What the capture or the status names is a digest in every file, the same in all; secrets are never in it."""
    found = texts(gathered(tmp_path))
    everything = "\n".join(found.values())
    for name in ("secret-app", "alice", "whisper-server", "0a1b2c3d", "hush", "1001"):
        assert name not in everything
    user = json.loads(found["status.json"])["processes"][0]["user"]
    assert re.fullmatch("u-[0-9a-f]{8}", user)
    assert user in found["log.txt"]
    assert user in found["doctor.txt"]
    assert "root is fine" in found["log.txt"]


def test_secrets_are_hidden_without_redaction_too(tmp_path: Path) -> None:
    """--no-redact leaves names, and still no secret of the configuration."""
    found = texts(gathered(tmp_path, redact=False))
    assert "secret-app" in found["log.txt"]
    assert "whisper-server" in found["capture.yaml"]
    assert "hush" not in "\n".join(found.values())


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """Without an agent and a journal the rest is gathered, and both the list and about.json say why."""

    def unreachable(_socket: Path, _path: str) -> Any:
        raise AgentUnreachable("no such socket")

    def no_journal() -> str:
        raise subprocess.TimeoutExpired("journalctl", 20)

    bundle = gathered(tmp_path, fetch=unreachable, journal=no_journal)
    assert {"status.json", "alerts.json", "log.txt"} == set(bundle.missing)
    assert json.loads(texts(bundle)["about.json"])["missing"] == bundle.missing
    assert any("no such socket" in line for line in bundle.lines())


def test_the_end_of_a_log_file(tmp_path: Path) -> None:
    """A long log is cut at its beginning."""
    log = tmp_path / "agent.log"
    log.write_text("first\n" + "x" * 1024**2 + "\nlast\n")
    found = texts(gathered(tmp_path, log=log))["log.txt"]
    assert found.endswith("last\n")
    assert "first" not in found
    assert len(found) <= 512 * 1024


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Captures without waits, and the library that was under pynvml before."""
    for name in ("BETWEEN_PASSES_SECONDS", "_BETWEEN_SAMPLES_SECONDS"):
        monkeypatch.setattr(f"gpuagent.doctor.capture.session.{name}", 0.0)
    with use(None):
        yield


@pytest.mark.usefixtures("at_once")
def test_nothing_is_written_without_a_yes(tmp_path: Path) -> None:
    """The command lists what the archive will contain, and writes it only after a yes, or with --yes."""
    path = tmp_path / "report.tar.gz"
    command = ["doctor", "--simulate", "no-gpus", "--bundle", str(path), "--log", str(tmp_path / "none.log")]
    refused = CliRunner().invoke(app, command, input="n\n")
    assert refused.exit_code == 1
    assert "capture.yaml" in refused.output
    assert not path.exists()
    assert CliRunner().invoke(app, [*command, "--yes"]).exit_code == 0
    assert path.exists()
    again = CliRunner().invoke(app, [*command, "--yes"])
    assert again.exit_code == 1
    assert "new file" in again.output


@pytest.mark.usefixtures("at_once")
def test_capture_and_replay_by_the_commands(tmp_path: Path) -> None:
    """`doctor --capture` writes a file for its owner alone, never over another, and `doctor --simulate` takes it."""
    path = tmp_path / "capture.yaml"
    command = ["doctor", "--simulate", "no-gpus", "--capture", str(path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert CliRunner().invoke(app, command).exit_code == 1
    examined = CliRunner().invoke(app, ["doctor", "--simulate", str(path)])
    assert "no GPU on this node" in examined.output
