"""Decide whether one GPU's figures may be acted on: after a contradiction only once they were possible for a minute."""

from __future__ import annotations

from gpuagent.reading import GpuIdentity

TRUST_AFTER_SECONDS = 60.0
"""Time of possible readings without a gap before anybody is acted on again."""
_LONGEST_GAP_SECONDS = 10.0


class FigureTrust:
    """Remembers the last contradiction of one GPU. It outlives the GPU's handle and NVML's initialisation.

    A GPU that has never contradicted itself is trusted from its first reading on.
    """

    def __init__(self) -> None:
        self._cause = ""
        self._possible_since: float | None = None
        self._last: float | None = None

    @property
    def refusal(self) -> str:
        """Why nobody may be acted on; "" if nothing forbids it.

        The text is the same for the whole episode: a refusal whose text has not changed is not recorded again.
        """
        if not self._cause:
            return ""
        return f"{self._cause}: no act until they have been possible for {TRUST_AFTER_SECONDS:.0f} s"

    def see(self, contradiction: str, at: float, longest_gap_seconds: float = 0.0) -> None:
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
    """One `FigureTrust` per GPU, by UUID and PCI address: a GPU whose index has changed takes its own along."""

    def __init__(self) -> None:
        self._trusts: dict[tuple[str, str], FigureTrust] = {}

    def of(self, gpu: GpuIdentity) -> FigureTrust:
        """Return the one of this GPU; one that has not been identified yet has a new one."""
        if not gpu.uuid:
            return FigureTrust()
        return self._trusts.setdefault((gpu.uuid, gpu.pci_bus_id), FigureTrust())
