"""An answer that comes just as the agent stops."""

from __future__ import annotations

import asyncio
import threading

from gpuagent_alerts.alert import Message
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, MessageContext
from tests.alerts.messages import entry
from tests.alerts.notify.outbox.parts import PATIENCE_SECONDS, Bench, ScriptedSender
from tests.alerts.notify.outbox.test_delivery import deliver


class OnASlowDisk(ScriptedSender):
    """Takes the message, and by then somebody else is writing to the store."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.sent_it = asyncio.Event()
        self.written = threading.Event()
        self._writing = threading.Event()
        self._bench = bench

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        threading.Thread(target=self._write).start()
        assert await asyncio.to_thread(self._writing.wait, PATIENCE_SECONDS)
        self.sent_it.set()
        return await super().send(message, context)

    def _write(self) -> None:
        with self._bench.store.transaction():
            self._writing.set()
            self.written.wait(PATIENCE_SECONDS)


def test_it_is_noted_before_the_store_is_closed() -> None:
    """ALERT-08: what a receiver has taken is not sent again by the next start only because the disk was slow."""

    async def scene() -> dict[str, str]:
        bench = Bench()
        delivery, sender = deliver(bench), OnASlowDisk(bench)
        bench.outbox.enqueue([entry(name="one")])
        await delivery.use([sender])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await sender.sent_it.wait()
        stopping = asyncio.create_task(delivery.stop())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not stopping.done()
        sender.written.set()
        await stopping
        return bench.states()

    assert asyncio.run(scene()) == {"one": "sent"}
