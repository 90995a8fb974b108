"""Taking over from ourselves: a driver upgrade leaves this process with a library that will never fit again.

nvidia-ml-py never unloads the library it has opened, so the cure is a new process image (`execve`), under the same pid
and with the same supervisor. Until the kernel module fits as well, a new process is no better off: so not too often.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, MutableMapping, Sequence

_VARIABLE = "GPUAGENT_RENEWALS"
_FIRST_SECONDS = 10.0
_LONGEST_SECONDS = 600.0
_MOST_DOUBLINGS = 6
_SETTLED_SECONDS = 3600.0


class Renewal:
    """Counts renewals across `execve` through the environment, and spaces them: 10 s, 20 s ... 10 min."""

    def __init__(
        self,
        environ: MutableMapping[str, str] = os.environ,
        now: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._environ = environ
        self._now = now
        count, _, last = environ.get(_VARIABLE, "0:0").partition(":")
        try:
            self.count, self._last = int(count), float(last or 0)
        except ValueError:
            self.count, self._last = 0, 0.0
        if self.count and now() - self._last > _SETTLED_SECONDS:
            self.count = 0

    @property
    def due(self) -> bool:
        """Whether a renewal may be made now."""
        if self.count == 0:
            return True
        wait = min(_FIRST_SECONDS * 2 ** min(self.count - 1, _MOST_DOUBLINGS), _LONGEST_SECONDS)
        return bool(self._now() - self._last >= wait)

    def take_over(self, argv: Sequence[str]) -> None:
        """Replace this process. Does not return."""
        self._environ[_VARIABLE] = f"{self.count + 1}:{self._now():.0f}"
        os.execv(argv[0], list(argv))  # noqa: S606  no shell: the same program with the same arguments
