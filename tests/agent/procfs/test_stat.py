"""The parsers of stat and status, on recorded texts and on hostile names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.procfs.files import ProcessStatus, parse_stat, parse_status
from tests.fakes.proc import stat_text
from tests.tables import table

RECORDED = (
    b"5808 (cat) R 5804 5804 3265 0 -1 4194304 99 0 0 0 0 0 0 0 20 0 1 0 92317 3133440 382"
    b" 18446744073709551615 94808078680064 94808078699945 140722215157464 0 0 0 0 0 0 0 0 0 17 1 0"
    b" 0 0 0 0 94808078715952 94808078717568 94808356065280 140722215160544 140722215160564 "
    b"140722215160564 140722215161835 0\n"
)


def test_a_recorded_stat_file_is_read_by_field_number() -> None:
    """Identity, parent, threads and memory come from the fields of proc_pid_stat(5)."""
    stat = parse_stat(RECORDED)

    assert (stat.pid, stat.name, stat.state, stat.parent_pid) == (5808, b"cat", "R", 5804)
    assert (stat.threads, stat.start_ticks, stat.resident_pages, stat.process_group) == (1, 92317, 382, 5804)
    assert stat.image == (b"cat", b"140722215157464", b"140722215160544", b"140722215160564")


@table("name", [b"foo) Z ", b"foo) Z 1 2 3 (bar", b"a\nb", b"\xff\xfe", b") ) )", b"", b"((sd-pam))", b" "])
def test_a_hostile_name_moves_no_field(name: bytes) -> None:
    """PROC-07: a name that looks like the rest of the line is still only a name."""
    stat = parse_stat(stat_text(7, name, state="S", parent_pid=3, start_ticks=99))

    assert (stat.pid, stat.name, stat.state) == (7, name, "S")
    assert (stat.parent_pid, stat.start_ticks) == (3, 99)


@given(st.binary(max_size=64), st.integers(0, 2**22), st.integers(0, 2**63))
def test_any_name_and_start_time_come_back(name: bytes, pid: int, start_ticks: int) -> None:
    """PROC-07: whatever bytes a process calls itself, its identity is read right."""
    stat = parse_stat(stat_text(pid, name, start_ticks=start_ticks))

    assert (stat.pid, stat.name, stat.start_ticks) == (pid, name, start_ticks)


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else(data: bytes) -> None:
    """A file that is no stat file is a ValueError, never another exception."""
    try:
        parse_stat(data)
    except ValueError:
        return
    assert b") " in data


def test_hidden_addresses_make_no_image() -> None:
    """Where the kernel shows zeros for the addresses, there is nothing to compare."""
    assert parse_stat(stat_text(7, addresses=(0, 0, 0))).image == ()


def test_status_gives_the_real_user_and_the_pids_in_all_namespaces() -> None:
    """The real uid is the first of four; more than one NSpid is a child namespace."""
    status = parse_status(b"Name:\tpython3\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\nNSpid:\t814\t7\n")

    assert status.uid == 1000
    assert status.namespace_pids == (814, 7)


def test_a_name_in_status_cannot_pose_as_another_line() -> None:
    """PROC-07: the kernel escapes a newline in `Name:`, and the first `Uid:` line counts."""
    status = parse_status(b"Name:\tx\\nUid:\\t0\nUid:\t1000\t1000\t1000\t1000\nUid:\t0\t0\t0\t0\n")

    assert status.uid == 1000


@given(st.binary(max_size=200))
def test_an_odd_status_leaves_facts_unknown(data: bytes) -> None:
    """A line that is missing or odd is no exception."""
    status = parse_status(b"Name:\t" + data.replace(b"\n", b"") + b"\nUid:\tx\nNSpid:\t-1\n")

    assert status == ProcessStatus(None, ())
