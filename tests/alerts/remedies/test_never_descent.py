"""The operator's `never` means a program's workers and its old releases too: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuagent.core.identity import ProcessId
from gpuagent.procfs.files import RealProc, parse_stat
from gpuagent.procfs.machine import boot_id
from gpuagent.procfs.programs import read_program
from gpuagent_alerts.remedies.facts.never_entries import NeverListEntries, own_ancestors
from gpuagent_alerts.remedies.facts.never_paths import is_common, same_name
from gpuagent_alerts.remedies.facts.symlinks import SearchLimits, UnreadableDirectory, find_links
from gpuagent_alerts.remedies.files.mounts import fuse_of_users
from tests.alerts.remedies.processes import refusals_of
from tests.integration.waiting import until

SCRIPT = """
import os, subprocess, sys
become = f'os.setresuid({sys.argv[2]}, {sys.argv[2]}, {sys.argv[2]});' if len(sys.argv) > 2 else ''
words = [sys.executable, '-c', f'import os, signal; {become} print(os.getpid(), flush=True); signal.pause()']
child = subprocess.Popen(words, start_new_session=sys.argv[1] == 'alone')
if sys.argv[1] == 'orphan':
    input()
    os._exit(0)
child.wait()
"""
OTHER = 4007


@contextmanager
def worker(folder: Path, *arguments: str, name: str = "prodtrain.py") -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """The pid of what a script has started, and the script."""
    script = folder / name
    script.write_text(SCRIPT, encoding="utf-8")
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, str(script), *arguments], stdin=pipe, stdout=pipe, text=True)
    pid = 0
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        yield pid, process
    finally:
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def withheld(pid: int, *never: str, entries: NeverListEntries | None = None) -> list[str]:
    """What a rule is refused for by these entries."""
    return [each for each in refusals_of(pid, never, entries=entries) if "never-list" in each]


@pytest.mark.parametrize("way", ["together", "alone"])
def test_workers_are_their_programs_own(tmp_path: Path, way: str) -> None:
    """KILL-01: an entry means what the program has started, by name, by path and by pattern; a session is no border."""
    with worker(tmp_path, way) as (pid, _):
        for entry in ("prodtrain.py", f"{tmp_path}/prodtrain.py", f"{tmp_path}/prod*"):
            assert any("started it" in each for each in withheld(pid, entry)), entry
        assert withheld(pid, "other.py", f"{tmp_path}/other*") == []


def test_what_is_built_in_protects_nothing_below_it(tmp_path: Path) -> None:
    """An entry that repeats what is built in does not spare all that was started by it: systemd has started all."""
    with worker(tmp_path, "together", name="gpuagent-like.py") as (pid, _):
        assert withheld(pid, "gpuagent-like.py") == []


def test_another_user_is_another_program(tmp_path: Path) -> None:
    """What was started for another user, outside of any unit or container, is judged by itself."""
    if os.geteuid():
        pytest.skip("needs root to be another user")
    with worker(tmp_path, "together", str(OTHER)) as (pid, process):
        assert process.pid not in [each.pid for each in own_ancestors(RealProc(), pid, {})]


def test_a_parent_that_has_ended_is_remembered(tmp_path: Path) -> None:
    """A worker that was seen while its program lived is spared when that has ended, while the entry is in force."""
    entries = NeverListEntries(("prodtrain.py",), files=RealProc())
    with worker(tmp_path, "orphan") as (pid, process):
        stat = parse_stat(RealProc().read(pid, "stat"))
        identity = ProcessId(boot_id(), pid, stat.start_ticks)
        entries.follow([identity])
        program = read_program(RealProc(), pid)
        assert entries.first_seen(identity)  # being looked up, or known already: no turn for it in between
        until(lambda: entries.snapshot().remembered(RealProc(), pid), "it was looked at")
        assert "as it was first seen" in entries.first_seen(identity)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait()
        assert "as it was first seen" in entries.snapshot().reason(RealProc(), pid, program)
        entries.use(["other.py"])
        assert entries.first_seen(identity) == ""
        assert entries.snapshot().reason(RealProc(), pid, program) == ""


def test_a_link_that_was_turned(tmp_path: Path) -> None:
    """KILL-01: the release that still runs is meant by the link that leads to the next one, also by a common name."""
    for release in ("1", "2"):
        (tmp_path / "releases" / release).mkdir(parents=True)
        (tmp_path / "releases" / release / "app.py").write_text("print('ready', flush=True); input()", encoding="utf-8")
    current = tmp_path / "current"
    current.symlink_to("releases/1")
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "app.py"], cwd=current, stdin=pipe, stdout=pipe, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        current.unlink()
        current.symlink_to("releases/2")
        assert withheld(process.pid, f"{current}/app.py")
        assert withheld(process.pid, f"{tmp_path}/curr*/app.py")
        assert withheld(process.pid, f"{current}/other.py", f"{tmp_path}/other/app.py") == []
    finally:
        process.kill()
        process.communicate()


def test_a_name_that_nobody_else_has() -> None:
    """A path means what has its file name wherever it lies now, but for names that everybody gives."""
    assert same_name("/snap/bin/ollama", ["python3", "/snap/ollama/12/bin/ollama"])
    assert same_name("/old/inference_of_ours", ["inference_of_ou"])
    assert same_name("/srv/app.py", ["/home/alice/app.py"]) == ""
    assert [is_common(name) for name in ("python3.11", "train.py", "a.py", "serve*", "ollama")] == [True] * 4 + [False]


MOUNTS = (
    b"36 35 0:1 / / rw - ext4 /dev/sda rw\n"
    b"40 36 0:50 / /home/al\\040ice/mnt rw - fuse.sshfs host:/ rw,user_id=4001,group_id=4001,allow_other\n"
    b"41 36 0:51 / /lxcfs rw - fuse.lxcfs lxcfs rw,user_id=0,group_id=0\n"
)


def test_file_systems_of_users() -> None:
    """Who has mounted a FUSE file system says the kernel; root's own are not meant."""
    assert fuse_of_users(MOUNTS) == {"/home/al ice/mnt": 4001}


def test_what_a_user_hides_withholds_for_that_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KILL-01: a directory below a `*` that cannot be looked into spares its owner's processes, and nobody else's."""
    (tmp_path / "home" / "mallory").mkdir(parents=True)
    if os.geteuid():
        pytest.skip("needs root to be another user")
    os.chown(tmp_path / "home" / "mallory", OTHER, OTHER)
    real = os.scandir

    def denied(path: str) -> object:
        if path.endswith("mallory"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", denied)
    pattern = f"{tmp_path}/home/*/serve"
    unread: list[UnreadableDirectory] = []
    assert list(find_links(pattern, SearchLimits(), unread)) == []
    assert [(each.folder, each.uid) for each in unread] == [(f"{tmp_path}/home/mallory", OTHER)]
    look = NeverListEntries((pattern,)).snapshot()
    with worker(tmp_path, "together", str(OTHER)) as (theirs, script):
        words = [look.reason(RealProc(), pid, read_program(RealProc(), pid)) for pid in (theirs, script.pid)]
    assert "mallory of its user cannot be looked through" in words[0]
    assert words[1] == ""


@pytest.mark.parametrize("bounds", [SearchLimits(links=20), SearchLimits(entries=60), SearchLimits(seconds=0.0)])
def test_what_a_user_has_too_much_of_withholds_for_that_user_alone(tmp_path: Path, bounds: SearchLimits) -> None:
    """KILL-01: bounds hold for each user, and what a user's link leads to is that user's: all others are compared."""
    if os.geteuid():
        pytest.skip("needs root to be another user")
    homes = tmp_path / "home"
    for user in ("alice", "mallory", "zoe"):
        (homes / user).mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    for number in range(600):
        (tmp_path / "shared" / f"{number}serve").symlink_to("far")
    for user in ("alice", "zoe"):
        (homes / user / "serve").symlink_to(f"{tmp_path}/prod/serve")
    (homes / "mallory" / "far").symlink_to(tmp_path / "shared")
    for path in (homes / "mallory", homes / "mallory" / "far"):
        os.chown(path, OTHER, OTHER, follow_symlinks=False)

    unread: list[UnreadableDirectory] = []
    found = {each.name for each in find_links(f"{homes}/*serve", bounds, unread)}
    assert {f"{homes}/{user}/serve" for user in ("alice", "zoe")} <= found
    assert [(each.folder, each.uid) for each in unread] == [(f"{homes}/mallory/far", OTHER)]
    assert "below it" in unread[0].why
