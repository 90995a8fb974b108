"""What one look leaves for the next: opaque bytes that the app's process keeps, eight per tensor and per storage."""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from gpuagent_client.blame.fork import Size
from gpuagent_client.blame.tensors import Key, Live, storage_bytes

HEAD = struct.Struct("<QQ")  # objects, tensors


class Table(NamedTuple):
    """Identities of the tensors and of the storages seen in a look."""

    tensors: frozenset[int]
    storages: frozenset[int]


class Group(NamedTuple):
    """Tensors of one kind that were made early in the window and were still there at its end."""

    survivors: list[Live]
    younger: int  # of this kind, made after the second look: what goes on growing has some

    @property
    def key(self) -> Key:
        """One of their keys: they differ in sizes only."""
        return self.survivors[0].key


def encode(live: Iterable[Live], objects: int) -> bytes:
    """Return the table of a look at so many objects.

    Identities are hashes; each child inherits the same hash seed from the app, so they agree.
    """
    tensors = array("q")
    storages = array("q")
    for one in live:
        tensors.append(one.identity)
        storages.append(one.storage_identity)
    return HEAD.pack(objects, len(tensors)) + tensors.tobytes() + storages.tobytes()


def size_of(data: bytes) -> Size:
    """Return how much that look went through."""
    return Size(*HEAD.unpack_from(data))


def decode(data: bytes) -> Table:
    """Return the table again."""
    words = array("q")
    words.frombytes(data[HEAD.size :])
    count = size_of(data).tensors
    return Table(frozenset(words[:count]), frozenset(words[count:]))


def survivors(first: Table, second: Table, now: list[Live]) -> list[Group]:
    """Return what grew: absent in the first look, there in the second and now. GPUs come first, then the most bytes."""
    kept: dict[tuple[object, ...], list[Live]] = {}
    younger: Counter[tuple[object, ...]] = Counter()
    for live in now:
        if live.identity in first.tensors:
            continue
        if live.identity in second.tensors:
            kept.setdefault(live.key.kind, []).append(live)
        else:
            younger[live.key.kind] += 1
    groups = [Group(members, younger[kind]) for kind, members in kept.items()]
    return sorted(groups, key=lambda group: (is_on_host(group.key), -storage_bytes(group.survivors)))


def is_on_host(key: Key) -> bool:
    """Return whether it is in the host's memory."""
    return str(key.device).startswith("cpu")
