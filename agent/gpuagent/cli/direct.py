"""Reading the GPUs without an agent: the same monitor, for two ticks."""

from __future__ import annotations

import asyncio
import logging
import os

from gpuagent import __version__
from gpuagent.config.models import Config
from gpuagent.core.snapshot import GpuState, Snapshot
from gpuagent.monitor.monitor import Monitor, Pace
from gpuagent.node import real_node
from gpuagent_exporters.status import status_document

_DEADLINE_SECONDS = 5.0
_BETWEEN_SECONDS = 0.25


class DirectReadFailed(Exception):
    """NVML cannot be used, and why."""


def read_direct() -> dict[str, object]:
    """The status document of this node, read once by this process.

    Raises:
        DirectReadFailed: NVML cannot be used, with its reason.
    """
    logging.getLogger().addHandler(logging.NullHandler())
    config = Config()
    node = real_node(config, keep_inventory=False)
    snapshot = asyncio.run(_read(Monitor(node.library, node.processes, node.clock, _PACE, node.place)))
    if not snapshot.node.nvml_initializations:
        raise DirectReadFailed(snapshot.node.nvml_reason or "NVML did not answer in time")
    return status_document(
        snapshot,
        now_seconds=node.clock.now(),
        source="direct",
        version=__version__,
        pid=os.getpid(),
        uptime_seconds=None,
        poll_interval_seconds=config.poll_interval,
        history={},
        history_interval_seconds=0.0,
    )


_PACE = Pace(fresh_seconds=_DEADLINE_SECONDS, deadline_seconds=_DEADLINE_SECONDS)


async def _read(monitor: Monitor) -> Snapshot:
    """Two ticks where there are GPUs: utilisation is told between two readings."""
    snapshot = await monitor.tick()
    if any(gpu.state is GpuState.OK for gpu in snapshot.gpus):
        await asyncio.sleep(_BETWEEN_SECONDS)
        snapshot = await monitor.tick()
    await monitor.close()
    return snapshot
