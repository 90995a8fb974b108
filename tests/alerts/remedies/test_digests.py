"""A digest of a command line gives nothing away, and is the same after a restart."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.execution.pidfd import PidfdProcess
from gpuagent_alerts.remedies.facts.command_digests import CommandDigests, load_digests
from tests.alerts.remedies.processes import PLAIN, as_target, reader, running

LINE = b"python3\0--password\0tiger83\0"


def test_the_same_after_a_restart(tmp_path: Path) -> None:
    """The key is kept in a file that only this user may read; two lines have two digests."""
    path = tmp_path / "command.key"
    before = load_digests(path)(LINE)
    assert load_digests(path)(LINE) == before
    assert load_digests(path)(LINE + b"x") != before
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["command.key"]


def test_nobody_without_the_key_can_make_it(tmp_path: Path) -> None:
    """It is no plain digest of the line, and another node's is another: guesses cannot be tried."""
    (tmp_path / "other").mkdir()
    one, other = load_digests(tmp_path / "command.key")(LINE), load_digests(tmp_path / "other/command.key")(LINE)
    assert one != other
    plain = {hashlib.new(name, LINE).hexdigest() for name in ("sha256", "sha1", "md5", "blake2b")}
    digest = one.rpartition("-")[2]
    assert not any(digest in each for each in plain)
    assert load_digests(None)(LINE) != load_digests(None)(LINE)


@pytest.mark.parametrize("fault", ["short", "long", "readable", "link", "folder", "fifo"])
def test_a_key_that_others_may_know_is_replaced(tmp_path: Path, fault: str) -> None:
    """Whoever could have read or written it could try guesses; what cannot be replaced is not used."""
    path = tmp_path / "command.key"
    key = os.urandom({"short": 31, "long": 33}.get(fault, 32))
    if fault == "link":
        (tmp_path / "theirs").write_bytes(key)
        path.symlink_to("theirs")
    elif fault == "folder":
        path.mkdir()
    elif fault == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.write_bytes(key)
        path.chmod(0o644 if fault == "readable" else 0o600)
    digests = load_digests(path)
    if len(key) == 32:
        assert digests(LINE) != CommandDigests(key)(LINE)
    if fault not in {"folder", "link"}:
        assert load_digests(path)(LINE) == digests(LINE)


def test_a_held_process_is_digested_by_it() -> None:
    """What comes into the record of a process is the keyed digest of its raw command line."""
    digests = CommandDigests(b"k" * 32)
    with running(PLAIN, "env", "PASSWORD=x") as process:
        held = PidfdProcess(as_target(process.pid), RealProc(), reader(), digests)
        try:
            facts = asyncio.run(held.facts())
        finally:
            held.close()
        assert facts.identity.command_digest == digests(RealProc().read(process.pid, "cmdline"))
