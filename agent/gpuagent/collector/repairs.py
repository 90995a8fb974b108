"""Remember faults that take a repair until the driver shows that it was done, not until some time has passed.

A GPU that was lost is back once it answers in a session that began after it was last found lost. An Xid of
`REPAIR_XIDS` is over when the GPU was reset or the driver loaded since: the energy counter began anew, the driver was
seen unloaded or has another version, or the recovery action that it asked for is no longer asked for. A GPU that was
lost and is back settles Xid 79 too. A reboot settles every Xid, and brings a lost GPU back only where it answers
afterwards: one that the driver does not list then is lost still. Open faults are kept in a file over restarts of the
agent.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from gpuagent.collector.saved_state import LatestWriter
from gpuagent.core.clock import Clock
from gpuagent.core.snapshot import GpuReading, GpuState, XidCount
from gpuagent.core.xids import FALLEN_OFF_XID, REPAIR_XIDS
from gpuagent.runtime.state_files import read_state

log = logging.getLogger(__name__)

_SCHEMA = 1
_MOST_GPUS = 1024
_MOST_XIDS = 64
"""Xids kept for each GPU, as many as the event thread counts."""


class StoredXid(NamedTuple):
    """Last Xid of one code. `time_seconds` is Unix time."""

    xid: int
    time_seconds: float
    open: bool


class StoredGpu(NamedTuple):
    """What is kept of one GPU. `lost_since_seconds` is CLOCK_BOOTTIME."""

    lost_since_seconds: float | None
    energy_joules: float | None
    driver_version: str
    advised: bool
    xids: tuple[StoredXid, ...]


class RepairsFile:
    """Read the file once, and write it in a thread of its own. An old file is kept where no new one can be written."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._writer = LatestWriter(path, content="faults of the GPUs", keep_old=True)
        self.lost_before: Mapping[str, float | None] = {}
        """Since when (Unix time, None where it is unknown) a GPU is lost that was lost when an earlier boot ended."""

    def load(self, now_seconds: float) -> Mapping[str, StoredGpu]:
        """Return the faults of this boot by UUID; none where the file is missing or damaged.

        Of another boot the GPUs that were lost at its end are `lost_before`.
        """
        try:
            stored = json.loads(read_state(self._path))
            if stored["schema"] != _SCHEMA:
                return {}
            entries = stored["gpus"][:_MOST_GPUS]
            if stored["boot_id"] != self._boot_id:
                lost = (entry for entry in entries if entry["lost_since"] is not None)
                self.lost_before = {str(entry["uuid"]): _number(entry.get("lost_at")) for entry in lost}
                return {}
            return {str(entry["uuid"]): _gpu(entry, now_seconds) for entry in entries}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            log.warning("%s cannot be read, GPUs that were not repaired are not known any more: %s", self._path, error)
            return {}

    def save(self, gpus: Mapping[str, StoredGpu], clock: Clock) -> None:
        """Have these written."""
        began = clock.wall() - clock.now()
        document = {
            "schema": _SCHEMA,
            "boot_id": self._boot_id,
            "gpus": [
                {
                    "uuid": uuid,
                    "lost_since": gpu.lost_since_seconds,
                    "lost_at": None if gpu.lost_since_seconds is None else began + gpu.lost_since_seconds,
                    "energy": gpu.energy_joules,
                    "driver_version": gpu.driver_version,
                    "advised": gpu.advised,
                    "xids": [xid._asdict() for xid in gpu.xids],
                }
                for uuid, gpu in gpus.items()
            ],
        }
        self._writer.write(lambda: document)


def _gpu(entry: Mapping[str, object], now_seconds: float) -> StoredGpu:
    xids = entry["xids"]
    if not isinstance(xids, list):
        raise TypeError("xids are not a list")
    lost = _number(entry["lost_since"])
    if lost is not None:
        lost = min(lost, now_seconds)  # the clock of a simulation that runs faster begins anew
    return StoredGpu(
        lost, _number(entry["energy"]), str(entry["driver_version"]), entry["advised"] is True,
        tuple(_xid(xid) for xid in xids[:_MOST_XIDS]),
    )  # fmt: skip


def _xid(entry: Mapping[str, object]) -> StoredXid:
    code, seconds = entry["xid"], _number(entry["time_seconds"])
    if not isinstance(code, int) or seconds is None:
        raise TypeError(f"{entry!r} is no Xid")
    return StoredXid(code, seconds, entry["open"] is True)


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


_SAVE_SECONDS = 60.0
"""Largest age of the energy counter in the file while a fault is open."""
_EARLIER = -1
"""Session of an agent before this one: every session of ours began later."""
_LOST = (GpuState.LOST, GpuState.GONE)
_LOADED_ANEW = "the driver was loaded anew"
_NOT_ADVISED = "the driver asks for no recovery action any more"
ANSWERS_AGAIN = "it answers again after a new initialization of NVML"
"""Which is no proof of a reset: that is said of it and no more."""
_AFTER_A_REBOOT = "it answers again after a reboot"


class DriverSession(NamedTuple):
    """The NVML session that readings were made in."""

    generation: int
    driver_loads: int
    """Number of times that the driver was seen to be unloaded and loaded since the start."""
    driver_version: str


@dataclass(slots=True)
class _Xid:
    time_seconds: float
    open: bool
    generation: int = _EARLIER
    driver_loads: int = 0
    clock_seconds: float | None = None


@dataclass(slots=True)
class _Gpu:
    xids: dict[int, _Xid] = field(default_factory=dict)
    lost_since: float | None = None
    lost_generation: int = _EARLIER
    energy_joules: float | None = None
    driver_version: str = ""
    advised: bool = False
    """The driver asked for a recovery action while a fault was open."""
    repair: str = ""
    """What showed that the last fault was repaired; "" while one is open."""
    lost_before_boot: bool = False
    """It was lost when an earlier boot ended, and has not answered in this one."""

    @property
    def faulty(self) -> bool:
        return self.lost_since is not None or any(xid.open for xid in self.xids.values())


class FaultTracker:
    """Track faults of each GPU by UUID (by index where that is unknown). For one thread; times are CLOCK_BOOTTIME."""

    def __init__(self, clock: Clock, file: RepairsFile | None = None) -> None:
        """Load what the last agent of this boot has written to `file`; None keeps the faults in memory only."""
        self._clock = clock
        self._file = file
        self._gpus: dict[str, _Gpu] = {}
        self._present: set[str] = set()
        """The lost GPUs of the last tick."""
        self._seen: dict[tuple[str, int], float] = {}
        """Last time of each (GPU, Xid) that was taken in from the event thread."""
        self._saved_at = clock.now()
        for uuid, stored in (file.load(clock.now()) if file is not None else {}).items():
            gpu = self._gpus[uuid] = _Gpu(
                lost_since=stored.lost_since_seconds,
                energy_joules=stored.energy_joules,
                driver_version=stored.driver_version,
                advised=stored.advised,
            )
            gpu.xids = {xid.xid: _Xid(xid.time_seconds, xid.open) for xid in stored.xids}
        for uuid, lost_at in (file.lost_before if file is not None else {}).items():
            lost_for = 0.0 if lost_at is None else max(0.0, clock.wall() - lost_at)
            self._gpus[uuid] = _Gpu(lost_since=clock.now() - lost_for, lost_before_boot=True)

    @property
    def lost(self) -> frozenset[str]:
        """UUIDs of the GPUs that are lost."""
        return frozenset(key for key, gpu in self._gpus.items() if gpu.lost_since is not None)

    def expect(self, uuids: Collection[str]) -> None:
        """Forget what was lost in an earlier boot, but for these: the others were taken out or replaced."""
        for key in [key for key, gpu in self._gpus.items() if gpu.lost_before_boot and key not in uuids]:
            del self._gpus[key]

    @property
    def proof_wanted(self) -> bool:
        """Whether a GPU is lost, or answers again in the session in which it was lost: only a new session shows."""
        return any(self._gpus[key].lost_since is not None for key in self._present)

    def observe(
        self, gpus: Sequence[GpuReading], counts: Iterable[XidCount], session: DriverSession
    ) -> tuple[list[GpuReading], tuple[XidCount, ...]]:
        """Take in a tick; return the readings with what is known of their faults, and all Xids since the boot."""
        counts = tuple(counts)
        changed = self._take_xids(counts, session)
        made = []
        for reading in gpus:
            key = _key(reading)
            self._adopt(key, reading)
            gpu = self._gpus.setdefault(key, _Gpu())
            changed |= self._follow(gpu, reading, session)
            made.append(_with_faults(reading, gpu))
        self._present = {_key(reading) for reading in gpus}
        self._save(changed=changed)
        return made, self._with_remembered(counts, gpus)

    def _take_xids(self, counts: Iterable[XidCount], session: DriverSession) -> bool:
        changed = False
        for count in counts:
            key = count.gpu_uuid or f"index:{count.gpu_index}", count.xid
            if self._seen.get(key) == count.last_time_seconds:
                continue
            self._seen[key] = count.last_time_seconds
            gpu = self._gpus.setdefault(key[0], _Gpu())
            if not gpu.faulty:
                gpu.advised = False
            gpu.xids[count.xid] = _Xid(
                count.last_time_seconds,
                count.xid in REPAIR_XIDS,
                session.generation,
                session.driver_loads,
                count.last_clock_seconds,
            )
            gpu.driver_version = session.driver_version
            gpu.repair = ""
            changed = True
        return changed

    def _adopt(self, key: str, reading: GpuReading) -> None:
        """Give a GPU whose UUID is known now what was noted at its index before."""
        noted = self._gpus.pop(f"index:{reading.identity.index}", None) if reading.identity.uuid else None
        if noted is not None:
            known = self._gpus.setdefault(key, noted)
            if known.lost_since is None:
                known.lost_since, known.lost_generation = noted.lost_since, noted.lost_generation

    def _follow(self, gpu: _Gpu, reading: GpuReading, session: DriverSession) -> bool:
        """Take in one GPU's state; return whether a fault has begun or ended."""
        if reading.state in _LOST:
            gpu.lost_generation = session.generation
            if gpu.lost_since is not None:
                return False
            now = self._clock.now()
            gpu.repair = ""
            gpu.lost_since = now if reading.since_seconds is None else min(now, reading.since_seconds)
            return True
        if reading.state is not GpuState.OK:
            return False
        found = self._repaired(gpu, reading, session)
        action = reading.ecc.recovery_action if reading.ecc is not None else None
        gpu.advised = gpu.faulty and (gpu.advised or bool(action))
        energy = reading.power.energy_joules if reading.power is not None else None
        if energy is not None:
            gpu.energy_joules = energy
        return found

    def _repaired(self, gpu: _Gpu, reading: GpuReading, session: DriverSession) -> bool:
        """Close the faults that this reading shows to be repaired; return whether there were any."""
        if not gpu.faulty:
            return False
        proof = _proof_of_reset(gpu, reading, session)
        loaded_anew = False
        closed: list[str] = []
        for code, xid in gpu.xids.items():
            loaded = xid.driver_loads < session.driver_loads
            anew = proof if xid.generation < session.generation else ""
            if xid.open and (anew or loaded):
                xid.open = False
                loaded_anew |= loaded
                closed.append(f"Xid {code} ({_LOADED_ANEW if loaded else anew})")
        if reading.ecc is not None and reading.ecc.recovery_action == 0 and gpu.advised:
            for code, xid in gpu.xids.items():
                if xid.open:
                    xid.open = False
                    closed.append(f"Xid {code} ({_NOT_ADVISED})")
        if gpu.lost_since is not None and session.generation > gpu.lost_generation:
            gpu.lost_since = None
            closed.append(_AFTER_A_REBOOT if gpu.lost_before_boot else ANSWERS_AGAIN)
            gpu.lost_before_boot = False
            fallen = gpu.xids.get(FALLEN_OFF_XID)
            if fallen is not None:
                fallen.open = False
        if closed:
            shown = _LOADED_ANEW if loaded_anew else proof
            back = next((text for text in closed if text in (ANSWERS_AGAIN, _AFTER_A_REBOOT)), _NOT_ADVISED)
            gpu.repair = "" if gpu.faulty else shown or back
            identity = reading.identity
            log.info("GPU %d (%s) was repaired: %s", identity.index, identity.uuid, ", ".join(closed))
        return bool(closed)

    def _with_remembered(self, counts: tuple[XidCount, ...], gpus: Sequence[GpuReading]) -> tuple[XidCount, ...]:
        """Return the counts, and with 0 events what an agent before this one has seen."""
        indices = {_key(gpu): gpu.identity.index for gpu in gpus}
        known = {(count.gpu_uuid or f"index:{count.gpu_index}", count.xid) for count in counts}
        remembered = [
            XidCount(
                indices[key], "" if key.startswith("index:") else key, code, 0, xid.time_seconds, xid.clock_seconds
            )
            for key, gpu in self._gpus.items()
            for code, xid in gpu.xids.items()
            if key in indices and (key, code) not in known
        ]
        return (*counts, *sorted(remembered, key=lambda count: (count.gpu_index, count.xid))) if remembered else counts

    def _save(self, *, changed: bool) -> None:
        if self._file is None:
            return
        due = self._clock.now() - self._saved_at >= _SAVE_SECONDS and any(gpu.faulty for gpu in self._gpus.values())
        if changed or due:
            self._saved_at = self._clock.now()
            kept = {key: _stored(gpu) for key, gpu in self._gpus.items() if gpu.xids or gpu.faulty}
            self._file.save(kept, self._clock)


def _key(reading: GpuReading) -> str:
    return reading.identity.uuid or f"index:{reading.identity.index}"


def _proof_of_reset(gpu: _Gpu, reading: GpuReading, session: DriverSession) -> str:
    """Return what shows that the GPU or the driver began anew since its last reading, "" if nothing does.

    The energy counter runs since the driver was loaded (nvml.h), and a reset needs every session to be left.
    """
    energy = reading.power.energy_joules if reading.power is not None else None
    if energy is not None and gpu.energy_joules is not None and energy < gpu.energy_joules:
        return "the GPU was reset, or its driver loaded anew"
    if gpu.driver_version and session.driver_version and gpu.driver_version != session.driver_version:
        return f"driver {session.driver_version} was loaded"
    return ""


def _with_faults(reading: GpuReading, gpu: _Gpu) -> GpuReading:
    index, uuid = reading.identity.index, reading.identity.uuid
    xids = tuple(XidCount(index, uuid, code, 0, xid.time_seconds) for code, xid in sorted(gpu.xids.items()) if xid.open)
    if gpu.lost_since is None and not xids:
        return replace(reading, repair=gpu.repair) if gpu.repair else reading
    since = gpu.lost_since if reading.state in _LOST else reading.since_seconds
    return replace(reading, since_seconds=since, lost_since_seconds=gpu.lost_since, unrepaired_xids=xids)


def _stored(gpu: _Gpu) -> StoredGpu:
    xids = tuple(StoredXid(code, xid.time_seconds, xid.open) for code, xid in sorted(gpu.xids.items()))
    return StoredGpu(gpu.lost_since, gpu.energy_joules, gpu.driver_version, gpu.advised, xids)
