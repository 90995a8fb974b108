"""Requests to one app at a rate that varies as traffic does, until told to stop."""

from __future__ import annotations

import http.client
import math
import random
import threading
from typing import NamedTuple

_TIMEOUT_SECONDS = 30.0


class Pattern(NamedTuple):
    """How many requests there are a second on average, and how they come. Arrivals are random (Poisson)."""

    rate: float
    burst_seconds: float = 0.0
    """Half of so much time twice as many, then none; 0: evenly."""
    day_seconds: float = 0.0
    """Up and down like a day's load in so much time; 0: evenly."""
    most_words: int = 12
    """A text has up to so many words."""

    def at(self, seconds: float) -> float:
        """Requests a second at this time."""
        if self.burst_seconds:
            return 2 * self.rate if seconds % self.burst_seconds < self.burst_seconds / 2 else 0.0
        if self.day_seconds:
            return self.rate * (1 - 0.8 * math.cos(2 * math.pi * seconds / self.day_seconds))
        return self.rate

    @property
    def most(self) -> float:
        """The highest rate there is."""
        return 2 * self.rate if self.burst_seconds or self.day_seconds else self.rate


class Traffic:
    """A thread that asks one app. Ends by itself when the app does."""

    def __init__(self, port: int, pattern: Pattern, seed: int) -> None:
        self._port = port
        self._pattern = pattern
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.requests = 0
        self.failure = ""

    def start(self) -> None:
        """Once."""
        self._thread.start()

    def stop(self) -> None:
        """And wait until the last answer is there."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_SECONDS)
        seconds = 0.0
        try:
            while True:
                pause = self._random.expovariate(self._pattern.most)
                seconds += pause
                if self._stopping.wait(pause):
                    return
                if self._random.random() * self._pattern.most < self._pattern.at(seconds):  # thinning
                    self._ask(connection)
        except (OSError, http.client.HTTPException) as error:
            self.failure = str(error) or type(error).__name__
        finally:
            connection.close()

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        words = [str(self.requests), *("more" for _ in range(self._random.randint(1, self._pattern.most_words)))]
        path = "/predict?text=" + "+".join(words)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
        except ConnectionError:  # the server hangs up on who is silent for a while
            connection.close()
            connection.request("GET", path)
            answer = connection.getresponse()
        answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise http.client.HTTPException(f"status {answer.status}")
        self.requests += 1
