"""Find every live tensor of this process, tell it from all others, and read what autograd graphs hold.

Runs in a forked child. Nothing here may run code of the app: subclasses of Tensor override attributes, and lazy
proxies answer isinstance() with a function of theirs. So only exact types are asked, through the methods of Tensor.

Tensors that no Python object holds were saved for a backward pass, in the graph of some output. Such a tensor may be
freed by a backward thread without the interpreter's lock (https://github.com/pytorch/pytorch/issues/60551), and
`_saved_*` would run hooks of the app; `_raw_saved_*.data` runs none.
"""

from __future__ import annotations

import struct
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterable
from types import ModuleType
from typing import NamedTuple

from gpuagent_client.blame.fork import Size


class Key(NamedTuple):
    """Properties that tensors of one kind have in common."""

    shape: tuple[int, ...]
    dtype: object
    device: object
    requires_grad: bool
    grad_fn: str  # "" for a leaf

    @property
    def has_graph(self) -> bool:
        """Whether the tensor carries the graph that computed it."""
        return bool(self.grad_fn)

    @property
    def kind(self) -> tuple[object, ...]:
        """Key without the sizes, which differ from request to request in many apps."""
        return len(self.shape), self.dtype, self.device, self.requires_grad, self.grad_fn


class LiveTensor(NamedTuple):
    """Tensor in one snapshot."""

    tensor: object
    key: Key
    storage: int
    storage_bytes: int
    # CPython and the allocators use an address again at once. Only all together (Python's object and C++'s, storage,
    # key, bytes) tell that it is the tensor of the snapshot before; a few are still mistaken for one that was freed.
    identity: int

    @property
    def storage_identity(self) -> int:
        """Identity of the storage, the same in another snapshot, whichever tensor showed it."""
        return hash((self.storage, self.storage_bytes))


def loaded_torch() -> ModuleType | None:
    """Return the app's torch, if the app has loaded it whole; never imports it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Tensor") and hasattr(torch, "cuda") else None


def exact_types(root: type) -> set[type]:
    """Return this type and all that derive from it, without calling any of them."""
    found: set[type] = set()
    todo = [root]
    while todo:
        kind = todo.pop()
        if kind not in found:
            found.add(kind)
            todo.extend(type.__subclasses__(kind))
    return found


def live_tensors(torch: ModuleType, objects: Iterable[object]) -> list[LiveTensor]:
    """Return the tensors among these objects that hold memory."""
    kinds = exact_types(torch.Tensor)
    found = []
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - there is no public way around __torch_function__
        for item in objects:
            if type(item) in kinds:
                try:
                    live = identify(torch, item)
                except Exception:  # noqa: BLE001, S112 - a tensor that cannot be asked is one less in the answer
                    continue
                if live is not None:
                    found.append(live)
    return found


def identify(torch: ModuleType, item: object) -> LiveTensor | None:
    """Return what identifies a tensor; None if there is no memory behind it."""
    get = torch.Tensor
    device = get.device.__get__(item)
    if device.type == "meta":
        return None
    implementation = get._cdata.__get__(item)  # noqa: SLF001 - the C++ object, at an address of its own
    grad_fn = get.grad_fn.__get__(item)
    key = Key(
        tuple(get.shape.__get__(item)),
        get.dtype.__get__(item),
        device,
        get.requires_grad.__get__(item),
        type(grad_fn).__name__ if grad_fn is not None else "",
    )
    try:
        storage = get.untyped_storage(item)
        if storage.device.type == "meta":  # a fake tensor of the compiler's
            return None
        address, size = storage._cdata, storage.nbytes()  # noqa: SLF001 - the identity of the storage
    except (RuntimeError, NotImplementedError):  # sparse and wrapper tensors have none of their own
        address, size = id(item), get.numel(item) * get.element_size(item)
    return LiveTensor(item, key, address, size, hash((id(item), implementation, address, key, size)))


def described(keys: Iterable[Key]) -> str:
    """Describe tensors of one kind to a person: float32[*, 128] on cuda:0, AddmmBackward0."""
    several = list(keys)
    key = several[0]
    sizes = [str(sizes[0]) if len(set(sizes)) == 1 else "*" for sizes in zip(*(one.shape for one in several))]
    extra = f", {key.grad_fn}" if key.grad_fn else ", requires_grad" if key.requires_grad else ""
    return f"{str(key.dtype).rpartition('.')[2]}[{', '.join(sizes)}] on {key.device}{extra}"


def storage_bytes(tensors: Iterable[LiveTensor]) -> int:
    """Return bytes behind these tensors: views share a storage, which counts once."""
    sizes: dict[int, int] = {live.storage: live.storage_bytes for live in tensors}
    return sum(sizes.values())


HEAD = struct.Struct("<QQ")  # objects, tensors


class Table(NamedTuple):
    """Identities of the tensors and storages in a snapshot."""

    tensors: frozenset[int]
    storages: frozenset[int]


class TensorGroup(NamedTuple):
    """Tensors of one kind that were made early in the window and were still there at its end."""

    survivors: list[LiveTensor]
    younger: int  # of this kind, made after the second snapshot: what goes on growing has some

    @property
    def key(self) -> Key:
        """One of their keys: they differ in sizes only."""
        return self.survivors[0].key


def encode(live: Iterable[LiveTensor], objects: int) -> bytes:
    """Return the table of a snapshot of so many objects, as bytes: eight per tensor and per storage.

    Identities are hashes; each child inherits the same hash seed from the app, so they agree.
    """
    tensors = array("q")
    storages = array("q")
    for one in live:
        tensors.append(one.identity)
        storages.append(one.storage_identity)
    return HEAD.pack(objects, len(tensors)) + tensors.tobytes() + storages.tobytes()


def size_of(data: bytes) -> Size:
    """Return how much that snapshot went through."""
    return Size(*HEAD.unpack_from(data))


def decode(data: bytes) -> Table:
    """Return the table again."""
    words = array("q")
    words.frombytes(data[HEAD.size :])
    count = size_of(data).tensors
    return Table(frozenset(words[:count]), frozenset(words[count:]))


def survivors(first: Table, second: Table, now: list[LiveTensor]) -> list[TensorGroup]:
    """Return what grew: absent in the first snapshot, there in the second and now. GPUs first, then the most bytes."""
    kept: dict[tuple[object, ...], list[LiveTensor]] = {}
    younger: Counter[tuple[object, ...]] = Counter()
    for live in now:
        if live.identity in first.tensors:
            continue
        if live.identity in second.tensors:
            kept.setdefault(live.key.kind, []).append(live)
        else:
            younger[live.key.kind] += 1
    groups = [TensorGroup(members, younger[kind]) for kind, members in kept.items()]
    return sorted(groups, key=lambda group: (is_on_host(group.key), -storage_bytes(group.survivors)))


def is_on_host(key: Key) -> bool:
    """Return whether it is in the host's memory."""
    return str(key.device).startswith("cpu")


MAX_CANDIDATES = 400
RAW = "_raw_saved_"


class GraphLimits(NamedTuple):
    """Bounds within which one graph is read."""

    nodes: int
    seconds: float


# First all of them a little. Then the few that are longer, further: a sum over all requests of the window may have some
# hundred thousand nodes, which is what makes it worth finding.
QUICK_LIMITS = GraphLimits(20_000, 0.1)
QUICK_SECONDS = 2.0
FULL_LIMITS = GraphLimits(2_000_000, 1.5)
MAX_FULL_READS = 3


class AutogradGraph(NamedTuple):
    """Tensors that the graph of one tensor holds."""

    candidate: LiveTensor
    saved: dict[int, LiveTensor]  # by storage
    nodes: int
    whole: bool


def graphs(torch: ModuleType, candidates: Iterable[LiveTensor]) -> list[AutogradGraph]:
    """Walk the graphs of these tensors, each within its bounds."""
    reader = _Reader(torch)
    until = time.monotonic() + QUICK_SECONDS
    found = []
    for candidate in list(candidates)[:MAX_CANDIDATES]:
        if time.monotonic() > until:
            break
        found.append(reader.read(candidate, QUICK_LIMITS))
    longer = [index for index, graph in enumerate(found) if not graph.whole][:MAX_FULL_READS]
    for index in longer:
        found[index] = reader.read(found[index].candidate, FULL_LIMITS)
    return found


class _Reader:
    """Reader of graphs that remembers which attributes each type of node has, and which types are tensors."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._tensors = exact_types(torch.Tensor)
        self._names: dict[type, tuple[str, ...]] = {}

    def read(self, candidate: LiveTensor, limits: GraphLimits) -> AutogradGraph:
        """Read a graph breadth first: what was computed last is seen first, however long the rest is."""
        with self._torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - see tensors.py
            saved: dict[int, LiveTensor] = {}
            first = self._torch.Tensor.grad_fn.__get__(candidate.tensor)
            todo, seen = deque([first]), {first}
            until = time.monotonic() + limits.seconds
            while todo and len(seen) < limits.nodes and time.monotonic() < until:
                node = todo.popleft()
                for live in self._saved_by(node):
                    saved[live.storage] = live
                for following, _ in getattr(node, "next_functions", ()):
                    if following is not None and following not in seen:
                        seen.add(following)
                        todo.append(following)
        return AutogradGraph(candidate, saved, len(seen), whole=not todo)

    def _saved_by(self, node: object) -> Iterable[LiveTensor]:
        kind = type(node)
        if kind not in self._names:
            self._names[kind] = tuple(name for name in dir(kind) if name.startswith(RAW))
        for name in self._names[kind]:
            try:
                value = getattr(node, name)
            except RuntimeError:  # freed by backward()
                continue
            for one in value if isinstance(value, tuple) else (value,):
                yield from self._tensors_in(getattr(one, "data", None))  # older torch has no .data
        yield from self._tensors_in(getattr(node, "variable", None))  # the leaf that a gradient is for
        try:
            kept = list(vars(node).values())  # the ctx of a custom Function
        except TypeError:
            kept = []
        for one in kept:
            yield from self._tensors_in(one)

    def _tensors_in(self, item: object) -> Iterable[LiveTensor]:
        if type(item) not in self._tensors:  # with a pack hook it is whatever the hook returned
            return
        try:
            live = identify(self._torch, item)
        except Exception:  # noqa: BLE001 - one tensor less
            return
        if live is not None:
            yield live


def exposes_saved_tensors(torch: ModuleType) -> bool:
    """Return whether this torch lets one look at what a node has saved."""
    return hasattr(torch._C._autograd.SavedTensor, "data")  # noqa: SLF001 - nothing public tells
