"""What objects refer to, asked of all that an app has."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import types

from gpuagent_client.blame.heap import referents_of, wrapped_by

EVERYTHING = """
import asyncio, gc
from gpuagent_client.blame.heap import referents_of

async def wait_for_some():
    for _ in range(3):
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, None)
        await future

asyncio.run(wait_for_some())
for _ in range(3):
    for item in gc.get_objects():
        referents_of(item)
print(len(gc.get_referrers(asyncio)) > 0)
"""


def test_of_a_module_it_is_the_namespace() -> None:
    """Of other objects it is all that they refer to."""
    module = types.ModuleType("some")
    value = object()

    assert referents_of(module) == [module.__dict__]
    assert referents_of([value]) == [value]


def test_an_app_that_has_waited_can_be_looked_through() -> None:
    """CPython gh-122695: what asyncio keeps to use again is not brought to life, or the collector would never end."""
    done = subprocess.run([sys.executable, "-c", EVERYTHING], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_function_is_asked_for_what_it_wraps_without_getting_a_dict() -> None:
    """Most functions of an app have none, and must not get one from being looked at."""

    def inner() -> None: ...

    @functools.wraps(inner)
    def outer(*, key: object = None) -> None: ...

    assert isinstance(inner, types.FunctionType)
    assert isinstance(outer, types.FunctionType)
    before = gc.get_referents(inner)

    assert wrapped_by(inner) == []
    assert gc.get_referents(inner) == before
    assert wrapped_by(outer) == [inner]
