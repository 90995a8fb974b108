"""`gpuagent check`: one line and an exit status for Nagios, Icinga and the like.

https://nagios-plugins.org/doc/guidelines.html
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpuagent.cli.source import Direct, NoData, Socket, Url, get_document
from gpuagent.units import format_bytes

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
_NAMES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_LEVELS = {"critical": CRITICAL, "warning": WARNING}
_STALE_SECONDS = 30.0


def check(
    warning: Annotated[str, typer.Option(help="Warn above this share of a GPU's memory")] = "90%",
    critical: Annotated[str, typer.Option(help="Critical above this share of a GPU's memory")] = "98%",
    socket: Socket = None,
    url: Url = None,
    direct: Direct = False,
) -> None:
    """Check memory and health of all GPUs, for a monitoring system.

    Exit status: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (no data, stale data, or bad arguments).
    """
    try:
        limits = _share(warning), _share(critical)
        if limits[0] > limits[1]:
            raise ValueError("--warning is above --critical")
        code, text = judge(get_document(socket, url, direct=direct), *limits)
    except (ValueError, NoData) as error:
        code, text = UNKNOWN, str(error)
    typer.echo(f"GPU {_NAMES[code]} - {text}")
    raise typer.Exit(code)


def judge(document: Any, warning: float, critical: float) -> tuple[int, str]:
    """Exit status and the rest of the line: what is wrong, the worst first, then performance data."""
    age = document["age_seconds"]
    if age is None or age > max(_STALE_SECONDS, 3 * document["agent"]["poll_interval_seconds"]):
        return UNKNOWN, "no fresh data" if age is None else f"the data is {age:.0f} s old"
    found: list[tuple[int, str]] = []
    data = []
    for gpu in document["gpus"]:
        used, total, ratio = gpu["memory_used_bytes"], gpu["memory_total_bytes"], gpu["memory_used_ratio"]
        if ratio is None:
            continue
        data.append(f"'gpu{gpu['index']}_memory'={used}B;{round(warning * total)};{round(critical * total)};0;{total}")
        if ratio > warning:
            level = CRITICAL if ratio > critical else WARNING
            found.append((level, f"GPU {gpu['index']} {ratio:.0%} of memory used ({format_bytes(used)})"))
    for problem in document["problems"]:
        level = _LEVELS.get(problem["severity"], OK)
        if level and "of the memory is used" not in problem["text"]:  # judged above, by these limits
            where = "" if problem["gpu"] is None else f"GPU {problem['gpu']} "
            found.append((level, f"{where}{problem['text']}"))
    code = max((level for level, _ in found), default=OK)
    texts = [text for _, text in sorted(found, key=lambda item: -item[0])]
    number = len(document["gpus"])
    summary = "; ".join(texts) or (f"{number} GPUs, nothing wrong" if number else "no GPU on this node")
    line = summary.replace("|", "/").replace("\n", " ")
    return code, f"{line} | {' '.join(data)}" if data else line


def _share(text: str) -> float:
    """`90%`, `90` or `0.9`."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"{text!r} is not a share such as 90%") from None
    share = number / 100 if text.endswith("%") or number > 1 else number
    if not 0 <= share <= 1:
        raise ValueError(f"{text!r} is not between 0 % and 100 %")
    return share
