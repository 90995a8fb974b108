"""Remember which GPUs there should be, and what their indices meant.

What should be there are the GPUs seen since the machine booted, also by an agent before this one: a GPU that vanishes
between two runs of the agent would otherwise never be missed. Hardware may change while the machine is off, so this
ends with the boot; from there on the PCI bus is asked. A GPU that was lost when the machine went down was not taken out
by that: it should be there until another one is in its place. What the GPUs of an earlier boot were called is kept, for
one that is lost before it has told its name.

NVML counts the GPUs that it finds: one that does not come back makes those behind it move up, be it over a driver
reload or a reboot. So what each index means is remembered over boots. Where one means another GPU now, where a GPU does
not come back, or where the memory was lost, indices are uncertain until all is as it was or a person removes the file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpuagent.core.snapshot import GpuIdentity
from gpuagent.driver.backend import Collected
from gpuagent.runtime.state_files import read_state, write_state

log = logging.getLogger(__name__)

_SCHEMA = 1
_MOST_EARLIER = 1024
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"


class Inventory:
    """GPUs by UUID, kept in a small file. `path` None keeps them in memory only."""

    def __init__(self, path: Path | None, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._known: dict[str, GpuIdentity] = {}
        self._earlier: dict[str, GpuIdentity] = {}
        """GPUs of earlier boots that have not been seen in this one."""
        self._lost_before: set[str] = set()
        """GPUs that should be there though nobody has seen them since the boot."""
        self._replaced: dict[str, str] = {}
        """UUIDs of those of them that were replaced, by the UUID of the GPU at the same PCI address."""
        self.was_readable = False
        """The file was there and could be read, be it of another boot."""
        if path is not None:
            self._load(path)

    @property
    def known(self) -> tuple[GpuIdentity, ...]:
        """Every GPU seen since the boot, by its last index."""
        return tuple(sorted(self._known.values(), key=lambda gpu: gpu.index))

    def at(self, index: int) -> GpuIdentity | None:
        """Return the GPU last seen at an index."""
        return next((gpu for gpu in self._known.values() if gpu.index == index), None)

    def identify(self, answers: Sequence[Collected]) -> list[Collected]:
        """Return the answers; a GPU that was lost before its name was read has the identity that is remembered of it.

        A GPU that was at its index before the boot, and answers at another one, has moved: it is not that.
        """
        present = {answer.reading.identity.uuid for answer in answers}
        made = []
        for answer in answers:
            identity = answer.reading.identity
            if not identity.uuid:
                candidates = (gpu for gpu in (*self.known, *self._earlier.values()) if gpu.index == identity.index)
                known = next(candidates, None)
                if known is not None and known.uuid not in present:
                    answer = replace(answer, reading=replace(answer.reading, identity=known))  # noqa: PLW2901
            made.append(answer)
        return made

    def expect(self, uuids: Collection[str]) -> frozenset[str]:
        """Have GPUs of an earlier boot that were lost at its end among those that should be there; return which.

        Where the file was removed nothing of an earlier boot is known, and nothing is expected.
        """
        added = [uuid for uuid in uuids if uuid in self._earlier and uuid not in self._known]
        for uuid in added:
            self._known[uuid] = self._earlier[uuid]
            self._lost_before.add(uuid)
        if added and self._path is not None:  # an agent that is started again in this boot goes on with that
            self._save(self._path)
        return frozenset(self._known.keys() & set(uuids))

    def address_of(self, uuid: str) -> str:
        """Return the PCI address at which a GPU was last seen, "" if that is not known. For any thread."""
        gpu = self._known.get(uuid)
        return gpu.pci_bus_id if gpu is not None else ""

    def replaced_by(self, uuid: str) -> str:
        """Return the UUID of the lost GPU in whose place this one answers; "" if there is none."""
        return self._replaced.get(uuid, "")

    def observe(self, gpus: Iterable[GpuIdentity]) -> None:
        """Note the GPUs that answer now, and have said which they are; of several with one UUID the first."""
        changed = False
        seen: set[str] = set()
        for gpu in gpus:
            if gpu.uuid in seen:
                continue
            seen.add(gpu.uuid)
            if gpu.uuid and self._known.get(gpu.uuid) != gpu:
                self._known[gpu.uuid] = gpu
                self._earlier.pop(gpu.uuid, None)
                changed = True
            if gpu.uuid in self._lost_before:
                self._lost_before.discard(gpu.uuid)
                changed = True
        for uuid, by in self._find_replaced(seen).items():
            log.info("GPU %s was replaced by %s at PCI address %s", uuid, by, self._known[uuid].pci_bus_id)
            self._replaced[by] = uuid
            del self._known[uuid]
            self._earlier.pop(uuid, None)
            self._lost_before.discard(uuid)
            changed = True
        if changed and self._path is not None:
            self._save(self._path)

    def _find_replaced(self, seen: Collection[str]) -> dict[str, str]:
        """Return, for each GPU lost before the boot at whose PCI address another one answers, the UUID of that."""
        if not self._lost_before:
            return {}
        taken = {gpu.pci_bus_id.lower(): uuid for uuid, gpu in self._known.items() if uuid in seen and gpu.pci_bus_id}
        addresses = {uuid: self._known[uuid].pci_bus_id.lower() for uuid in self._lost_before if uuid not in seen}
        return {uuid: taken[address] for uuid, address in addresses.items() if address in taken}

    def create_file(self) -> None:
        """Have the file there from now on, even without a GPU: one that is missing later was lost."""
        if self._path is not None and not self.was_readable:
            self._save(self._path)

    def _load(self, path: Path) -> None:
        try:
            stored = json.loads(read_state(path))
            if stored["schema"] == _SCHEMA:
                gpus = {gpu.uuid: gpu for gpu in map(_identity, stored["gpus"])}
                earlier = {gpu.uuid: gpu for gpu in map(_identity, stored.get("earlier", [])[:_MOST_EARLIER])}
                if stored["boot_id"] == self._boot_id:
                    self._known, self._earlier = gpus, earlier
                    self._lost_before = {
                        str(uuid) for uuid in stored.get("lost_before", [])[:_MOST_EARLIER]
                    } & gpus.keys()
                else:
                    taken = {gpu.index for gpu in gpus.values()}
                    self._earlier = {uuid: gpu for uuid, gpu in earlier.items() if gpu.index not in taken} | gpus
            self.was_readable = stored["schema"] == _SCHEMA
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            log.warning("%s cannot be read and is started anew: %s", path, error)

    def _save(self, path: Path) -> None:
        document = {
            "schema": _SCHEMA,
            "boot_id": self._boot_id,
            "gpus": [_entry(gpu) for gpu in self.known],
            "earlier": [_entry(gpu) for gpu in self._earlier.values()],
            "lost_before": sorted(self._lost_before),
        }
        try:
            write_state(path, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            log.warning("the list of known GPUs cannot be saved: %s", error)


def _identity(entry: Mapping[str, object]) -> GpuIdentity:
    return GpuIdentity(
        index=int(str(entry["index"])),
        uuid=str(entry["uuid"]),
        name=str(entry["name"]),
        pci_bus_id=str(entry["pci_bus_id"]),
    )


def _entry(gpu: GpuIdentity) -> dict[str, object]:
    return {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "pci_bus_id": gpu.pci_bus_id}


def find_conflicts(gpus: Iterable[GpuIdentity], unidentified: Collection[int] = frozenset()) -> dict[int, str]:
    """Return, by index, why a GPU cannot be identified: it shares a UUID or a PCI address, or has no UUID.

    A GPU is its UUID and its PCI address together; an address that the driver does not report is shared by nobody.
    `unidentified` are indices of GPUs that do not answer, or not yet in this session, and are taken for what they were.
    """
    gpus = tuple(gpus)
    found: dict[int, str] = {}
    for name, read in (("UUID", _uuid), ("PCI address", _pci_address)):
        owners: dict[str, list[int]] = {}
        for gpu in gpus:
            owners.setdefault(read(gpu), []).append(gpu.index)
        for value, indices in owners.items():
            if value and len(indices) > 1:
                who = " and ".join(str(index) for index in indices)
                reason = f"GPUs {who} have the same {name} {value}"
                if before := [index for index in indices if index in unidentified]:
                    reason = (
                        f"another GPU answers with the {name} {value}, which GPU {before[0]} had when it answered last"
                    )
                for index in indices:
                    found.setdefault(index, reason)
    for gpu in gpus:
        if not gpu.uuid:
            found[gpu.index] = f"GPU {gpu.index} has no UUID"
    return found


def _uuid(gpu: GpuIdentity) -> str:
    return gpu.uuid


def _pci_address(gpu: GpuIdentity) -> str:
    return gpu.pci_bus_id.lower()


def count_pci_gpus(root: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Count NVIDIA display devices on the PCI bus, whatever NVML thinks of them; None where it is unknown.

    A device that another driver owns (passed through to a virtual machine, say) is none of ours.
    """
    try:
        devices = list(root.iterdir())
    except OSError:
        return None
    return sum(_is_gpu(device) for device in devices)


def _is_gpu(device: Path) -> bool:
    try:
        if (device / "vendor").read_text().strip() != _NVIDIA:
            return False
        if not (device / "class").read_text().startswith(_DISPLAY_CLASS):
            return False
        driver = device / "driver"
        return not driver.is_symlink() or driver.readlink().name == "nvidia"
    except OSError:
        return False


_INDICES_SCHEMA = 1
_LOST = "which GPUs there were, and at which index, was lost"


class _IndexedGpu(NamedTuple):
    """Identity of a GPU at an index: its UUID and its PCI address."""

    uuid: str
    pci_bus_id: str

    def is_same(self, other: _IndexedGpu) -> bool:
        """Return whether it is the same GPU; an address that one of them lacks proves nothing."""
        addresses = {self.pci_bus_id.lower(), other.pci_bus_id.lower()} - {""}
        return self.uuid == other.uuid and len(addresses) <= 1


class IndexRegistry:
    """What each index meant when that was certain, kept in a small file. `path` None keeps it in memory only."""

    def __init__(self, path: Path | None = None, *, lost: bool = False) -> None:
        """Load the file; `lost` says that a file which is missing was lost, and not removed by a person."""
        self._path = path
        self._meanings: dict[int, _IndexedGpu] = {}
        self._doubt = ""
        """Reason why nothing is certain, whatever the indices mean now."""
        self._now: dict[int, _IndexedGpu] = {}
        """GPU last seen at each index since the start."""
        self._told = ""
        if path is not None:
            self._load(path, lost=lost)

    def observe(self, gpus: Iterable[GpuIdentity]) -> None:
        """Note the GPUs that answer now. An index that is new is learned, as long as the others are certain."""
        found = {gpu.index: _IndexedGpu(gpu.uuid, gpu.pci_bus_id) for gpu in gpus if gpu.uuid}
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
    def uncertainty(self) -> str:
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
            if stored["schema"] != _INDICES_SCHEMA:
                raise ValueError(f"schema {stored['schema']!r}")
            self._meanings = {
                int(entry["index"]): _IndexedGpu(str(entry["uuid"]), str(entry["pci_bus_id"]))
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
            "schema": _INDICES_SCHEMA,
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
