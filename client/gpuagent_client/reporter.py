"""What this process says of itself: who it is, which frameworks it runs, and its allocator's figures.

TensorFlow and JAX do, unless they are told not to. Nothing in a process's name tells, and its environment is its own
user's secret: so the app says it. What is only imported has taken nothing, hence this looks whether a framework has the
GPU up, and calls nothing of it: a call could bring it up.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Callable

import gpuagent_client
from gpuagent_client import protocol
from gpuagent_client.allocator import Allocator, Reading, Torch, as_sent
from gpuagent_client.guard import tell_once
from gpuagent_client.protocol import Message
from gpuagent_client.remedies import Limits, NoLimits
from gpuagent_client.settings import Told

_JAX_GPU_PLATFORMS = ("cuda", "gpu", "rocm")


def frameworks(modules: Mapping[str, ModuleType], environment: Mapping[str, str]) -> dict[str, bool]:
    """Return whether each framework took most of the GPU when it came up, without those that do not use it.

    `modules` is `sys.modules`. What a version keeps elsewhere is not found, and then nothing is said.
    """
    found: dict[str, bool] = {}
    if _jax_is_up(modules):
        found["jax"] = _jax_preallocates(environment)
    growing = _tensorflow_growth(modules)
    if growing:
        # The environment overrides what the program has set with set_memory_growth, by these two words alone.
        forced = environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "")
        found["tensorflow"] = forced != "true" if forced in {"true", "false"} else not all(growing)
    return found


def _jax_is_up(modules: Mapping[str, ModuleType]) -> bool:
    """Return whether JAX has clients of a platform."""
    backends = _names(modules.get("jax._src.xla_bridge")).get("_backends")
    return isinstance(backends, dict) and any(name in backends for name in _JAX_GPU_PLATFORMS)


def _jax_preallocates(environment: Mapping[str, str]) -> bool:
    """Return whether JAX takes 75 % by default: https://docs.jax.dev/en/latest/gpu_memory_allocation.html.

    As jaxlib reads them: the allocator's name in any case, but `False` and not `FALSE` (`xla_client.py`,
    `generate_pjrt_gpu_plugin_options`).
    """
    if environment.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower() == "platform":
        return False
    return environment.get("XLA_PYTHON_CLIENT_PREALLOCATE", "") not in {"0", "false", "False"}


def _tensorflow_growth(modules: Mapping[str, ModuleType]) -> list[bool]:
    """Return whether memory grows with the need, for each GPU that TensorFlow uses; [] where it uses none.

    https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth
    """
    context = _names(modules.get("tensorflow.python.eager.context")).get("_context")
    own = getattr(context, "__dict__", {})
    if own.get("_context_handle") is None:  # the devices may be listed already, but nothing is allocated
        return []
    grows = own.get("_memory_growth_map")
    return [value is True for value in list(grows.values())] if isinstance(grows, dict) else []


def _names(module: ModuleType | None) -> Mapping[str, object]:
    """Return a module's own names. Not by getattr: a __getattr__ may import what the app has not asked for."""
    found = getattr(module, "__dict__", {})
    return found if isinstance(found, dict) else {}


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
        """Return who this is. Changes while the app runs: torch is imported, CUDA comes up, a need is declared."""
        return protocol.hello(
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
        """Return the allocator's figures of now. A limit that the app wants is set on GPUs that it has begun to use."""
        started = self._clock()
        reading = self._allocator.read()
        self.cost_seconds = self._clock() - started
        self._keep_limit(reading)
        self._number += 1
        return protocol.stats(
            number=self._number,
            timestamp=round(time.time(), 3),
            initialized=reading.initialized,
            devices=[as_sent(device) for device in reading.devices],
            error=reading.error,
        )

    def skip(self) -> None:
        """Skip figures that the agent would not read: the gap in `seq` tells it how many."""
        self._number += 1

    def pause_seconds(self, interval_seconds: float) -> float:
        """Return the pause until the next figures: longer where a busy allocator kept this one waiting."""
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
