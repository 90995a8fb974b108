"""What else is asked of the machine: boot, users, descriptors."""

from __future__ import annotations

import pwd
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock, SystemClock
from gpuagent.procfs import users as users_module
from gpuagent.procfs.machine import boot_id, boot_time_seconds, raise_descriptor_limit
from gpuagent.procfs.users import KNOWN_SECONDS, RETRY_SECONDS, UserNames


@pytest.fixture
def descriptor_limits() -> Iterator[tuple[int, int]]:
    """Limits of this process as they are, put back afterwards."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limits
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_boot_facts_are_read_from_the_tree(tmp_path: Path) -> None:
    """Id and time of the boot come from two files of the kernel."""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("8d2f-1\n")
    (tmp_path / "stat").write_text("cpu  1 2 3\nintr 5 0 0\nbtime 1700000000\nprocesses 9\n")

    assert boot_id(str(tmp_path)) == "8d2f-1"
    assert boot_time_seconds(str(tmp_path)) == 1_700_000_000


def test_missing_boot_facts_are_unknown(tmp_path: Path) -> None:
    """A container may hide them: unknown is empty, and no error."""
    (tmp_path / "stat").write_text("btime now\n")

    assert boot_id(str(tmp_path)) == ""
    assert boot_time_seconds(str(tmp_path)) == 0


def test_this_machine_knows_its_boot() -> None:
    """The boot was before now, and its id is the kernel's."""
    assert 0 < boot_time_seconds() < SystemClock().wall()
    assert len(boot_id()) == len("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")


def test_a_user_has_a_name_and_a_stranger_a_number() -> None:
    """A uid of a container need not exist on the host; it is shown as `ls -l` does."""
    users = UserNames(ManualClock())
    someone = pwd.getpwall()[0]

    assert users(someone.pw_uid) == someone.pw_name
    assert users(3_999_999_999) == "3999999999"
    assert users(-1) == ""


def test_a_uid_is_never_taken_for_an_account_that_is_called_like_it() -> None:
    """KILL-02: `allow.users: ['77001']` means the account of that name, and no process of the uid 77001."""
    account = pwd.struct_passwd(("77001", "x", 77002, 77002, "", "/", "/bin/sh"))
    users = UserNames(ManualClock(), {77002: account}.__getitem__, by_name={"77001": account}.__getitem__)
    assert [users.fresh(uid) for uid in (77001, 77002, 77003)] == ["uid:77001", "77001", "77003"]
    assert users(77001) == "uid:77001"


def test_the_user_database_is_asked_once_and_again_only_for_strangers() -> None:
    """A slow directory server is not asked in every tick, and may come back."""
    clock = ManualClock()
    asked: list[int] = []
    known = {7: pwd.struct_passwd(("ann", "x", 7, 7, "", "/", "/bin/sh"))}

    def database(uid: int) -> pwd.struct_passwd:
        asked.append(uid)
        return known[uid]

    users = UserNames(clock, database)
    assert [users(7), users(7), users(8), users(8)] == ["ann", "ann", "8", "8"]
    assert asked == [7, 8]

    known[8] = pwd.struct_passwd(("bob", "x", 8, 8, "", "/", "/bin/sh"))
    clock.advance(RETRY_SECONDS)
    assert users(8) == "bob"


def test_a_uid_that_goes_over_to_another_user_has_the_new_name() -> None:
    """A name is believed for a minute, and a fresh look does not believe it at all."""
    clock = ManualClock()
    known = {7: pwd.struct_passwd(("svc-ml", "x", 7, 7, "", "/", "/bin/sh"))}
    users = UserNames(clock, known.__getitem__)
    assert users(7) == "svc-ml"

    known[7] = pwd.struct_passwd(("bob", "x", 7, 7, "", "/", "/bin/sh"))
    assert users(7) == "svc-ml"
    assert users.fresh(7) == users(7) == "bob"

    del known[7]
    clock.advance(KNOWN_SECONDS)
    assert users(7) == "7"
    known[7] = pwd.struct_passwd(("bob", "x", 7, 7, "", "/", "/bin/sh"))
    clock.advance(KNOWN_SECONDS)
    assert users(7) == "bob"


def test_a_user_database_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROC-03: nobody waits long for a name, known ones stay, a decision has none, and few threads are left behind."""
    monkeypatch.setattr(users_module, "_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(users_module, "_FRESH_SECONDS", 0.05)
    answers, asked = threading.Event(), []
    answers.set()

    def database(uid: int) -> pwd.struct_passwd:
        asked.append(uid)
        answers.wait(60)
        return pwd.struct_passwd((f"u{uid}", "x", uid, uid, "", "/", "/bin/sh"))

    clock = ManualClock()
    users = UserNames(clock, database, doubt=lambda: "")
    assert users(7) == "u7"
    answers.clear()
    clock.advance(KNOWN_SECONDS)
    assert (users(7), users(8), users.fresh(7)) == ("u7", "uid:8", "")
    assert [users(uid) for uid in range(100, 200)] == [f"uid:{uid}" for uid in range(100, 200)]
    assert len(asked) <= 6
    answers.set()
    while users._waiting:
        time.sleep(0.001)
    clock.advance(KNOWN_SECONDS)
    assert (users(8), users.fresh(7)) == ("u8", "u7")


def test_a_crowd_of_users_is_bounded() -> None:
    """EXP-01: the cache of names does not grow for ever."""

    def database(uid: int) -> pwd.struct_passwd:
        return pwd.struct_passwd((f"u{uid}", "x", uid, uid, "", "/", "/bin/sh"))

    users = UserNames(ManualClock(), database)

    assert [users(uid) for uid in range(5000)] == [f"u{uid}" for uid in range(5000)]
    assert len(users._names) < 5000


def test_the_descriptor_limit_is_raised_and_lowered(descriptor_limits: tuple[int, int]) -> None:
    """EXP-02: the soft limit becomes a sane number, from below as from above."""
    _, hard = descriptor_limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    assert raise_descriptor_limit(128) == 128
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (128, hard)

    assert raise_descriptor_limit(96) == 96
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (96, hard)


def test_the_hard_limit_is_respected(descriptor_limits: tuple[int, int]) -> None:
    """EXP-02: an ordinary user may not go above the hard limit, and gets that much."""
    _, hard = descriptor_limits
    if hard == resource.RLIM_INFINITY:
        pytest.skip("the hard limit of descriptors is infinite here")

    assert raise_descriptor_limit(hard + 1) == hard
