"""Arrays of objects, whose elements the garbage collector does not see, and other things that have no name in code."""

from __future__ import annotations

import ctypes
import gc
from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from gpuagent_client.blame import arrays
from gpuagent_client.blame.marking import code_of_task
from gpuagent_client.blame.paths import is_tensor_type, type_name
from gpuagent_client.blame.watch import FILLED, Target, how_to_measure, measure_all, target
from tests.client.blame import test_paths
from tests.client.blame.test_paths import Thing, class_without_module, index_heap, way_to, widths_of


class ndarray:  # noqa: N801 - its name is what it is known by
    """Stands for numpy's: it knows addresses only, which is all that the collector sees of an array."""

    __module__ = "numpy"
    __slots__ = ("addresses", "base", "kind")

    def __init__(self, items: list[Any], kind: str = "O", base: object = None) -> None:
        self.addresses = array("Q", map(id, items))
        self.kind = kind
        self.base = base

    @property
    def dtype(self) -> SimpleNamespace:
        return SimpleNamespace(kind=self.kind)

    @property
    def size(self) -> int:
        return len(self.addresses)

    @property
    def flat(self) -> Iterator[object]:
        return (ctypes.cast(address, ctypes.py_object).value for address in self.addresses)


class State(NamedTuple):
    """A state of which each version replaces the last."""

    first: Thing
    history: tuple[Thing, ...]


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    """Nothing is kept from one test to the next."""
    yield
    test_paths.KEPT.clear()


@pytest.mark.slow
def test_elements_of_an_array_of_objects_are_found() -> None:
    """LEAK-01: they have one name, and are as many as the array is long."""
    things = [Thing() for _ in range(5)]
    test_paths.KEPT["rows"] = ndarray(things)

    ((name, widths),) = widths_of(*things).items()

    assert name.endswith(".KEPT[<str>][*]")
    assert widths[-2:] == [1, 5]


@pytest.mark.slow
def test_what_only_the_base_of_a_view_has_is_found() -> None:
    """A view of an array keeps all of it."""
    things = [Thing() for _ in range(3)]
    test_paths.KEPT["view"] = ndarray(things[2:], base=ndarray(things))

    assert widths_of(things[0]).popitem()[0].endswith(".KEPT[<str>].base[*]")


def test_an_array_of_numbers_has_no_elements() -> None:
    """Their bytes are no addresses of objects."""
    numbers = ndarray([], kind="f")

    assert (list(arrays.objects_in(numbers)), arrays.array_size(numbers)) == ([], None)


@pytest.mark.slow
def test_an_array_that_is_replaced_by_a_longer_one_is_watched() -> None:
    """LEAK-01: the app asks what has the name by then for its length, as of a list."""
    things = [Thing() for _ in range(9)]
    test_paths.KEPT["rows"] = ndarray(things[:2])
    watched = target(
        [vars(test_paths), test_paths.KEPT, test_paths.KEPT["rows"]],
        index_heap(),
        "length",
        2,
    )
    assert isinstance(watched, Target)

    test_paths.KEPT["rows"] = ndarray(things)

    assert measure_all([watched]) == [9]


class Forbidding(type):
    """Metaclass whose code must not run."""

    def __getattribute__(cls, name: str) -> object:
        if name.startswith("__") and name != "__del__":
            raise AssertionError(name)
        return super().__getattribute__(name)


class Guarded(metaclass=Forbidding):
    """Class that only the methods of `type` may be asked about."""


def test_any_class_can_be_asked() -> None:
    """A class without a module, or with a metaclass of the app's, neither fails the census nor runs code in it."""
    for item in (class_without_module()(), object.__new__(Guarded)):  # type: ignore[operator]
        assert not arrays.is_inside_pandas(item, item)
        assert not arrays.is_array_type(type(item))
        assert arrays.base_of(item) is None
        assert code_of_task(item) is None
        assert not is_tensor_type(type(item))
        assert type_name(item).rpartition(".")[2] in {"Nameless", "Guarded"}


def test_an_array_made_at_its_full_length_is_measured_by_what_is_in_it() -> None:
    """It gets no longer, but fuller."""
    assert how_to_measure(ndarray([Thing(), None, None])) == FILLED


@pytest.mark.slow
def test_a_slot_without_a_name_is_followed_by_its_place() -> None:
    """Classes of extensions tell the collector what they refer to, but not by which name: zip() is such a one."""
    items = [iter([number]) for number in range(3)]
    test_paths.KEPT["zip"] = zip(items[0], strict=False)
    inner = gc.get_referents(test_paths.KEPT["zip"])[0]
    namespace = vars(test_paths)
    watched = target([namespace, test_paths.KEPT, test_paths.KEPT["zip"], inner], index_heap(), "length", 1)
    assert isinstance(watched, Target)
    assert watched.steps[-1][0] == "<tuple>"

    test_paths.KEPT["zip"] = zip(*items, strict=False)
    assert measure_all([watched]) == [3]

    test_paths.KEPT["zip"] = iter([1])
    assert measure_all([watched]) == [None]


@pytest.mark.slow
def test_fields_of_a_named_tuple_have_their_names() -> None:
    """A version of a state is not a list: its fields are told apart."""
    things = [Thing() for _ in range(3)]
    test_paths.KEPT["state"] = State(things[0], tuple(things[1:]))

    names = {name.partition(".KEPT")[2]: widths[-1] for name, widths in widths_of(*things).items()}

    assert names == {"[<str>].first": 1, "[<str>].history[*]": 2}
    assert way_to(things[1]).text().endswith(".KEPT[<str>].history[0]")
