"""How many descriptors the agent may open."""

from __future__ import annotations

import resource

DESCRIPTORS = 16384
"""Room for a pidfd per GPU process on the largest node, with the sockets and files of the agent
beside them."""


def raise_descriptor_limit(maximum: int = DESCRIPTORS) -> int:
    """Set the soft limit to `maximum`, or to the hard limit where that is lower, and return it.

    The usual soft limit of 1024 is too low for large nodes. An unlimited one is lowered: libraries
    that close or count every possible descriptor take gigabytes then (XuehaiPan/nvitop#128).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = maximum if hard == resource.RLIM_INFINITY else min(hard, maximum)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
