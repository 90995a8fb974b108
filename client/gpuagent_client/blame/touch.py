"""The line that puts tensors into a container: the code that knows it by the name that the path found."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpuagent_client.blame.bytecode import Use, nested, uses
from gpuagent_client.blame.names import code_name, relative
from gpuagent_client.blame.really import really
from gpuagent_client.blame.steps import cell_contents

MAX_SITES = 3
GLOBAL_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
CLOSURE_LOADS = ("LOAD_DEREF", "LOAD_CLASSDEREF")
ATTRIBUTE_LOADS = ("LOAD_ATTR", "LOAD_METHOD")
LOCAL_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME")
RANKS = ("added", "carried", "assigned", "passed on")


class Site(NamedTuple):
    """A line of the app that changes the container."""

    file: str
    line: int
    function: str
    how: str
    code: types.CodeType


class Handle(NamedTuple):
    """What code can know a container by."""

    kind: str  # global, attribute, cell, local
    name: str
    value: object  # what the name stands for
    owner: object  # namespace, instance, function or frame that has the name
    above: tuple[object, ...]  # what the path leads through before


def sites(handle: Handle, functions: Iterable[types.FunctionType], frames: Iterable[types.FrameType]) -> list[Site]:
    """Lines that put something in, most certain first; then those that take something out ("taken")."""
    found: list[tuple[int, Site]] = []
    seen: set[types.CodeType] = set()
    for rank, code, loads in _candidates(handle, list(functions), list(frames)):
        if code not in seen:
            seen.add(code)
            found.extend((rank, _site(code, use)) for use in uses(code, handle.name, loads))
    adding = [(rank, site) for rank, site in found if site.how != "taken"]
    best = min(((rank, RANKS.index(site.how)) for rank, site in adding), default=(0, 0))
    near = [site for rank, site in adding if (rank, RANKS.index(site.how)) == best]
    taking = [site for rank, site in found if site.how == "taken" and rank <= best[0]]
    return [*sorted(near, key=_place), *sorted(taking, key=_place)]


def _place(site: Site) -> tuple[str, int]:
    return site.file, site.line


def _site(code: types.CodeType, use: Use) -> Site:
    return Site(relative(code.co_filename), use.line, code_name(code), use.how, code)


def _candidates(
    handle: Handle, functions: list[types.FunctionType], frames: list[types.FrameType]
) -> Iterator[tuple[int, types.CodeType, tuple[str, ...]]]:
    """Code that may mean this very thing by the name; a lower rank is more certain."""
    if handle.kind == "local" and isinstance(handle.owner, types.FrameType):
        yield 0, handle.owner.f_code, LOCAL_LOADS
        return
    for function in functions:
        for code in nested(function.__code__):
            loads = _loads(handle, function, code)
            if loads:
                yield _rank(handle, function, code), code, loads
    for frame in frames:  # code at module level is no function, but may be running
        if handle.kind == "global" and frame.f_globals.get(handle.name) is handle.value:
            yield 0, frame.f_code, GLOBAL_LOADS


def _loads(handle: Handle, function: types.FunctionType, code: types.CodeType) -> tuple[str, ...]:
    """The instructions by which this code could load the thing."""
    if handle.kind == "cell":
        holds = any(cell_contents(cell) is handle.value for cell in function.__closure__ or ())
        return CLOSURE_LOADS if holds and handle.name in (*code.co_freevars, *code.co_cellvars) else ()
    if handle.name not in code.co_names:
        return ()
    if handle.kind == "global":
        mine = function.__globals__.get(handle.name) is handle.value
        return GLOBAL_LOADS if mine else ATTRIBUTE_LOADS if _knows_module(function, handle) else ()
    return ATTRIBUTE_LOADS


def _knows_module(function: types.FunctionType, handle: Handle) -> bool:
    """Whether the function can say `module.NAME`."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if really(value, types.ModuleType) and vars(value) is handle.owner:
            return True
    return False


def _rank(handle: Handle, function: types.FunctionType, code: types.CodeType) -> int:
    """How certain it is that an attribute of this name is this one."""
    if handle.kind != "attribute":
        return 0
    kinds = handle.owner.__mro__ if really(handle.owner, type) else type(handle.owner).__mro__
    if any(code in set(_codes_of(kind)) for kind in kinds):
        return 0  # a method of the owner
    known = {id(item) for item in (handle.owner, *handle.above)}
    if any(id(function.__globals__.get(name, known)) in known for name in code.co_names):
        return 0  # knows the owner, or whose the owner is, by a global name
    if any(cell_contents(cell) is handle.owner for cell in function.__closure__ or ()):
        return 0
    if function.__module__ in {kind.__module__ for kind in kinds}:
        return 1
    return 3 if is_library(code) else 2


def is_library(code: types.CodeType) -> bool:
    """Whether this is code that the app brought along, and not its own."""
    return "site-packages" in code.co_filename or "/lib/python3" in code.co_filename or code.co_filename.startswith("<")


def _codes_of(kind: type) -> Iterator[types.CodeType]:
    for member in list(vars(kind).values()):
        plain = getattr(member, "__func__", None) if really(member, staticmethod, classmethod) else member
        if really(plain, types.FunctionType):
            yield from nested(plain.__code__)
