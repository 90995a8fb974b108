"""A machine's cgroups as a folder, and the /proc of the processes in them."""

from __future__ import annotations

from pathlib import Path

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.target import Target
from tests.fakes.proc import FakeProc, stat_text

UNSET = 2**32 - 1
UNIT = "whisper.service"
CGROUP = f"/system.slice/{UNIT}"
START_TICKS = 1000
HOST_ROOT = b"24 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
OWN_ROOT = b"90 80 0:51 / / rw - overlay overlay rw\n"


class CgroupTree:
    """One hierarchy. What the kernel would not tell is taken out of `proc.files` by the test."""

    def __init__(self, folder: Path, *, legacy: bool = False) -> None:
        self.root = folder / "cgroup root"
        self.root.mkdir()
        self.mountinfo = folder / "mountinfo"
        self.proc = FakeProc()
        self.proc.put(1, mountinfo=HOST_ROOT, status=b"Name:\tinit\nUid:\t0\t0\t0\t0\nNSpid:\t1\n")
        self._controllers = "name=systemd" if legacy else ""
        kind = "cgroup cgroup rw,xattr,name=systemd" if legacy else "cgroup2 cgroup2 rw,nsdelegate"
        mount_point = str(self.root).replace(" ", "\\040")
        self.mountinfo.write_text(
            f"24 1 0:22 / /proc rw,nosuid shared:5 - proc proc rw\n31 24 0:27 / {mount_point} rw,relatime - {kind}\n"
        )

    def add(
        self,
        pid: int,
        cgroup: str = CGROUP,
        *,
        uids: tuple[int, int, int, int] = (1000, 1000, 1000, 1000),
        login_uid: int = UNSET,
        session: int = UNSET,
        terminal: int = 0,
        namespace_pids: tuple[int, ...] = (),
        mountinfo: bytes = HOST_ROOT,
        state: str = "S",
        name: bytes = b"a) b (c",
        oom_score_adjust: int = 0,
    ) -> None:
        """Start a process there, by default one of user 1000 without a login or a terminal."""
        self.put(pid, cgroup)
        pids = " ".join(map(str, namespace_pids or (pid,)))
        self.proc.put(
            pid,
            stat_text(pid, name, state=state, terminal=terminal, start_ticks=START_TICKS),
            status=f"Name:\tx\nUid:\t{' '.join(map(str, uids))}\nNSpid:\t{pids}\n".encode(),
            mountinfo=mountinfo,
            loginuid=str(login_uid).encode(),
            sessionid=str(session).encode(),
            cgroup=f"0:{self._controllers}:{cgroup}\n".encode(),
        )
        self.proc.files[pid]["oom_score_adj"] = f"{oom_score_adjust}\n".encode()
        self.proc.files[pid]["exe"] = b"/opt/" + name
        self.proc.files[pid]["cmdline"] = b"/opt/" + name + b"\0"

    def put(self, pid: int, cgroup: str = CGROUP) -> None:
        """List a process in a cgroup, whatever /proc says."""
        folder = self.root / cgroup.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for each in (folder, *folder.parents):
            if each == self.root.parent:
                break
            (each / "cgroup.procs").touch()
        with (folder / "cgroup.procs").open("a") as file:
            file.write(f"{pid}\n")


def unit_target(pid: int = 100, unit: str = UNIT) -> Target:
    """A process of the unit, as it was measured."""
    return Target(
        id=ProcessId("boot", pid, START_TICKS), key=MemoryKey("GPU-0", pid), gpu_index=0, name="python", uid=1000,
        user="svc", command="python serve.py", cgroup=CGROUP, used_bytes=2**30, unit=unit,
    )  # fmt: skip
