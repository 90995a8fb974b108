"""Where memory runs out the agent goes on: a reserve is let go of, and nothing that cannot be said ends the loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from gpuagent.runtime.memory import Reserve, endure

_OUT_OF_MEMORY = """
import asyncio, logging, resource, sys
from pathlib import Path
from gpuagent.runtime.logs import set_up
from gpuagent.runtime.memory import Reserve, endure

async def main():
    reserve = Reserve()
    set_up("info", "text", stream=sys.stdout, on_shortage=reserve.release)
    loop = asyncio.get_running_loop()
    endure(loop, reserve)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), -1))
    held = []
    for number in range(3):
        loop.call_soon(lambda: held.append(bytes(12 * 2**20)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        print(len(held), reserve.held)
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1)) if number == 2 else None

asyncio.run(main())
"""


class Now:
    """Seconds that are set."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_reserve_is_taken_again_after_a_while() -> None:
    """What was let go of is not taken at once from whoever needed it, but some seconds later."""
    now = Now()
    reserve = Reserve(4096, now)
    assert reserve.held

    reserve.release()
    reserve.restore()
    assert not reserve.held

    now.seconds += 5
    reserve.restore()
    assert reserve.held


def test_a_reserve_that_cannot_be_had_is_none() -> None:
    """Where there is not even that much, the agent starts without."""
    reserve = Reserve(2**60)

    reserve.release()

    assert not reserve.held


def test_what_fails_for_want_of_memory_can_be_done_the_next_time() -> None:
    """A callback that finds no memory is one line in the log; the next one has what the reserve was."""
    child = subprocess.run([sys.executable, "-c", _OUT_OF_MEMORY], capture_output=True, text=True, check=False)

    assert child.returncode == 0, child.stderr
    first, *later = [line for line in child.stdout.splitlines() if line[0].isdigit() and "ERROR" not in line]
    assert first == "0 False"
    assert later[0] == "1 False"
    assert "out of memory" in child.stdout
    assert "Traceback" not in child.stdout + child.stderr


def test_a_loop_outlives_a_log_that_fails() -> None:
    """An exception in asyncio's last resort, which is to log another one, does not end the loop."""

    def fail(_loop: asyncio.AbstractEventLoop, _context: object) -> None:
        raise MemoryError

    async def run() -> str:
        loop = asyncio.get_running_loop()
        loop.default_exception_handler = fail  # type: ignore[method-assign,assignment]
        reserve = Reserve(4096)
        endure(loop, reserve)
        loop.call_soon(bytes, 2**62)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not reserve.held
        return "alive"

    assert asyncio.run(run()) == "alive"
