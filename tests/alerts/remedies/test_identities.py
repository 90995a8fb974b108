"""What is compared of a process is all of it, whatever is shown of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuagent.procfs.files import READ_LIMIT_BYTES, RealProc
from gpuagent_alerts.remedies.facts.command_digests import CommandDigests
from gpuagent_alerts.remedies.facts.process_facts import read_identity
from gpuagent_alerts.remedies.target import Identity
from tests.alerts.remedies.processes import reader

DIGESTS = CommandDigests(b"k" * 32)
SCRIPT = 'echo ready; read -r _; exec "$PROGRAM" -c "$SCRIPT" "$0" "$LAST"'
"""Becomes the next program when it gets a line."""


@contextmanager
def becoming(program: Path, first: str, then: str) -> Iterator[tuple[Identity, Identity]]:
    """Yield what is read of a shell, and of what it has become: another file, or other arguments."""
    shell = Path("/bin/sh").resolve()
    process = subprocess.Popen(
        [str(program), "-c", SCRIPT, "job", first], executable=shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"PROGRAM": str(program), "SCRIPT": SCRIPT, "LAST": then},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    found = []
    try:
        for _ in range(2):
            assert process.stdout.readline() == b"ready\n"
            found.append(read_identity(RealProc(), reader(), process.pid, 0, DIGESTS)[0])
            process.stdin.write(b"\n")
            process.stdin.flush()
        yield found[0], found[1]
    finally:
        process.kill()
        process.communicate()


def changed(before: Identity, after: Identity) -> set[str]:
    """The names of the facts that differ, but for where the image lies, which the kernel may be told not to vary."""
    now = after.compared
    return {name for name, value in before.compared.items() if value != now[name]} - {"image"}


def test_the_whole_command_line() -> None:
    """KILL-01: two command lines that differ only beyond what is read of one for showing it are two."""
    fill = "x" * 2 * READ_LIMIT_BYTES
    with becoming(Path("/bin/sh").resolve(), f"{fill}A", f"{fill}B") as (before, after):
        assert changed(before, after) == {"command_digest"}
    with becoming(Path("/bin/sh").resolve(), f"{fill}A", f"{fill}A") as (before, after):
        assert changed(before, after) == set()


def test_another_file_with_the_same_arguments(tmp_path: Path) -> None:
    """KILL-01: another executable is another program, whatever it is called: by its path, and by mount and inode."""
    shell = Path("/bin/sh").resolve()
    program = tmp_path / shell.name
    shutil.copy(shell, program)
    with becoming(program, "a", "a") as (before, after):
        assert changed(before, after) == {"executable", "executable_file"}
        assert after.executable_file[-1] == program.stat().st_ino


@pytest.mark.skipif(
    Path("/proc/sys/kernel/randomize_va_space").read_text().strip() == "0", reason="images lie at one place here"
)
def test_the_same_program_anew() -> None:
    """KILL-01: an exec of the very same program has given its memory back, and is another image."""
    with becoming(Path("/bin/sh").resolve(), "a", "a") as (before, after):
        assert before.image != after.image


def test_what_a_dead_process_has_left() -> None:
    """A zombie has no executable, image or arguments: these are missing, and not as before."""
    process = subprocess.Popen(["sleep", "1000"])
    try:
        before = read_identity(RealProc(), reader(), process.pid, 0, DIGESTS).identity
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        after = read_identity(RealProc(), reader(), process.pid, 0, DIGESTS).identity
    finally:
        process.wait()
    assert (after.executable, after.executable_file, after.image) == (None, (), ())
    assert {"executable", "executable_file", "command_digest"} <= changed(before, after)
