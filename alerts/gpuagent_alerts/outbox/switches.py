"""Receivers that want nothing any more: 410 switches one off, also over a restart, until somebody has seen to it.

That is a test which the receiver takes, or another address for it. The address itself is not kept, only its hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.core.clock import Clock
from gpuagent_alerts.outbox.outcome import Outcome, Reason
from gpuagent_alerts.outbox.sender import Sender
from gpuagent_alerts.store.checks import document, member, parsed, text, unix_time, word
from gpuagent_alerts.store.database import Store

_KEY = "receivers_off"


@dataclass(frozen=True, slots=True)
class Off:
    """Why a receiver is sent nothing, and since when."""

    outcome: Outcome
    since: float
    """Unix time."""
    address_hash: str


class Switches:
    """Which receivers are off: kept in the store, and in memory for the asking. Its calls raise StoreFailure."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._off = store.meta_at_start(_KEY, _load) or {}

    def off(self, sender: Sender) -> Off | None:
        """Why nothing is sent to it; None if it is on, or has another address than the one that was switched off."""
        found = self._off.get(sender.name)
        return found if found is not None and found.address_hash == sender.address_hash() else None

    def switch_off(self, sender: Sender, outcome: Outcome) -> Off:
        """Send nothing to it until it is switched on."""
        off = Off(outcome, self._clock.wall(), sender.address_hash())
        self._keep({**self._off, sender.name: off})
        return off

    def switch_on(self, name: str) -> None:
        """Send to it again."""
        if name in self._off:
            self._keep({other: off for other, off in self._off.items() if other != name})

    def _keep(self, off: dict[str, Off]) -> None:
        self._off = off
        self._store.set_meta(_KEY, json.dumps({name: _dump(one) for name, one in off.items()}))


def _dump(off: Off) -> dict[str, Any]:
    return {"detail": off.outcome.detail, "since": off.since, "address_hash": off.address_hash}


def _load(dump: str) -> dict[str, Off]:
    return {word(name): _off(document(one)) for name, one in document(parsed(dump)).items()}


def _off(found: Mapping[str, Any]) -> Off:
    outcome = Outcome(Reason.GONE, text(member(found, "detail")))
    return Off(outcome, unix_time(member(found, "since")), text(member(found, "address_hash")))
