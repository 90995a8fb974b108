"""The machine's misbehavior at the touch of a test: clocks, disk, /proc and names, by a library before libc."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
_NAMES = ("wall_offset_s", "boot_offset_s", "fsync_ms", "write_errno", "open_errno", "proc_errno", "dns_ms")
"""The struct of shim.c, all of them 64 bits."""
_NUMBER = struct.Struct("q")


class Shim:
    """Switches of one agent. Programs that it starts have the same library before libc, and the same switches."""

    def __init__(self, library: Path, folder: Path, disk: Path) -> None:
        self._library = library
        self._disk = disk
        self._file = folder / "shim"
        self._file.write_bytes(bytes(_NUMBER.size * len(_NAMES)))
        with self._file.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @property
    def environment(self) -> dict[str, str]:
        """For the agent."""
        return {
            "LD_PRELOAD": str(self._library),
            "TORTURE_SHIM": str(self._file),
            "TORTURE_DISK": str(self._disk),
        }

    def set(self, name: str, value: int) -> None:
        """Turn a switch; 0 is off."""
        _NUMBER.pack_into(self._memory, _NUMBER.size * _NAMES.index(name), value)

    def get(self, name: str) -> int:
        """How a switch stands."""
        (value,) = _NUMBER.unpack_from(self._memory, _NUMBER.size * _NAMES.index(name))
        return int(value)

    @contextmanager
    def turned(self, name: str, value: int) -> Iterator[None]:
        """For as long as it lasts."""
        before = self.get(name)
        self.set(name, value)
        try:
            yield
        finally:
            self.set(name, before)


def build(folder: Path) -> Path:
    """Compile the library. Raises CalledProcessError with what the compiler says."""
    library = folder / "shim.so"
    compiler = shutil.which("cc") or "gcc"
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True, env=environment
    )
    return library
