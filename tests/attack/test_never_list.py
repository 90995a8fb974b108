"""What the operator's `never` means is spared, by whatever path, link or launcher it runs: and nobody else."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.attack.arena import Arena
from tests.attack.processes import become

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

READY = "print('ready', flush=True); signal.pause()"


def environment(root: Path) -> str:
    """Make a virtual environment of links, as venv(1) does; return its interpreter."""
    (root / "bin").mkdir(parents=True)
    python = root / "bin" / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    (root / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n", encoding="utf-8")
    return str(python)


@pytest.mark.parametrize("way", ["a link", "a pattern", "an environment"])
def test_links_to_what_is_spared(arena: Arena, way: str) -> None:
    """KILL-01: one that runs what an entry leads to lives, and one that runs the like of it elsewhere is ended."""
    uid = next(arena.uids)
    spared, other = arena.folder / "spared", arena.folder / "other"
    if way == "an environment":
        commands = [[environment(each), "-I", "-c", become(uid) + READY] for each in (spared, other)]
        entry = f"{spared}/bin/python"
    else:
        for each in (spared, other):
            (each / "release").mkdir(parents=True)
            shutil.copy("/bin/sh", each / "release" / "serve")
            (each / "current").symlink_to("release")
        commands = [[f"{each}/release/serve", "-c", "echo ready; read _"] for each in (spared, other)]
        entry = f"{spared}/current/serve" if way == "a link" else f"{spared}/curr*/serve"
    living = [arena.crowd.run(command, 0 if way == "an environment" else uid) for command in commands]
    arena.innocent(living[0])
    arena.culprit(living[1])
    for one in living:
        arena.driver.hold(one.pid, 30)
    arena.start(remedies={"never": [entry]}, users=[str(uid)])
    arena.judge()


WORKERS = """
import ctypes, multiprocessing, os, sys, time
def work():
    stat = open('/proc/self/stat').read().rpartition(')')[2].split()
    begin, end = int(stat[45]), int(stat[46])
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, b'VLLM::Worker', 12)
    print(os.getpid(), flush=True)
    time.sleep(1000)
if __name__ == '__main__':
    multiprocessing.get_context(sys.argv[1]).Process(target=work).start()
    time.sleep(1000)
"""


@pytest.mark.parametrize("way", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("entry", ["prodserver", "{folder}/prodserver"])
def test_workers_of_what_is_spared(arena: Arena, way: str, entry: str) -> None:
    """KILL-01: workers that are called otherwise hold the memory; those of the like of it elsewhere are ended."""
    for name in ("prodserver", "otherserver"):
        script = arena.folder / name
        script.write_text(WORKERS, encoding="utf-8")
        command = [os.path.realpath(sys.executable), "-u", str(script), way]
        living = arena.crowd.worker(command)
        (arena.innocent if name == "prodserver" else arena.culprit)(living)
        arena.driver.hold(living.pid, 30)
    arena.start(remedies={"never": [entry.format(folder=arena.folder)]}, users=["root"])
    arena.judge()


def test_a_release_that_a_deployment_has_left(arena: Arena) -> None:
    """KILL-01: the old release of what is spared lives on while its link leads to the new one already."""
    uid = next(arena.uids)
    living = []
    for name in ("spared", "other"):
        for release in ("1", "2"):
            (arena.folder / name / release).mkdir(parents=True)
            shutil.copy("/bin/sh", arena.folder / name / release / "serve")
        (arena.folder / name / "current").symlink_to("1")
        living.append(arena.crowd.run([f"{arena.folder}/{name}/1/serve", "-c", "echo ready; read _"], uid))
        (arena.folder / name / "current").unlink()
        (arena.folder / name / "current").symlink_to("2")
    arena.innocent(living[0])
    arena.culprit(living[1])
    for one in living:
        arena.driver.hold(one.pid, 30)
    arena.start(remedies={"never": [f"{arena.folder}/spared/current/serve"]}, users=[str(uid)])
    arena.judge()


@pytest.mark.parametrize("way", ["its working directory", "an option"])
def test_an_application_of_a_launcher(arena: Arena, way: str) -> None:
    """KILL-01: what a launcher loads from a spared directory lives; what it loads from elsewhere is ended."""
    uid = next(arena.uids)
    launcher = arena.folder / "uvicorn"
    launcher.write_text("#!/bin/sh\necho ready; read _\n", encoding="utf-8")
    launcher.chmod(0o755)
    cast = []
    for name in ("prod", "other"):
        folder = arena.folder / name
        folder.mkdir()
        (folder / "app.py").write_text("", encoding="utf-8")
        option = [] if way == "its working directory" else ["--app-dir", str(folder)]
        there = ["env", "-C", str(folder)] if not option else []
        cast.append(arena.crowd.run([*there, str(launcher), *option, "app:main"], uid))
    arena.innocent(cast[0])
    arena.culprit(cast[1])
    for one in cast:
        arena.driver.hold(one.pid, 30)
    arena.start(remedies={"never": [f"{arena.folder}/prod/*"]}, users=[str(uid)])
    arena.judge()


DISPLAY = """
one = socket.socket(socket.AF_UNIX)
one.bind(sys.argv[1])
one.listen()
"""


@pytest.mark.parametrize("display", [".X11-unix/X7", "wayland-1"])
def test_a_display_of_any_name(arena: Arena, display: str) -> None:
    """KILL-03: who serves a display is spared whatever it is called; a server of anything else is ended."""
    uid = next(arena.uids)
    folder = arena.folder / "runtime"
    (folder / ".X11-unix").mkdir(parents=True)
    for each in (folder, folder / ".X11-unix"):
        os.chown(each, uid, uid)
    cast = [arena.crowd.python(DISPLAY + READY, uid, words=[str(folder / each)]) for each in (display, "service")]
    arena.innocent(cast[0])
    arena.culprit(cast[1])
    for one in cast:
        arena.driver.hold(one.pid, 30)
    arena.start(users=[str(uid)])
    assert "would lose the session" in arena.refused(cast[0])
    arena.judge()


def test_a_file_system_of_a_user_below_a_wildcard(arena: Arena) -> None:
    """KILL-01: whoever mounts what root may not read withholds acts on their own processes, and on nobody else's."""
    mallory, uid = next(arena.uids), next(arena.uids)
    mount = arena.folder / "home" / "mallory"
    mount.mkdir(parents=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse cannot be opened: {error.strerror}")
    options = f"fd={device},rootmode=40000,user_id={mallory},group_id={mallory}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.mount(b"sshfs", str(mount).encode(), b"fuse", 0, options) != 0:
            pytest.skip(f"FUSE cannot be mounted here: {os.strerror(ctypes.get_errno())}")
        living = arena.innocent(arena.crowd.start(mallory)), arena.culprit(arena.crowd.start(uid))
        for one in living:
            arena.driver.hold(one.pid, 30)
        arena.start(remedies={"never": [f"{arena.folder}/home/*/serve"]}, users=[str(mallory), str(uid)])
        arena.judge()
    finally:
        os.close(device)
        libc.umount2(str(mount).encode(), 2)  # MNT_DETACH
