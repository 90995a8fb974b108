"""Find the functions of the app that use a name, among some 35,000, of which most are of its libraries."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator

from gpuagent_client.blame.paths import is_library_file

FunctionCode = tuple[types.FunctionType, types.CodeType]


class CodeIndex:
    """Functions with their code and that of the functions in them, and code of modules that is running.

    The app's own come first: those of its libraries are gone through only where the app's say nothing.
    """

    def __init__(self, functions: Iterable[types.FunctionType], frames: Iterable[types.FrameType]) -> None:
        self.frames = list(frames)
        self._named: dict[str, list[types.FunctionType]] = {}
        self._namespaces: dict[int, dict[str, object]] = {}
        self._libraries: list[types.FunctionType] = []
        self.own: list[FunctionCode] = []
        in_library: dict[str, bool] = {}
        for function in functions:
            code = function.__code__
            self._namespaces[id(function.__globals__)] = function.__globals__
            file = code.co_filename
            if file not in in_library:
                in_library[file] = is_library_file(file)
            if in_library[file]:
                self._libraries.append(function)
            else:
                self._named.setdefault(code.co_name, []).append(function)
                self.own += [(function, inner) for inner in nested(code)]
        self._of_libraries: list[FunctionCode] | None = None  # much CPU time, which most answers do not need

    def users(self, name: str, *, in_libraries: bool) -> list[FunctionCode]:
        """Return the functions whose code uses this name, for a global, an attribute or a closure's variable."""
        codes = self.own
        if in_libraries:
            if self._of_libraries is None:
                self._of_libraries = [(one, inner) for one in self._libraries for inner in nested(one.__code__)]
            codes = self._of_libraries
        return [
            one for one in codes if name in one[1].co_names or name in one[1].co_freevars or name in one[1].co_cellvars
        ]

    def own_named(self, names: Iterable[str]) -> Iterator[types.FunctionType]:
        """Yield the app's own functions that are called one of these."""
        for name in dict.fromkeys(names):
            yield from self._named.get(name, ())

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
