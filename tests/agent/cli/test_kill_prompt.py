"""What a person sees before they say yes: enough to recognize each process, in any terminal from 60 columns on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuagent.cli.kill import question
from gpuagent.cli.remedy_requests import Unidentified, choose, namespace_refusal
from tests.fakes.identified import GIB, identified, row

LEAKER = row(
    4242, unit="whisper.service", command="python3 serve.py --model large-v3 --port 8000 --rank 3", verdict="leaking",
    evidence="allocator", growth_bytes_per_second=GIB / 3600, parent_pid=4200,
)  # fmt: skip
PARENT = row(4200, process="gunicorn", memory_used_bytes=GIB)
BESIDE = row(77, user="alice", process="jupyter", memory_used_bytes=12 * GIB)


def test_one_process() -> None:
    """Who, what, where, how much, how old, whose child, whether it leaks; and who else is on its GPU."""
    document = identified(LEAKER, PARENT, BESIDE)
    assert question([choose(document, 4242)], document, 70) == [
        "pid 4242: python3 of svc-ml",
        "   command python3 serve.py --model large-v3 --port 8000 --rank 3",
        "      unit whisper.service",
        "     holds 21.0 GiB on GPU 0",
        "   started 3 h 12 min ago",
        "    parent pid 4200 (gunicorn of svc-ml), which is on GPU 0",
        "      leak leaking (allocator), 1.0 GiB/h",
        "Also on GPU 0, and left alone:",
        "  pid 77  alice  12.0 GiB  jupyter",
        "  pid 4200  svc-ml  1.0 GiB  gunicorn",
    ]


def test_a_dry_run_of_rules_is_none_of_a_kill() -> None:
    """Whoever relies on `remedies.dry_run` is told before they say yes that it does not hold back their own hand."""
    document = identified(row(7), row(8))
    document["agent"]["dry_run"] = True
    assert question([choose(document, 7)], document, 100)[-1] == (
        "remedies.dry_run holds for rules; this is by hand: it acts."
    )
    document["agent"]["dry_run"] = False
    assert not any("dry_run" in line for line in question([choose(document, 7)], document, 100))


def test_a_container_on_two_gpus() -> None:
    """Its name and digits, the memory on each GPU, and the others on both; a restart says what else it ends."""
    inside = row(7, container_id="c0ffee" + "0" * 58, container_name="ns/pod/web", unit="a.service")
    there = inside | {"gpu": 1, "gpu_uuid": "GPU-1", "memory_used_bytes": 30 * GIB}
    document = identified(inside, there, BESIDE, age_seconds=90.0, stale=True)
    lines = question([choose(document, 7)], document, 80, restart_unit=True)
    assert " container ns/pod/web (c0ffee000000)" in lines
    assert "      unit a.service, all of which is restarted" in lines
    assert "     holds 30.0 GiB on GPU 1, 21.0 GiB on GPU 0" in lines
    assert lines[-3:] == [
        "STALE: read 1 min 30 s ago.", "Also on GPU 0, 1, and left alone:",
        "  GPU 0  pid 77  alice  12.0 GiB  jupyter",
    ]  # fmt: skip


def test_several_and_a_crowd() -> None:
    """Each of the chosen has its lines; of the others eight are shown, the largest first, and the rest are counted."""
    crowd = [row(pid, user="bob", memory_used_bytes=pid * GIB) for pid in range(20, 31)]
    document = identified(row(7), row(8), *crowd)
    lines = question([choose(document, 7), choose(document, 8)], document, 80)
    assert [line for line in lines if line.startswith("pid ")] == [
        "pid 7: python3 of svc-ml",
        "pid 8: python3 of svc-ml",
    ]
    assert [line.split()[1] for line in lines if line.startswith("  pid ")] == [str(pid) for pid in range(30, 22, -1)]
    assert lines[-1] == "  and 3 more"


def test_alone_on_the_gpu() -> None:
    """Said, and not left out: nobody else can be hurt."""
    document = identified(row(7, age_seconds=None, memory_used_bytes=None, command="", user="", process=""))
    lines = question([choose(document, 7)], document, 60)
    assert lines[0] == "pid 7: ? of an unknown user"
    assert lines[-1] == "Nothing else runs on GPU 0."
    assert "   started at an unknown time" in lines


@given(
    width=st.integers(60, 80),
    text=st.text(max_size=400),
    name=st.text(max_size=40),
    crowd=st.integers(0, 20),
)
def test_no_line_is_too_long_or_odd(width: int, text: str, name: str, crowd: int) -> None:
    """Whatever a process calls itself: lines fit, a command takes four of them, and nothing reaches the terminal."""
    victim = row(7, command=text, process=name, user=name, unit=name, container_id="c" * 64, container_name=name)
    document = identified(victim, *(row(pid, process=name, user=name) for pid in range(10, 10 + crowd)))
    lines = question([choose(document, 7)], document, width)
    assert max(map(cell_len, lines)) <= width
    assert all(line.isprintable() for line in lines)
    assert len(lines) < 40


@pytest.mark.parametrize(
    ("rows", "pid", "gpu", "says"),
    [
        ([row(7)], 8, "", "no process with pid 8 is on a GPU"),
        ([row(7)], 7, "1", "no process with pid 7 is on GPU 1"),
        ([row(7, start_ticks=None)], 7, "", "cannot be identified"),
        ([row(7, boot_id=None)], 7, "", "cannot be identified"),
    ],
)
def test_who_cannot_be_named_is_not_chosen(rows: list[dict[str, object]], pid: int, gpu: str, says: str) -> None:
    """Without a start time and a boot there is nothing to tell a process from the next one with its pid."""
    with pytest.raises(Unidentified, match=says):
        choose(identified(*rows), pid, gpu)


def test_the_gpu_that_was_named_comes_first() -> None:
    """By index or UUID; without one, where it holds most."""
    document = identified(row(7), row(7, gpu=1, gpu_uuid="GPU-1", memory_used_bytes=GIB))
    assert [choose(document, 7, gpu).first["gpu"] for gpu in ("", "0", "1", "GPU-1")] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("agents", "own", "says"),
    [
        (4026531836, 4026531836, ""),
        (4026531836, 4026532999, "in another pid namespace"),
        (None, 4026531836, "may be another process"),
        (4026531836, 0, "may be another process"),
        (None, 0, "may be another process"),
    ],
)
def test_a_pid_is_a_number_of_a_namespace(agents: int | None, own: int, says: str) -> None:
    """Both must be known, and the same: two that are unknown are not the same."""
    refusal = namespace_refusal(agents, own)
    assert (says in refusal, bool(refusal)) == (True, bool(says))
