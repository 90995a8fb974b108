"""Find every live tensor of this process, tell it from all others, and read what autograd graphs hold.

Runs in a forked child. Nothing here may run code of the app: subclasses of Tensor override attributes, and lazy
proxies answer isinstance() with a function of theirs. So only exact types are asked, through the methods of Tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import NamedTuple


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


def tensors_among(torch: ModuleType, items: Iterable[object], known: set[int]) -> list[LiveTensor]:
    """Return the tensors among these that are not known yet, such as gradients that Python had no object for."""
    kinds = exact_types(torch.Tensor)
    return live_tensors(torch, [item for item in items if type(item) in kinds and id(item) not in known])


def identify(torch: ModuleType, item: object) -> LiveTensor | None:
    """Return what identifies a tensor; None if there is no memory behind it."""
    get = torch.Tensor
    device = get.device.__get__(item)
    if device.type == "meta":
        return None
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
        address, size = id(item), bytes_without_storage(torch, item)
    return LiveTensor(item, key, address, size)


SPARSE_PARTS = (
    ("_indices", "_values"),
    ("crow_indices", "col_indices", "values"),
    ("ccol_indices", "row_indices", "values"),
)


def dispatches_itself(torch: ModuleType, kind: type) -> bool:
    """Return whether operations on tensors of this class run its own `__torch_dispatch__`; asks no metaclass."""
    bases: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    namespaces = (type.__dict__["__dict__"].__get__(one) for one in bases)
    found = next((names["__torch_dispatch__"] for names in namespaces if "__torch_dispatch__" in names), None)
    return found is not getattr(torch._C, "_disabled_torch_dispatch_impl", None)  # noqa: SLF001 - that of Tensor itself


def bytes_without_storage(torch: ModuleType, item: object) -> int:
    """Return the bytes of a tensor that has no storage: of a sparse one those of its indices and values.

    Any other is computed from its sizes, also one of a class that handles operations itself: its code is not run.
    """
    get = torch.Tensor
    if dispatches_itself(torch, type(item)):
        return int(get.numel(item) * get.element_size(item))
    for names in SPARSE_PARTS:
        try:
            return sum(int(get.untyped_storage(getattr(get, name)(item)).nbytes()) for name in names)
        except (RuntimeError, NotImplementedError):
            continue
    return int(get.numel(item) * get.element_size(item))


def described(keys: Iterable[Key]) -> str:
    """Describe tensors of one kind to a person: float32[*, 128] on cuda:0, AddmmBackward0."""
    several = list(keys)
    key = several[0]
    sizes = [str(sizes[0]) if len(set(sizes)) == 1 else "*" for sizes in zip(*(one.shape for one in several))]
    extra = f", {key.grad_fn}" if key.grad_fn else ", requires_grad" if key.requires_grad else ""
    return f"{str(key.dtype).rpartition('.')[2]}[{', '.join(sizes)}] on {key.device}{extra}"


def gradient_of(torch: ModuleType, item: object) -> object:
    """Return the gradient of a leaf, which native code holds; None if there is none."""
    get = torch._C.TensorBase  # noqa: SLF001 - Tensor.grad would warn, and may be overridden
    try:
        if get.requires_grad.__get__(item) and get.is_leaf.__get__(item):
            found: object = get.grad.__get__(item)
            return found
    except Exception:  # noqa: BLE001 - a subclass that has none
        return None
    return None


def is_on_host(key: Key) -> bool:
    """Return whether it is in the host's memory."""
    return str(key.device).startswith("cpu")
