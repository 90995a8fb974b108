"""Who commands the agent has a name, or a number where the user database is silent."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading

import pytest

from gpuagent.core import accounts
from gpuagent.core.accounts import describe_user, user_name


def test_the_name_of_a_user() -> None:
    """The database tells the name; a uid without one is named by its number."""
    account = pwd.getpwuid(os.getuid())
    assert asyncio.run(user_name(account.pw_uid)) == account.pw_name
    assert asyncio.run(describe_user(account.pw_uid)) == f"{account.pw_name} (uid {account.pw_uid})"
    assert asyncio.run(describe_user(2**31 - 77)) == f"uid {2**31 - 77}"
    assert asyncio.run(user_name(2**40)) == ""


def test_a_database_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a name, the loop does not at all, and few threads are left behind."""
    begun, ends = threading.Semaphore(0), threading.Event()

    def silent(_: int) -> pwd.struct_passwd:
        assert threading.current_thread().daemon
        begun.release()
        ends.wait(60)
        raise KeyError

    async def ask() -> None:
        assert set(await asyncio.gather(*(describe_user(uid) for uid in range(4)))) == {
            f"uid {uid}" for uid in range(4)
        }
        for uid in range(40):
            assert await describe_user(uid) == f"uid {uid}"

    monkeypatch.setattr(pwd, "getpwuid", silent)
    monkeypatch.setattr(accounts, "_PATIENCE_SECONDS", 0.1)
    try:
        asyncio.run(ask())
        assert len(accounts._WAITING) == accounts._MOST_WAITING
    finally:
        ends.set()
