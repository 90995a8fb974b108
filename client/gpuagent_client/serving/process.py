"""The process that serving is in: its client, and objects that begin anew in a forked child."""

from __future__ import annotations

import os
import weakref
from typing import Any, Callable, Protocol

from gpuagent_client.allocator import Allocator, Torch
from gpuagent_client.remedies import Limits
from gpuagent_client.settings import Told

_renewals: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
_registered = False


def renewed_after_fork(owner: object, renew: Callable[[Any], None]) -> None:
    """Call `renew(owner)` in each forked child, as long as the owner lives."""
    global _registered  # noqa: PLW0603 - hooks cannot be taken back, so there is one for all
    _renewals[owner] = renew
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_renew_all)


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


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
