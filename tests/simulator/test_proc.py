"""The text of /proc for processes that do not exist."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.process import FIRST_NEWCOMER_PID, FallbackProc
from gpuagent_simulator.scenario import parse_scenario
from tests.tables import table

PID = 4194305
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class OneRealProcess:
    """Stands for the real /proc."""

    def read(self, pid: int, name: str) -> bytes:
        return f"{pid} {name}".encode()

    def link(self, pid: int, name: str) -> str:
        return f"{pid} {name}"

    def owner(self, pid: int) -> int:
        return pid + 1

    def exists(self, pid: int) -> bool:
        return pid == 1

    def threads(self, pid: int) -> list[int]:
        return [pid]


def _node(process: str, *, fallback: FallbackProc | None = None) -> tuple[SimulatedNode, ManualClock]:
    clock = ManualClock(now=5000.0)
    scenario = parse_scenario(f"gpus: [{{model: h100, processes: [{process}]}}]")
    return SimulatedNode(scenario, clock, fallback=fallback), clock


def test_stat_has_the_fields_of_proc_5() -> None:
    """Name in parentheses, state, parent, start in ticks since boot, resident pages: 52 fields."""
    node, clock = _node("{name: python3, memory: 1, from: 10s, age: 4s, resident: 8MiB}")
    clock.advance(10)
    text = node.proc.read(PID, "stat").decode()
    fields = text.replace("(python3)", "name").split()

    assert text.startswith(f"{PID} (python3) S 1 ")
    assert len(fields) == 52
    assert int(fields[21]) == (5000 + 10 - 4) * TICKS
    assert int(fields[23]) == 8 * 1024**2 // PAGE_BYTES


def test_start_is_unix_time_by_the_boot_time() -> None:
    """`boot_time_seconds` plus the ticks is when the process started, by the clock of the story."""
    node, _ = _node("{name: a, memory: 1, age: 30s}")
    ticks = int(node.proc.read(PID, "stat").split()[21])

    assert node.proc.boot_time_seconds + ticks / TICKS == 1_700_000_000 - 30


def test_nobody_is_older_than_the_machine() -> None:
    """An age beyond the boot is cut off: ticks are never negative."""
    node, _ = _node("{name: a, memory: 1, age: 12d}")

    assert int(node.proc.read(PID, "stat").split()[21]) == 1


def test_status() -> None:
    """Name, state, uids, namespace pid and resident size, as the kernel words them."""
    node, _ = _node("{name: train, user: alice, uid: 1007, state: D, memory: 1, resident: 3MiB}")
    lines = dict(line.split(":", 1) for line in node.proc.read(PID, "status").decode().splitlines())

    assert lines["Name"].strip() == "train"
    assert lines["State"].split()[0] == "D"
    assert lines["Uid"].split() == ["1007"] * 4
    assert lines["NSpid"].split() == [str(PID)]
    assert lines["VmRSS"].split() == ["3072", "kB"]
    assert node.proc.owner(PID) == 1007
    assert node.proc.user_name(1007) == "alice"
    assert node.proc.user_name(1) is None


@table(
    "process, name, text",
    [
        ("{name: a-name-longer-than-15, memory: 1}", "comm", b"a-name-longer-t\n"),
        ("{name: a, memory: 1, command: python3 x.py --y}", "cmdline", b"python3\0x.py\0--y\0"),
        ("{name: a, memory: 1, command: [sh, -c, 'a b']}", "cmdline", b"sh\0-c\0a b\0"),
        ("{name: a, memory: 1}", "cmdline", b"a\0"),
        ("{name: a, memory: 1, state: Z, command: x y}", "cmdline", b""),
        ("{name: 'bad\\xff', memory: 1}", "comm", b"bad\xff\n"),
        ("{name: 'foo) Z ', memory: 1}", "comm", b"foo) Z \n"),
        ("{name: a, memory: 1, cgroup: /system.slice/x.service}", "cgroup", b"0::/system.slice/x.service\n"),
        (
            '{name: a, memory: 1, cgroup: "4:memory:/docker/ab\\n1:name=systemd:/docker/ab\\n"}',
            "cgroup",
            b"4:memory:/docker/ab\n1:name=systemd:/docker/ab\n",
        ),
        ("{name: 'w{n}', memory: 1, cgroup: '/g{gpu}/{pid}'}", "cgroup", b"0::/g0/4194305\n"),
        ("{name: a, memory: 1, resident: 8KiB}", "statm", b"4 2 0 0 0 2 0\n"),
    ],
)
def test_small_files(process: str, name: str, text: bytes) -> None:
    """PROC-07: names and words are bytes of any kind, rendered as the kernel does."""
    node, _ = _node(process)

    assert node.proc.read(PID, name) == text


def test_links() -> None:
    """The host's pid namespace and the program; nothing else."""
    node, _ = _node("{name: a, memory: 1, command: /usr/bin/python3 x}")

    assert node.proc.link(PID, "ns/pid") == "pid:[4026531836]"
    assert node.proc.link(PID, "exe") == "/usr/bin/python3"
    with pytest.raises(FileNotFoundError):
        node.proc.link(PID, "cwd")
    with pytest.raises(FileNotFoundError):
        node.proc.read(PID, "environ")


def test_made_up_users_have_uids_of_their_own() -> None:
    """Users without a uid get one that no real user has; root is 0."""
    node, _ = _node("{name: a, memory: 1, user: 'user{n}', count: 2}, {name: b, memory: 1}")

    owners = [node.proc.owner(PID + number) for number in range(3)]
    assert owners == [200001, 200002, 0]
    assert node.proc.user_name(200002) == "user1"


def test_a_process_is_there_while_it_lives() -> None:
    """PROC-01: before its time, after its death and after its end /proc knows nothing of it."""
    node, clock = _node("{name: a, memory: 1, from: 5s, dead_after: 5s, until: 20s}")
    asked: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (node.proc.read, (PID, "stat")),
        (node.proc.link, (PID, "exe")),
        (node.proc.owner, (PID,)),
    ]
    seen = []
    for _ in range(4):
        seen.append(node.proc.exists(PID))
        for call, arguments in asked:
            if seen[-1]:
                assert call(*arguments) is not None
            else:
                with pytest.raises(FileNotFoundError):
                    call(*arguments)
        clock.advance(5)

    assert seen == [False, True, False, False]


def test_real_pids_come_from_the_real_proc() -> None:
    """What is not made up is asked of the fallback; the list's newcomers are nobody's."""
    node, _ = _node("{name: a, memory: 1}", fallback=OneRealProcess())

    assert node.proc.read(7, "comm") == b"7 comm"
    assert node.proc.link(7, "exe") == "7 exe"
    assert node.proc.owner(7) == 8
    assert (node.proc.exists(1), node.proc.exists(2)) == (True, False)
    assert not node.proc.exists(FIRST_NEWCOMER_PID)


def test_without_a_real_proc_other_pids_do_not_exist() -> None:
    """A story that stands alone knows its own processes only."""
    node, _ = _node("{name: a, memory: 1}")

    assert not node.proc.exists(1)
    with pytest.raises(FileNotFoundError):
        node.proc.read(1, "stat")
