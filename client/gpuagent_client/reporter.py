"""What this process says of itself: who it is, and its allocator's figures."""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import Callable

import gpuagent_client
from gpuagent_client import messages
from gpuagent_client.allocator import Allocator, Reading, as_sent
from gpuagent_client.frameworks import frameworks
from gpuagent_client.guard import tell_once
from gpuagent_client.limits import Limits, NoLimits
from gpuagent_client.protocol import Message
from gpuagent_client.told import Told
from gpuagent_client.torch_door import Torch

COST_SHARE = 0.01
"""Of the time, spent inside the allocator at most: the interpreter's lock is held meanwhile."""
MAX_SPARED_SECONDS = 4.0
"""The agent no longer believes figures that are older than five seconds."""
MAX_PROGRAM_CHARACTERS = 200


class Reporter:
    """Makes the messages; the connection's thread calls it."""

    def __init__(
        self,
        told: Told,
        torch: Torch,
        allocator: Allocator,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._told = told
        self._torch = torch
        self._allocator = allocator
        self._limits = limits
        self._clock = clock
        self._number = 0
        self.cost_seconds = 0.0
        """How long the allocator took to answer the last time."""

    def hello(self, *, obeying: bool) -> Message:
        """Who this is. Changes while the app runs: torch is imported, CUDA comes up, a need is declared."""
        return messages.hello(
            library=gpuagent_client.__version__,
            pid=os.getpid(),
            parent_pid=os.getppid(),
            program=_program(),
            python=platform.python_version(),
            torch=self._torch.version(),
            app=self._told.settings.app,
            backend=self._torch.backend(),
            commands=sorted(self._told.settings.obeyed) if obeying else (),
            declared=self._told.declared,
            interval_seconds=self._told.settings.interval_seconds,
            frameworks=frameworks(sys.modules, os.environ),
        )

    def stats(self) -> Message:
        """The allocator's figures of now. A limit that the app wants is set on GPUs that it has begun to use."""
        started = self._clock()
        reading = self._allocator.read()
        self.cost_seconds = self._clock() - started
        self._keep_limit(reading)
        self._number += 1
        return messages.stats(
            number=self._number,
            timestamp=round(time.time(), 3),
            initialised=reading.initialised,
            devices=[as_sent(device) for device in reading.devices],
            error=reading.error,
        )

    def skip(self) -> None:
        """Figures were not sent, because the agent has not read the last ones: the gap in `seq` tells it how many."""
        self._number += 1

    def pause_seconds(self, interval_seconds: float) -> float:
        """Until the next figures: longer where the allocator, busy in another thread, kept this one waiting."""
        spared = min(self.cost_seconds / COST_SHARE, MAX_SPARED_SECONDS)
        return max(interval_seconds, spared)

    def _keep_limit(self, reading: Reading) -> None:
        try:
            self._limits.keep(reading.devices)
        except NoLimits as error:
            tell_once("limit the allocator", str(error))


def _program() -> str:
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    return program[:MAX_PROGRAM_CHARACTERS]
