"""What became of several processes, in one line: how many ended, by whom, and how much memory came back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gpuagent.core.units import format_bytes
from gpuagent_alerts.alert import PROCESS_ENDED

_BACK = re.compile(r"([\d.]+) (B|[KMGT]iB) came back")
_FACTORS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_STOPPED = re.compile(r"growth stopped at ([\d.]+) (B|[KMGT]iB) with ([\d.]+) (B|[KMGT]iB) free(?: \((\S+) UTC\))?")
_BY_REMEDY = re.compile(r"gpuagent (terminated|killed) it \(")


def summarize_ends(reasons: Sequence[str], *, of: int) -> str:
    """Return one line for the ends of several processes; `of` is how many there were.

    One that several share is told with their number, the most frequent first.
    """
    if stopped := _stopped(reasons):
        return stopped
    heads = Counter(reason.partition(";")[0] for reason in reasons)
    parts = [_counted(head, number, of) for head, number in heads.most_common()]
    return ", ".join(parts) + _came_back(reasons)


def _stopped(reasons: Sequence[str]) -> str:
    """Return where the growth of all of them stopped, the lowest and the highest; "" where not all have stopped."""
    found = [_STOPPED.fullmatch(reason.partition(";")[0]) for reason in reasons]
    stops = [match for match in found if match is not None]
    if len(stops) < len(reasons) or len({match[0] for match in stops}) == 1:
        return ""
    held, free = (_range([(match[at], match[at + 1]) for match in stops]) for at in (1, 3))
    times = sorted({match[5] for match in stops if match[5]})
    when = f" ({' to '.join(dict.fromkeys((times[0], times[-1])))} UTC)" if times else ""
    return f"growth stopped at {held} with {free} free{when}"


def _range(sizes: Sequence[tuple[str, str]]) -> str:
    (low, unit), (high, other) = (pick(sizes, key=_bytes_of) for pick in (min, max))
    if (low, unit) == (high, other):
        return f"{low} {unit}"
    return f"{low} to {high} {other}" if unit == other else f"{low} {unit} to {high} {other}"


def _bytes_of(size: tuple[str, str]) -> float:
    return float(size[0]) * _FACTORS[size[1]]


def sum_over_gpus(reasons: Sequence[str]) -> str:
    """Return the end of one process on several GPUs with the memory of all; "" where it is not the same on each."""
    heads = {reason.partition(";")[0] for reason in reasons}
    is_one_end = len(heads) == 1 and len(reasons) > 1 and all(reason.endswith("came back") for reason in reasons)
    return heads.pop() + _came_back(reasons) if is_one_end else ""


def _came_back(reasons: Sequence[str]) -> str:
    found = [match for reason in reasons for match in _BACK.finditer(reason)]
    freed = sum(float(match[1]) * _FACTORS[match[2]] for match in found)
    return f"; {format_bytes(freed)} came back" if freed else ""


def _counted(head: str, number: int, of: int) -> str:
    how_many = f"{number} of {of}" if number < of else "both" if of == 2 else f"all {of}"
    if head.startswith(PROCESS_ENDED):
        return f"{how_many} processes ended"
    if _BY_REMEDY.match(head):
        return head.replace(" it ", f" {how_many} ", 1)
    return f"{how_many}: {head}"
