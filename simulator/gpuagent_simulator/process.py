"""Follow one process of the scenario: made up, or bound to a real pid, which ends when that process ends."""

from __future__ import annotations

import math
import os
import re
import select
import threading
from collections.abc import Iterable
from typing import NamedTuple

from gpuagent_simulator.functions import Constant, ScenarioClock, Shape
from gpuagent_simulator.spec import FIRST_MADE_UP_PID, GpuSpec, MigInstanceSpec, ProcessSpec
from gpuagent_simulator.structs import NO_INSTANCE

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
    """A process while the story goes on.

    Times are story seconds; those of a bound one are set by its real life.
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

    def listed(self, now: float) -> bool:
        """Return True while the driver lists it: a dead one too, until its memory is gone."""
        return self.begins <= now < self.ends

    def lives(self, now: float) -> bool:
        """Return True while /proc knows it."""
        return self.begins <= now < min(self.ends, self.dies)

    def used_bytes(self, now: float) -> int | None:
        """Return the device memory; that of a dead process stands still. None: the driver does not tell."""
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
        """Begin, as a bound process has."""
        self.pid, self.begins, self.ends, self.dies = pid, now, math.inf, math.inf

    def die(self, now: float) -> None:
        """Die, as a bound process has of its own accord.

        Its memory goes with it, unless the story says otherwise.
        """
        if self.spec.holds_after_death:
            self.dies = min(self.dies, now)
        else:
            self.end()

    def end(self) -> None:
        """Drop it from the driver's list, as a bound process that is gone."""
        self.begins = math.inf


def _load(engines: tuple[Shape, ...], age: float) -> Load:
    return Load(*(_percent(engine(age)) for engine in engines))


def _percent(value: float) -> int:
    return min(100, max(0, round(value)))


class _Numbers:
    """Hands out made-up pids and uids, the same for the same scenario."""

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
    """Ties `bind:` keys to real pids and notices by pidfd when one has ended. Thread-safe."""

    def __init__(self, processes: Iterable[Process], story: ScenarioClock) -> None:
        self._story = story
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
                process.begin(pid, self._story.now())
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

    def look(self) -> None:
        """Notice those that have ended since the last look; a zombie has ended."""
        if not self._watched:
            return
        with self._lock:
            ended = {descriptor for descriptor, _ in self._poll.poll(0)}
            for key in [key for key, descriptor in self._watched.items() if descriptor in ended]:
                for process in self._by_key[key]:
                    process.die(self._story.now())
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
