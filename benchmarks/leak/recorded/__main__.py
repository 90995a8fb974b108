"""`python -m benchmarks.leak.recorded`: record tests/data/leaks again; `--minutes 1 --into /tmp/x` to try it."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.leak.recorded.app import ROOT, App
from benchmarks.leak.recorded.cases import CASES, Case
from benchmarks.leak.recorded.stage import MIB, Stage, client_side, stage
from benchmarks.leak.recorded.traffic import Traffic
from gpuagent.core.clock import SystemClock
from gpuagent.procfs.files import RealProc
from gpuagent.recording.recorder import Family, Recorder, create_trace

FOLDER = ROOT / "tests" / "data" / "leaks"
MINUTES = 33.0
INTERVAL_SECONDS = 1.0
FULL_BYTES = 4 * MIB
"""With less than this free the GPU counts as full: the next large request would have failed."""


class Recording:
    """One app, its traffic and its file. It ends when its GPU is full."""

    def __init__(self, app: App, number: int, source: Stage, folder: Path, left: ExitStack) -> None:
        self.app = app
        self.path = folder / f"{app.case.name}.csv"
        self.traffic = Traffic(app.port, app.case.pattern, number)
        file = left.enter_context(create_trace(self.path))
        self.recorder = Recorder(source, Family(RealProc(), [app.pid]), file, SystemClock(), say)
        self.over = False

    def start(self) -> None:
        """Leak from the first request on."""
        if self.app.case.leak:
            self.app.ask("PUT", f"/leak/{self.app.case.leak}")
        self.traffic.start()

    def look(self) -> None:
        """A row of the file."""
        if self.over:
            return
        reading = self.recorder.look()
        own = [held for held in reading.held if held.pid == self.app.pid]
        if any(held.free_bytes is not None and held.free_bytes < FULL_BYTES for held in own):
            self.stop()
            say(f"{self.app.case.name}: full")

    def stop(self) -> None:
        """No more requests, no more rows."""
        if not self.over:
            self.over = True
            self.traffic.stop()


async def record(cases: Sequence[Case], minutes: float, into: Path) -> None:
    """The cases side by side, each in a file of its own. A case whose traffic failed is not kept."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="gpuagent-") as name, ExitStack() as left:
        folder = Path(name)
        async with client_side(folder / "client") as door:
            apps = []
            for case in cases:
                app = App(case, folder / "client" / "client.sock")
                left.callback(app.end)
                apps.append(app)
            for app in apps:
                await asyncio.to_thread(app.wait_until_serving)
            async with stage(apps, door) as source:
                while source.reading.unread is None:
                    await source.tick()
                recordings = [Recording(app, number, source, folder, left) for number, app in enumerate(apps)]
                for one in recordings:
                    await asyncio.to_thread(one.start)
                say(f"recording {len(recordings)} apps for {minutes:.0f} min")
                end = clock.now() + 60 * minutes
                while clock.now() < end and not all(one.over for one in recordings):
                    due = clock.now() + INTERVAL_SECONDS
                    await source.tick()
                    for one in recordings:
                        one.look()
                    await asyncio.sleep(max(0.0, due - clock.now()))
                for one in recordings:
                    await asyncio.to_thread(one.stop)
                    if one.traffic.failure:
                        say(f"{one.app.case.name}: not kept, a request failed: {one.traffic.failure}")
                    else:
                        say(f"{one.app.case.name}: {one.traffic.requests} requests")
                        pack(one.path, into)


def pack(path: Path, into: Path) -> None:
    """Compressed, and the same bytes for the same content."""
    into.mkdir(parents=True, exist_ok=True)
    with (
        path.open("rb") as plain,
        (into / f"{path.name}.gz").open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed)


def say(text: str) -> None:
    """How it goes."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def main(words: Sequence[str]) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leak.recorded", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"how long [{MINUTES:.0f}]")
    parser.add_argument("--into", type=Path, default=FOLDER, help="where the files go [tests/data/leaks]")
    parser.add_argument("cases", nargs="*", help=f"which [all]: {', '.join(case.name for case in CASES)}")
    options = parser.parse_args(words)
    if unknown := set(options.cases) - {case.name for case in CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    cases = [case for case in CASES if not options.cases or case.name in options.cases]
    asyncio.run(record(cases, options.minutes, options.into))


if __name__ == "__main__":
    main(sys.argv[1:])
