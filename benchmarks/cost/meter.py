"""CPU time by part of the agent, measured inside of it: what a tick is made of."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuagent.service.service import Service

REST = "the event loop itself, and the rest"
THREADS = {
    "nvml-gpus": "collect",
    "nvml-session": "collect",
    "nvml-events": "wait for Xid events",
    "asyncio": "write down states and messages",
}
"""By the beginning of a thread's name."""
OTHER_THREADS = "other threads"


class Meter:
    """Counts while a part of the main thread's work runs, less what other counted parts in it take."""

    def __init__(self) -> None:
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._running: list[tuple[str, float]] = []

    def count(self, owner: Any, method: str, part: str) -> None:
        """From now on calls of this method are that part's."""
        original: Callable[..., Any] = getattr(owner, method)

        def counted(*args: Any, **keywords: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return original(*args, **keywords)
            self._switch(part)
            try:
                return original(*args, **keywords)
            finally:
                self._switch(None)

        setattr(owner, method, counted)

    def _switch(self, part: str | None) -> None:
        now = time.thread_time()
        if self._running:
            name, since = self._running[-1]
            self._spent[name] += now - since
        if part is not None:
            self._running.append((part, now))
            return
        self._running.pop()
        if self._running:
            self._running[-1] = self._running[-1][0], now

    def seconds(self) -> dict[str, float]:
        """CPU seconds since the start by part; together they are the process's."""
        spent = dict(self._spent)
        counted = sum(spent.values())
        for thread in threading.enumerate():
            used = _cpu_seconds(thread.native_id)
            if thread is threading.main_thread():
                spent[REST] = used - counted
            else:
                part = next((part for name, part in THREADS.items() if thread.name.startswith(name)), OTHER_THREADS)
                spent[part] = spent.get(part, 0.0) + used
        return spent


def count_parts(service: Service, meter: Meter) -> None:
    """Everything that the service does at a tick."""
    parts = service._parts
    monitor, alerting = parts.monitor, parts.alerting
    for owner, method, part in (
        (monitor, "_take_results", "collect"),
        (monitor, "_assemble", "join"),
        (monitor._processes, "resolve", "/proc"),
        (monitor._processes, "refresh", "/proc"),
        (parts.leaks, "observe", "leaks"),
        (parts.usage, "observe", "usage"),
        (parts.view, "update", "history"),
        (parts.clients, "readings", "client frames"),
        (parts.clients, "show", "client frames"),
        (parts.automatic_blame, "observe", "client frames"),
        (alerting._series, "index", "series"),
        (alerting.engine, "evaluate", "rules"),
        (alerting.engine, "metric_names", "rules"),
        (alerting, "firing", "rules"),
        (alerting, "_evaluations", "rules"),
    ):
        meter.count(owner, method, part)


def _cpu_seconds(thread_id: int | None) -> float:
    """Of a thread of this process; the kernel counts nanoseconds (Documentation/scheduler/sched-stats.rst)."""
    try:
        return int(Path(f"/proc/self/task/{thread_id}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except OSError:  # it has just ended
        return 0.0
