"""Whose user ids are the host's: the kernel tells it of each process, whatever its cgroup is called."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuagent.config.remedy_settings import budgets_of
from gpuagent.procfs.credentials import is_on_host
from gpuagent.procfs.files import RealProc, parse_stat, parse_status
from gpuagent_alerts.remedies.candidates import counts_towards
from tests.agent.config.loading import load, write
from tests.alerts.remedies.processes import PLAIN, reader, running
from tests.fakes.proc import FakeProc, stat_text
from tests.fakes.readings import process, snapshot

MOUNTS = b"30 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
UIDS = b"0 0 4294967295\n"
ON_HOST = {"uid_map": UIDS, "mountinfo": MOUNTS, "status": b"Uid:\t1\t1\t1\t1\nNSpid:\t7\n"}
CONTAINERS = {
    "of its own pid namespace": {"status": b"NSpid:\t7\t1\n"},
    "of an unknown pid namespace": {"status": b"Uid:\t1\t1\t1\t1\n"},
    "of its own user ids": {"uid_map": b"0 100000 65536\n"},
    "of unknown user ids": {"uid_map": PermissionError(13, "no")},
    "of its own root directory": {"mountinfo": b"30 1 0:50 / / rw - overlay overlay rw\n"},
    "of another directory as its root": {"mountinfo": b"30 1 8:1 /srv/rootfs / rw - ext4 /dev/sda1 rw\n"},
    "of an unknown root directory": {"mountinfo": PermissionError(13, "no")},
}


def told(files: Mapping[str, bytes | OSError]) -> bool:
    """What is said of pid 7, the host's init being plain."""
    proc = FakeProc()
    proc.files[1] = {"stat": stat_text(1), **ON_HOST}
    proc.files[7] = {"stat": stat_text(7), **files}
    status = files["status"]
    assert isinstance(status, bytes)
    return is_on_host(proc, 7, parse_stat(stat_text(7)), parse_status(status))


def test_an_ordinary_process_is_on_the_host() -> None:
    """With the namespaces and the root directory of the host's init."""
    assert told(ON_HOST)
    with running(PLAIN) as plain:
        assert reader().read(plain.pid).info.on_host


@pytest.mark.parametrize("files", CONTAINERS.values(), ids=CONTAINERS)
def test_a_container_chooses_its_users(files: Mapping[str, bytes | OSError]) -> None:
    """KILL-04: one fact that differs, or cannot be seen, is enough: its user is no account of this machine."""
    assert not told({**ON_HOST, **files})


@pytest.mark.parametrize("how", [["--user"], ["--pid", "--fork", "--kill-child"]], ids=["user", "pid"])
def test_real_namespaces(how: list[str]) -> None:
    """KILL-04: of real processes too, in whichever namespace."""
    if subprocess.run(["unshare", *how, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("namespaces are not permitted here")
    with running(PLAIN, "unshare", *how) as contained:
        children = Path(f"/proc/{contained.pid}/task/{contained.pid}/children").read_text().split()
        pid = int(children[0]) if children else contained.pid
        stat, status = (RealProc().read(pid, name) for name in ("stat", "status"))
        assert not is_on_host(RealProc(), pid, parse_stat(stat), parse_status(status))


def test_a_budget_by_user_counts_accounts_of_the_host(tmp_path: Path) -> None:
    """KILL-04: a container with the same user id adds nothing to the account, known by name or not."""
    config = load(write(tmp_path, "budgets: [{match: {user: alice}, memory: 1GiB}]"))
    mine = process(7, user="alice", on_host=True)
    others = [
        process(8, user="alice"),
        process(9, user="alice", on_host=True, container_id="c" * 64),
        process(10, user="bob", on_host=True),
    ]
    seen = snapshot([], [mine, *others])
    (budget,) = budgets_of(config.budgets)
    assert [each.pid for each in seen.processes if counts_towards(budget, each, seen)] == [7]
