"""How long a census makes a request wait that runs in another thread: `python -m benchmarks.census PYTHON`.

PYTHON is an interpreter with torch (.venv-apps/bin/python). Figures, not verdicts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OBJECTS = (10_000, 100_000, 1_000_000)
PROGRAM = '''
import json, sys, threading, time
import torch
from gpuagent_client import blame

class Context:
    thread_id = 0
    def requests_served(self): return None
    def is_capturing(self): return False
    def wait(self, seconds): time.sleep(seconds); return False

objects = [{"number": number} for number in range(int(sys.argv[1]))]
latencies = []
running = True

def requests():
    """Each is 1 ms of work that needs the interpreter, in pieces, as between two kernels of a model."""
    while running:
        started = time.perf_counter()
        while time.perf_counter() - started < 0.001:
            pass
        latencies.append(time.perf_counter() - started)
        time.sleep(0.001)

thread = threading.Thread(target=requests)
thread.start()
time.sleep(3)
quiet, latencies = latencies, []
stalls = []
for _ in range(5):
    answer = blame.run("census", {"window_seconds": 1}, 60.0, Context())
    if "err" in answer: sys.exit(answer["err"])
    stalls.append(answer["stall_seconds"])
running = False
thread.join()
def worst(values): return max(values) * 1000
def p99(values): return sorted(values)[int(len(values) * 0.99)] * 1000
print(json.dumps([worst(quiet), p99(quiet), worst(latencies), p99(latencies), max(stalls) * 1000]))
'''


def main() -> None:
    """Print one row for each size of the app."""
    python = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / ".venv-apps" / "bin" / "python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    sys.stdout.write("| objects beyond torch's | alone: worst, p99 | during a census: worst, p99 | longest fork |\n")
    sys.stdout.write("|---|---|---|---|\n")
    for count in OBJECTS:
        run = subprocess.run(
            [python, "-W", "ignore", "-c", PROGRAM, str(count)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        quiet, quiet_p99, busy, busy_p99, stall = map(float, run.stdout.strip().strip("[]").split(","))
        sys.stdout.write(
            f"| {count:,} | {quiet:.1f}, {quiet_p99:.1f} ms | {busy:.1f}, {busy_p99:.1f} ms | {stall:.1f} ms |\n"
        )


if __name__ == "__main__":
    main()
