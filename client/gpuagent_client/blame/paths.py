"""Name the path from a root to a tensor as code would: app.CACHE[*]['emb']. Names come from code, never from data.

Keys of dicts and members of sets are user data (user ids, prompts): only their type is told, unless the owner asks for
more. Nothing here calls code of the app: no repr(), no attribute of an instance that a class could answer, and every
comparison is `is`, never `==`.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from gpuagent_client.blame.arrays import is_array_type, is_inside_pandas, objects_in
from gpuagent_client.blame.heap import HEAP_TYPE, Heap, base_named, module_of, true_instance

MAX_TEXT = 100
PLAIN = (str, int, float, bool, bytes)


def short(text: str) -> str:
    """Return the text, cut to a length that a report can bear."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def type_name(item: object) -> str:
    """Return the name of an object's class, such as list, app.Slot, torch.nn.modules.linear.Linear."""
    kind = type(item)
    return class_name(kind)


def class_name(kind: type) -> str:
    """Return the class as its module calls it."""
    module = module_of(kind)
    name = type.__dict__["__qualname__"].__get__(kind)
    return short(name if module in {"", "builtins"} else f"{module}.{name}")


def code_name(code: types.CodeType) -> str:
    """Return the name of a function, as the code knows it."""
    return short(getattr(code, "co_qualname", code.co_name))  # co_qualname: Python 3.11


def key_text(key: object, *, show_keys: bool) -> str:
    """Return a key of a dict: its type, or where asked for, itself if it is a plain value."""
    if show_keys and type(key) in PLAIN:
        return short(repr(key))
    return f"<{type(key).__name__}>"


def relative(filename: str) -> str:
    """Return a file as its owner knows it: below the working directory or below an entry of sys.path."""
    best = filename
    try:
        here = os.getcwd()  # noqa: PTH109 - strings in, strings out
    except OSError:  # it has been removed
        here = ""
    for folder in (here, *sys.path):
        if folder and folder != "/" and filename.startswith(folder.rstrip("/") + "/"):
            inside = filename[len(folder.rstrip("/")) + 1 :]
            if len(inside) < len(best):
                best = inside
    return best


LIBRARY_PARTS = ("site-packages", "dist-packages", "/lib/python3", "/gpuagent_client/")


def is_library_file(filename: str) -> bool:
    """Return whether this is a file that the app brought along, and not its own."""
    return filename[:1] == "<" or any(part in filename for part in LIBRARY_PARTS)


def where(code: types.CodeType, line: int | None = None) -> str:
    """Return file:line of a function."""
    return f"{relative(code.co_filename)}:{line or code.co_firstlineno}"


class Step(NamedTuple):
    """Step of a path: a reference, as text, and the name that the code has for it."""

    text: str
    kind: str  # attribute, key, item, local, cell, function, frame, exception, graph, other
    name: str = ""  # attribute, variable or closure variable, where it has one


class Describe(Protocol):
    """Describe how a parent of one kind refers to a child; None if in no way that it knows."""

    def __call__(self, parent: object, child: object, *, show_keys: bool) -> Step | None:
        """See the class."""


NOTHING = Step("", "")


def step(parent: object, child: object, *, show_keys: bool) -> Step:
    """Return how `parent` refers to `child`; `->` when nobody knows."""
    if is_inside_pandas(parent, child):
        return NOTHING
    for kinds, describe in DESCRIBERS:
        if true_instance(parent, *kinds):
            found = describe(parent, child, show_keys=show_keys)
            if found is not None:
                return found
    return _instance(parent, child) or _by_type_name(parent, child)


def instance_dict(item: object) -> dict[str, object] | None:
    """Return the attributes of an instance, a class or a module, past any __getattribute__ of theirs."""
    if issubclass(type(item), type):  # a class shows its own only through a proxy
        return next((found for found in gc.get_referents(item) if type(found) is dict and "__module__" in found), None)
    try:
        found = object.__getattribute__(item, "__dict__")
    except (AttributeError, TypeError):
        return None
    return found if type(found) is dict else None


def attribute_of(item: object, child: object) -> str | None:
    """Return the attribute or slot by which an instance refers to this."""
    for name, value in list((instance_dict(item) or {}).items()):
        if value is child:
            return str(name)
    for kind in type(item).__mro__:
        for name, member in list(vars(kind).items()):
            if type(member) is types.MemberDescriptorType:
                try:
                    if member.__get__(item) is child:
                        return str(name)
                except (AttributeError, TypeError):
                    continue
    return None


def _instance(parent: object, child: object) -> Step | None:
    if instance_dict(parent) is child:
        return NOTHING
    name = attribute_of(parent, child)
    return Step(f".{name}", "attribute", name) if name is not None else None


def _dict(parent: object, child: object, *, show_keys: bool) -> Step | None:
    items: Iterable[tuple[object, object]] = list(dict.items(parent)) if true_instance(parent, dict) else ()
    for key, value in items:
        if value is child:
            return Step(f"[{key_text(key, show_keys=show_keys)}]", "key", key if type(key) is str else "")
        if key is child:
            return Step("[key]", "key")
    return None


def _sequence(parent: object, child: object, *, show_keys: bool) -> Step | None:  # noqa: ARG001
    if true_instance(parent, list):
        values = list.__iter__(parent)
    elif true_instance(parent, tuple):
        name = field_of(parent, child)
        if name is not None:
            return Step(f".{name}", "attribute", name)
        values = tuple.__iter__(parent)
    else:
        values = deque.__iter__(parent) if true_instance(parent, deque) else iter(())
    return next((Step(f"[{index}]", "item") for index, value in enumerate(values) if value is child), None)


def field_of(item: tuple[object, ...], child: object) -> str | None:
    """Return the field of a named tuple that this is; None if the tuple names none."""
    names = next((vars(kind)["_fields"] for kind in type(item).__mro__ if "_fields" in vars(kind)), None)
    if type(names) is not tuple or len(names) != tuple.__len__(item):
        return None
    return next((str(name) for name, one in zip(names, tuple.__iter__(item)) if one is child), None)


def _set(parent: object, child: object, *, show_keys: bool) -> Step | None:  # noqa: ARG001
    return Step("{member}", "item")


def _nothing(parent: object, child: object, *, show_keys: bool) -> Step | None:  # noqa: ARG001
    return NOTHING


def _function(parent: object, child: object, *, show_keys: bool) -> Step | None:
    if not true_instance(parent, types.FunctionType):
        return None
    found = {
        id(parent.__closure__): NOTHING,  # the variable is named at the next step
        id(parent.__defaults__): Step(".<defaults>", "function"),
        id(parent.__kwdefaults__): Step(".<defaults>", "function"),
        id(parent.__globals__): Step(".__globals__", "function"),
        id(parent.__dict__): NOTHING,
    }.get(id(child))
    return found or _dict(parent.__dict__, child, show_keys=show_keys)


def closure_variable(function: object, cells: object, cell: object) -> str | None:
    """Return the name that a function has for one of the cells of its closure."""
    if not true_instance(function, types.FunctionType) or function.__closure__ is not cells:
        return None
    names = zip(function.__code__.co_freevars, function.__closure__ or ())
    return next((name for name, one in names if one is cell), None)


def _method(parent: object, child: object, *, show_keys: bool) -> Step | None:  # noqa: ARG001
    bound = getattr(parent, "__self__", None) is child
    return Step(".__self__" if bound else ".__func__", "function")


def _partial(parent: object, child: object, *, show_keys: bool) -> Step | None:  # noqa: ARG001
    for name in ("func", "args", "keywords"):
        if getattr(parent, name, None) is child:
            return Step(f".{name}", "function")
    return None


def frame_variable(frame: types.FrameType, child: object) -> str | None:
    """Return the variable by which a frame refers to this."""
    for name, value in list(frame.f_locals.items()):
        if value is child:
            return str(name)
    for name in (*frame.f_code.co_cellvars, *frame.f_code.co_freevars):
        if true_instance(child, types.CellType) and cell_contents(child) is frame.f_locals.get(name, child):
            return name
    return None


def cell_contents(cell: object) -> object:
    """Return what is in a closure's cell; None if nothing is, yet."""
    try:
        return cell.cell_contents if true_instance(cell, types.CellType) else None
    except ValueError:
        return None


def _frame(parent: object, child: object, *, show_keys: bool) -> Step | None:  # noqa: ARG001
    if not true_instance(parent, types.FrameType):
        return None
    name = frame_variable(parent, child)
    at = f"{code_name(parent.f_code)}() at {where(parent.f_code, parent.f_lineno)}"
    if name is None:
        return Step(f" -> caller of {at}" if parent.f_back is not child else f" -> called from {at}", "frame")
    return Step(f" -> local {name} of {at}", "local", name)


def _suspended(attribute: str) -> Describe:
    def describe(parent: object, child: object, *, show_keys: bool) -> Step | None:
        frame = getattr(parent, attribute, None)
        if frame is None:
            return None
        return NOTHING if frame is child else _frame(frame, child, show_keys=show_keys)

    return describe


def _exception(parent: object, child: object, *, show_keys: bool) -> Step | None:  # noqa: ARG001
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        if BaseException.__dict__[name].__get__(parent) is child:
            return Step(f".{name}", "exception", name)
    return None


DESCRIBERS: tuple[tuple[tuple[type, ...], Describe], ...] = (
    ((dict,), _dict),
    ((list, tuple, deque), _sequence),
    ((set, frozenset), _set),
    ((types.CellType,), _nothing),
    ((types.FunctionType,), _function),
    ((types.MethodType, types.BuiltinMethodType), _method),
    ((functools.partial,), _partial),
    ((types.FrameType,), _frame),
    ((types.GeneratorType,), _suspended("gi_frame")),
    ((types.CoroutineType,), _suspended("cr_frame")),
    ((types.AsyncGeneratorType,), _suspended("ag_frame")),
    ((BaseException,), _exception),
    ((types.TracebackType,), _nothing),  # tb_frame or tb_next: the frame below says where
)

# Written in C: they tell the collector whom they hold, but have no attribute that says as what.
BY_TYPE_NAME: Iterable[tuple[str, Step]] = (
    ("_asyncio.", Step(" -> asyncio", "task")),
    ("functools._lru_cache_wrapper", Step(".<lru_cache>", "lru_cache")),
    ("functools._lru_list_elem", NOTHING),
    ("_thread._local", Step(".<of a thread>", "thread_local")),
    ("_thread._localdummy", NOTHING),
    ("_queue.SimpleQueue", Step(".<queued>", "item")),
    ("_contextvars.", Step(".<context variable>", "context")),
    ("Context", Step(".<context variable>", "context")),
    ("hamt", Step("", "context")),
)


def _by_type_name(parent: object, child: object) -> Step:
    kind = type(parent)
    name = f"{module_of(kind)}.{type.__dict__['__qualname__'].__get__(kind)}"
    if child is kind:
        return Step(".__class__", "class")
    if is_array_type(kind):
        place = next((place for place, one in enumerate(objects_in(parent)) if one is child), None)
        return Step(".base", "view") if place is None else Step(f"[{place}]", "item")
    if is_tensor_type(kind):
        attribute = "grad" if is_tensor_type(type(child)) else _hooks_of(parent, child)
        if attribute is not None:
            return Step(f".{attribute}", "attribute", attribute)
    if kind.__name__.endswith(("Backward", "Backward0", "Backward1")):
        return Step(AUTOGRAD_NODE, "graph")
    for prefix, found in BY_TYPE_NAME:
        if name.startswith(prefix) or kind.__name__.startswith(prefix):
            return found
    return Step(f" -> {kind.__name__} -> ", "other")


TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _hooks_of(tensor: object, hooks: object) -> str | None:
    """Return the attribute by which a tensor keeps these hooks; torch keeps them where no attribute is seen."""
    torch = sys.modules.get("torch")
    if torch is None or not true_instance(hooks, dict):
        return None
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - nothing of the app may run
        for name in TENSOR_HOOKS:
            member = vars(torch._C.TensorBase).get(name)  # noqa: SLF001
            if type(member) is types.GetSetDescriptorType and member.__get__(tensor) is hooks:
                return name
    return None


def is_tensor_type(kind: type) -> bool:
    """Return whether it is torch's tensor or a class that derives from it."""
    return base_named(kind, "torch._C", "TensorBase") is not None


def parameter_of(function: object, defaults: object, value: object) -> str | None:
    """Return the parameter of a function whose default value this is; None if `defaults` are not its defaults."""
    if not true_instance(function, types.FunctionType):
        return None
    if true_instance(defaults, tuple) and defaults is function.__defaults__:
        names = function.__code__.co_varnames[: function.__code__.co_argcount][-len(defaults) :]
        return next((name for name, one in zip(names, defaults) if one is value), None)
    if true_instance(defaults, dict) and defaults is function.__kwdefaults__:
        return next((name for name, one in list(defaults.items()) if one is value), None)
    return None


class Handle(NamedTuple):
    """Name by which code can know a container."""

    kind: str  # global, attribute, cell, local, default
    name: str
    value: object  # what the name stands for
    owner: object  # namespace, instance, function or frame that has the name
    above: tuple[object, ...]  # what the path leads through before


MAX_STEPS = 16
# Objects that show the keys of one of their dicts as attributes: those keys are names from the code.
ATTRIBUTES_IN = ("_buffers", "_modules", "_parameters", "_state")
ARROW = " -> "
AUTOGRAD_NODE = " -> autograd node"
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
            parameter = parameter_of(parent, child, self.objects[index + 2]) if index + 2 <= last else None
            if parameter is not None:  # further up are the names of the function, which keep nothing
                yield Handle("default", parameter, self.objects[index + 2], parent, above)
                return
            if one.kind == "global":
                yield Handle("global", one.name, child, parent, above)
            elif one.kind == "attribute":
                yield Handle("attribute", one.name, child, self._owner(index), above)
            elif one.kind == "key" and one.name and (owner := self._shows_keys(index)) is not None:
                yield Handle("attribute", one.name, child, owner, above)
            elif one.kind == "cell" and one.name:
                yield Handle("cell", one.name, cell_contents(child), parent, above)
            elif one.kind == "local":
                yield Handle("local", one.name, child, _frame_of(parent), above)

    def _shows_keys(self, index: int) -> object:
        """Return what shows the keys of the dict objects[index] as attributes of its own; None if nothing does.

        That is a dict whose class has a `__getattr__`, or a class whose methods set `self.__dict__` to a dict of the
        class.
        """
        kinds = [kind for kind in type(self.objects[index]).__mro__ if kind.__flags__ & HEAP_TYPE]
        if any("__getattr__" in vars(kind) for kind in kinds):
            return self.objects[index]
        owner = self._owner(index)
        if index == 0 or self.steps[index - 1].kind != "attribute" or not true_instance(owner, type):
            return None
        methods = (one for one in list(vars(owner).values()) if true_instance(one, types.FunctionType))
        return owner if any("__dict__" in one.__code__.co_names for one in methods) else None

    def _owner(self, index: int) -> object:
        """Return whose attribute it is: the instance above the dict of its attributes."""
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
    if true_instance(parent, types.ModuleType) and vars(parent) is child:
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
    if true_instance(root, types.ModuleType):
        return heap.modules.get(id(vars(root)), "a module")
    if true_instance(root, type):
        return class_name(root) if heap.is_named_class(root) else f"<{class_name(root)}>"
    if id(root) in heap.frames:
        return ""
    return f"<{class_name(type(root))}>"


def _frame_of(item: object) -> object:
    """Return the frame of a generator or coroutine; a frame is its own."""
    return suspended_frame(item) or item


SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def suspended_frame(item: object) -> types.FrameType | None:
    """Return the frame of a generator or coroutine; None where it has ended, or it is something else."""
    if not true_instance(item, *SUSPENDED):
        return None
    frames = (getattr(item, name, None) for name in ("gi_frame", "cr_frame", "ag_frame"))
    return next((frame for frame in frames if frame is not None), None)
