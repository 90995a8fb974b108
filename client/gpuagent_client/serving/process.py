"""What the serving part needs of the process that it is in; the module `lifecycle` is one."""

from __future__ import annotations

from typing import Protocol

from gpuagent_client.allocator import Allocator
from gpuagent_client.limits import Limits
from gpuagent_client.told import Told
from gpuagent_client.torch_door import Torch


class Process(Protocol):
    """The app's torch, and what was told in both directions."""

    @property
    def told(self) -> Told:
        """By the app to its client, and by the agent."""
        ...

    @property
    def torch(self) -> Torch:
        """The door to it."""
        ...

    @property
    def allocator(self) -> Allocator:
        """Its figures."""
        ...

    @property
    def limits(self) -> Limits:
        """Its limits."""
        ...
