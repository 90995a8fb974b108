"""What the embedded client costs an app: time per second, time of a start, and what it adds to an import.

The allocator is the fake one of the tests, which has the real one's shape: what torch itself takes is not in the
figures of a reading, everything of ours is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.client.apps.faketorch import GIB, FakeTorch
from tests.fakes.agent_socket import FakeAgent

from gpuagent_client.allocator import Allocator, Torch
from gpuagent_client.commands import Limits
from gpuagent_client.protocol import encode
from gpuagent_client.session import Reporter
from gpuagent_client.settings import ClientState

ROOT = Path(__file__).parents[1]
DEVICES = 2
READINGS = 2000

IMPORT = """
import time
started = time.process_time()
import gpuagent_client
print(time.process_time() - started)
"""
APP = """
import json, resource, sys
from faketorch import GIB, FakeTorch
torch = FakeTorch(devices={devices}).install().start_cuda()
for device in range({devices}):
    torch.allocate(GIB, device)
import gpuagent_client
gpuagent_client.start(app="bench", interval={interval})
for line in sys.stdin:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([usage.ru_utime + usage.ru_stime, usage.ru_nvcsw]), flush=True)
"""


@dataclass(frozen=True)
class ClientCost:
    """Of one app with two GPUs in use."""

    reading_seconds: float
    """One reading of the allocator, made into a line: what each second takes from the app's interpreter."""
    line_bytes: int
    cpu_ratio: float
    """CPU seconds per second of the whole app, which does nothing else, at the usual interval of a second."""
    wakeups_per_second: float
    import_seconds: float


def reading_cost() -> tuple[float, int]:
    """Seconds of one reading with its line, and the line's length."""
    fake = FakeTorch(devices=DEVICES).start_cuda()
    for device in range(DEVICES):
        fake.allocate(GIB, device)
    nested = fake.memory_stats(0)
    fake.modules["torch._C"].__dict__["_cuda_memoryStats"] = lambda _: nested
    torch, state = Torch(fake.modules), ClientState()
    allocator = Allocator(torch)
    reporter = Reporter(state, torch, allocator, Limits(state, torch, allocator))
    started = time.perf_counter()
    for _ in range(READINGS):
        reporter.hello(obeying=True)
        line = encode(reporter.stats())
    return (time.perf_counter() - started) / READINGS, len(line)


def idle_cost(seconds: float, interval_seconds: float = 1.0) -> tuple[float, float]:
    """CPU seconds and wake-ups per second of an app that does nothing but have the client."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "client.sock"
        paths = os.pathsep.join([str(ROOT / "client"), str(ROOT / "tests" / "client" / "apps")])
        with FakeAgent(path, interval=interval_seconds) as agent:
            app = subprocess.Popen(
                [sys.executable, "-c", APP.format(devices=DEVICES, interval=interval_seconds)],
                env={**os.environ, "PYTHONPATH": paths, "GPUAGENT_SOCKET": str(path)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                agent.wait_for_client(having=lambda one: one.of("stats"))
                cpu_before, wakeups_before = _usage(app)
                time.sleep(seconds)
                cpu_after, wakeups_after = _usage(app)
            finally:
                app.communicate()
    return (cpu_after - cpu_before) / seconds, (wakeups_after - wakeups_before) / seconds


def _usage(app: subprocess.Popen[str]) -> tuple[float, float]:
    assert app.stdin is not None
    assert app.stdout is not None
    app.stdin.write("usage\n")
    app.stdin.flush()
    cpu, wakeups = json.loads(app.stdout.readline())
    return cpu, wakeups


def import_cost(times: int = 5) -> float:
    """CPU seconds of `import gpuagent_client` in an interpreter that has loaded nothing yet: the best of some."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    runs = [
        subprocess.run([sys.executable, "-c", IMPORT], env=environment, capture_output=True, text=True, check=True)
        for _ in range(times)
    ]
    return min(float(run.stdout) for run in runs)


def client_cost(seconds: float = 20.0) -> ClientCost:
    """All of it; takes so many seconds."""
    reading_seconds, line_bytes = reading_cost()
    cpu_ratio, wakeups = idle_cost(seconds)
    return ClientCost(reading_seconds, line_bytes, cpu_ratio, wakeups, import_cost())


def show(cost: ClientCost) -> str:
    """As a table."""
    rows = (
        (f"one reading of {DEVICES} GPUs, with its line", f"{cost.reading_seconds * 1e6:8.1f} us"),
        ("length of the line", f"{cost.line_bytes:8d} bytes"),
        ("CPU of an idle app with the client", f"{cost.cpu_ratio * 1e6:8.1f} us per second"),
        ("wake-ups", f"{cost.wakeups_per_second:8.1f} per second"),
        ("import gpuagent_client, CPU time", f"{cost.import_seconds * 1e3:8.1f} ms"),
    )
    return "".join(f"{name:40} {value}\n" for name, value in rows)


if __name__ == "__main__":
    sys.stdout.write(show(client_cost(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)))
