"""A path in words: app.CACHE[*]['emb'], and the name by which code can reach the container in it."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import NamedTuple

from gpuagent_client.blame.heap import Heap, really
from gpuagent_client.blame.paths import (
    NOTHING,
    Step,
    attribute_of,
    cell_contents,
    class_name,
    closure_variable,
    instance_dict,
    short,
    step,
)
from gpuagent_client.blame.sites import Handle

MAX_STEPS = 16
# Objects that show the keys of one of their dicts as attributes: those keys are names from the code.
ATTRIBUTES_IN = ("_buffers", "_modules", "_parameters", "_state")
ARROW = " -> "
LRU_CACHE = "functools._lru_cache_wrapper"


class Trail(NamedTuple):
    """A path and the text of each of its steps; steps[i] leads from objects[i] to objects[i + 1]."""

    objects: tuple[object, ...]
    steps: tuple[Step, ...]
    root: str

    def text(self, last: int | None = None, element: int | None = None) -> str:
        """Return the path down to objects[last]; the step out of objects[element] becomes [*]."""
        steps = list(self.steps[:last])
        if element is not None and element < len(steps) and steps[element].text:
            steps[element] = Step("[*]", "item")
        words = [short(one.text) for one in steps if one.text]
        if len(words) > MAX_STEPS:
            words = [*words[: MAX_STEPS // 2], " ... ", *words[-MAX_STEPS // 2 :]]
        whole = self.root + "".join(words)
        return whole.removeprefix(ARROW)

    def handles(self, last: int) -> Iterator[Handle]:
        """Yield names, from objects[last] up to the root, that code has for it or for what it is in."""
        if class_name(type(self.objects[last])) == LRU_CACHE:
            return  # the code that fills it is functools'
        for index in range(last - 1, -1, -1):
            one, parent, child = self.steps[index], self.objects[index], self.objects[index + 1]
            above = self.objects[:index]
            if one.kind == "lru_cache":
                return
            if one.kind == "global":
                yield Handle("global", one.name, child, parent, above)
            elif one.kind == "attribute":
                yield Handle("attribute", one.name, child, self._owner(index), above)
            elif one.kind == "cell" and one.name:
                yield Handle("cell", one.name, cell_contents(child), parent, above)
            elif one.kind == "local":
                yield Handle("local", one.name, child, _frame(parent), above)

    def _owner(self, index: int) -> object:
        """Whose attribute it is: the instance above the dict of its attributes."""
        item = self.objects[index]
        while issubclass(type(item), dict) and index > 0:
            index -= 1
            item = self.objects[index]
        return item


def trail(objects: tuple[object, ...], heap: Heap, *, show_keys: bool) -> Trail:
    """Name every step of a path."""
    steps = [_step(objects, index, heap, show_keys=show_keys) for index in range(len(objects) - 1)]
    return Trail(objects, tuple(steps), _root_name(objects[0], heap))


def _step(objects: tuple[object, ...], index: int, heap: Heap, *, show_keys: bool) -> Step:
    parent, child = objects[index], objects[index + 1]
    owner = objects[index - 1] if index else None
    variable = closure_variable(owner, parent, child)
    if variable is not None:
        return Step(f".<closure variable {variable}>", "cell", variable)
    if id(child) in heap.thread_values:
        return Step(".<of a thread>", "thread_local")
    if really(parent, types.ModuleType) and vars(parent) is child:
        return NOTHING
    found = step(parent, child, show_keys=show_keys)
    if found.kind == "other" and type(parent) is type(child):
        return Step(f" -> chain of {class_name(type(parent))}", "chain")
    if found.kind == "key" and found.name and id(parent) in heap.modules:
        return Step(f".{found.name}", "global", found.name)
    if (
        found.kind == "key"
        and found.name
        and (instance_dict(owner) is parent or id(parent) in heap.thread_values or _shows_as_attributes(objects, index))
    ):
        found = Step(f".{found.name}", "attribute", found.name)
    return NOTHING if found.kind == "attribute" and found.name in ATTRIBUTES_IN else found


def _shows_as_attributes(objects: tuple[object, ...], index: int) -> bool:
    """Return whether objects[index] is a dict whose keys its owner shows as attributes."""
    for above in (index - 1, index - 2):  # past the dict of the owner's attributes, if that was on the way
        if above >= 0 and not issubclass(type(objects[above]), dict):
            return attribute_of(objects[above], objects[index]) in ATTRIBUTES_IN
    return False


def _root_name(root: object, heap: Heap) -> str:
    if id(root) in heap.modules:
        return heap.modules[id(root)]
    if really(root, types.ModuleType):
        return heap.modules.get(id(vars(root)), "a module")
    if really(root, type):
        return class_name(root)
    if id(root) in heap.frames:
        return ""
    return f"<{class_name(type(root))}>"


def _frame(item: object) -> object:
    """Return the frame of a generator or coroutine; a frame is its own."""
    if not really(item, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        return item
    frames = (getattr(item, name, None) for name in ("gi_frame", "cr_frame", "ag_frame"))
    return next((frame for frame in frames if frame is not None), item)
