"""A process that turns a story of alerts into messages until it is killed: for the test beside it."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from gpuagent_alerts.alert import Alert
from gpuagent_alerts.notify.notifier import Notifier, Suppressions
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.notify.routes import Recipient, Routes
from gpuagent_alerts.notify.silences import Acks, Silences
from gpuagent_alerts.store.database import Store
from tests.alerts.messages import NOW, alert
from tests.alerts.notify.outbox.parts import SteppingClock
from tests.alerts.notify.parts import route

STEP_SECONDS = 7.0
NAMES = ("GpuMemoryHigh", "GpuProcessMemoryLeak", "GpuMemoryFull", "GpuLost", "GpuXidWarning")
RECIPIENTS = [Recipient("hook", max_messages_per_hour=20), Recipient("pager", max_messages_per_hour=20, digests=False)]


def story(step: int) -> list[Alert]:
    """Return what fires at a step: each for a while, again and again, on three GPUs."""
    found = []
    for gpu in range(3):
        for place, name in enumerate(NAMES):
            period, begins = 12 + 5 * place, random.Random(f"{gpu} {name}").randrange(12)
            lasted = (step + begins) % period
            if lasted < period // 2:
                pid: dict[str, Any] = {"pid": str(100 + gpu)} if name == "GpuProcessMemoryLeak" else {}
                severity = "critical" if name in {"GpuMemoryFull", "GpuLost"} else "warning"
                starts_at = NOW + (step - lasted) * STEP_SECONDS
                found.append(
                    alert(
                        name,
                        gpu=str(gpu),
                        uuid=f"GPU-{gpu}",
                        severity=severity,
                        starts_at=starts_at,
                        ended=False,
                        **pid,
                    )
                )
    return found


def tell(path: Path, last: int) -> None:
    """Go on with the story to its end; say each step that is kept."""
    store, clock = Store(path), SteppingClock()
    begun = int(store.meta("step") or 0)
    clock.step(NOW + begun * STEP_SECONDS - clock.wall())
    outbox = Outbox(store, clock)
    notifier = Notifier(
        store, outbox, clock, Suppressions(Silences(store, clock), Acks(store, clock)),
        routes=Routes([route("hook", "pager", repeat=1e6)], RECIPIENTS), node_labels={"node": "node7"},
    )  # fmt: skip
    for step in range(begun, last):
        with store.transaction():
            notifier.notify(story(step))
            store.set_meta("step", str(step + 1))
        clock.advance(STEP_SECONDS)
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()
    store.close()


if __name__ == "__main__":
    tell(Path(sys.argv[1]), int(sys.argv[2]))
