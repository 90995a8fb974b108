"""Follow one process of the scenario, made up or bound to a real pid, and render the text of its /proc."""

from __future__ import annotations

import math
import os
import re
import select
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from gpuagent.core.identity import COMM_BYTES, TICKS_PER_SECOND
from gpuagent_simulator.abi import NO_INSTANCE
from gpuagent_simulator.curves import Constant, ScenarioClock, Shape
from gpuagent_simulator.spec import DEFAULT_CGROUP, FIRST_MADE_UP_PID, GpuSpec, MigInstanceSpec, ProcessSpec

FIRST_MADE_UP_UID = 200_001
"""Above what useradd and container ranges usually give out, so that no real user's name is shown
for a made-up one."""

_RAW_BYTE = re.compile(rb"\\x([0-9a-fA-F]{2})")


class Load(NamedTuple):
    """Whole percent, as NVML has it."""

    sm: int
    memory: int
    encoder: int
    decoder: int
    jpeg: int
    ofa: int


IDLE = Load(0, 0, 0, 0, 0, 0)


def raw_bytes(text: str) -> bytes:
    r"""Return the text as the kernel would have it.

    `\xNN` is one byte of any value, so that names need not be UTF-8.
    """
    return _RAW_BYTE.sub(lambda match: bytes([int(match[1], 16)]), text.encode())


class Process:
    """Process of the scenario.

    Times are seconds of the scenario; those of a bound one are set by its real life.
    """

    def __init__(self, spec: ProcessSpec, gpu_index: int, number: int, pid: int) -> None:
        def fill_in(text: str) -> str:
            return text.replace("{n}", str(number)).replace("{gpu}", str(gpu_index)).replace("{pid}", str(pid))

        self.spec = spec
        self.gpu_index = gpu_index
        self.pid = pid
        self.uid = spec.uid or 0
        self.user = fill_in(spec.user)
        self.name = raw_bytes(fill_in(spec.name))
        self.command = tuple(raw_bytes(fill_in(word)) for word in spec.command) or (self.name,)
        self.cgroup = fill_in(spec.cgroup)
        self._engines: tuple[Shape, ...] = tuple(getattr(spec.utilization, e) for e in Load._fields)
        steady = all(isinstance(engine, Constant) for engine in self._engines)
        self._steady_load = _load(self._engines, 0.0) if steady else None
        self.begins = math.inf if spec.bind else spec.from_ + number * spec.every
        self.ends = self.begins + spec.life if spec.life is not None else spec.until
        self.dies = math.inf
        if spec.dead or spec.dead_after is not None:
            self.dies = self.begins + (spec.dead_after or 0.0)

    @property
    def gpu_instance(self) -> int:
        """NVML's id of the GPU instance; all ones without MIG."""
        return NO_INSTANCE if self.spec.gpu_instance is None else self.spec.gpu_instance

    @property
    def compute_instance(self) -> int:
        """NVML's id of the compute instance; all ones without MIG."""
        return NO_INSTANCE if self.spec.gpu_instance is None else self.spec.compute_instance

    def cgroup_path(self) -> str:
        """Return its cgroup of version 2: of a real process for which the scenario names none, the real one."""
        text = self.cgroup
        if self.spec.bind and text == DEFAULT_CGROUP:
            try:
                text = Path(f"/proc/{self.pid}/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
            except OSError:  # it has ended, and its memory is still counted
                return "/"
        if text.startswith("/"):
            return text
        return next((line.removeprefix("0::") for line in text.splitlines() if line.startswith("0::")), "/")

    def is_listed(self, now: float) -> bool:
        """Return True while the driver lists it: a dead one too, until its memory is gone."""
        return self.begins <= now < self.ends

    def is_alive(self, now: float) -> bool:
        """Return True while /proc knows it."""
        return self.begins <= now < min(self.ends, self.dies)

    def used_bytes(self, now: float) -> int | None:
        """Return the device memory; that of a dead process stands still. None: the driver does not report it."""
        if self.spec.memory is None:
            return None
        return max(0, int(self.spec.memory(min(now, self.dies) - self.begins)))

    def resident_bytes(self, now: float) -> int:
        """Return the host memory."""
        return max(0, int(self.spec.resident(now - self.begins)))

    def load(self, now: float) -> Load:
        """Return how busy it keeps the engines."""
        if now >= self.dies:
            return IDLE
        return self._steady_load or _load(self._engines, now - self.begins)

    def belongs_to(self, instance: MigInstanceSpec, *, whole_gpu_instance: bool = False) -> bool:
        """Return True if it runs in this compute instance, or anywhere in its GPU instance."""
        return self.gpu_instance == instance.gpu_instance and (
            whole_gpu_instance or self.compute_instance == instance.compute_instance
        )

    def begin(self, pid: int, now: float) -> None:
        """Begin when a bound process has begun."""
        self.pid, self.begins, self.ends, self.dies = pid, now, math.inf, math.inf

    def die(self, now: float) -> None:
        """End when a bound process has ended by itself.

        Its memory goes with it, unless the scenario says otherwise.
        """
        if self.spec.holds_after_death:
            self.dies = min(self.dies, now)
        else:
            self.end()

    def end(self) -> None:
        """Drop it from the driver's list, as for a bound process that has gone."""
        self.begins = math.inf


def _load(engines: tuple[Shape, ...], age: float) -> Load:
    return Load(*(_percent(engine(age)) for engine in engines))


def _percent(value: float) -> int:
    return min(100, max(0, round(value)))


class _Numbers:
    """Allocate made-up pids and uids, the same for the same scenario."""

    def __init__(self, gpus: Iterable[GpuSpec]) -> None:
        self._next_pid = FIRST_MADE_UP_PID
        self._given = {
            process.pid + number
            for gpu in gpus
            for process in gpu.processes
            if process.pid is not None
            for number in range(process.count)
        }
        self._uids = {"root": 0}

    def pid(self, spec: ProcessSpec, number: int) -> int:
        if spec.bind:
            return 0
        if spec.pid is not None:
            return spec.pid + number
        while self._next_pid in self._given:
            self._next_pid += 1
        self._next_pid += 1
        return self._next_pid - 1

    def uid(self, process: Process) -> int:
        if process.spec.uid is not None:
            return process.spec.uid
        return self._uids.setdefault(process.user, FIRST_MADE_UP_UID + len(self._uids) - 1)


def expand(gpus: tuple[GpuSpec, ...]) -> list[list[Process]]:
    """Return the processes of each GPU, `count` of GPUs and of processes written out.

    Pids follow the order of the file.
    """
    numbers = _Numbers(gpus)
    every_gpu: list[list[Process]] = []
    for gpu in gpus:
        for _ in range(gpu.count):
            index = len(every_gpu)
            every_gpu.append(
                [
                    Process(spec, index, number, numbers.pid(spec, number))
                    for spec in gpu.processes
                    for number in range(spec.count)
                ]
            )
    for processes in every_gpu:
        for process in processes:
            process.uid = numbers.uid(process)
    return every_gpu


class Bindings:
    """Bind `bind:` keys to real pids, and notice by pidfd when one has ended. Thread-safe."""

    def __init__(self, processes: Iterable[Process], scenario_clock: ScenarioClock) -> None:
        self._scenario_clock = scenario_clock
        self._lock = threading.Lock()
        self._by_key: dict[str, list[Process]] = {}
        for process in processes:
            if process.spec.bind:
                self._by_key.setdefault(process.spec.bind, []).append(process)
        self._watched: dict[str, int] = {}
        self._poll = select.poll()
        self.version = 0
        """Grows whenever a process has begun or ended."""

    def bind(self, key: str, pid: int) -> None:
        """Begin the processes declared `bind: KEY` now, with this pid.

        Raises:
            KeyError: the scenario has no such process.
            ProcessLookupError: no such pid.
        """
        with self._lock:
            processes = self._of(key)
            descriptor = os.pidfd_open(pid)
            self._forget(key)
            self._watched[key] = descriptor
            self._poll.register(descriptor, select.POLLIN)
            for process in processes:
                process.begin(pid, self._scenario_clock.now())
            self.version += 1

    def unbind(self, key: str) -> None:
        """End the processes declared `bind: KEY`, and free their memory.

        Raises:
            KeyError: the scenario has no such process.
        """
        with self._lock:
            for process in self._of(key):
                process.end()
            self._forget(key)
            self.version += 1

    def poll(self) -> None:
        """End the bound processes that have ended since the last poll; a zombie has ended."""
        if not self._watched:
            return
        with self._lock:
            ended = {descriptor for descriptor, _ in self._poll.poll(0)}
            for key in [key for key, descriptor in self._watched.items() if descriptor in ended]:
                for process in self._by_key[key]:
                    process.die(self._scenario_clock.now())
                self._forget(key)
                self.version += 1

    def close(self) -> None:
        """Give the descriptors back."""
        with self._lock:
            for key in list(self._watched):
                self._forget(key)

    def _of(self, key: str) -> list[Process]:
        if key not in self._by_key:
            known = ", ".join(sorted(self._by_key)) or "none"
            raise KeyError(f"the scenario has no process with bind: {key} (it has {known})")
        return self._by_key[key]

    def _forget(self, key: str) -> None:
        descriptor = self._watched.pop(key, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)


FIRST_NEWCOMER_PID = 2**30
"""Pids of the entries by which a growing process list grows."""
HOST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO (include/linux/proc_ns.h): the namespace that all made-up processes live in."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OF_THE_HOST = frozenset({"uid_map", "mountinfo"})
"""Made-up processes run on the host itself: what these files say of its init holds for them."""
_STATES = {
    "R": "R (running)",
    "S": "S (sleeping)",
    "D": "D (disk sleep)",
    "Z": "Z (zombie)",
    "T": "T (stopped)",
    "t": "t (tracing stop)",
    "I": "I (idle)",
}


class FallbackProc(Protocol):
    """What reads the real /proc, for every pid that is not made up."""

    def read(self, pid: int, name: str) -> bytes: ...

    def link(self, pid: int, name: str) -> str: ...

    def owner(self, pid: int) -> int: ...

    def exists(self, pid: int) -> bool: ...

    def threads(self, pid: int) -> list[int]: ...


class SimulatedProc:
    """Serve /proc with the scenario's processes in it; everything else comes from `fallback`.

    `boot_time_seconds` is unix time: start times are ticks since then, as in /proc/<pid>/stat.
    """

    def __init__(
        self, processes: Iterable[Process], scenario_clock: ScenarioClock, fallback: FallbackProc | None = None
    ) -> None:
        self._scenario_clock = scenario_clock
        self._fallback = fallback
        self._by_pid: dict[int, Process] = {}
        for process in processes:
            if not process.spec.bind:
                self._by_pid.setdefault(process.pid, process)
        self._users = {process.uid: process.user for process in self._by_pid.values()}
        self.boot_time_seconds = scenario_clock.clock.wall() - scenario_clock.clock.now()

    def resident_bytes(self) -> int:
        """Return the host memory of all made-up processes that live."""
        now = self._scenario_clock.now()
        return sum(process.resident_bytes(now) for process in self._by_pid.values() if process.is_alive(now))

    def read(self, pid: int, name: str) -> bytes:
        """Return a file of /proc/<pid>.

        Raises:
            FileNotFoundError: no such process, or no such file.
        """
        if not self._owns(pid):
            return self._real(pid).read(pid, name)
        process = self._living(pid)
        if name in _OF_THE_HOST:
            return self._real(1).read(1, name)
        renderers: dict[str, Callable[[Process], bytes]] = {
            "stat": self._stat,
            "status": self._status,
            "statm": self._statm,
            "comm": _comm,
            "cmdline": _cmdline,
            "cgroup": _cgroup,
        }
        if name not in renderers:
            raise FileNotFoundError(2, "No such file", f"/proc/{pid}/{name}")
        return renderers[name](process)

    def link(self, pid: int, name: str) -> str:
        """Return a symbolic link of /proc/<pid>: `ns/pid` and `exe`.

        Raises:
            FileNotFoundError: no such process, or no such link.
        """
        if not self._owns(pid):
            return self._real(pid).link(pid, name)
        process = self._living(pid)
        if name == "ns/pid":
            return HOST_PID_NAMESPACE
        if name == "exe":
            return os.fsdecode(process.command[0])
        raise FileNotFoundError(2, "No such link", f"/proc/{pid}/{name}")

    def owner(self, pid: int) -> int:
        """Return the uid that a process runs as.

        Raises:
            FileNotFoundError: no such process.
        """
        if not self._owns(pid):
            return self._real(pid).owner(pid)
        return self._living(pid).uid

    def exists(self, pid: int) -> bool:
        """Return True while /proc has a folder for it."""
        if not self._owns(pid):
            return self._fallback is not None and self._fallback.exists(pid)
        try:
            self._living(pid)
        except FileNotFoundError:
            return False
        return True

    def threads(self, pid: int) -> list[int]:
        """Return the numbers of its threads: a process of the scenario has one.

        Raises:
            FileNotFoundError: no such process.
        """
        if not self._owns(pid):
            return self._real(pid).threads(pid)
        return [self._living(pid).pid]

    def user_name(self, uid: int) -> str | None:
        """Return the name of a made-up user; None for others."""
        return self._users.get(uid)

    # ---- whose pid it is -------------------------------------------------------------------------

    def _owns(self, pid: int) -> bool:
        return pid in self._by_pid or pid >= FIRST_NEWCOMER_PID

    def _real(self, pid: int) -> FallbackProc:
        if self._fallback is None:
            raise FileNotFoundError(2, "No such process", f"/proc/{pid}")
        return self._fallback

    def _living(self, pid: int) -> Process:
        process = self._by_pid.get(pid)
        if process is None or not process.is_alive(self._scenario_clock.now()):
            raise FileNotFoundError(2, "No such process", f"/proc/{pid}")
        return process

    # ---- the files -------------------------------------------------------------------------------

    def _start_ticks(self, process: Process) -> int:
        """Return the clock ticks since boot; a process cannot be older than the machine."""
        started = self._scenario_clock.start + process.begins - process.spec.age
        return max(1, round(started * TICKS_PER_SECOND))

    def _pages(self, process: Process) -> int:
        return process.resident_bytes(self._scenario_clock.now()) // _PAGE_BYTES

    def _stat(self, process: Process) -> bytes:
        """Return 52 fields (proc(5)); the 22nd is the start, the 24th the resident pages.

        Stack and arguments (28, 48, 49) lie at one address for ever, which says that there was no exec. The rest
        says nothing.
        """
        pages = self._pages(process)
        before = "0 " * 17
        after = "0 0 0 4096 " + "0 " * 19 + "8192 8448 0 0 "
        head = b"%d (%b) " % (process.pid, process.name[:COMM_BYTES])
        text = (
            f"{process.spec.state} 1 {before}{self._start_ticks(process)} {pages * 2 * _PAGE_BYTES} {pages} {after}0\n"
        )
        return head + text.encode()

    def _status(self, process: Process) -> bytes:
        uids = "\t".join([str(process.uid)] * 4)
        text = (
            f"Umask:\t0022\nState:\t{_STATES[process.spec.state]}\nTgid:\t{process.pid}\nNgid:\t0\n"
            f"Pid:\t{process.pid}\nPPid:\t1\nTracerPid:\t0\nUid:\t{uids}\nGid:\t{uids}\n"
            f"NStgid:\t{process.pid}\nNSpid:\t{process.pid}\n"
            f"VmRSS:\t{process.resident_bytes(self._scenario_clock.now()) // 1024:8d} kB\nThreads:\t1\n"
        )
        return b"Name:\t" + process.name[:COMM_BYTES] + b"\n" + text.encode()

    def _statm(self, process: Process) -> bytes:
        pages = self._pages(process)
        return f"{pages * 2} {pages} 0 0 0 {pages} 0\n".encode()


def _comm(process: Process) -> bytes:
    return process.name[:COMM_BYTES] + b"\n"


def _cmdline(process: Process) -> bytes:
    """Return the command line; empty for a zombie, whose memory is gone."""
    if process.spec.state == "Z":
        return b""
    return b"".join(word + b"\0" for word in process.command)


def _cgroup(process: Process) -> bytes:
    """Return the path as one of cgroup v2.

    What already looks like the file (`4:memory:/docker/...`) is taken as it is.
    """
    text = process.cgroup
    if text.startswith("/"):
        text = f"0::{text}"
    return text.strip().encode() + b"\n"
