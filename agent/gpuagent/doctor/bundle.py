"""`gpuagent doctor --bundle`: all that a report about this machine needs, in one archive.

What cannot be had is left out, and `about.json` says why. Nothing is written before it has been gathered and listed.
"""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gpuagent.config.models import Config
from gpuagent.config.reference import to_yaml
from gpuagent.core.api_client import AgentUnreachable, fetch_document
from gpuagent.doctor.capture.host import program_facts
from gpuagent.doctor.capture.redaction import CaptureRedactor
from gpuagent.doctor.finding import Finding
from gpuagent.service.http_servers import control_socket

FOLDER = "gpuagent-report"
_LOG_LINES, _LOG_BYTES, _LOG_SECONDS = 2000, 512 * 1024, 20.0
_JOURNAL = (
    *("journalctl", "--unit=gpuagent.service", f"--lines={_LOG_LINES}", "--no-pager", "--no-hostname"),
    *("--output=short-iso", "--quiet"),
)
_DOCUMENTS = {
    "status.json": ("/api/v1/status", "state of GPUs and processes, and problems, as the running agent has it"),
    "alerts.json": ("/api/v1/alerts", "alerts, silences, incidents and what could not be delivered"),
}


class Member(NamedTuple):
    """A file of the archive."""

    name: str
    data: bytes
    what: str
    """One line for the person who is asked."""


@dataclass
class Bundle:
    """What was gathered, and what was not and why."""

    members: list[Member] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, text: str, what: str) -> None:
        """Add a file."""
        self.members.append(Member(name, text.encode(errors="backslashreplace"), what))

    def lines(self) -> Iterator[str]:
        """Yield what the archive contains, a line for each file, and what it lacks."""
        for member in self.members:
            yield f"  {member.name:<14} {len(member.data) / 1024:7.1f} KiB  {member.what}"
        for name, why in self.missing.items():
            yield f"  {name:<14}     none      {why}"


def read_journal() -> str:
    """Return the latest lines of the agent's unit. Raises OSError and subprocess.TimeoutExpired."""
    done = subprocess.run(  # noqa: S603  our own command line
        _JOURNAL, capture_output=True, text=True, check=False, timeout=_LOG_SECONDS, errors="replace"
    )
    if done.returncode:
        raise OSError(done.stderr.strip() or f"journalctl ended with {done.returncode}")
    return done.stdout[-_LOG_BYTES:]


@dataclass(frozen=True)
class BundleSources:
    """Where the parts come from."""

    config: Config
    findings: Callable[[], list[Finding]]
    capture: Callable[[CaptureRedactor], str]
    log: Path | None = None
    """The agent's log where it is not in the journal."""
    fetch: Callable[[Path, str], Any] = fetch_document
    journal: Callable[[], str] = read_journal


def gather(sources: BundleSources, redactor: CaptureRedactor) -> Bundle:
    """Gather everything. What the capture and the status name is what the log is redacted by, so these come first."""
    bundle = Bundle()
    bundle.add("capture.yaml", sources.capture(redactor), "what the driver answers: gpuagent run --simulate replays it")
    socket = control_socket(sources.config)
    for name, (path, what) in _DOCUMENTS.items():
        try:
            document = redactor.document(sources.fetch(socket, path))
        except AgentUnreachable as error:
            bundle.missing[name] = redactor.text(f"no agent answers: {error}")
        else:
            bundle.add(name, json.dumps(document, indent=1, ensure_ascii=False) + "\n", what)
    bundle.add("config.yaml", redactor.text(to_yaml(sources.config)), "the effective configuration, secrets hidden")
    findings = "\n".join(_finding(finding) for finding in sources.findings()) + "\n"
    bundle.add("doctor.txt", redactor.text(findings), "what gpuagent doctor says")
    _add_log(bundle, sources, redactor)
    about = program_facts() | {"python": platform.python_version(), "redacted": redactor.active}
    if bundle.missing:
        about["missing"] = bundle.missing
    bundle.add("about.json", json.dumps(about, indent=1) + "\n", "versions, and why a part is missing")
    return bundle


def _finding(finding: Finding) -> str:
    advice = f"\n    -> {finding.advice}" if finding.advice else ""
    return f"{finding.level:<8} {finding.subject}: {finding.text}{advice}"


def _add_log(bundle: Bundle, sources: BundleSources, redactor: CaptureRedactor) -> None:
    try:
        text = _tail(sources.log) if sources.log is not None else sources.journal()
    except (OSError, subprocess.SubprocessError) as error:
        bundle.missing["log.txt"] = str(error)
        return
    if text.strip():
        bundle.add("log.txt", redactor.text(text), "the agent's latest log lines")
    else:
        bundle.missing["log.txt"] = "the journal has no lines of gpuagent.service: --log names a file"


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _LOG_BYTES))
        return file.read(_LOG_BYTES).decode(errors="backslashreplace")


def write(bundle: Bundle, path: Path) -> None:
    """Write a new archive, readable by its owner alone.

    Raises:
        OSError: the file is there already, or cannot be made.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member in bundle.members:
            entry = tarfile.TarInfo(f"{FOLDER}/{member.name}")
            entry.size, entry.mtime, entry.mode = len(member.data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(member.data))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(packed.getvalue())


def check_new(path: Path) -> None:
    """Refuse a path at which something is, before anything is gathered. Raises FileExistsError."""
    if os.path.lexists(path):
        raise FileExistsError(17, "File exists", str(path))
