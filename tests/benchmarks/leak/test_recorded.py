"""What records the example app: its parts, and the whole for some seconds."""

from __future__ import annotations

import ctypes
import gzip
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from benchmarks.leak.recorded.__main__ import pack
from benchmarks.leak.recorded.app import APPS_PYTHON, ROOT
from benchmarks.leak.recorded.apps.heap import Heap
from benchmarks.leak.recorded.cases import CASES
from benchmarks.leak.recorded.traffic import Pattern, Traffic

from gpuagent_client.allocator import Allocator, Torch

MIB = 2**20
LEAKS = ROOT / "client" / "examples" / "served" / "leaks.py"


def test_every_leak_of_the_example_is_a_case() -> None:
    """LEAK-02: one that is added to the example is recorded too."""
    marked = {line.rsplit("# LEAK ", 1)[1] for line in LEAKS.read_text().splitlines() if "  # LEAK " in line}
    assert sorted(marked) == sorted(case.leak for case in CASES if case.leak)
    assert all(case.name == f"leak-{case.leak}" for case in CASES if case.leak)
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("pattern", [Pattern(6), Pattern(6, burst_seconds=90), Pattern(6, day_seconds=600)])
def test_a_pattern_keeps_its_rate(pattern: Pattern) -> None:
    """On average it is what it says, and never more than what arrivals are thinned from."""
    rates = [pattern.at(second) for second in range(1800)]
    assert sum(rates) / len(rates) == pytest.approx(pattern.rate, rel=0.01)
    assert 0 <= min(rates) <= max(rates) <= pattern.most


def test_the_heap_is_told_as_torch_would() -> None:
    """The client finds glibc's figures where it looks for the CUDA allocator's: in use, and held."""
    allocator = Allocator(Torch(Heap().modules("2.13.0+cpu")))
    (before,) = allocator.read().devices
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    block = libc.malloc(64 * MIB)
    (after,) = allocator.read().devices
    libc.free(block)
    (freed,) = allocator.read().devices

    held = [one.figures["allocated_bytes"] for one in (before, after, freed)]
    assert held[1] - held[0] == pytest.approx(64 * MIB, abs=MIB)
    assert held[2] - held[0] == pytest.approx(0, abs=MIB)
    assert all(one.figures["allocated_bytes"] <= one.figures["reserved_bytes"] for one in (before, after, freed))


def test_traffic_comes_back_to_a_server_that_hangs_up() -> None:
    """A pause between bursts is longer than a server keeps a connection: the next request opens another."""
    served = threading.Semaphore(0)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            served.release()

    server = threading.Thread(target=serve)
    server.start()
    traffic = Traffic(listening.getsockname()[1], Pattern(200), seed=1)
    traffic.start()
    assert all(served.acquire(timeout=30) for _ in range(5))
    traffic.stop()
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    server.join()

    assert traffic.failure == ""
    assert traffic.requests >= 4


def test_packing_is_the_same_for_the_same(tmp_path: Path) -> None:
    """Recorded again without a change, a file is no change in a checkout."""
    plain = tmp_path / "a.csv"
    plain.write_text("time_seconds,used_bytes\n1,2\n")
    packed: list[bytes] = []
    for name in ("one", "other"):
        os.utime(plain, (len(packed), len(packed)))
        pack(plain, tmp_path / name)
        packed.append((tmp_path / name / "a.csv.gz").read_bytes())

    assert packed[0] == packed[1]
    assert gzip.decompress(packed[0]) == plain.read_bytes()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_it_records(tmp_path: Path) -> None:
    """Some seconds of one app: memory, room, and the allocator's figures through the client, a row a second."""
    if not APPS_PYTHON.exists():
        pytest.skip("no .venv-apps with torch and servers; scripts/apps-venv makes it")
    words = [sys.executable, "-m", "benchmarks.leak.recorded", "--minutes", "0.15", "--into", str(tmp_path)]
    subprocess.run([*words, "leak-cache"], cwd=ROOT, check=True, timeout=150, capture_output=True)
    (file,) = tmp_path.iterdir()
    rows = [line.split(",") for line in gzip.decompress(file.read_bytes()).decode().splitlines()]

    assert file.name == "leak-cache.csv.gz"
    assert rows[0][:5] == ["time_seconds", "used_bytes", "free_bytes", "allocated_bytes", "reserved_bytes"]
    used, free, allocated, reserved = (int(cell) for cell in rows[-1][1:5])
    assert len(rows) > 5
    assert 0 < allocated <= reserved < used
    assert used + free == sum(int(cell) for cell in rows[1][1:3])
