"""What the process asks of its allocator and its collector."""

from __future__ import annotations

import gc
import resource
import weakref
from collections.abc import Iterator

import pytest

from gpuagent.runtime.memory import c_library, lock_pages, set_up_heap, trim_and_freeze


class FakeGlibc:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def mallopt(self, parameter: int, value: int) -> int:
        self.calls.append(("mallopt", parameter, value))
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.calls.append(("malloc_trim", pad, len(gc.get_objects())))
        return 1

    def mlockall(self, flags: int) -> int:
        self.calls.append(("mlockall", flags, 0))
        return 0


class OtherLibrary:
    """musl has neither: ctypes raises what a missing symbol raises."""

    def mallopt(self, parameter: int, value: int) -> int:
        raise AttributeError("mallopt")

    def malloc_trim(self, pad: int) -> int:
        raise AttributeError("malloc_trim")

    def mlockall(self, flags: int) -> int:
        raise AttributeError("mlockall")


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_there_is_one_heap_and_none_for_large_blocks() -> None:
    """M_ARENA_MAX and M_MMAP_THRESHOLD of <malloc.h>, the latter at the 128 KiB where glibc begins."""
    glibc = FakeGlibc()
    set_up_heap(glibc)

    assert glibc.calls == [("mallopt", -8, 1), ("mallopt", -3, 128 * 1024)]


def test_what_stays_is_not_looked_at_again() -> None:
    """When free memory is given back, all that lives is frozen already."""
    glibc = FakeGlibc()
    trim_and_freeze(glibc)

    [(name, pad, watched)] = glibc.calls
    assert (name, pad) == ("malloc_trim", 0)
    assert gc.get_freeze_count() > 1000 > watched


@pytest.mark.slow
def test_what_a_reload_replaced_is_collected() -> None:
    """A cycle that was frozen once and is garbage since is gone after the next time."""

    class Replaced:
        def __init__(self) -> None:
            self.itself = self

    replaced = Replaced()
    is_left = weakref.ref(replaced)
    trim_and_freeze(FakeGlibc())
    assert gc.get_freeze_count() > 0
    del replaced
    trim_and_freeze(FakeGlibc())

    assert is_left() is None


def test_without_glibc_all_goes_on() -> None:
    """A library that has neither call is no fault."""
    set_up_heap(OtherLibrary())
    trim_and_freeze(OtherLibrary())

    assert gc.get_freeze_count() > 0


def test_the_real_library_takes_both() -> None:
    """Symbols and types are right: a wrong one would raise."""
    set_up_heap(c_library())
    trim_and_freeze(c_library())


@pytest.mark.parametrize(
    ("limit", "library", "why", "calls"),
    [
        (resource.RLIM_INFINITY, FakeGlibc(), "", [("mlockall", 7, 0)]),
        (8 * 2**20, FakeGlibc(), "the limit of locked memory is finite (LimitMEMLOCK= of the unit)", []),
        (resource.RLIM_INFINITY, OtherLibrary(), "the C library has no mlockall", []),
    ],
)
def test_pages_are_locked_where_that_is_without_a_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int, library: FakeGlibc | OtherLibrary, why: str, calls: list[object]
) -> None:
    """As they are used, those of later mappings too; under a finite limit a later mapping would fail."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))

    assert lock_pages(library) == why
    assert getattr(library, "calls", []) == calls
