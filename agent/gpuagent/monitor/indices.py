"""Whether the indices of the GPUs mean what they meant when somebody wrote them into a configuration.

NVML counts the GPUs that it finds: one that does not come back makes those behind it move up, be it over a driver
reload or a reboot. So what each index means is remembered over boots. Where one means another GPU now, where a GPU does
not come back, or where the memory was lost, indices are uncertain until all is as it was or a person removes the file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gpuagent.core.snapshot import GpuIdentity
from gpuagent.runtime.state_files import read_state, write_state

log = logging.getLogger(__name__)

_SCHEMA = 1
_LOST = "which GPUs there were, and at which index, was lost"


class _Meaning(NamedTuple):
    """A GPU by what tells it from every other one."""

    uuid: str
    pci_bus_id: str

    def is_same(self, other: _Meaning) -> bool:
        """Return whether it is the same GPU; an address that one of them does not have tells nothing."""
        addresses = {self.pci_bus_id.lower(), other.pci_bus_id.lower()} - {""}
        return self.uuid == other.uuid and len(addresses) <= 1


class IndexMemory:
    """What each index meant when that was certain, kept in a small file. `path` None keeps it in memory only."""

    def __init__(self, path: Path | None = None, *, lost: bool = False) -> None:
        """Load the file; `lost` says that a file which is missing was lost, and not removed by a person."""
        self._path = path
        self._meanings: dict[int, _Meaning] = {}
        self._doubt = ""
        """Why nothing is certain, whatever the indices mean now."""
        self._now: dict[int, _Meaning] = {}
        """What each index was seen to mean last, since the start."""
        self._told = ""
        if path is not None:
            self._load(path, lost=lost)

    def see(self, gpus: Iterable[GpuIdentity]) -> None:
        """Note the GPUs that answer now. An index that is new is learned, as long as the others are certain."""
        found = {gpu.index: _Meaning(gpu.uuid, gpu.pci_bus_id) for gpu in gpus if gpu.uuid}
        if found.items() <= self._now.items():
            return
        self._now |= found
        if self._moved():
            return
        known = self._meanings
        learned = {
            index: meaning
            for index, meaning in found.items()
            if index not in known or (meaning.pci_bus_id and not known[index].pci_bus_id)
        }
        if learned:
            self._meanings |= learned
            self._save()

    @property
    def doubt(self) -> str:
        """Why an index may mean another GPU than it did, or a GPU may be missing; "" if all is as it was."""
        doubt = self._doubt or self._moved()
        if doubt and doubt != self._told:
            log.warning("indices of GPUs are uncertain: %s (remembered in %s)", doubt, self._path or "memory only")
        self._told = doubt
        return doubt or self._missing()

    def _moved(self) -> str:
        for index, now in sorted(self._now.items()):
            before = self._meanings.get(index, now)
            if not before.is_same(now):
                return f"index {index} was {before.uuid} at {before.pci_bus_id}, and is {now.uuid} at {now.pci_bus_id}"
        return ""

    def _missing(self) -> str:
        present = {meaning.uuid for meaning in self._now.values()}
        for index, before in sorted(self._meanings.items()):
            if before.uuid not in present:
                return f"GPU {before.uuid}, index {index}, is missing"
        return ""

    def _load(self, path: Path, *, lost: bool) -> None:
        try:
            stored = json.loads(read_state(path))
            if stored["schema"] != _SCHEMA:
                raise ValueError(f"schema {stored['schema']!r}")
            self._meanings = {
                int(entry["index"]): _Meaning(str(entry["uuid"]), str(entry["pci_bus_id"]))
                for entry in stored["indices"]
            }
            self._doubt = str(stored["doubt"])
        except FileNotFoundError:
            self._doubt = _LOST if lost else ""
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            log.warning("%s cannot be read: %s", path, error)
            self._meanings, self._doubt = {}, _LOST
        if self._doubt:  # until a person removes the file
            self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        document = {
            "schema": _SCHEMA,
            "doubt": self._doubt,
            "indices": [
                {"index": index, "uuid": meaning.uuid, "pci_bus_id": meaning.pci_bus_id}
                for index, meaning in sorted(self._meanings.items())
            ],
        }
        try:
            write_state(self._path, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            log.warning("what the indices of the GPUs mean cannot be saved: %s", error)
