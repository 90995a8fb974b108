"""What still holds a model that should be gone: the way to it from a module, a class or a running function, in words.

The search is `gpuagent blame`'s, and runs in a forked child as that does: the app stands still for the fork only, and
running code is looked into without leaving marks on it.
"""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from gpuagent_client.blame.fork import ThreadFrame, in_child
from gpuagent_client.blame.heap import survey, walk
from gpuagent_client.blame.request import Refused
from gpuagent_client.blame.trail import trail
from gpuagent_client.guard import log

MAX_SEARCHED = 4
"""Of the objects that are still there. All in one container, they have one way."""
WALK_SECONDS = 3.0
CHILD_SECONDS = 10.0
UNKNOWN = "something that cannot be named"


def holders_of(watched: Sequence[weakref.ref[Any]]) -> list[str]:
    """Return the ways to those of them that are still there; none if all are gone.

    The first is the whole, and the others are its parts: they are looked for only where the whole is gone.
    """
    if not any(ref() is not None for ref in watched):
        return []
    found: list[str] = []
    # From a thread of its own: the functions that wait for this one are looked into as well.
    thread = threading.Thread(target=_search, args=(watched, found), name="gpuagent-holders")
    thread.start()
    thread.join()
    return found or [UNKNOWN]


def _search(watched: Sequence[weakref.ref[Any]], found: list[str]) -> None:
    try:
        answer = in_child(lambda frames: _look(watched, frames), CHILD_SECONDS)
    except (OSError, Refused) as error:
        log.debug("nobody can say what holds the model: %s", error)
        return
    found += json.loads(answer.data)


def _look(watched: Sequence[weakref.ref[Any]], frames: list[ThreadFrame]) -> bytes:
    heap = survey(gc.get_objects(), frames, [])
    alive = [item for item in (ref() for ref in watched) if item is not None]
    alive = alive[: 1 if alive and alive[0] is watched[0]() else MAX_SEARCHED]
    ways = [trail(held.objects, heap, show_keys=False).text() or UNKNOWN for held in walk(alive, heap, WALK_SECONDS)]
    return json.dumps(list(dict.fromkeys(ways))).encode()
