"""Names of a default argument that keeps things: the parameter, and the attributes that the function sets to it."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType

from gpuagent_client.blame.heap import true_instance
from gpuagent_client.blame.paths import Handle, Trail
from gpuagent_client.blame.sites import read_code


def handles_of(way: Trail, last: int) -> Iterator[Handle]:
    """Yield the names on the way up from objects[last]; after that of a parameter, the attributes that keep it too."""
    for handle in way.handles(last):
        yield handle
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
