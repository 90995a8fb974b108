"""The pytest plugin: `@pytest.mark.gpu_leak` on a test, or the fixture `gpu_leak` for a function.

pytest loads it wherever the client is installed. It imports nothing but pytest before a test asks for it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import pytest

MARK = "gpu_leak"
HELP = (
    "gpu_leak(warmup=5, calls=20, confirm=240, allowed_bytes=0, max_seconds=120): call the test many times, and fail"
    " where GPU or tensor memory grows with the calls"
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", HELP)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test with the mark many times; its fixtures are set up once."""
    mark = pyfuncitem.get_closest_marker(MARK)
    if mark is None:
        return None
    if mark.args:
        raise pytest.UsageError(f"{pyfuncitem.nodeid}: gpu_leak takes keywords only, such as calls=40")
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        raise pytest.UsageError(
            f"{pyfuncitem.nodeid}: gpu_leak calls plain functions; in an async test, give the fixture gpu_leak a"
            " function that runs the coroutine, as asyncio.run does"
        )
    names = pyfuncitem._fixtureinfo.argnames  # noqa: SLF001 - as pytest's own pytest_pyfunc_call
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    shown = dict(arguments)
    if pyfuncitem.instance is not None:
        shown["self"] = pyfuncitem.instance
    _check(functools.partial(test, **arguments), pyfuncitem.name, pyfuncitem.function, shown, mark.kwargs)
    return True


@pytest.fixture(name=MARK)
def gpu_leak_fixture(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a function that calls another one many times, and fails where memory grows with the calls.

    `gpu_leak(function, *args, **settings)`; the settings are those of the mark.
    """
    shown = {name: value for name, value in request.node.funcargs.items() if name != MARK}

    def check(function: Callable[..., object], *args: object, **settings: object) -> None:
        __tracebackhide__ = True
        name = getattr(function, "__qualname__", type(function).__qualname__)
        _check(functools.partial(function, *args) if args else function, name, request.function, shown, settings)

    return check


def _check(
    function: Callable[[], object],
    name: str,
    test: FunctionType,
    fixtures: Mapping[str, object],
    settings: Mapping[str, Any],
) -> None:
    __tracebackhide__ = True
    from gpuagent_client.testing.gate import find_leak  # noqa: PLC0415 - only for tests that ask for it
    from gpuagent_client.testing.holders import NamedFixtures  # noqa: PLC0415

    with NamedFixtures(fixtures, test):
        leak = find_leak(function, **settings)
    if leak is not None:
        pytest.fail(f"{name} {leak.text()}", pytrace=False)
