"""Decide whether one GPU's figures may be acted on: after a contradiction only once they were possible for a minute."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path

from gpuagent.core.snapshot import GpuIdentity
from gpuagent.runtime.state_files import read_state, write_state

log = logging.getLogger(__name__)

TRUST_AFTER_SECONDS = 60.0
"""Time of possible readings without a gap before anybody is acted on again."""
_LONGEST_GAP_SECONDS = 10.0
_SCHEMA = 1
_FORGOTTEN = "it is not known whether the driver's figures were possible before the agent's start"

_Key = tuple[str, str]
"""UUID and PCI address of a GPU."""


class FigureTrust:
    """Trust in one GPU's figures since its last contradiction. It outlives the GPU's handle and NVML's initialization.

    A GPU that has never contradicted itself is trusted from its first reading on.
    """

    def __init__(self, cause: str = "") -> None:
        """Begin with distrust if there is a `cause`, and with trust otherwise."""
        self._cause = cause
        self._possible_since: float | None = None
        self._last: float | None = None

    @property
    def cause(self) -> str:
        """What the last episode began with; "" once the figures are trusted again."""
        return self._cause

    def inherit(self, other: FigureTrust) -> None:
        """Take over the distrust of what may be the same GPU."""
        if other.cause and not self._cause:
            self._cause = other.cause
            self._possible_since = None

    @property
    def refusal(self) -> str:
        """Why nobody may be acted on; "" if nothing forbids it.

        The text is the same for the whole episode: a refusal whose text has not changed is not recorded again.
        """
        if not self._cause:
            return ""
        return f"{self._cause}: no act until they have been possible for {TRUST_AFTER_SECONDS:.0f} s"

    def observe(self, contradiction: str, at: float, longest_gap_seconds: float = 0.0) -> None:
        """Take note of one reading, taken at `at` (CLOCK_BOOTTIME); `contradiction` is "" for a possible one.

        The first contradiction of an episode names it. Two readings that are further apart than
        `longest_gap_seconds`, at least 10 s, say nothing of the time between them.
        """
        last, self._last = self._last, at
        if contradiction:
            self._cause = self._cause or contradiction
            self._possible_since = None
            return
        if not self._cause:
            return
        gap = last is None or at - last > max(longest_gap_seconds, _LONGEST_GAP_SECONDS)
        if self._possible_since is None or gap:
            self._possible_since = at
        elif at - self._possible_since >= TRUST_AFTER_SECONDS:
            self._cause = ""
            self._possible_since = None

    def interrupt(self) -> None:
        """Begin the minute anew: the GPU could not be read."""
        self._possible_since = None


class TrustRegistry:
    """One `FigureTrust` per GPU, by UUID and PCI address; what is distrusted is kept in a small file within one boot.

    Distrust follows whatever it may belong to: another GPU with this UUID or this PCI address, and after a restart of
    the agent every GPU if the file is damaged, or missing although GPUs were seen since the boot.
    """

    def __init__(self, path: Path | None = None, boot_id: str = "", *, seen_before: bool = False) -> None:
        """Load what the last agent of this boot wrote to `path`; None keeps it in memory only.

        `seen_before` says that an agent has seen GPUs since the boot: it has left a file then.
        """
        self._path = path
        self._boot_id = boot_id
        self._trusts: dict[_Key, FigureTrust] = {}
        self._lost = ""
        """Reason to distrust every GPU that is seen for the first time."""
        self._saved: dict[_Key, str] | None = None
        """Content of the file; None if that is not known."""
        if path is not None:
            self._load(path, seen_before=seen_before)

    def for_gpu(self, gpu: GpuIdentity) -> FigureTrust:
        """Return the one of this GPU; one that has not been identified yet has a new one."""
        if not gpu.uuid:
            return FigureTrust()
        key = gpu.uuid, gpu.pci_bus_id.lower()
        trust = self._trusts.get(key)
        if trust is None:
            trust = self._trusts[key] = FigureTrust(self._lost)
        for (uuid, address), other in list(self._trusts.items()):
            if uuid == key[0] or (address and address == key[1]):
                trust.inherit(other)
        return trust

    def save(self) -> None:
        """Write down who is distrusted, if that has changed."""
        causes = {key: trust.cause for key, trust in self._trusts.items() if trust.cause}
        if self._path is None or causes == self._saved:
            return
        document = {
            "schema": _SCHEMA,
            "boot_id": self._boot_id,
            "distrusted": [{"uuid": key[0], "pci_bus_id": key[1], "cause": cause} for key, cause in causes.items()],
        }
        self._saved = causes
        try:
            write_state(self._path, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            log.warning("which GPUs are distrusted cannot be saved: %s", error)
            # An old file would clear a GPU that is distrusted by now; none makes the next agent wait for a minute.
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _load(self, path: Path, *, seen_before: bool) -> None:
        try:
            stored = json.loads(read_state(path))
            if stored["boot_id"] != self._boot_id:
                return
            if stored["schema"] != _SCHEMA:
                raise ValueError(f"schema {stored['schema']!r}")
            for entry in stored["distrusted"]:
                trust = FigureTrust(str(entry["cause"]) or _FORGOTTEN)
                self._trusts[str(entry["uuid"]), str(entry["pci_bus_id"])] = trust
        except FileNotFoundError:
            self._lost = _FORGOTTEN if seen_before else ""
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("%s cannot be read: every GPU is distrusted for a minute: %s", path, error)
            self._lost = _FORGOTTEN
