"""gc.get_referents() that may be asked of any object of the app."""

from __future__ import annotations

import gc
from types import ModuleType

from gpuagent_client.blame.really import really


def referents_of(item: object) -> list[object]:
    """What an object refers to; of a module its namespace alone.

    Before 3.12.6 and 3.13.0 the module _asyncio also names iterators that are free to be used again. To hold one and to
    let go of it frees it twice, and from then on the collector goes round in a circle for ever
    (https://github.com/python/cpython/issues/122695).
    """
    if really(item, ModuleType):
        return [object.__getattribute__(item, "__dict__")]
    return gc.get_referents(item)
