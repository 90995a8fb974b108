"""Find what fills an object where no line names it: names made at run time, libraries, hooks, default arguments."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType

from gpuagent_client.blame.bytecode import ATTRIBUTE_LOADS, STATEMENT_ENDS, read_code
from gpuagent_client.blame.code_index import CodeIndex
from gpuagent_client.blame.heap import HEAP_TYPE, true_instance
from gpuagent_client.blame.paths import Handle, Trail, instance_dict
from gpuagent_client.blame.sites import (
    ADDING,
    ALIAS_LOADS,
    MAX_SITES,
    Site,
    Use,
    codes_of,
    is_library,
    site_of,
    uses,
)

SETTERS = frozenset(
    ["setattr", "__setattr__", "register_buffer", "register_parameter", "add_module", "register_module"]
)
ATTRIBUTES = frozenset(["__dict__", "vars"])
DOUBT = 1.0
"""More than that of a method that adds by the name itself, less than that of a caller."""


def lines_by_made_names(owner: object, *, sets: bool) -> list[Site]:
    """Return lines in methods of the owner's class that set an attribute, or add to one, by a name that they make."""
    found = {}
    for kind in type(owner).__mro__:
        for code in codes_of(kind):
            if is_library(code) or not {"getattr", *ATTRIBUTES, *SETTERS}.intersection(code.co_names):
                continue
            asked = False
            for op in read_code(code):
                changes = asked and (op.value in ADDING or (sets and op.name == "STORE_SUBSCR"))
                if op.name.startswith(STATEMENT_ENDS):
                    asked = False
                asked = asked or (op.value in ATTRIBUTES if sets else op.value == "getattr")
                if changes or (sets and op.value in SETTERS):
                    site = site_of(code, Use("added", op.line))._replace(doubt=DOUBT)
                    found[site.file, site.line] = site
    return [found[place] for place in sorted(found)]


REPLACING = frozenset(["_replace", "replace", "evolve", "model_copy"])
"""Methods and functions that make the next version of a named tuple, a dataclass or the like, with other fields."""


def lines_that_replace(field: str, owner: object, index: CodeIndex) -> list[Site]:
    """Return lines of the app that make a new version of the owner, in which this field has another value.

    One that calls the class is such a line only where it also reads the field: else it makes the first version.
    """
    found = {}
    for code in dict.fromkeys(code for _, code in (*index.own, *((None, frame.f_code) for frame in index.frames))):
        known = REPLACING.intersection(code.co_names)
        if is_library(code) or not (known or type(owner).__name__ in code.co_names):
            continue
        read_at: int | None = None
        for op in read_code(code):
            if op.name.startswith(ATTRIBUTE_LOADS) and op.value == field:
                read_at = op.line
            elif isinstance(op.value, tuple) and field in op.value and op.name in KEYWORDS and (known or read_at):
                site = site_of(code, Use("carried", read_at or op.line))
                found[site.file, site.line] = site
            if op.name.startswith(("STORE_", "RETURN")):
                read_at = None
    return [found[place] for place in sorted(found)]


def line_of_cached_property(handle: Handle) -> list[Site]:
    """Return the property that functools.cached_property keeps under this name; empty where there is none."""
    for kind in type(handle.owner).__mro__ if handle.kind == "attribute" else ():
        member = vars(kind).get(handle.name)
        if type(member) is functools.cached_property and true_instance(member.func, FunctionType):
            code = member.func.__code__
            return [site_of(code, Use("carried", code.co_firstlineno))]
    return []


def lines_in_own_methods(container: object) -> list[Site]:
    """Return lines in methods of a container's own class, if that is the app's, that add to it or take out of it."""
    kind = type(container)
    if not (kind.__flags__ & HEAP_TYPE and true_instance(container, dict, list, set, deque)):
        return []
    found = {}
    for code in dict.fromkeys(code for one in kind.__mro__ if one.__flags__ & HEAP_TYPE for code in codes_of(one)):
        if code.co_argcount and not is_library(code):
            for use in uses(code, code.co_varnames[0], ALIAS_LOADS):
                if use.how in {"added", "taken"}:
                    site = site_of(code, use)
                    found[site.file, site.line] = site
    if all(site.how == "taken" for site in found.values()):
        return []
    return [found[place] for place in sorted(found, key=lambda place: (found[place].how, place))]


KEYWORDS = frozenset(["KW_NAMES", "LOAD_CONST"])
"""Instructions that load the names of keyword arguments: until 3.12, and from then on."""


def lines_by_calls(owners: Iterable[object], fillers: Iterable[Site], index: CodeIndex) -> list[Site]:
    """Return lines of the app that call what fills a container in a library: loop.call_later() for its list of timers.

    `owners` are objects on the way to the container, `fillers` the lines of the library. None where more lines of the
    app use such names than may be told: then they mean something else.
    """
    inner = {site.code.co_name for site in fillers}
    names = {name for name in inner if not name.startswith("_")}
    for kind in {one for owner in owners for one in type(owner).__mro__}:
        for name, member in list(vars(kind).items()):
            calls = true_instance(member, types.FunctionType) and not inner.isdisjoint(member.__code__.co_names)
            if calls and not name.startswith("_"):
                names.add(name)
    found = {}
    running = [frame.f_code for frame in index.frames if not is_library(frame.f_code)]
    for code in dict.fromkeys([*(code for _, code in index.own), *running]):
        if names.isdisjoint(code.co_names):
            continue
        for op in read_code(code):
            if op.name.startswith(ATTRIBUTE_LOADS) and op.value in names:
                site = site_of(code, Use("passed on", op.line))
                found[site.file, site.line] = site
    return [found[place] for place in sorted(found)] if len(found) <= MAX_SITES else []


REGISTERING = {
    "_forward_hooks": frozenset(["register_forward_hook"]),
    "_forward_pre_hooks": frozenset(["register_forward_pre_hook"]),
    "_backward_hooks": frozenset(["register_full_backward_hook", "register_backward_hook", "register_hook"]),
    "_backward_pre_hooks": frozenset(["register_full_backward_pre_hook"]),
    "_state_dict_hooks": frozenset(["register_state_dict_post_hook", "_register_state_dict_hook"]),
}
"""Methods of torch's modules and tensors that fill these dicts."""


def lines_that_register(hooks: str, hook: object, index: CodeIndex) -> list[Site]:
    """Return lines of the app that register hooks which this dict of a module keeps.

    Those of functions that know `hook`, if there are any; none where there are too many to tell.
    """
    names = REGISTERING.get(hooks, frozenset())
    codes = [code for code in dict.fromkeys(code for _, code in index.own) if not names.isdisjoint(code.co_names)]
    codes = [code for code in codes if _knows(code, hook)] or codes
    found = {}
    for code in codes:
        for op in read_code(code):
            if op.name.startswith(ATTRIBUTE_LOADS) and op.value in names:
                site = site_of(code, Use("called", op.line))
                found[site.file, site.line] = site
    return [found[place] for place in sorted(found)] if len(found) <= MAX_SITES else []


def _knows(code: types.CodeType, hook: object) -> bool:
    """Return whether this code makes the hook, or names it."""
    function = hook.__func__ if true_instance(hook, types.MethodType) else hook
    if not true_instance(function, types.FunctionType):
        return False
    return function.__code__ in code.co_consts or function.__code__.co_name in code.co_names


def handles_of(way: Trail, last: int) -> Iterator[Handle]:
    """Yield the names on the way up from objects[last]; after that of a parameter, the attributes that keep it too.

    After that of a function also the names by which its owner knows functions like it: `model.forward` beside
    `model._old_forward`.
    """
    for handle in way.handles(last):
        yield handle
        if handle.kind == "attribute" and true_instance(handle.value, FunctionType):
            for name, value in list((instance_dict(handle.owner) or {}).items()):
                alike = true_instance(value, FunctionType) and value.__code__ is handle.value.__code__
                if alike and name != handle.name:
                    yield handle._replace(name=name, value=value)
        if handle.kind == "default" and true_instance(handle.owner, FunctionType):
            owner = next((item for item in reversed(handle.above) if true_instance(item, type)), None)
            for name in attributes_set_to(handle.owner.__code__, handle.name) if owner is not None else ():
                yield Handle("attribute", name, handle.value, owner, handle.above)


def attributes_set_to(code: CodeType, variable: str) -> list[str]:
    """Return the attributes that this code sets to the plain value of a variable: `self.history = history`."""
    loads: list[object] = []
    found: dict[str, None] = {}
    for op in read_code(code):
        if op.name.startswith("LOAD_FAST"):
            loads += op.value if isinstance(op.value, tuple) else (op.value,)
            continue
        if op.name == "STORE_ATTR" and loads[-2:-1] == [variable]:
            found[str(op.value)] = None
        loads = []
    return list(found)
