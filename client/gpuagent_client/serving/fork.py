"""Objects that must begin anew in a forked child: the threads that hold their locks are not there."""

from __future__ import annotations

import os
import weakref
from typing import Any, Callable

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
