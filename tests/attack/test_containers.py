"""Containers whose cgroup does not say so: a user in `allow.users` is that user on the host, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.cgroups import container_id
from tests.attack.processes import Living, become

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# The first process of a pid namespace does not hear SIGTERM: only SIGKILL shows that it was meant.
KILL: Mapping[str, Any] = {"kill": {"wait": "5s"}}
INIT = ("unshare", "--pid", "--fork", "--kill-child")
AT_A_TERMINAL = """
import fcntl, pty, termios
_, slave = pty.openpty()
os.setsid()
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
print('ready', flush=True)
signal.pause()
"""
SANDBOX = "print('ready', flush=True)\nsubprocess.run(['unshare', '-Urpf', '--mount-proc', 'sleep', '1000000'])"
WAITS = "print('ready', flush=True)\nsignal.pause()"


def _in_root(root: Path, uid: int) -> str:
    return f"os.chroot({str(root)!r})\n{become(uid)}print('ready', flush=True); signal.pause()"


def in_a_pid_namespace(arena: Arena, uid: int, cgroup: Path | None) -> Living:
    """Start the first process of a container."""
    return arena.crowd.child_of(arena.crowd.python(WAITS, uid, cgroup=cgroup, before=INIT), cgroup)


def in_a_root(arena: Arena, uid: int, cgroup: Path | None) -> Living:
    """Start a process whose root directory is not the host's: a container with the pids of the host."""
    root = arena.folder / "rootfs"
    root.mkdir()
    return arena.crowd.python(_in_root(root, uid), cgroup=cgroup)


def in_a_mount_namespace(arena: Arena, uid: int, cgroup: Path | None) -> Living:
    """Start a process with a root of its own on another file system, as container runtimes make it."""
    root = arena.folder / "rootfs"
    root.mkdir()
    before = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {root} && exec "$@"', "sh")
    return arena.crowd.python(_in_root(root, uid), cgroup=cgroup, before=before)


CONTAINERS = (in_a_pid_namespace, in_a_root, in_a_mount_namespace)


@pytest.mark.parametrize("path", ["", "default/web", "web", "kubepods/burstable/web"])
@pytest.mark.parametrize("contained", CONTAINERS, ids=lambda each: each.__name__.replace("_", " "))
def test_a_container_that_no_name_tells(arena: Arena, contained: Any, path: str) -> None:
    """PROC-04: whoever is in a container by the kernel's word is not meant by `allow.users`, whatever its cgroup."""
    uid = next(arena.uids)
    innocent = arena.innocent(contained(arena, uid, arena.cgroups.make(path) if path else None))
    arena.driver.hold(innocent.pid, 30)
    arena.start(ladders=[ladder("TooMuch", KILL)], users=[str(uid)])
    assert "container" in arena.refused(innocent)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 25)
    arena.judge()


@pytest.mark.parametrize("contained", CONTAINERS, ids=lambda each: each.__name__.replace("_", " "))
def test_a_container_of_roots_in_a_users_job(arena: Arena, contained: Any) -> None:
    """PROC-04: `unnamed_containers` reaches into what the user has made, and into nothing that root has set up."""
    uid = next(arena.uids)
    job = arena.cgroups.make("system.slice/slurmstepd.scope/job_77/step_0/user/task_0")
    arena.slurm(f"77|77|{uid}|RUNNING")
    innocent = arena.innocent(contained(arena, uid, job))
    arena.driver.hold(innocent.pid, 30)
    arena.start(ladders=[ladder("TooMuch", KILL)], users=[str(uid)], unnamed_containers=True)
    assert "container" in arena.refused(innocent)
    own = arena.crowd.python(SANDBOX, uid, cgroup=job)
    guilty = arena.culprit(first_in_a_sandbox(arena, own))
    arena.driver.hold(guilty.pid, 25)
    arena.judge()


def first_in_a_sandbox(arena: Arena, starter: Living) -> Living:
    """Wait for the first process of a pid namespace that a program has started by unshare(1)."""
    while True:
        for child in arena.crowd.children_of(starter):
            for first in arena.crowd.children_of(child):
                if Path(f"/proc/{first.pid}/comm").read_text(encoding="ascii") == "sleep\n":
                    return first


def test_a_container_is_entered_meanwhile(arena: Arena) -> None:
    """PROC-04: a process that root moves into another container between two steps is left alone."""
    uid, (first, second, third) = next(arena.uids), (container_id() for _ in range(3))
    scope = "system.slice/docker-{}.scope".format
    innocent = arena.innocent(arena.crowd.start(uid, cgroup=arena.cgroups.make(scope(first))))
    arena.driver.hold(innocent.pid, 30)
    steps = ({"notify": {"wait": "3s"}}, {"terminate": {"wait": "5s"}})
    arena.start(ladders=[ladder("TooMuch", *steps)], containers=[first, second, third])
    arena.step_of(innocent.pid)
    (arena.cgroups.make(scope(second)) / "cgroup.procs").write_text(str(innocent.pid), encoding="ascii")
    assert "its cgroup has changed" in arena.refused(innocent)
    guilty = arena.culprit(arena.crowd.start(uid, cgroup=arena.cgroups.make(scope(third))))
    arena.driver.hold(guilty.pid, 25)
    arena.judge()


def test_threads_in_another_container(arena: Arena) -> None:
    """KILL-03: by version 1 the first thread is in a container that is allowed, and all others are in another one."""
    base = Path("/sys/fs/cgroup/pids")
    if not (base / "tasks").exists():
        pytest.skip("there is no hierarchy of version 1")
    uid, allowed, other = next(arena.uids), container_id(), container_id()
    folders = [base / "docker" / each for each in (allowed, other)]
    for folder in folders:
        folder.mkdir(parents=True)
    try:
        code = "import threading, time\nfor _ in range(4): threading.Thread(target=time.sleep, args=(1e6,)).start()\n"
        scattered = arena.innocent(arena.crowd.python(code + "print('ready', flush=True); signal.pause()", uid))
        (folders[1] / "cgroup.procs").write_text(str(scattered.pid), encoding="ascii")
        (folders[0] / "tasks").write_text(str(scattered.pid), encoding="ascii")
        arena.driver.hold(scattered.pid, 30)
        arena.start(containers=[allowed[:12]])
        arena.judge()
        (base / "cgroup.procs").write_text(str(scattered.pid), encoding="ascii")
    finally:
        for folder in (*folders, base / "docker"):
            with suppress(OSError):  # another one's containers are there too
                folder.rmdir()


@pytest.mark.parametrize("who", ["another user", "at a terminal", "of the never-list", "behind an older one elsewhere"])
def test_who_was_started_into_a_container_of_the_hosts_pids(arena: Arena, who: str) -> None:
    """KILL-03: the runtime ends everybody in a container with its first process; whoever else is in there is ended."""
    uid, container = next(arena.uids), container_id()
    if who == "behind an older one elsewhere":  # of a third user, in a cgroup of the same name
        other = next(arena.uids)
        arena.crowd.start(
            other, cgroup=arena.cgroups.make_as(other, arena.cgroups.users_own(other) / f"docker-{container}.scope")
        )
    cgroup = arena.cgroups.make(f"system.slice/docker-{container}.scope")
    first = arena.innocent(arena.crowd.start(uid, cgroup=cgroup))
    if who == "at a terminal":
        entered = arena.crowd.python(AT_A_TERMINAL, uid, cgroup=cgroup)
    else:
        user, name = (uid, "prodserve") if who == "of the never-list" else (next(arena.uids), "sleep")
        entered = arena.crowd.start(user, name=name, cgroup=cgroup)
    arena.innocent(entered)
    worker = arena.crowd.start(uid, cgroup=cgroup)
    arena.driver.hold(first.pid, 30)
    arena.start(ladders=[ladder("TooMuch", KILL)], containers=[container], remedies={"never": ["prodserve"]})
    refusal = arena.refused(first)
    assert f"pid {entered.pid}" in refusal
    assert f"in the container of pid {first.pid}, without a pid namespace of its own" in refusal
    arena.driver.drop(first.pid)
    arena.culprit(worker)
    arena.driver.hold(worker.pid, 30)
    arena.judge()
