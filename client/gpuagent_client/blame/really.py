"""isinstance() by the real type: a lazy proxy may claim another class, and would run code of the app to do so."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import TypeGuard  # Python 3.10

T = TypeVar("T")


def really(item: object, *kinds: type[T]) -> TypeGuard[T]:
    """Whether the item is an instance of one of these, whatever its `__class__` says."""
    return issubclass(type(item), kinds)
