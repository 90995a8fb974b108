"""Find the functions of the app that use a name, among some 35,000, of which most are of its libraries."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator

from gpuagent_client.blame.paths import is_library_file

FunctionCode = tuple[types.FunctionType, types.CodeType]


class CodeIndex:
    """Functions with their code and that of the functions in them, and code of modules that is running."""

    def __init__(self, functions: Iterable[types.FunctionType], frames: Iterable[types.FrameType]) -> None:
        self.frames = list(frames)
        self._codes = [(function, code) for function in functions for code in nested(function.__code__)]
        self._users: dict[str, list[FunctionCode]] = {}
        self._named: dict[str, list[types.FunctionType]] = {}
        self._namespaces: dict[int, dict[str, object]] = {}
        for function, code in self._codes:
            if code is function.__code__:
                self._namespaces[id(function.__globals__)] = function.__globals__
                self._named.setdefault(code.co_name, []).append(function)

    def users(self, name: str) -> list[FunctionCode]:
        """Return the functions whose code uses this name, for a global, an attribute or a closure's variable."""
        if name not in self._users:
            self._users[name] = [
                one for one in self._codes
                if name in one[1].co_names or name in one[1].co_freevars or name in one[1].co_cellvars
            ]  # fmt: skip
        return self._users[name]

    def own_named(self, names: Iterable[str]) -> Iterator[types.FunctionType]:
        """Yield the app's own functions that are called one of these."""
        for name in dict.fromkeys(names):
            for function in self._named.get(name, ()):
                if not is_library_file(function.__code__.co_filename):
                    yield function

    def aliases(self, name: str, value: object) -> list[str]:
        """Return this name and all others that modules have for the value: `from store import CACHE as cache`."""
        found = {name: None}
        for namespace in self._namespaces.values():
            for other, known in list(namespace.items()):
                if known is value and type(other) is str:
                    found[other] = None
        return list(found)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield this code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)
