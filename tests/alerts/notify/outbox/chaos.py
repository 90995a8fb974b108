"""A process that sends what is in an outbox until it is killed: for the test beside it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gpuagent.core.clock import SystemClock
from gpuagent_alerts.notify.outbox.delivery import Delivery, MessageOrigin
from gpuagent_alerts.notify.outbox.queue import Outbox
from gpuagent_alerts.notify.receivers.base import Receiver
from gpuagent_alerts.notify.receivers.http import HttpClient
from gpuagent_alerts.notify.receivers.webhook import Webhook
from gpuagent_alerts.secret import Secret
from gpuagent_alerts.store.database import Store
from tests.alerts.messages import alert, entry
from tests.alerts.notify.outbox.parts import until

GROUPS = 5


async def send(path: Path, url: str, last: int) -> None:
    """Queue messages up to a number, those that are not there yet, and send; ends when all are sent."""
    store, clock = Store(path), SystemClock()
    outbox = Outbox(store, clock, uniform=lambda: 0.02)
    delivery, http = Delivery(store, outbox, clock, MessageOrigin("node7")), HttpClient(deadline_seconds=5.0)
    await delivery.use([Receiver("hook", Webhook(http, Secret("URL", url)))])
    for number in range(int(store.meta("made") or 0), last):
        with store.transaction():
            outbox.enqueue([entry(alert(number=str(number)), group=str(number % GROUPS), name=f"m{number:04}")])
            store.set_meta("made", str(number + 1))
        await asyncio.sleep(0)
    await until(lambda: not store.execute("SELECT 1 FROM outbox WHERE state = 'queued' LIMIT 1"))
    await delivery.stop()
    await http.close()
    store.close()


if __name__ == "__main__":
    asyncio.run(send(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
