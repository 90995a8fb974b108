"""The ledger of every shipped scenario, against what the scenario says itself."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable

import pytest

from gpuagent.core.snapshot import GpuReading, GpuState
from gpuagent.core.usage import HolderKind, HolderUsage
from gpuagent_alerts.usage.ledger import Ledger
from gpuagent_simulator.device import Gpu
from gpuagent_simulator.scenario import shipped_scenarios
from gpuagent_simulator.spec import Feature
from tests.exporters.wire import run
from tests.fakes.rig import Rig, rig

SECONDS = 120
SLOW_SECONDS = 15


class Truth:
    """What the scenario itself says, second after second, of the GPUs that can be read."""

    def __init__(self) -> None:
        self.memory: dict[tuple[str, str], float] = defaultdict(float)
        """Byte-seconds by GPU and user; "" is memory that no process with a known user holds."""
        self.work: dict[str, float] = defaultdict(float)
        self.joules: dict[str, float] = defaultdict(float)
        self._energy: dict[str, float] = {}
        self._alive: set[int] = set()

    def add(self, gpu: Gpu, now: float, seconds: float, unproven: Collection[int]) -> None:
        """Add seconds in which the GPU can be read; of `unproven` pids it is not known whose they are."""
        uuid = gpu.uuid.decode()
        for row in gpu.moment().rows:
            if row.process.is_alive(now) or row.process.spec.state == "Z":
                self._alive.add(row.pid)
            user = row.process.user if row.pid in self._alive and row.pid not in unproven else ""
            self.memory[uuid, user] += (row.used_bytes or 0) * seconds
        if Feature.UTILIZATION not in gpu.lacks:
            self.work[uuid] += gpu.engines.percent("gpu") / 100 * seconds

    def add_energy(self, reading: GpuReading) -> None:
        """Add what the GPU's own counter has grown by since this was called last."""
        power, uuid = reading.power, reading.identity.uuid
        joules = None if power is None else power.energy_joules or power.integrated_energy_joules
        if joules is None:
            return
        last = self._energy.get(uuid)
        if last is not None and joules >= last:
            self.joules[uuid] += joules - last
        self._energy[uuid] = joules


def of(usage: Iterable[HolderUsage], uuid: str) -> list[HolderUsage]:
    """Return the usage of one GPU."""
    return [one for one in usage if one.uuid == uuid]


async def tick(one: Rig, name: str, *, slow: bool) -> list[GpuReading]:
    """Return the GPUs a second later."""
    snapshot = await (one.hasty_tick(slow=slow) if name == "hang" else one.tick(slow=slow))
    return list(snapshot.gpus)


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_scenarios())
def test_holders_add_up_to_the_gpu(name: str) -> None:
    """Time, work, memory and energy of all holders are those of the GPU, and each user's memory is what it held."""

    async def test() -> None:
        async with rig(name) as one:
            ledger, truth = Ledger(5.0, most_holders=1000), Truth()
            first: dict[str, float] = {}
            last: dict[str, float] = {}
            for second in range(SECONDS if name != "crowd" else 20):
                slow = second % SLOW_SECONDS == 0
                readings = await tick(one, name, slow=slow)
                snapshot = one.monitor.snapshot
                assert snapshot is not None
                ledger.observe(snapshot)
                now = one.node.scenario_clock.now()
                unproven = {each.pid for each in snapshot.processes if each.holder_unproven}
                for reading in readings:
                    if not (uuid := reading.identity.uuid):
                        continue
                    gpu = one.node._gpus[reading.identity.index]
                    at = reading.time_seconds if reading.state is GpuState.OK else one.clock.now()
                    if reading.state is GpuState.OK and at > last.get(uuid, at):
                        truth.add(gpu, now, at - last[uuid], unproven)
                    last[uuid] = max(at, last.get(uuid, at))
                    if reading.state is GpuState.OK:
                        truth.add_energy(reading)
                    first.setdefault(uuid, at)
            usage = ledger.usage()
            compare(usage, truth, {uuid: last[uuid] - begin for uuid, begin in first.items()}, ledger)

    run(test())


def compare(usage: tuple[HolderUsage, ...], truth: Truth, seconds: dict[str, float], ledger: Ledger) -> None:
    """Hold the ledger's sums against the GPU's own totals, and each user's memory against the truth."""
    totals = {gpu.uuid: gpu for gpu in ledger.totals()}
    for uuid, lasted in seconds.items():
        mine = of(usage, uuid)
        amounts = [one.amounts for one in mine]
        assert sum(each.held_seconds for each in amounts) == pytest.approx(lasted, rel=0.01)
        assert totals[uuid].accounted_seconds == pytest.approx(lasted, rel=0.01)
        assert sum(each.busy_seconds for each in amounts) == pytest.approx(totals[uuid].busy_seconds, rel=0.001)
        assert totals[uuid].busy_seconds == pytest.approx(truth.work[uuid], rel=0.01)
        known = [each.energy_joules for each in amounts if each.energy_joules is not None]
        assert math.fsum(known) == pytest.approx(truth.joules[uuid], rel=0.01, abs=1)
        for each in amounts:
            assert each.idle_seconds <= each.observed_seconds + 1e-6 <= each.held_seconds + 2e-6
        held: dict[str, float] = defaultdict(float)
        for one in mine:
            if one.holder.kind in {HolderKind.PROCESSES, HolderKind.OTHER}:
                held[one.holder.user] += one.amounts.memory_byte_seconds
        for user in {user for gpu, user in truth.memory if gpu == uuid and user}:
            assert held[user] == pytest.approx(truth.memory[uuid, user], rel=0.01), user
