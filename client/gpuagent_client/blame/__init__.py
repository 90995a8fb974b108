"""Which line holds the memory: runs on demand, in the app, and answers in words.

`census` looks three times at all tensors, in forked children, and says who keeps those that outlive the window.
`lines` records for a short while where CUDA memory is allocated. Nothing runs before the agent asks.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuagent_client.blame.answer import bounded
from gpuagent_client.blame.census import census
from gpuagent_client.blame.fork import is_census_fork
from gpuagent_client.blame.lines import lines
from gpuagent_client.blame.request import Context, Refused

__all__ = ["Context", "is_census_fork", "run"]

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
