"""Every tensor that is alive in this process, and what identifies it.

Runs in a forked child. Nothing here may run code of the app: subclasses of Tensor override attributes, and lazy
proxies answer isinstance() with a function of theirs. So only exact types are asked, through the methods of Tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import NamedTuple


class Key(NamedTuple):
    """What tensors of one kind have in common."""

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
        """All but the sizes, which differ from request to request in many apps."""
        return len(self.shape), self.dtype, self.device, self.requires_grad, self.grad_fn


class Live(NamedTuple):
    """One tensor in one look."""

    tensor: object
    key: Key
    storage: int
    storage_bytes: int
    # CPython and the allocators use an address again at once. Only all together (Python's object and C++'s, storage,
    # key, bytes) tell that it is the tensor of the look before; a few are still mistaken for one that was freed.
    identity: int

    @property
    def storage_identity(self) -> int:
        """Tells the same storage in another look, whichever tensor showed it."""
        return hash((self.storage, self.storage_bytes))


def loaded_torch() -> ModuleType | None:
    """Return the app's torch, if the app has loaded it whole; never imports it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Tensor") and hasattr(torch, "cuda") else None


def exact_types(root: type) -> set[type]:
    """Return a type and all that derive from it, without asking any of them."""
    found: set[type] = set()
    todo = [root]
    while todo:
        kind = todo.pop()
        if kind not in found:
            found.add(kind)
            todo.extend(type.__subclasses__(kind))
    return found


def live_tensors(torch: ModuleType, objects: Iterable[object]) -> list[Live]:
    """Return the tensors among these objects that hold memory."""
    kinds = exact_types(torch.Tensor)
    found = []
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - there is no public way around __torch_function__
        for item in objects:
            if type(item) in kinds:
                try:
                    live = look_at(torch, item)
                except Exception:  # noqa: BLE001, S112 - a tensor that cannot be asked is one less in the answer
                    continue
                if live is not None:
                    found.append(live)
    return found


def look_at(torch: ModuleType, item: object) -> Live | None:
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
    return Live(item, key, address, size, hash((id(item), implementation, address, key, size)))


def described(keys: Iterable[Key]) -> str:
    """Tensors of one kind, for a human: float32[*, 128] on cuda:0, AddmmBackward0."""
    several = list(keys)
    key = several[0]
    sizes = [str(sizes[0]) if len(set(sizes)) == 1 else "*" for sizes in zip(*(one.shape for one in several))]
    extra = f", {key.grad_fn}" if key.grad_fn else ", requires_grad" if key.requires_grad else ""
    return f"{str(key.dtype).rpartition('.')[2]}[{', '.join(sizes)}] on {key.device}{extra}"


def storage_bytes(tensors: Iterable[Live]) -> int:
    """Return bytes behind these tensors: views share a storage, which counts once."""
    sizes: dict[int, int] = {live.storage: live.storage_bytes for live in tensors}
    return sum(sizes.values())
