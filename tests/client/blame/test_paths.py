"""Walks, names and containers, on plain objects: what is said of tensors is said of any object."""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuagent_client.blame import fork
from gpuagent_client.blame import heap as heaps
from gpuagent_client.blame.code_index import CodeIndex
from gpuagent_client.blame.look import ROOT, Signatures
from gpuagent_client.blame.marking import Deadline, Marking
from gpuagent_client.blame.paths import Trail, key_text, relative, trail
from gpuagent_client.blame.sites import Site, sites
from gpuagent_client.blame.watch import Target, goes_on, measure_all, target


class Thing:
    """Stands for a tensor."""


class Lying:
    """A lazy proxy: it claims another class, and must not be asked."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise AssertionError("code of the app was run")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("code of the app was run")

    def __hash__(self) -> int:
        raise AssertionError("code of the app was run")

    def __getattribute__(self, name: str) -> object:
        raise AssertionError("code of the app was run")


class Holder:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.things: list[object] = []
        self.by_name: dict[str, list[object]] = {}

    def keep(self, thing: object) -> None:
        self.things.append(thing)


class AttributeDict(dict[str, Any]):
    """Shows its keys as attributes."""

    def __getattr__(self, name: str) -> object:
        return self[name]


SETTINGS = AttributeDict()


def keep_in_settings(thing: object) -> None:
    """Add to a list that is known as an attribute only."""
    SETTINGS.things_of_settings.append(thing)  # type: ignore[attr-defined]


class Borg:
    """All instances share their attributes."""

    _shared: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.__dict__ = self._shared

    def keep(self, thing: object) -> None:
        self.things_of_borg.append(thing)  # type: ignore[attr-defined]


KEPT: dict[object, object] = {}
HOLDER = Holder()
PROXY = Lying()


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    """Nothing is kept from one test to the next."""
    yield
    KEPT.clear()
    HOLDER.__init__()  # type: ignore[misc]


def index_heap() -> heaps.Heap:
    """What there is now."""
    objects = gc.get_objects()
    frames = fork.running_frames((threading.get_ident(),))
    return heaps.index_heap(objects, frames, [])


def held(*things: object) -> tuple[list[heaps.HolderPath], heaps.Heap]:
    """Who holds these."""
    heap = index_heap()
    return heaps.walk(list(things), heap, 30.0), heap


def way_to(thing: object, *, show_keys: bool = False) -> Trail:
    """The one way to a thing, in words."""
    (path,), heap = held(thing)
    assert path.rooted
    return trail(path.objects, heap, show_keys=show_keys)


def widths_of(*things: object) -> dict[str, list[int]]:
    """The signature of each thing, and how many objects have it and each one above it, from the root on."""
    heap = index_heap()
    marking = Marking(heap, set(), lambda item: None, Deadline(1e9, 1e9), things)
    marking.mark_all()
    names = Signatures(marking, heap)
    lines = [names.line(names.of(marking.places[id(thing)])) for thing in things]
    return {"".join(map(names.label, line)): [names.widths[one] for one in line] for line in lines}


def marked(until: Deadline, *wanted: object) -> Marking:
    """What is marked by then, where these are enough."""
    marking = Marking(index_heap(), set(), lambda item: None, until, wanted)
    marking.mark_all()
    return marking


LATE = Deadline(1e9, 1e9)


class Shared:
    """Keeps something for all of its instances."""

    kept: tuple[object, ...] = ()


@pytest.mark.slow
def test_what_is_above_a_class_has_no_signature() -> None:
    """A class is named by itself: nothing was counted on the way to it."""
    thing = Thing()
    Shared.kept = (thing,)
    marking = marked(LATE, thing)
    names = Signatures(marking, index_heap())
    place = marking.places[id(thing)]

    lowest = names.of(place)

    line = [names.seen(one) for one in marking.path(place)]
    assert (line[0], line[-1]) == (ROOT, lowest)


@pytest.mark.slow
def test_modules_with_numbered_names_are_one_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is made anew under the next number has the signature of the one before."""
    things = [Thing() for _ in range(3)]
    for number, thing in enumerate(things):
        module = types.ModuleType(f"made_plugin_{number}")
        vars(module)["TABLE"] = thing
        monkeypatch.setitem(sys.modules, module.__name__, module)

    assert widths_of(*things) == {"made_plugin_#.TABLE": [3, 3]}


def class_without_module() -> object:
    """A class that does not say which module it is of."""
    names: dict[str, object] = {"__builtins__": {"type": type}}
    exec("made = type('Nameless', (), {})", names)
    with pytest.raises(AttributeError):
        type.__dict__["__module__"].__get__(names["made"])
    return names["made"]


@pytest.mark.slow
def test_classes_made_at_run_time_are_elements_of_what_keeps_them() -> None:
    """A class that no module knows by name is not named by itself: the dict that keeps such classes has grown."""
    things = [Thing() for _ in range(3)]
    KEPT["nameless"] = class_without_module()
    KEPT["classes"] = {number: type(f"Made{number}", (), {"thing": thing}) for number, thing in enumerate(things)}

    (widths,) = widths_of(*things).items()

    assert widths[0].endswith(".KEPT[<str>][<int>].thing")
    assert widths[1][-1] == len(things)


@pytest.mark.slow
def test_exceptions_that_follow_each_other_are_one_chain() -> None:
    """Causes and contexts of all classes share a signature, however many there are."""
    things = []
    last: Exception | None = None
    for kind in (ValueError, RuntimeError, ValueError, KeyError):
        things.append(Thing())
        error = kind()
        error.__cause__, last = last, error
        error.args = (things[-1],)
    KEPT["last"] = last

    names = sorted(name.partition(".KEPT")[2] for name in widths_of(*things))

    assert names == ["[<str>].__cause__.args[*]", "[<str>].args[*]"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tuple, list, lambda things: dict(enumerate(things))], ids=["tuple", "list", "dict"])
def test_elements_of_a_container_in_a_container_are_no_chain(kind: Callable[[tuple[object, ...]], object]) -> None:
    """What comes first in the outer one is of the same class, and the inner one is counted by itself all the same."""
    things = [Thing() for _ in range(4)]
    KEPT["state"] = kind((things[0], kind(tuple(things[1:]))))

    widths = [one[-1] for _, one in sorted(widths_of(*things).items(), key=lambda item: len(item[0]))]

    assert widths == [2, 3]


@pytest.mark.slow
def test_marking_ends_where_all_that_is_wanted_is_found() -> None:
    """The rest of the heap costs no time, and what was found has the way that it has in the whole."""
    thing = Thing()
    HOLDER.keep(thing)

    part, whole = marked(LATE, thing), marked(LATE, thing, object())

    assert part.complete
    assert len(part.order) < len(whole.order)
    ways = [[id(one.order[place]) for place in one.path(one.places[id(thing)])] for one in (part, whole)]
    assert ways[0] == ways[1]


@pytest.mark.slow
@pytest.mark.parametrize("until", [Deadline(0.0, 1e9), Deadline(1e9, 0.0)], ids=["processor", "clock"])
def test_marking_ends_with_its_time(until: Deadline) -> None:
    """On a busy host the clock is over first; what is marked by then is told as a part."""
    assert not marked(until, object()).complete


def put(number: int, thing: object) -> None:
    """Store it as an app would."""
    KEPT[number] = {"thing": thing}


@pytest.mark.slow
def test_a_thing_in_a_dict_of_a_module_is_named() -> None:
    """The way from the module down to the thing, with keys told by their type."""
    thing = Thing()
    put(1, thing)

    assert way_to(thing).text() == f"{__name__}.KEPT[<int>][<str>]"
    assert way_to(thing, show_keys=True).text() == f"{__name__}.KEPT[1]['thing']"


def test_keys_that_are_no_plain_values_are_never_shown() -> None:
    """repr() is code of the app, whatever was asked for."""
    assert key_text(Lying(), show_keys=True) == "<Lying>"


@pytest.mark.slow
def test_nothing_of_the_app_is_run() -> None:
    """A proxy on the way that fails whatever it is asked is passed without asking it."""
    thing = Thing()
    object.__setattr__(PROXY, "thing", thing)
    try:
        assert way_to(thing).text().startswith(f"{__name__}.PROXY")
    finally:
        object.__delattr__(PROXY, "thing")


@pytest.mark.slow
def test_elements_share_a_signature() -> None:
    """Elements of one container have one name, whose count is the length; those of two containers have two."""
    things = [Thing() for _ in range(8)]
    for thing in things[:5]:
        HOLDER.keep(thing)
    HOLDER.by_name["first"] = [*things[5:]]

    found = widths_of(*things)

    assert found[f"{__name__}.HOLDER.things[*]"][-2:] == [1, 5]
    assert found[f"{__name__}.HOLDER.by_name[<str>][*]"][-2:] == [1, 3]


@pytest.mark.slow
def test_names_come_before_running_frames() -> None:
    """What a module holds is named by the module, although a variable of a running function refers to it as well."""
    thing = Thing()
    HOLDER.keep(thing)
    end, ready = threading.Event(), threading.Event()

    def work() -> None:
        mine = HOLDER.things
        ready.set()
        end.wait()
        mine.clear()

    worker = threading.Thread(target=work)
    worker.start()
    ready.wait()
    try:
        assert list(widths_of(thing)) == [f"{__name__}.HOLDER.things[*]"]
    finally:
        end.set()
        worker.join()


@pytest.mark.slow
def test_a_linked_list_longer_than_the_walk_has_its_head_named() -> None:
    """A chain is climbed in place, and costs no levels."""

    class Node:
        def __init__(self, following: object) -> None:
            self.following = following
            self.thing = Thing()

    last = node = Node(None)
    for _ in range(heaps.MAX_LEVELS * 3):
        node = Node(node)
    KEPT["head"] = node
    thing = last.thing
    del last, node

    assert "chain of" in way_to(thing).text()
    assert way_to(thing).text().startswith(f"{__name__}.KEPT[<str>]")


@pytest.mark.slow
def test_a_cycle_that_nobody_holds_is_known_as_one() -> None:
    """What is only held by itself has no root."""
    cycle: dict[str, Any] = {"thing": Thing()}
    cycle["me"] = cycle
    gc.disable()
    try:
        reference = [id(cycle["thing"])]
        del cycle
        thing = next(item for item in gc.get_objects() if id(item) == reference[0])
        (path,), _ = held(thing)
    finally:
        gc.enable()

    assert (path.rooted, path.in_cycle) == (False, True)


@pytest.mark.slow
def test_a_variable_of_a_running_thread_is_a_root() -> None:
    """What only a local variable of another thread holds is named by that variable."""
    ready, end = threading.Event(), threading.Event()
    seen: list[int] = []

    def work() -> None:
        mine = [Thing()]
        seen.append(id(mine[0]))
        ready.set()
        end.wait()
        mine.clear()

    worker = threading.Thread(target=work)
    worker.start()
    ready.wait()
    try:
        thing = next(item for item in gc.get_objects() if id(item) == seen[0])
        text = way_to(thing).text()
    finally:
        end.set()
        worker.join()

    assert text.startswith("local mine of ")
    assert text.endswith("[0]")


def lines_for(way: Trail, last: int) -> list[Site]:
    """Where code changes objects[last] of the way."""
    functions = [item for item in gc.get_objects() if type(item) is types.FunctionType]
    return sites(next(way.handles(last)), CodeIndex(functions, []))


@pytest.mark.slow
def test_the_line_of_a_method_that_adds_is_found() -> None:
    """For an attribute, methods of its class come first."""
    thing = Thing()
    HOLDER.keep(thing)
    way = way_to(thing)

    (site,) = [site for site in lines_for(way, len(way.objects) - 2) if site.how != "taken"]

    code = Holder.keep.__code__
    assert (site.function, site.line) == ("Holder.keep", code.co_firstlineno + 1)
    assert relative(code.co_filename) == site.file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "name", "adding"),
    [(SETTINGS, "things_of_settings", keep_in_settings), (Borg._shared, "things_of_borg", Borg.keep)],
    ids=["__getattr__ of a dict", "shared __dict__"],
)
def test_the_line_that_uses_a_key_as_an_attribute_is_found(
    keys: dict[str, Any], name: str, adding: types.FunctionType
) -> None:
    """A dict may show its keys as attributes, or be the `__dict__` of all instances of a class."""
    thing = Thing()
    keys[name] = [thing]
    way = way_to(thing)

    found = [site for site in lines_for(way, len(way.objects) - 2) if site.how == "added"]

    assert {site.function for site in found} == {adding.__qualname__}
    keys.clear()


@pytest.mark.slow
def test_the_line_of_a_function_that_stores_is_found() -> None:
    """For a global, functions of that module which store into it; those that only read are left out."""
    thing = Thing()
    KEPT["one"] = thing
    way = way_to(thing)

    found = lines_for(way, len(way.objects) - 1)

    assert ("put", put.__code__.co_firstlineno + 2) in {(site.function, site.line) for site in found}
    assert "test_keys_that_are_no_plain_values_are_never_shown" not in {site.function for site in found}


@pytest.mark.slow
def test_a_container_is_watched_by_its_way() -> None:
    """The app asks for the length of what it reaches by the same names, and hears none where that is gone."""
    thing = Thing()
    KEPT[("user", 1)] = HOLDER
    HOLDER.by_name["first"] = [thing]
    heap = index_heap()
    ways = [KEPT, HOLDER, HOLDER.__dict__, HOLDER.by_name, HOLDER.by_name["first"]]
    watched = target([globals(), *ways], heap, "length", 1)
    assert isinstance(watched, Target)

    HOLDER.by_name["first"].append(Thing())
    assert measure_all([watched]) == [2]

    KEPT.clear()
    assert measure_all([watched]) == [None]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([11, 12, 13], True), ([10, 10, 10], False), ([14, 3, 9], False), ([14, 5, 20], False), ([11, None, None], False)],
    ids=["grows", "has stopped", "is emptied", "is emptied and filled", "is gone"],
)
def test_growth_is_longer_and_stays_longer(values: list[int | None], expected: bool) -> None:
    """Between the looks it grew from 0 to 10; afterwards it has to go on, and never be emptied."""
    assert goes_on(values, 0, 10, 5.0, float("inf")) is expected
