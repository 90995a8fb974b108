"""One process's memory on one GPU over time, or nobody's: a detector, and what it said last."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuagent.growth import Evidence, Growth, MemoryKey, Verdict
from gpuagent.identity import ProcessId
from gpuagent.leaks.detectors import Beginning, Detector
from gpuagent_alerts.store.leaks import LeakHistory, LeakKey


@dataclass(slots=True, eq=False)
class History:
    """Mutable, and for the sensor alone; `growth` is what others get."""

    id: ProcessId
    key: MemoryKey
    beginning: Beginning
    detector: Detector
    told: tuple[Evidence, ...] = ()
    said: Growth | None = None
    """The detector's own object, to be compared by identity."""
    growth: Growth | None = None
    tick: int = 0
    """The last one in which its process was listed."""
    shown: bool = False
    over: bool = False
    """Forgotten, to make room for another."""
    seen_seconds: float = 0.0
    kept_seconds: float = 0.0
    """When it was last written down; 0 for never."""

    @property
    def address(self) -> LeakKey:
        """Whose it is: a pid that is used again is another address."""
        return LeakKey(self.id, self.key.gpu_uuid, self.key.gpu_instance_id)

    def take(self, said: Growth, to_unix_seconds: float) -> Growth:
        """What the detector says now, for others: in Unix time, and with every standard that this leak has met."""
        self.said = said
        self.shown = True
        since = said.since_seconds
        if said.verdict is not Verdict.LEAKING or said.evidence is None:
            self.told = ()
        elif said.evidence not in self.told:
            self.told = (*self.told, said.evidence)
        self.growth = replace(
            said, since_seconds=None if since is None else since + to_unix_seconds, evidence_told=self.told
        )
        return self.growth

    def kept(self, clock_seconds: float) -> LeakHistory:
        """For a restart."""
        evidence = tuple(str(one) for one in self.told)
        return LeakHistory(self.address, clock_seconds, evidence, self.detector.dump())
