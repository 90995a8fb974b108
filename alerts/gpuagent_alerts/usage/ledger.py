"""The usage ledger of a node: fed with every snapshot, it keeps the accounts of every GPU."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from gpuagent.core.snapshot import ClientReading, ProcessInfo, ProcessReading, Snapshot
from gpuagent.core.usage import Amounts, GpuUsage, Holder, HolderKind, HolderUsage, holder_of
from gpuagent_alerts.store import tables
from gpuagent_alerts.usage.account import GpuAccounts

MOST_HOLDERS = 32
"""Holders of a GPU with series of their own: twelve series each."""
_SCHEMA = 1
_MOST_GPUS = 64


class UsageChange(NamedTuple):
    """What a holder has used of a GPU since the daily table was written last."""

    gpu: int
    uuid: str
    holder: Holder
    amounts: Amounts


class Ledger:
    """Accounts of every GPU. For one thread."""

    def __init__(self, longest_gap_seconds: float, most_holders: int = MOST_HOLDERS) -> None:
        """Take two readings that are `longest_gap_seconds` apart, or more, for no observation."""
        self._longest_gap_seconds = longest_gap_seconds
        self._most_holders = most_holders
        self._gpus: dict[str, GpuAccounts] = {}
        self._processes: tuple[ProcessReading, ...] | None = None
        self._by_gpu: Mapping[str, list[ProcessReading]] = {}
        self._holders: dict[str, dict[int, Holder]] = {}
        self._known: dict[int, tuple[ProcessInfo, Holder]] = {}
        """Holder of each pid, with what it was found by."""

    def observe(self, snapshot: Snapshot) -> None:
        """Account for the time since the last snapshot."""
        if snapshot.processes != self._processes:
            self._sort(snapshot.processes)
        untouched = _untouched(snapshot.clients) if snapshot.clients else {}
        for gpu in snapshot.gpus:
            uuid = gpu.identity.uuid
            if not uuid:
                continue
            accounts = self._gpus.get(uuid)
            if accounts is None:
                if len(self._gpus) >= _MOST_GPUS:
                    continue
                accounts = self._gpus[uuid] = GpuAccounts(uuid, self._most_holders)
            accounts.observe(
                gpu,
                self._by_gpu.get(uuid, []),
                snapshot.clock_seconds,
                self._longest_gap_seconds,
                self._holders.get(uuid, {}),
                untouched.get(uuid, ()),
            )

    def _sort(self, processes: tuple[ProcessReading, ...]) -> None:
        """Sort the processes by GPU. Who a process is, is made out again only where /proc has told something new."""
        by_gpu: dict[str, list[ProcessReading]] = defaultdict(list)
        holders: dict[str, dict[int, Holder]] = defaultdict(dict)
        known, self._known = self._known, {}
        for one in processes:
            info = one.info
            if info is None or one.holder_unproven:
                holder = holder_of(one)
            else:
                found = known.get(one.pid)
                if found is None or found[0] is not info:
                    found = info, holder_of(one)
                self._known[one.pid] = found
                holder = found[1]
            group = by_gpu[one.gpu_uuid]
            holders[one.gpu_uuid][len(group)] = holder
            group.append(one)
        self._processes, self._by_gpu, self._holders = processes, by_gpu, holders

    def take_changes(self, now_seconds: float) -> list[UsageChange]:
        """Return what was used since the last call."""
        return [
            UsageChange(gpu.index, uuid, holder, amounts)
            for uuid, gpu in self._gpus.items()
            for holder, amounts in gpu.take_changes(now_seconds)
        ]

    def usage(self) -> tuple[HolderUsage, ...]:
        """Return every holder of every GPU."""
        return tuple(one for gpu in self._gpus.values() for one in gpu.usage())

    def totals(self) -> tuple[GpuUsage, ...]:
        """Return the totals of every GPU."""
        return tuple(gpu.totals() for gpu in self._gpus.values())

    def dump(self) -> str:
        """Return all counters as text."""
        gpus = [[uuid, gpu.index, gpu.seconds, gpu.busy_seconds] for uuid, gpu in self._gpus.items()]
        holders = [[one.uuid, *one.holder, *one.amounts] for one in self.usage()]
        return json.dumps({"schema": _SCHEMA, "gpus": gpus, "holders": holders}, separators=(",", ":"))

    def restore(self, text: str) -> None:
        """Go on from what `dump` returned.

        Raises:
            ValueError: the text is none of `dump`; nothing was restored then.
        """
        found: dict[str, GpuAccounts] = {}
        try:
            document = tables.document(tables.parsed(text))
            if tables.member(document, "schema") != _SCHEMA:
                raise ValueError("its version is another")
            for uuid, index, seconds, busy in tables.array(tables.member(document, "gpus"))[:_MOST_GPUS]:
                gpu = found[tables.word(uuid)] = GpuAccounts(uuid, self._most_holders)
                gpu.index, gpu.seconds = tables.integer(index), tables.duration(seconds)
                gpu.busy_seconds = tables.duration(busy)
            for uuid, kind, *rest in tables.array(tables.member(document, "holders")):
                names, numbers = rest[:6], rest[6:]
                holder = Holder(HolderKind(kind), *map(tables.text, names))
                found[uuid].restore(holder, read_amounts(numbers))
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"counters of the usage ledger cannot be read: {error}") from None
        self._gpus = found


def read_amounts(numbers: list[object]) -> Amounts:
    """Return amounts from numbers in their order. Raises ValueError for what is no amount."""
    held, observed, busy, idle, memory, untouched, energy = numbers
    return Amounts(
        *(_amount(held), _amount(observed), _amount(busy), _amount(idle), _amount(memory)),
        None if untouched is None else _amount(untouched),
        None if energy is None else _amount(energy),
    )


def _amount(value: object) -> float:
    return tables.number(value, 0.0, 1e30)


def _untouched(clients: Mapping[int, ClientReading]) -> dict[str, list[tuple[int, int]]]:
    """Return for each GPU the pids of apps, and the bytes that their allocators took and never gave to a tensor."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for pid, client in clients.items():
        for uuid, reading in client.devices.items():
            reserved, peak = reading.reserved_bytes, reading.allocated_peak_bytes
            if reserved is not None and peak is not None:
                found[uuid].append((pid, max(0, reserved - peak)))
    return found
