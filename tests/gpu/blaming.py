"""The line that leaks, found in processes with a live CUDA context, and traces of their memory for the detector."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu.plan import LEAKS
from tests.gpu.report import CannotRun, Report
from tests.gpu.setting import GIB, MIB, SERVED, Program, Setting, clients, is_client, listed
from tests.integration.agent import GPUAGENT, Agent, command
from tests.integration.waiting import alongside, until

STRETCH = 30.0
"""How much longer than they were recorded the traces are replayed: the detector wants its half hour."""
ROOM_RATIO = 1.5
"""Free memory at the beginning of a replayed trace, as a share of what the leaks have grown by: no process of a minute
fills a GPU of today, and a leak is told from a cache by how much of the room it takes."""
_RECORD_SECONDS = 75.0
_INTERVAL = "250ms"
_CLIENT_SECONDS = 20.0


def fork_with_cuda(setting: Setting, report: Report) -> None:
    """Let `gpuagent blame` fork an app that computes on the GPU, and compare the results before, during and after."""
    window = "2s" if setting.dry else "8s"
    with setting.program("compute") as program, setting.agent(program) as agent:
        until(lambda: is_client(agent, program), "the app is a client of the agent", _CLIENT_SECONDS)
        before = _digests(program)
        began = time.monotonic()
        done = agent.command("blame", str(program.pid), "--window", window, "--json")
        seconds = time.monotonic() - began
        during = _digests(program)
        after = _digests(program)
    different = set(before) | set(during) | set(after)
    counts = [sum(results.values()) for results in (before, during, after)]
    text = f"{counts[0]} results before, {counts[1]} during, {counts[2]} after it: {len(different)} different"
    report.agrees("results", len(different) == 1 and all(counts), text)
    answer = json.loads(done.stdout) if done.returncode == 0 else {}
    stall = answer.get("stall_seconds")
    stood = "not told how long it stood still" if stall is None else f"stood still for {stall * 1e3:.0f} ms at most"
    text = f"after {seconds:.1f} s; {stood}; {answer.get('verdict', done.stderr.strip())}"
    report.agrees("answer", done.returncode == 0, text, answer=answer)


def _digests(program: Program) -> dict[str, int]:
    def some() -> dict[str, int]:
        found: dict[str, int] = program.ask("digests")["results"]
        return found

    return until(some, "results of the app", 20)


def find_leaks(setting: Setting, report: Report) -> None:
    """Run the served example with each leak and with none, side by side, under one agent that all are clients of."""
    causes = ("cache", "healthy") if setting.dry else (*LEAKS, "healthy")
    with ExitStack() as stack:
        programs = {cause: stack.enter_context(setting.program("served", cause)) for cause in causes}
        for program in programs.values():
            program.wait_until_ready()
        agent = stack.enter_context(setting.agent(*programs.values(), poll_interval="250ms"))
        for cause, program in programs.items():
            until(lambda program=program: is_client(agent, program), f"{cause} is a client", _CLIENT_SECONDS)  # type: ignore[misc]
        began = time.monotonic()
        recorded = stack.enter_context(recording(setting, agent, programs))
        told: dict[str, Rows] = {cause: [] for cause in causes}
        ended = threading.Event()
        stack.enter_context(alongside(lambda: _listen(agent, programs, told, ended), ended, "listener"))
        with report.part(*(f"{cause} line" for cause in causes)):
            _blame(setting, agent, programs, report)
        time.sleep(0 if setting.dry else max(0.0, _RECORD_SECONDS - (time.monotonic() - began)))
        ended.set()
        traces: dict[str, Rows] = {}
        with report.part("traces"):
            _stop(recorded)
            traces = {cause: _rows(path) or told[cause] for cause, (_, path) in recorded.items()}
            _keep_traces(setting, recorded, traces, report)
        if not setting.dry:
            with report.part(*(f"{cause} verdict" for cause in causes)):
                _judge(traces, setting.folder, report)
    if not setting.dry:
        with report.part("release"):
            _release(setting, report)


def _blame(setting: Setting, agent: Agent, programs: dict[str, Program], report: Report) -> None:
    """Ask all of them at the same time."""
    window = "3s" if setting.dry else "12s"
    lines = _marked_lines()

    def ask(program: Program) -> subprocess.CompletedProcess[str]:
        return agent.command("blame", str(program.pid), "--window", window, "--json")

    with ThreadPoolExecutor(len(programs)) as pool:
        answers = dict(zip(programs, pool.map(ask, programs.values()), strict=True))
    for cause, done in answers.items():
        check = f"{cause} line"
        if done.returncode:
            report.agrees(check, False, done.stderr.strip())
            continue
        answer = json.loads(done.stdout)
        verdict = answer["verdict"]
        if cause == "healthy":
            report.agrees(check, verdict.startswith("nothing to blame"), verdict, answer=answer)
            continue
        named = f"leaks.py:{lines[cause]}" in verdict and "recent" not in verdict
        report.agrees(check, named, f"leaks.py:{lines[cause]} is the line; {verdict}", answer=answer)


def _marked_lines() -> dict[str, int]:
    """The line of each leak in the served example, by its mark."""
    rows = (SERVED / "leaks.py").read_text(encoding="utf-8").splitlines()
    return {row.partition("# LEAK ")[2]: number for number, row in enumerate(rows, start=1) if "# LEAK " in row}


Recorders = dict[str, tuple[subprocess.Popen[str], Path]]


@contextmanager
def recording(setting: Setting, agent: Agent, programs: dict[str, Program]) -> Iterator[Recorders]:
    """Record each program with `gpuagent record`, into a file of its own."""
    recorders: Recorders = {}
    try:
        for cause, program in programs.items():
            path = setting.folder / f"{cause}.csv"
            words = ["record", "--pid", str(program.pid), "--interval", _INTERVAL, "-o", str(path)]
            process = subprocess.Popen(
                [*GPUAGENT, *words, "--socket", str(agent.control_socket)],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
            )  # fmt: skip
            recorders[cause] = process, path
        yield recorders
    finally:
        for process, _ in recorders.values():
            process.kill()
            process.wait()


def _stop(recorders: Recorders) -> None:
    for process, _ in recorders.values():
        process.send_signal(signal.SIGINT)
    for process, _ in recorders.values():
        process.wait(20)


def _listen(agent: Agent, programs: dict[str, Program], told: dict[str, Rows], ended: threading.Event) -> None:
    """Keep what the apps tell of themselves: where the driver lists nobody under their pids, nothing else is known."""
    causes = {program.pid: cause for cause, program in programs.items()}
    while not ended.wait(0.25):
        with contextlib.suppress(ValueError, KeyError):  # no answer, or half of one
            for client in clients(agent):
                for device in client["devices"] if client["pid"] in causes else ():
                    if device["reserved_bytes"]:
                        told[causes[client["pid"]]].append({
                            "time_seconds": f"{time.time():.3f}",
                            "used_bytes": str(device["reserved_bytes"]),
                            "free_bytes": "",
                            "allocated_bytes": str(device["allocated_bytes"]),
                            "reserved_bytes": str(device["reserved_bytes"]),
                            "process": f"python:{client['pid']}",
                        })  # fmt: skip


def _keep_traces(setting: Setting, recorders: Recorders, traces: dict[str, Rows], report: Report) -> None:
    """Keep them under the names that they have in tests/data/leaks."""
    folder = setting.out / "traces"
    folder.mkdir(parents=True, exist_ok=True)
    texts, whole = [], True
    for cause, (_, path) in recorders.items():
        own = len(_rows(path))
        whole = whole and len(traces[cause]) >= 8
        texts.append(f"{cause} {own} rows" if own else f"{cause} {len(traces[cause])} rows by the app's own word")
        name = f"{'healthy' if cause == 'healthy' else 'leak'}-cuda-{cause}.csv.gz"
        if own:
            with path.open("rb") as plain, gzip.open(folder / name, "wb") as packed:
                shutil.copyfileobj(plain, packed)
    report.agrees("traces", whole, ", ".join(texts))


def _rows(path: Path) -> Rows:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


Rows = list[dict[str, str]]


def _judge(traces: dict[str, Rows], folder: Path, report: Report) -> None:
    """Have the detector judge each trace, its time stretched, on a GPU with room for what leaks."""
    growths = {cause: _growth(rows) for cause, rows in traces.items() if rows}
    usual = median([growth for cause, growth in growths.items() if cause != "healthy"] or [0])
    for cause, rows in traces.items():
        check = f"{cause} verdict"
        if not rows:
            report.not_run(check, "no trace: neither the driver nor the app tells its memory")
            continue
        room = ROOM_RATIO * max(usual if cause == "healthy" else growths[cause], 64 * MIB)
        answer = judge(rows, room, folder / f"{cause}.stretched.csv")
        seconds = float(rows[-1]["time_seconds"]) - float(rows[0]["time_seconds"])
        text = f"{answer['verdict']}, {growths[cause] / MIB:+.0f} MiB in {seconds:.0f} s, room {room / MIB:.0f} MiB"
        for alarm in answer["alarms"][:1]:
            told = (alarm["alarm_seconds"] - float(rows[0]["time_seconds"])) / STRETCH
            left = alarm["exhaustion_seconds"]
            full = "no forecast" if left is None else f"full after {told + left / STRETCH:.0f} s"
            text += f"; told after {told:.0f} s, forecast: {full} (at its mean pace {seconds * ROOM_RATIO:.0f} s)"
        leaking = answer["verdict"] == "leaking"
        report.agrees(check, leaking is (cause != "healthy"), text, answer=answer)


def _growth(rows: Rows) -> int:
    held = [int(row["used_bytes"]) for row in rows if row["used_bytes"]]
    return held[-1] - held[0] if held else 0


def judge(rows: Rows, room_bytes: float, path: Path) -> dict[str, Any]:
    """Return what `gpuagent replay` says of a trace whose time is stretched, with so much free at its beginning."""
    first_seconds = float(rows[0]["time_seconds"])
    first_bytes = next((int(row["used_bytes"]) for row in rows if row["used_bytes"]), 0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        for row in rows:
            later = (float(row["time_seconds"]) - first_seconds) * STRETCH
            grown = int(row["used_bytes"]) - first_bytes if row["used_bytes"] else None
            free = "" if grown is None else max(0, int(room_bytes - grown))
            writer.writerow({**row, "time_seconds": f"{first_seconds + later:.3f}", "free_bytes": free})
    done = command("replay", "--json", str(path))
    assert done.returncode in {0, 1}, done.stderr.strip()
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return answer


def _release(setting: Setting, report: Report) -> None:
    """Let an app free its tensors, and ask it through the agent to give the cache back."""
    size = 4 * GIB
    with setting.program("hold", size) as program, setting.agent(program) as agent:
        until(lambda: is_client(agent, program), "the app is a client of the agent", _CLIENT_SECONDS)
        before = listed(agent, program)["memory_used_bytes"]
        program.ask("free")
        time.sleep(1)  # so that the agent hears of it
        done = agent.command("release", str(program.pid), "--json")
        if done.returncode and not done.stdout.strip():
            raise CannotRun(f"refused: {done.stderr.strip()}")
        answer: dict[str, Any] = json.loads(done.stdout)
        after = until(
            lambda: [held for held in [listed(agent, program)["memory_used_bytes"]] if held < before - size // 2],
            "the memory given back", 15,
        )[0]  # fmt: skip
    said = answer.get("returned_bytes") or 0
    text = f"the app says {said / MIB:.0f} MiB, the driver saw {(before - after) / MIB:.0f} MiB of {size / MIB:.0f} MiB"
    report.agrees("release", done.returncode == 0 and abs(said - (before - after)) <= 64 * MIB, text, answer=answer)
