"""Why a look at /proc did not come back in time, and who has to end first."""

from __future__ import annotations

import os
from collections import Counter

from gpuagent.procfs.hanging import READS, HangingReads
from gpuagent_alerts.remedies.facts.never_entries import NO_ANSWER

MANY_PROCESSES = 2000
"""Of one user. A look at ten thousand processes takes one to three seconds, and many times that on a busy machine."""


def why_slow(seconds: float, reads: HangingReads = READS, root: str = "/proc") -> str:
    """Return why a look took longer than this, in words: a process hangs, a user has very many, or neither is seen."""
    return reads.reason() or f"{NO_ANSWER} within {seconds:g} s{_crowd(root)}"


def _crowd(root: str) -> str:
    """Return who has most processes, zombies included, where these are many; "" otherwise."""
    owners: Counter[int] = Counter()
    try:
        with os.scandir(root) as entries:
            for each in entries:
                if each.name.isdigit():
                    try:
                        owners[each.stat().st_uid] += 1
                    except OSError:  # it has gone
                        continue
    except OSError:
        return ""
    (uid, number), *_ = owners.most_common(1) or [(0, 0)]
    if number < MANY_PROCESSES:
        return ""
    return f": uid {uid} has {number} of {owners.total()} processes, which have to end first"
