"""Serves requests while a census waits, as many as it waits for: nothing depends on how fast the machine is."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

REQUESTS_A_SECOND = 100


class Traffic:
    """The context of a census whose seconds are hundreds of requests, served by another thread."""

    def __init__(self, serve: Callable[[int], object]) -> None:
        self._serve = serve
        self._orders: queue.Queue[int] = queue.Queue()
        self._done: queue.Queue[BaseException | None] = queue.Queue()
        self._served = 0
        self.thread_id = threading.get_ident()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            orders = self._orders.get()
            try:
                for _ in range(orders):
                    self._serve(self._served)
                    self._served += 1
                self._done.put(None)
            except BaseException as error:  # noqa: BLE001 - it is raised where the requests were asked for
                self._done.put(error)

    def requests_served(self) -> int | None:
        return self._served

    def is_capturing(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        self._orders.put(round(seconds * REQUESTS_A_SECOND))
        error = self._done.get()
        if error is not None:
            raise error
        return False
