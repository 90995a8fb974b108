"""The switches of the shim do what they say: a trouble that does not bite would show nothing."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.torture.shim import Shim

pytestmark = [pytest.mark.slow, pytest.mark.needs("cc", "gcc")]

_PROGRAM = """
import json, os, socket, sys, time

def failing(act):
    try:
        act()
        return 0
    except OSError as error:
        return error.errno

def seconds(act):
    start = time.monotonic()
    act()
    return time.monotonic() - start

folder = os.environ["TORTURE_DISK"]
file = 0  # on the disk, open since before anything went wrong
print(json.dumps({
    "write": failing(lambda: os.write(file, b"x")),
    "open": failing(lambda: os.close(os.open(folder + "/new", os.O_RDWR | os.O_CREAT, 0o600))),
    "elsewhere": failing(lambda: os.write(os.open("/dev/null", os.O_WRONLY), b"x")),
    "fsync": seconds(lambda: os.fsync(file)),
    "dns": seconds(lambda: socket.getaddrinfo("localhost", 80)),
    "proc": [failing(lambda: os.close(os.open("/proc/%d/stat" % os.getpid(), os.O_RDONLY))) for _ in range(4)],
    "wall": time.time(),
    "boot": time.clock_gettime(time.CLOCK_BOOTTIME),
}))
"""


def test_every_switch(library: Path, tmp_path: Path) -> None:
    """Clocks, disk, /proc and names: on they bite, off they do not, and what is not the disk is left alone."""
    disk = tmp_path / "disk"
    disk.mkdir()
    shim = Shim(library, tmp_path, disk)

    def ran() -> dict[str, Any]:
        with (disk / "kept").open("w") as kept:
            told = subprocess.run(
                [sys.executable, "-c", _PROGRAM],
                env=os.environ | shim.environment, stdin=kept, stdout=subprocess.PIPE, check=True,
            )  # fmt: skip
        found: dict[str, Any] = json.loads(told.stdout)
        return found

    off = ran()
    settings = {
        "wall_offset_s": 86400, "boot_offset_s": 3600, "fsync_ms": 300, "write_errno": errno.ENOSPC,
        "open_errno": errno.EROFS, "proc_errno": errno.EACCES, "dns_ms": 300,
    }  # fmt: skip
    for name, value in settings.items():
        shim.set(name, value)
    on = ran()

    assert (off["write"], off["open"], off["proc"]) == (0, 0, [0, 0, 0, 0])
    assert (on["write"], on["open"], on["elsewhere"]) == (errno.ENOSPC, errno.EROFS, 0)
    assert sorted(on["proc"]) == [0, 0, errno.EACCES, errno.EACCES]
    assert on["fsync"] >= 0.3
    assert on["dns"] >= 0.3
    assert on["wall"] - time.time() > 86000
    assert on["boot"] - time.clock_gettime(time.CLOCK_BOOTTIME) > 3500
