"""Who keeps the memory, and which line allocated it, put together: by the addresses of the tensors' storages.

The census' last child tells where the storages of a holder's tensors lie; the allocator's snapshot says which line
asked for the block at that address. What outlived the window was there all the time between the second look and the
third, so a snapshot from in between is of these very tensors. The addresses stay in this process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import ModuleType

from gpuagent_client.blame.lines import Place
from gpuagent_client.blame.tensors import Live

MAX_ADDRESSES = 500
ADDRESSES = "addresses"
"""The key in a group of the child's, which never leaves the app."""


def addresses(torch: ModuleType, tensors: Iterable[Live]) -> list[tuple[int, int]]:
    """Where the storages of these begin, and their bytes; the largest first. For the child: calls nothing of CUDA's."""
    by_storage = {live.storage: live for live in tensors}
    largest = sorted(by_storage.values(), key=lambda live: -live.storage_bytes)[:MAX_ADDRESSES]
    found = []
    # To ask a lazy copy for its address would make it a real one, and allocate.
    is_lazy = getattr(torch._C, "_is_cow_tensor", lambda _: False)  # noqa: SLF001 - nothing public tells
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as for the look itself
        for live in largest:
            try:
                if not is_lazy(live.tensor):
                    found.append((int(torch.Tensor.untyped_storage(live.tensor).data_ptr()), live.storage_bytes))
            except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
                continue
    return found


def join(groups: Iterable[dict[str, object]], places: Mapping[tuple[int, int], Place]) -> None:
    """Say in each group which line allocated most of what it holds, where that was recorded."""
    for group in groups:
        held = group.pop(ADDRESSES, ())
        bytes_by_place: Counter[Place] = Counter()
        for address, size in held if isinstance(held, (list, tuple)) else ():
            place = places.get((address, size))
            if place is not None:
                bytes_by_place[place] += size
        for place, size in bytes_by_place.most_common(1):
            group.update({f"allocated_{name}": value for name, value in place._asdict().items()})
            group["allocated_bytes"] = size
