"""The limits that were set here: a file of root's, written before the driver is called.

It is what tells our limits from everybody else's, so it has to outlive whoever sets them: a kill of the agent or of the
helper. It is of one boot, as limits are.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from gpuagent.core.memory_limits import LimitRefused, MemoryLimit, limit_of

MOST_LIMITS = 256
_MOST_BYTES = 2**20


class LimitLedger:
    """A file with the limits of this boot; None for a ledger that ends with the process, as for a scenario."""

    def __init__(self, path: Path | None, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._in_memory: tuple[MemoryLimit, ...] = ()

    @property
    def boot_id(self) -> str:
        """Boot whose limits it has."""
        return self._boot_id

    def limits(self) -> tuple[MemoryLimit, ...]:
        """Return all of this boot.

        Raises LimitRefused where the file cannot be read: then nobody knows what is ours.
        """
        if self._path is None:
            return self._in_memory
        try:
            with self._path.open("rb") as file:
                text = file.read(_MOST_BYTES + 1)
            if len(text) > _MOST_BYTES:
                raise ValueError("it is too large")
            rows = json.loads(text)
            found = tuple(limit_of(each) for each in rows)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise LimitRefused(
                f"the ledger of memory limits {self._path} cannot be read ({error}): see what limits there are"
                " (nvidia-smi memory-limits --get), take off what is not wanted, and remove the file"
            ) from None
        return tuple(each for each in found if each.boot_id == self._boot_id)

    def find(self, gpu_uuid: str, cgroup: str) -> MemoryLimit | None:
        """Return the limit of a cgroup on a GPU; None where there is none of ours. Raises LimitRefused."""
        return next((each for each in self.limits() if each.key == (gpu_uuid, cgroup)), None)

    def put(self, limit: MemoryLimit) -> None:
        """Write a limit down, in place of the one of its cgroup and GPU. Raises LimitRefused."""
        try:
            limit_of(limit.document())  # what cannot be read again would hide all the others
        except ValueError as error:
            raise LimitRefused(str(error)) from None
        others = tuple(each for each in self.limits() if each.key != limit.key)
        if len(others) >= MOST_LIMITS:
            raise LimitRefused(f"{MOST_LIMITS} memory limits are set: lift some (gpuagent remedies lift)")
        self._write((*others, limit))

    def remove(self, gpu_uuid: str, cgroup: str) -> None:
        """Forget the limit of a cgroup on a GPU. Raises LimitRefused."""
        self._write(tuple(each for each in self.limits() if each.key != (gpu_uuid, cgroup)))

    def _write(self, limits: tuple[MemoryLimit, ...]) -> None:
        if self._path is None:
            self._in_memory = limits
            return
        aside = self._path.with_name(f".{self._path.name}.new")
        try:
            with suppress(FileNotFoundError):
                aside.unlink()
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                json.dump([each.document() for each in limits], file)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self._path)
        except OSError as error:
            raise LimitRefused(
                f"the ledger of memory limits {self._path} cannot be written: {error.strerror}"
            ) from None
