"""Troubles of the driver, by the faults of the simulated node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import FaultKind
from tests.torture.stage import VICTIM
from tests.torture.trouble import Cost, Sign, Trouble, rises, shows

_BLIND = shows('gpuagent_gpu_blind{gpu="1"', 1)
_LOST = shows('gpuagent_gpu_lost{gpu="1"', 1)
_DOWN = shows("gpuagent_nvml_up", 0)
_NODE = frozenset({Cost.GPUS, Cost.LATE})
_ENDS_THE_SESSION = {Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH}
"""Codes that are true of the whole library: the agent leaves it and begins anew, for all GPUs."""


def driver(
    name: str,
    *faults: Mapping[str, Any],
    costs: frozenset[Cost] = frozenset(),
    sign: Sign | None = None,
    least_seconds: float = 0.6,
) -> Trouble:
    """Faults of the simulated driver, for as long as it lasts."""
    return Trouble(name, lambda stage: stage.faults.holding(*faults), costs, least_seconds=least_seconds, sign=sign)


def _on_one(kind: FaultKind, **details: Any) -> dict[str, Any]:
    return {"kind": str(kind), "gpu": VICTIM, **details}


def of_codes() -> Iterator[Trouble]:
    """Every call on one GPU answers with each code that there is."""
    for code in Code:
        if code is not Code.SUCCESS:
            costs = _NODE if code in _ENDS_THE_SESSION else frozenset()
            yield driver(f"nvml answers {code.name}", _on_one(FaultKind.ERROR, code=int(code)), costs=costs)


def of_calls(symbols: list[str]) -> Iterator[Trouble]:
    """Each call on one GPU hangs, dawdles, or is not there."""
    for symbol in symbols:
        yield driver(f"{symbol} hangs", _on_one(FaultKind.HANG, calls=[symbol]))
        yield driver(f"{symbol} is slow", _on_one(FaultKind.SLOW, calls=[symbol], seconds=0.3))
        yield driver(f"{symbol} fails", _on_one(FaultKind.ERROR, calls=[symbol], code=int(Code.UNKNOWN)))


ALL = (
    driver("every call hangs on one GPU", _on_one(FaultKind.HANG), sign=_BLIND),
    driver("every call is slow on one GPU", _on_one(FaultKind.SLOW, seconds=0.3)),
    driver("a GPU is lost and comes back", _on_one(FaultKind.LOST), sign=_LOST),
    driver("a GPU is lost with another face", _on_one(FaultKind.LOST, code=int(Code.UNKNOWN))),
    # Those behind it move up: the library is left and opened anew, which all GPUs wait for.
    driver(
        "a GPU vanishes and comes back", _on_one(FaultKind.VANISH), costs=_NODE, sign=shows("gpuagent_gpus_readable", 4)
    ),
    driver("every call hangs", {"kind": "hang"}, costs=_NODE, sign=shows("gpuagent_gpus_readable", 0)),
    driver("every call is slow", {"kind": "slow", "seconds": 0.02}, costs=_NODE),
    driver("nvmlInit fails", {"kind": "init_error", "code": "unknown"}),
    driver("the driver is reloaded", {"kind": "driver_reload", "down": 3}, costs=_NODE, sign=_DOWN),
    driver("the driver was upgraded", {"kind": "version_mismatch"}, costs=_NODE, sign=_DOWN),
    driver("the newer process list is missing", {"kind": "missing", "calls": ["nvmlDeviceGet*RunningProcesses_v3"]}),
    driver("garbage values", _on_one(FaultKind.GARBAGE_VALUES), least_seconds=2.5),
    driver("garbage samples", _on_one(FaultKind.GARBAGE_SAMPLES), least_seconds=1.5),
    driver("the process list grows", _on_one(FaultKind.PROCESS_LIST_GROWS, by=500)),
    driver("the process list is shuffled", _on_one(FaultKind.PROCESS_STRIDE)),
    driver("processes hold more than there is", _on_one(FaultKind.IMPOSSIBLE_MEMORY, size="200GiB")),
    driver("memory of processes is not told", _on_one(FaultKind.UNAVAILABLE_MEMORY)),
    driver("a name that is no text", _on_one(FaultKind.NON_UTF8_NAME)),
    driver(
        "a storm of Xids",
        _on_one(FaultKind.XID, xid=31, count=2000, every=0.001),
        sign=rises('gpuagent_xid_events_total{gpu="1"'),
    ),
)
