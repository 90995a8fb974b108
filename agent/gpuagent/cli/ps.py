"""`gpuagent ps`: the processes that hold GPU memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

import typer
from rich.cells import cell_len

from gpuagent.cli.agent import EXIT_NO_DATA, Direct, NoData, Socket, Source, Url, get_document, tell
from gpuagent.cli.cells import UNCUT_WIDTH, Paint, clean, cut, fit, width_of
from gpuagent.core.process_filter import owner
from gpuagent.core.units import GIB, format_bytes, format_duration, format_ratio
from gpuagent.core.wording import full_in_words, growth_words, unmeasured_words, verdict_words

_MOST_ON_A_TERMINAL = 50


class SortKey(StrEnum):
    """What the processes are ordered by, largest first."""

    MEMORY = "memory"
    SM = "sm"
    AGE = "age"
    GROWTH = "growth"
    PID = "pid"


_KEYS = {
    SortKey.MEMORY: "memory_used_bytes",
    SortKey.SM: "sm_utilization_ratio",
    SortKey.AGE: "age_seconds",
    SortKey.GROWTH: "growth_bytes_per_second",
    SortKey.PID: "pid",
}


def ps(
    gpu: Annotated[int | None, typer.Option(help="Show processes on this GPU only", metavar="INDEX")] = None,
    user: Annotated[str | None, typer.Option(help="Show processes of this user only", metavar="NAME")] = None,
    job: Annotated[str | None, typer.Option(help="Show processes of this Slurm job only", metavar="ID")] = None,
    sort: Annotated[SortKey, typer.Option(help="Sort by this column, largest first")] = SortKey.MEMORY,
    show_all: Annotated[
        bool, typer.Option("--all", "-a", help="Show all processes; a terminal shows the first 50 otherwise")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Print ASCII characters only")] = False,
    socket: Socket = None,
    url: Url = None,
    direct: Direct = False,
) -> None:
    """List the processes on the GPUs: memory, utilization, user, unit, container, pod or job, and command.

    For memory that grows: how fast, when the GPU will be full at this pace, and whether it is a leak.
    `unproven`: the memory may be that of an earlier process with the same pid, so no rule acts on this one.

    Processes of a GPU that cannot be read now are listed as they were known last: READ says how long ago.
    What the list cannot show is named below it: GPUs that cannot be read, and memory without a process.

    Exit status: 0 shown, 2 no such GPU, 3 neither the agent nor the driver answers.
    """
    try:
        document = get_document(Source(socket, url, direct))
    except NoData as error:
        tell(str(error))
        raise typer.Exit(EXIT_NO_DATA) from None
    _check_gpu(document, gpu)
    processes = select(document["processes"], gpu, user, sort, job)
    if as_json:
        typer.echo(json.dumps(processes_alone(document, processes), indent=1))
        return
    for warning in warnings(document):
        tell(warning)
    known = document.get("last_known")
    paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
    if not processes and known is None:
        everybody = (gpu, user, job) == (None, None, None)
        tell("No process holds GPU memory." if everybody else "No GPU process matches.")
    is_asked_for = known is not None and (gpu is None or gpu in known["gpus"])
    earlier = select(as_last_known(known), gpu, user, sort, job) if is_asked_for else []
    _show([*processes, *earlier], paint, show_all=show_all)
    if known is not None and is_asked_for:
        tell(unmeasured_words(known).removesuffix(":") + ("" if not earlier else ": see READ."))
    for line in left_out(document, gpu):
        tell(line)


def _check_gpu(document: Document, gpu: int | None) -> None:
    """Raise typer.BadParameter for a GPU that is not there. Where the GPUs are unknown, none is wrong."""
    indices = sorted({each["index"] for each in document["gpus"]})
    if gpu is None or gpu in indices or document["node"]["gpus"] is None:
        return
    there = f"GPUs {', '.join(map(str, indices))}" if len(indices) > 1 else f"GPU {indices[0]}" if indices else "no GPU"
    raise typer.BadParameter(f"there is no GPU {gpu}: this node has {there}", param_hint="--gpu")


def left_out(document: Document, gpu: int | None = None) -> list[str]:
    """Return what the list of processes cannot show: GPUs that cannot be read, and memory that no process holds."""
    told = set((document.get("last_known") or {}).get("gpus", ()))
    lines = []
    for each in document["gpus"]:
        if gpu not in {None, each["index"]}:
            continue
        if each["state"] != "ok":
            if each["index"] not in told:
                why = f": {clean(each['reason'])}" if each["reason"] else ""
                lines.append(f"GPU {each['index']} is {each['state']}, and its processes are not known{why}")
        elif each["processes"] is None:
            lines.append(f"GPU {each['index']}: the driver does not list its processes.")
        elif (each["memory_unattributed_bytes"] or 0) >= WORTH_A_WORD_BYTES:
            held = format_bytes(each["memory_unattributed_bytes"])
            lines.append(
                f"GPU {each['index']}: {held} are used by no listed process (driver, contexts, other namespaces)."
            )
    return lines


def _show(processes: list[Any], paint: Paint, *, show_all: bool) -> None:
    if not processes:
        return
    shown = processes if show_all or not sys.stdout.isatty() else processes[:_MOST_ON_A_TERMINAL]
    lines = process_table(shown, width_of(sys.stdout) if sys.stdout.isatty() else UNCUT_WIDTH, paint)
    typer.echo("\n".join(paint.text(line.rstrip()) for line in lines))
    if len(shown) < len(processes):
        tell(f"+{len(processes) - len(shown)} more: use --all")


def select(processes: list[Any], gpu: int | None, user: str | None, sort: SortKey, job: str | None = None) -> list[Any]:
    """Return those asked for, the largest first; what has no value comes last."""
    chosen = [
        process
        for process in processes
        if gpu in {None, process["gpu"]} and user in {None, process["user"]} and job in {None, process["slurm_job"]}
    ]
    key = _KEYS[sort]
    return sorted(chosen, key=lambda process: (process.get(key) is None, -(process.get(key) or 0), process["pid"]))


def processes_alone(document: Any, processes: list[Any]) -> dict[str, Any]:
    """Return the document of `/api/v1/processes`, with these processes."""
    head = {key: document[key] for key in ("schema", "source", "time_seconds", "age_seconds", "stale")}
    return head | {"agent": {"simulated": document["agent"]["simulated"]}, "processes": processes}


def warnings(document: Any) -> list[str]:
    """Return what must not be overlooked about every line of the table."""
    found = []
    if document["agent"]["simulated"]:
        found.append(f"SIMULATED: scenario {document['agent']['simulated']}, no real GPU")
    if document["stale"]:
        found.append(f"STALE: read {format_duration(document['age_seconds'])} ago, it may no longer be so")
    if document["age_seconds"] is None:
        found.append("nothing has been read yet")
    return found


_LEAST_WHO, _LEAST_WHO_NARROW = 20, 14
"""Cells for the last column, for which others may have to go; the second on a screen of less than 80 cells."""
_NARROW = 80
_UNKNOWN = "?"
_MATTERS = 2
"""`Column.dispensable` of those that are worth more than all others: who it is, and when the memory is full."""
_MINUTE_SECONDS = 60.0
_LEAST_VERDICT_NAME = 6
"""Cells of a name beside its verdict, below which the verdict goes."""
WORTH_A_WORD_BYTES = GIB // 10
"""Unattributed memory below this is the driver's own, on every GPU."""
_QUIET = frozenset({"steady", "learning"})
"""Verdicts that are worth no word in a narrow table."""
_GROWS = frozenset({"leaking", "growing", "cached", "levelled off"})

Document = dict[str, Any]


class Column(NamedTuple):
    """One column. Numbers are never cut: there is room for the largest pid (4194304, and what is simulated above)."""

    head: str
    width: int
    cell: Callable[[Document], object]
    right: bool = True
    dispensable: int = 0
    """What goes first where there is no room has the highest number; 0 always stays."""


def as_last_known(known: Document | None) -> list[Document]:
    """Return the processes of GPUs that are not measured now, with their age and without how busy they are."""
    if known is None:
        return []
    age = known["age_seconds"]
    return [dict(one, sm_utilization_ratio=None, last_read_seconds=age) for one in known["processes"]]


def process_table(processes: list[Document], width: int, paint: Paint, *, beside: Sequence[Document] = ()) -> list[str]:
    """Return a heading and one line per process, of at most `width` cells. The last column takes what is left.

    The columns have room for the processes of another table `beside` it, so that both have the same ones.
    """
    wanted = _columns([*processes, *beside])
    columns = list(wanted)
    least = _LEAST_WHO if width >= _NARROW else _LEAST_WHO_NARROW
    while _width(columns) > width - least and any(column.dispensable for column in columns):
        columns.remove(max(columns, key=lambda column: column.dispensable))
    for column in wanted:  # a narrower one that matters may fit where a wider one does not
        if column not in columns and 0 < column.dispensable <= _MATTERS and _width([*columns, column]) <= width - least:
            columns = [one for one in wanted if one in columns or one is column]
    head = _line(columns, [column.head for column in columns])
    lines = [paint(cut(f"{head}WHO", width), "dim")]
    for process in processes:
        left = _line(columns, [column.cell(process) for column in columns])
        room = width - cell_len(left)
        shown = who(process)
        line = left + cut(shown if cell_len(shown) <= room else short_who(process, room), room)
        lines.append(paint(line, "dim") if "last_read_seconds" in process else line)
    return lines


def _columns(processes: list[Document]) -> list[Column]:
    """Return those that have something to tell. Who it is and when the memory is full go last."""
    grows = any(process.get("verdict") in _GROWS for process in processes)
    apps = any(process.get("reserved_bytes") is not None for process in processes)
    earlier = any("last_read_seconds" in process for process in processes)
    growth = Column("GROWTH", 13, growth_cell, dispensable=3)
    full_in = Column("FULL IN", 11, full_in_cell, dispensable=1)
    return [
        Column("GPU", _widest(3, gpu_cell, processes), gpu_cell),
        Column("PID", 7, itemgetter("pid")),
        Column("USER", 9, lambda process: process["user"] or "-", right=False, dispensable=2),
        Column("MEMORY", _widest(9, memory_cell, processes), memory_cell),
        *([growth, full_in] if grows else ()),
        *([Column("READ", _widest(4, read_cell, processes), read_cell)] if earlier else ()),
        *([Column("TENSORS + CACHE", 15, allocator_cell, dispensable=4)] if apps else ()),
        Column("SM", 5, sm_cell, dispensable=6),
        Column("TYPE", 4, lambda process: process["kinds"] or "-", right=False, dispensable=7),
        Column("AGE", _widest(3, age_cell, processes), age_cell, dispensable=5),
    ]


def _widest(least: int, cell: Callable[[Document], object], processes: list[Document]) -> int:
    return max((least, *(cell_len(str(cell(process))) for process in processes)))


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width + 1 for column in columns) + 1


def _line(columns: Sequence[Column], cells: Sequence[object]) -> str:
    """With two blanks before the last column."""
    return (
        "".join(f"{fit(cell, column.width, right=column.right)} " for column, cell in zip(columns, cells, strict=True))
        + " "
    )


def who(process: Document) -> str:
    """Return its name, as problems and messages have it, what matters about it, whose it is, and what it runs."""
    if process["state"] == "unresolved":
        return "in another pid namespace"
    name, command = name_and_command(process)
    parts = [state_of(process)]
    if process["state"] != "dead":
        parts += [
            "unproven" if process.get("holder_unproven") else "",
            "shared through MPS" if process.get("shared_through_mps") else "",
            telling_verdict(process),
        ]
    parts += [owner(process), "preallocates" if process.get("preallocates") and process["state"] != "dead" else ""]
    told = [part for part in parts if part]
    if name == _UNKNOWN and told:
        return "  ".join(told)
    gap = "" if not command else " " if _is_program(process, name) and not told else "  "
    return "  ".join([name, *told]) + gap + command


def _is_program(process: Document, name: str) -> bool:
    """Return whether a process is called as the program that it runs."""
    return str(process.get("command") or "").partition(" ")[0].rpartition("/")[2] == name


def state_of(process: Document) -> str:
    """Return the state of a process that does not simply run; "" of one that does."""
    state = process.get("process_state")
    if process["state"] == "dead":
        return f"{'ZOMBIE' if state == 'Z' else 'DEAD'}, memory still held"
    return {"Z": "ZOMBIE", "D": "STUCK (D)"}.get(str(state), "")


def name_and_command(process: Document) -> tuple[str, str]:
    """Return the name of a process, and its command without its directories, and without that name before it.

    >>> name_and_command({"process": "embed", "command": "/opt/py/bin/python3 -m embed"})
    ('embed', 'python3 -m embed')
    >>> name_and_command({"process": "python3", "command": "/usr/bin/python3 train.py"})
    ('python3', 'train.py')
    """
    command = str(process.get("command") or "")
    program, _, arguments = command.partition(" ")
    program = program.rpartition("/")[2] or program
    name = str(process.get("process") or program or _UNKNOWN)
    return name, (arguments if program == name else f"{program} {arguments}").strip()


def short_who(process: Document, room: int) -> str:
    """Return the same for a few cells: of a process with a verdict, that is said in one word and not cut off."""
    verdict = process["verdict"] if telling_verdict(process) else ""
    if not verdict or process["state"] != "live" or state_of(process):
        return who(process)
    name, command = name_and_command(process)
    left = room - cell_len(verdict) - 1
    if cell_len(name) > left:
        return f"{cut(name, left)} {verdict}" if left >= _LEAST_VERDICT_NAME else name
    if cell_len(name) == left:
        return f"{name} {verdict}"
    return "  ".join(part for part in (name, verdict, owner(process), command) if part)


def read_cell(process: Document) -> str:
    """Return when it was read, where that is not now."""
    if "last_read_seconds" not in process:
        return "now"
    age = process["last_read_seconds"]
    if age is None:
        return "-"
    seconds = age if age < _MINUTE_SECONDS else age // _MINUTE_SECONDS * _MINUTE_SECONDS
    return f"{format_duration(seconds)} ago"


def gpu_cell(process: Document) -> str:
    """Return the index of its GPU, with the MIG instances below it."""
    instance, compute = process["gpu_instance_id"], process["compute_instance_id"]
    if instance is None:
        return str(process["gpu"])
    return f"{process['gpu']}:{instance}" + ("" if compute is None else f"/{compute}")


def memory_cell(process: Document) -> str:
    """Return what it holds; `-` where the driver does not tell."""
    used = process["memory_used_bytes"]
    return "-" if used is None else format_bytes(used)


def allocator_cell(process: Document) -> str:
    """Return what tensors hold, and what torch's allocator keeps beyond that, in GiB: the latter can be given back."""
    allocated, cached = process.get("allocated_bytes"), process.get("cached_bytes")
    return "-" if allocated is None or cached is None else f"{allocated / GIB:.1f} + {cached / GIB:.1f}"


def growth_cell(process: Document) -> str:
    """Return its pace; `-` where it cannot be said."""
    return growth_words(process) or "-"


def full_in_cell(process: Document) -> str:
    """Return when its GPU is full; `-` where that will not come."""
    return full_in_words(process) or "-"


def telling_verdict(process: Document) -> str:
    """Return what there is to say of its memory's history; most often nothing."""
    return "" if process.get("verdict") in {None, *_QUIET} else verdict_words(process)


def sm_cell(process: Document) -> str:
    """Return how busy it keeps the GPU; `-` where the driver does not tell."""
    ratio = process["sm_utilization_ratio"]
    return "-" if ratio is None else format_ratio(ratio)


def age_cell(process: Document) -> str:
    """Return how long it runs; `-` where that is not known."""
    seconds = process["age_seconds"]
    return "-" if seconds is None else format_duration(int(seconds))
