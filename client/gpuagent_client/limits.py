"""The allocator's limit on each GPU: a share of the GPU's memory that it may take."""

from __future__ import annotations

from collections.abc import Sequence

from gpuagent_client.allocator import Allocator, Device
from gpuagent_client.told import Told
from gpuagent_client.torch_door import NotThere, Torch


class NoLimits(Exception):
    """This torch, or its allocator, cannot be limited."""


class Limits:
    """Sets limits, on GPUs in use only: to set one on another would start CUDA there."""

    def __init__(self, told: Told, torch: Torch, allocator: Allocator) -> None:
        self._told = told
        self._torch = torch
        self._allocator = allocator
        self._kept: dict[int, float] = {}

    def set(self, device: int, ratio: float) -> None:
        """Limit the allocator on one GPU; 1.0 lifts it. What it holds already stays.

        Raises:
            NoLimits: that cannot be done here.
        """
        try:
            self._torch.call("torch.cuda", "set_per_process_memory_fraction", ratio, device)
        except (NotThere, RuntimeError) as error:
            raise NoLimits(str(error)) from error
        finally:
            self._allocator.forget_limits()

    def keep(self, devices: Sequence[Device]) -> None:
        """Set what the app asked for with `limit_memory`, once on each GPU that it uses.

        Raises:
            NoLimits: that cannot be done here.
        """
        ratio = self._told.limit_ratio
        for device in devices:
            if ratio is not None and self._kept.get(device.ordinal) != ratio:
                self._kept[device.ordinal] = ratio
                self.set(device.ordinal, ratio)
