"""What the ledger counts for whom, in hand-made snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from gpuagent.core.hardware import Memory, Power, Utilization
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import (
    AllocatorReading,
    ClientReading,
    GpuIdentity,
    GpuReading,
    GpuState,
    NodeReading,
    NvmlState,
    ProcessInfo,
    ProcessReading,
    ProcessState,
    ProcessUtilization,
    Reconciliation,
    Snapshot,
)
from gpuagent.core.usage import NOBODY, OTHER, UNKNOWN, UNOBSERVED, Amounts, Holder, HolderKind
from gpuagent_alerts.usage.ledger import Ledger

GIB = 2**30
IDLE = ProcessUtilization(0.0, 0.0, 0.0, 0.0)
UUID = "GPU-0"


def work(ratio: float) -> ProcessUtilization:
    """Return a sample of a process that works."""
    return ProcessUtilization(ratio, 0.1, 0.0, 0.0)


def process(
    pid: int, user: str, gib: int | None, utilization: ProcessUtilization | None, **more: Any
) -> ProcessReading:
    """Return a process that lives, or what `more` says of it."""
    info = ProcessInfo(ProcessId("boot", pid, 1), "python3", 1000, user)
    used = None if gib is None else gib * GIB
    reading = ProcessReading(0, UUID, pid, ProcessState.LIVE, info, used, "C", utilization)
    return reading._replace(**more)


class Node:
    """A GPU of 80 GiB whose ledger is fed every second."""

    def __init__(self, most_holders: int = 32) -> None:
        self.ledger = Ledger(5.0, most_holders)
        self.now = 1000.0
        self.joules = 0.0
        self.look()

    def look(
        self, *processes: ProcessReading, busy: float | None = None, seconds: float = 1.0, joules: float = 0.0,
        state: GpuState = GpuState.OK, clients: dict[int, ClientReading] | None = None, known: bool = True,
    ) -> None:  # fmt: skip
        """Let the ledger see the node after so many seconds, in which the GPU has used `joules`."""
        self.now += seconds
        self.joules += joules
        used = sum(each.used_bytes or 0 for each in processes)
        dead = sum(each.used_bytes or 0 for each in processes if each.state is ProcessState.DEAD)
        gpu = GpuReading(
            GpuIdentity(0, UUID),
            state,
            time_seconds=self.now,
            memory=Memory(80 * GIB, used, 80 * GIB - used),
            reconciliation=Reconciliation(used - dead, dead, 0),
            utilization=Utilization(busy, busy),
            power=Power(energy_joules=self.joules),
            processes_known=known,
        )
        node = NodeReading(NvmlState.READY)
        self.ledger.observe(
            Snapshot(1.7e9 + self.now, self.now, node, (gpu,), processes, clients=clients or {})
        )  # fmt: skip

    def of(self, user: str | Holder) -> Amounts:
        """What a user, or a holder, has used; nothing where it has no account."""
        holder = Holder(user=user) if isinstance(user, str) else user
        return next((one.amounts for one in self.ledger.usage() if one.holder == holder), Amounts())


def test_a_second_is_split_by_memory_and_work_by_utilization() -> None:
    """The GPU's second goes to both by what they hold, its work by what they do."""
    node = Node()

    node.look(process(1, "ann", 60, work(0.2)), process(2, "bob", 20, work(0.6)), busy=0.8)

    ann, bob = node.of("ann"), node.of("bob")
    assert (ann.held_seconds, bob.held_seconds) == pytest.approx((0.75, 0.25))
    assert (ann.busy_seconds, bob.busy_seconds) == pytest.approx((0.2, 0.6))
    assert (ann.memory_byte_seconds, bob.memory_byte_seconds) == (60 * GIB, 20 * GIB)


def test_no_sample_is_neither_work_nor_idleness() -> None:
    """Only an observation of 0 % is idle; of a process without a sample nothing is said."""
    node = Node()

    node.look(process(1, "ann", 40, None), process(2, "bob", 40, IDLE), busy=0.5)

    assert node.of("ann")[1:4] == (0.0, 0.0, 0.0)
    assert node.of("bob")[1:4] == pytest.approx((0.5, 0.0, 0.5))
    assert node.of(UNKNOWN).busy_seconds == pytest.approx(0.5)


def test_who_is_alone_has_done_the_work() -> None:
    """Where one holder has the GPU, its utilization is the holder's, also without samples of processes."""
    node = Node()

    node.look(process(1, "ann", 4, None), process(2, "ann", 4, None), busy=0.5)

    assert node.of("ann")[:4] == pytest.approx((1.0, 1.0, 0.5, 0.0))


def test_media_engines_work_for_somebody() -> None:
    """While the JPEG engine is busy nobody is idle: the driver does not tell for whom it works."""
    node, one = Node(), process(1, "ann", 4, IDLE)
    node.look(one, busy=0.0)
    gpu = GpuReading(
        GpuIdentity(0, UUID), GpuState.OK, time_seconds=node.now + 1, utilization=Utilization(0.0, 0.0, jpeg_ratio=0.5),
        processes_known=True,
    )  # fmt: skip

    node.ledger.observe(Snapshot(0, node.now + 1, NodeReading(NvmlState.READY), (gpu,), (one,)))

    assert node.of("ann").idle_seconds == pytest.approx(1.0)
    assert node.of("ann").held_seconds == pytest.approx(2.0)


def test_memory_that_is_not_told_is_shared_equally() -> None:
    """With a process whose memory the driver does not tell, a second is split by the number of processes."""
    node = Node()

    node.look(process(1, "ann", None, None), process(2, "bob", 20, None))

    assert node.of("ann").held_seconds == node.of("bob").held_seconds == 0.5


def test_the_dead_are_still_who_they_were() -> None:
    """Memory of a process that has ended is its owner's; of one that was never known, nobody's."""
    node, ann = Node(), process(1, "ann", 30, None)
    dead = ann._replace(state=ProcessState.DEAD, info=None, former=ann.info)

    node.look(dead, process(2, "", 30, None, state=ProcessState.DEAD, info=None))

    assert node.of("ann").held_seconds == node.of(UNKNOWN).held_seconds == 0.5


def test_a_process_that_may_not_hold_its_memory_is_unknown() -> None:
    """Where a pid may have been another's before, its user pays nothing."""
    node = Node()

    node.look(process(1, "ann", 30, None, holder_unproven=True))

    assert node.of("ann") == Amounts()
    assert node.of(UNKNOWN).held_seconds == 1.0


def test_mps_clients_are_told_apart() -> None:
    """Each client of MPS is its own user's, and the server's memory its own."""
    node = Node()

    node.look(
        process(1, "root", 1, None, kinds="C"), process(2, "ann", 2, work(0.3), kinds="M"),
        process(3, "bob", 1, work(0.1), kinds="M"), busy=0.4,
    )  # fmt: skip

    assert [node.of(user).held_seconds for user in ("root", "ann", "bob")] == [0.25, 0.5, 0.25]
    assert [node.of(user).busy_seconds for user in ("root", "ann", "bob")] == pytest.approx([0.0, 0.3, 0.1])


@pytest.mark.parametrize(
    ("state", "seconds", "holder"),
    [
        (GpuState.OK, 1.0, NOBODY),
        (GpuState.ASLEEP, 1.0, NOBODY),
        (GpuState.LOST, 1.0, UNOBSERVED),
        (GpuState.BLIND, 1.0, UNOBSERVED),
        (GpuState.OK, 60.0, UNOBSERVED),
        (GpuState.ASLEEP, 60.0, UNOBSERVED),
    ],
)
def test_time_without_a_process(state: GpuState, seconds: float, holder: Holder) -> None:
    """A free GPU is nobody's; one that was not read, or not for too long, was not observed."""
    node = Node()

    node.look(state=state, seconds=seconds)

    assert node.of(holder).held_seconds == seconds


def test_a_list_that_was_not_read_is_not_a_free_gpu() -> None:
    """Without the list of processes the GPU's time is somebody's who is unknown."""
    node = Node()

    node.look(known=False)

    assert node.of(UNKNOWN).held_seconds == 1.0


def test_energy_follows_the_work_since_it_was_read_last() -> None:
    """Energy that comes every few seconds is split by all that was done since, and a counter that falls begins anew."""
    node = Node()
    node.look(process(1, "ann", 10, work(0.5)), busy=0.5)
    node.look(process(1, "ann", 10, work(0.5)), process(2, "bob", 70, work(0.5)), busy=1.0, joules=300)
    node.look(busy=0.0, joules=50)
    node.look(busy=0.0, joules=-1000)

    assert (node.of("ann").energy_joules, node.of("bob").energy_joules) == pytest.approx((225, 75))
    assert node.of(NOBODY).energy_joules == pytest.approx(50)


def test_memory_that_no_tensor_ever_had() -> None:
    """What an app's allocator holds beyond the peak of its tensors is counted, and of others nothing is said."""
    node = Node()
    reading = AllocatorReading(allocated_bytes=1 * GIB, allocated_peak_bytes=6 * GIB, reserved_bytes=10 * GIB)
    client = ClientReading(ProcessId("boot", 1, 1), "app", devices={UUID: reading})

    node.look(process(1, "ann", 11, None), process(2, "bob", 11, None), clients={1: client})

    assert node.of("ann").untouched_byte_seconds == 4 * GIB
    assert node.of("bob").untouched_byte_seconds is None


def test_idle_for_since_all_have_been_idle() -> None:
    """A holder has been idle since the last of its processes has, and is not while one works."""
    node = Node()
    since = node.now - 600
    idle = process(1, "ann", 1, IDLE, idle_since_seconds=since)

    node.look(idle, process(2, "ann", 1, IDLE, idle_since_seconds=since + 100))
    both = next(one.idle_for_seconds for one in node.ledger.usage() if one.holder.user == "ann")
    node.look(idle, process(2, "ann", 1, work(0.1)))
    one_works = next(one.idle_for_seconds for one in node.ledger.usage() if one.holder.user == "ann")

    assert both == pytest.approx(501)
    assert one_works is None


def test_series_are_bounded_and_lose_nothing() -> None:
    """Holders beyond the bound are summed up, and the sum over all stays that of the GPU."""
    node = Node(most_holders=3)

    for second in range(20):
        node.look(process(second + 1, f"user{second}", 10, None))
        if second % 4 == 3:
            node.ledger.take_changes(node.now)

    usage = node.ledger.usage()
    assert sum(one.holder.kind is HolderKind.PROCESSES for one in usage) == 3
    assert node.of(OTHER).held_seconds == pytest.approx(17.0)
    assert sum(one.amounts.held_seconds for one in usage) == pytest.approx(20.0)


def test_a_holder_that_is_long_gone_makes_room() -> None:
    """After a quarter of an hour a new holder takes the series of the one that was not seen for longest."""
    node = Node(most_holders=1)
    node.look(process(1, "ann", 10, None))
    for _ in range(901):
        node.look()
    node.ledger.take_changes(node.now)

    node.look(process(2, "bob", 10, None))

    assert node.of("bob").held_seconds == 1.0
    assert node.of("ann") == Amounts()


def test_changes_are_what_came_since_the_last_ones() -> None:
    """What is taken for the daily table is taken once, that of holders without series too."""
    node = Node(most_holders=1)
    node.look(process(1, "ann", 10, None))
    first = {one.holder.user: one.amounts.held_seconds for one in node.ledger.take_changes(node.now)}
    node.look(process(1, "ann", 10, None), process(2, "bob", 10, None))
    second = {one.holder.user: one.amounts.held_seconds for one in node.ledger.take_changes(node.now)}

    assert first == {"ann": 1.0, "": 0.0}
    assert second == {"ann": 0.5, "bob": 0.5, "": 0.0}
    assert [one for one in node.ledger.take_changes(node.now) if one.amounts.held_seconds] == []


def test_counters_go_on_after_a_restart() -> None:
    """What one ledger dumped another goes on from."""
    node, after = Node(), Node()
    node.look(process(1, "ann", 10, work(0.5)), busy=0.5, joules=10)

    after.ledger.restore(node.ledger.dump())
    after.joules = 0.0
    after.look()
    after.look(process(1, "ann", 10, work(0.5)), busy=0.5, joules=10)

    assert after.of("ann").held_seconds == 2.0
    assert after.ledger.totals()[0].busy_seconds == 1.0


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema":1,"gpus":[["a"]],"holders":[]}', '{"schema":2,"gpus":[],"holders":[]}',
             '{"schema":1,"gpus":[["a",0,1,1]],"holders":[["a","processes","","","","","",NaN]]}',
             '{"schema":1,"gpus":[],"holders":[["b","none","","","","","","",1,1,1,1,1,null,null]]}'],
)  # fmt: skip
def test_counters_that_cannot_be_read_are_refused(text: str) -> None:
    """Whatever is in the store: it raises ValueError, and nothing is restored."""
    ledger = Ledger(5.0)

    with pytest.raises(ValueError):  # noqa: PT011  whichever check finds it
        ledger.restore(text)
    assert ledger.usage() == ()


def test_the_split_lasts_until_something_changes() -> None:
    """Ticks in which nothing changed split the second as the last one did."""
    node, one = Node(), process(1, "ann", 10, work(0.5))

    for _ in range(3):
        node.look(one, busy=0.5)
    node.look(one, process(2, "bob", 10, work(0.5)), busy=0.5)

    assert node.of("ann")[:3] == (3.5, 3.5, 1.75)
