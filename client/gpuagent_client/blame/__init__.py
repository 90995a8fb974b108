"""Find which line of the app holds GPU memory: runs on demand, in the app, and answers in words.

`census` takes three snapshots of all tensors, in forked children, and says who keeps those that outlive the window.
`lines` records for a short while where CUDA memory is allocated. Nothing runs before the agent asks.
"""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from gpuagent_client.blame.census import census
from gpuagent_client.blame.fork import ThreadFrame, is_census_fork, run_in_child
from gpuagent_client.blame.heap import index_heap, walk
from gpuagent_client.blame.lines import lines
from gpuagent_client.blame.paths import trail
from gpuagent_client.blame.wire import Context, bounded
from gpuagent_client.errors import Refused, log

__all__ = ["Context", "holders_of", "is_census_fork", "run"]

COMMANDS = {"census": census, "lines": lines}


def run(command: str, args: Mapping[str, object], deadline_seconds: float, context: Context) -> dict[str, object]:
    """Carry out a command; takes the whole window, so call it in a thread that may wait.

    Returns:
        At most 60 KiB as JSON: verdict, groups, lines, notes and stall_seconds, the longest that the app stood still.
        A refusal is an answer: {"ok": False, "err": why}.
    """
    handler = COMMANDS.get(command)
    try:
        if handler is None:
            raise Refused(f"no such command: {command[:20]}")
        return bounded(handler(args, deadline_seconds, context))
    except Refused as refusal:
        return {"ok": False, "err": str(refusal)}


MAX_SEARCHED = 4
"""Number of objects that are searched for. All in one container, they have one path."""
WALK_SECONDS = 3.0
CHILD_SECONDS = 10.0
UNKNOWN = "something that cannot be named"


def holders_of(watched: Sequence[weakref.ref[Any]]) -> list[str]:
    """Return the paths to those of them that are still alive; none if all are gone.

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
        answer = run_in_child(lambda frames: _paths_to(watched, frames), CHILD_SECONDS)
    except (OSError, Refused) as error:
        log.debug("nobody can say what holds the model: %s", error)
        return
    found += json.loads(answer.data)


def _paths_to(watched: Sequence[weakref.ref[Any]], frames: list[ThreadFrame]) -> bytes:
    heap = index_heap(gc.get_objects(), frames, [])
    alive = [item for item in (ref() for ref in watched) if item is not None]
    alive = alive[: 1 if alive and alive[0] is watched[0]() else MAX_SEARCHED]
    ways = [trail(held.objects, heap, show_keys=False).text() or UNKNOWN for held in walk(alive, heap, WALK_SECONDS)]
    return json.dumps(list(dict.fromkeys(ways))).encode()
