"""From a threshold that is crossed to the message that arrives: python -m benchmarks.crossings [CROSSINGS [PERIOD]].

A real agent over a simulated GPU with a real process for each crossing, whose memory goes up and down at known moments;
one rule without `for`, a route that waits for nothing, and a real receiver. Each process is an incident of its own: an
incident that begins again and again would be held back. The moments fall anywhere between two polls, so the first
figure holds the wait for the next poll too.

PERIOD is the time in seconds from one crossing to the next; a longer one helps on a busy machine.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.exporters import launcher, sleepers
from benchmarks.receiver import Receiver

CROSSINGS = 40
PERIOD_SECONDS = 2.3
"""No multiple of the poll interval; each half of it is longer than that, so that none is missed."""
_START_SECONDS = 6.0
"""From the agent's start to the first crossing."""
RULES = """\
groups:
  - name: bench
    interval: 1s
    rules:
      - alert: Crossed
        expr: 0 * (gpuagent_process_memory_used_bytes > 4e10) + on () group_left () gpuagent_snapshot_timestamp_seconds
        annotations: {tick: "{{ $value }}"}
"""


class Latency(NamedTuple):
    """Of one message, in seconds."""

    from_crossing: float
    from_tick: float
    """From the time stamp of the snapshot that shows it."""


async def crossings(number: int, folder: Path, period: float = PERIOD_SECONDS) -> list[Latency]:
    """Run the agent through so many crossings, one every `period` seconds; one latency for each message of `firing`."""
    start = time.clock_gettime(time.CLOCK_BOOTTIME)
    found: list[Latency] = []

    def arrived(body: bytes) -> None:
        now, wall = time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
        for alert in json.loads(body)["alerts"]:
            if alert["status"] == "firing" and alert["labels"]["alertname"] == "Crossed":
                since_first = now - start - _START_SECONDS
                found.append(Latency(since_first % period, wall - float(alert["annotations"]["tick"])))

    with sleepers(number) as children:
        pids = folder / "pids"
        pids.write_text("\n".join(map(str, children)), encoding="ascii")
        async with Receiver(arrived).listening() as url:
            command, environment = _agent(folder, url, _scenario(folder, number, period), pids, start)
            with (folder / "agent.log").open("wb") as log:
                agent = await asyncio.create_subprocess_exec(
                    *command, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            try:
                await asyncio.sleep(_START_SECONDS + number * period)
            finally:
                agent.kill()
                await agent.wait()
    return found


def _scenario(folder: Path, number: int, period: float) -> Path:
    """A process for each crossing: 60 GiB from then on, for half of the period; 10 MiB otherwise."""
    processes = []
    for crossing in range(number):
        up = _START_SECONDS + crossing * period
        points = [[0, "10MiB"], [up, "60GiB"], [up + period / 2, "10MiB"]]
        processes.append({"name": "worker", "bind": str(crossing), "memory": {"shape": "steps", "points": points}})
    path = folder / "crossings.yaml"
    path.write_text(json.dumps({"gpus": [{"model": "h100", "processes": processes}]}), encoding="utf-8")
    return path


def _agent(folder: Path, url: str, scenario: Path, pids: Path, start: float) -> tuple[list[str], dict[str, str]]:
    """At its defaults but for one rule, one receiver and its route."""
    rules, config = folder / "rules.yaml", folder / "gpuagent.yaml"
    rules.write_text(RULES, encoding="utf-8")
    keys: dict[str, Any] = {f"{name}_dir": str(folder / name) for name in ("runtime", "state", "client")}
    receivers = [{"name": "receiver", "webhook": {"url": url}, "send_resolved": False}]
    routes = [{"receivers": ["receiver"], "group_by": ["pid"], "group_wait": "0s"}]
    keys |= {"listen": "127.0.0.1:0", "rule_files": [str(rules)], "receivers": receivers, "routes": routes}
    config.write_text(json.dumps(keys), encoding="utf-8")
    place, environment = launcher(scenario, pids, start)
    return [sys.executable, "-P", *place, "gpuagent", "run", "--config", str(config)], environment


def show(found: Sequence[Latency], number: int) -> None:
    """Median and 99th percentile in milliseconds."""
    print(f"{len(found)} messages of {number} crossings, poll interval 1 s, for: 0s")  # noqa: T201
    for title, values in (
        ("crossed to received", [latency.from_crossing for latency in found]),
        ("tick to received", [latency.from_tick for latency in found]),
    ):
        p99 = statistics.quantiles(values, n=100, method="inclusive")[98]
        print(f"{title:20} median {statistics.median(values) * 1e3:7.1f} ms   p99 {p99 * 1e3:7.1f} ms")  # noqa: T201


def main(arguments: Sequence[str]) -> int:
    """0 if every crossing was told of."""
    number = int(arguments[0]) if arguments else CROSSINGS
    period = float(arguments[1]) if len(arguments) > 1 else PERIOD_SECONDS
    # Below /tmp, whatever TMPDIR says: the path of a socket has room for 107 bytes.
    with TemporaryDirectory(prefix="gpuagent-crossings-", dir="/tmp") as folder:
        found = asyncio.run(crossings(number, Path(folder), period))
        if len(found) < 2:
            sys.stderr.write((Path(folder) / "agent.log").read_text(encoding="utf-8", errors="replace")[-2000:])
            return 1
    show(found, number)
    return 0 if len(found) == number else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
