"""A machine that systemd has booted, in a container over a throw-away copy of a root file system.

What a service is told, allowed and denied, only systemd itself can show. systemd-nspawn boots the systemd of the given
root as pid 1, with private processes, network and users' sight of both; the root is an overlay whose changes live in
memory and end with the machine. Needs root, systemd-nspawn, overlayfs and cgroup2.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BOOT_SECONDS = 60
_MOUNTS = """
set -eu
work=$1 root=$2 cgroup=$3; shift 3
mount -t tmpfs -o size=3g,mode=0700 gpuagent-test "$work"
mkdir -m 755 "$work/changes" "$work/overlay" "$work/root"
mount -t overlay -o "lowerdir=$root,upperdir=$work/changes,workdir=$work/overlay" gpuagent-test "$work/root"
# What belongs to this machine alone: what it starts at boot, what it mounts, who it is.
rm -rf "$work"/root/etc/systemd/system/*.wants "$work"/root/etc/systemd/system/*.requires "$work/root/var/log/journal"
rm -f "$work"/root/etc/rc?.d/S*
: >"$work/root/etc/machine-id"
: >"$work/root/etc/fstab"
# systemd-nspawn takes notes in /run.
mount -t tmpfs -o mode=0755 gpuagent-test /run
echo $$ >"$cgroup/cgroup.procs"
exec setpriv --pdeathsig TERM "$@"
"""
_OPTIONS = (
    "--quiet", "--keep-unit", "--register=no", "--link-journal=no", "--resolv-conf=off", "--timezone=off",
    # Settings such as IPAddressDeny= and DeviceAllow= load BPF programs, and do nothing without these.
    "--capability=CAP_BPF,CAP_NET_ADMIN,CAP_IPC_LOCK", "--system-call-filter=bpf @keyring",
    "--private-network",
)  # fmt: skip


def require() -> None:
    """Skip what cannot be booted here, with the reason."""
    if os.geteuid() != 0:
        pytest.skip("needs root to boot a container")
    if not Path("/lib/systemd/systemd").exists():
        pytest.skip("there is no systemd here to boot")
    if _cgroups() is None:
        pytest.skip("cgroup2 is not mounted")


def _cgroups() -> Path | None:
    found = subprocess.run(
        ["findmnt", "--noheadings", "--first-only", "--types", "cgroup2", "--output", "TARGET"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return Path(found.stdout.strip()) if found.returncode == 0 else None


class Machine:
    """Made by `booted`. What it is asked to do, root does inside."""

    def __init__(self, init: int) -> None:
        self._inside = ["nsenter", "--target", str(init), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]

    def try_run(
        self, *command: str, user: str = "", text: str | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """What became of it."""
        inside = [*self._inside, "--", "env", "-i", f"PATH={_PATH}", "HOME=/root", "LANG=C.UTF-8", "TERM=dumb"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        return subprocess.run(
            [*inside, *become, *command], capture_output=True, text=True, check=False, input=text or "", timeout=timeout
        )

    def run(self, *command: str, user: str = "", text: str | None = None, timeout: float = 120) -> str:
        """What it printed; it must work."""
        done = self.try_run(*command, user=user, text=text, timeout=timeout)
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def write(self, path: str, text: str, mode: str = "0644") -> None:
        """A file inside."""
        self.run("install", "-D", "-m", mode, "/dev/stdin", path, text=text)

    def until(self, wanted: str, *command: str, timeout: float = 30) -> str:
        """Run the command until what it prints has the wanted words in it."""
        limit = time.monotonic() + timeout
        while wanted not in (done := self.try_run(*command)).stdout:
            assert time.monotonic() < limit, f"{command} never said {wanted!r}, but:\n{done.stdout}{done.stderr}"
            time.sleep(0.05)
        return done.stdout

    def show(self, unit: str, key: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "--property", key, "--", unit)


@contextmanager
def booted(folder: Path, root: Path = Path("/"), binds: tuple[str, ...] = ()) -> Iterator[Machine]:
    """A machine that has come up; it is powered off at the end. `binds` are SOURCE:TARGET, read-only."""
    cgroups = _cgroups()
    assert cgroups is not None
    cgroup = cgroups / f"gpuagent-test-{os.getpid()}-{time.monotonic_ns()}"
    cgroup.mkdir()
    work = folder / "machine"
    work.mkdir()
    nspawn = shutil.which("systemd-nspawn") or "systemd-nspawn"
    command = [
        "unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _MOUNTS, "sh", str(work), str(root),
        str(cgroup), nspawn, *_OPTIONS, f"--directory={work / 'root'}", f"--machine=t{os.getpid()}",
        *(f"--bind-ro={bind}" for bind in binds), "--boot", "systemd.unit=multi-user.target", "systemd.getty_auto=no",
    ]  # fmt: skip
    environ = {"PATH": f"{Path(nspawn).parent}:{_PATH}", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    with (folder / "console").open("wb") as console:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=environ)
    try:
        yield _come_up(process, folder / "console")
    finally:
        process.terminate()  # systemd-nspawn makes an orderly shutdown of it
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _remove(cgroup)


def _come_up(process: subprocess.Popen[bytes], console: Path) -> Machine:
    limit = time.monotonic() + _BOOT_SECONDS
    while time.monotonic() < limit and process.poll() is None:
        init = _init_of(process.pid)
        if init is not None:
            machine = Machine(init)
            with contextlib.suppress(subprocess.TimeoutExpired):
                state = machine.try_run("systemctl", "is-system-running", timeout=10).stdout.strip()
                if state in {"running", "degraded"}:
                    return machine
        time.sleep(0.05)
    pytest.fail(f"the machine did not boot:\n{console.read_text(errors='replace')}")


def _init_of(nspawn: int) -> int | None:
    """The container's pid 1, a child of systemd-nspawn."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{nspawn}/task/{nspawn}/children").read_text().split():
            status = Path(f"/proc/{child}/status").read_text()
            if any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in status.splitlines()):
                return int(child)
    return None


def _remove(cgroup: Path) -> None:
    """With all that is still in it, which can only be ours."""
    with contextlib.suppress(OSError):
        (cgroup / "cgroup.kill").write_text("1")
    limit = time.monotonic() + 5
    while cgroup.exists() and time.monotonic() < limit:
        for below in sorted(cgroup.rglob("*"), reverse=True):
            if below.is_dir():
                with contextlib.suppress(OSError):
                    below.rmdir()
        with contextlib.suppress(OSError):
            cgroup.rmdir()
        time.sleep(0.05)
