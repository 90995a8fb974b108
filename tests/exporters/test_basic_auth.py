"""Passwords: right, wrong, many at once."""

from __future__ import annotations

import asyncio
import base64
import threading
from pathlib import Path

import bcrypt
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.http.auth import BasicAuth, Overloaded, PasswordCheck
from gpuagent_exporters.http.web_config import WebConfig
from tests.exporters.wire import Answer, ask, run, serving, until
from tests.fakes.source import FakeSource

HASH = bcrypt.hashpw(b"open:sesame", bcrypt.gensalt(4)).decode()
USERS = {"alice": HASH}


def basic(user: str, password: str) -> str:
    """The header's value."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Checks:
    """Stands in for bcrypt: counts, and waits until it is told to go on."""

    def __init__(self) -> None:
        self.hashes: list[bytes] = []
        self.passwords: list[bytes] = []
        self.at_once = 0
        self.most_at_once = 0
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        with self._lock:
            self.hashes.append(hashed)
            self.passwords.append(password)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self.go_on.wait(20)
        with self._lock:
            self.at_once -= 1
        return password == b"right"


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (basic("alice", "open:sesame"), 200),
        (basic("alice", "open:sesame").replace("Basic", "bAsIc"), 200),
        (basic("alice", "wrong"), 401),
        (basic("alice", "open:sesame\0"), 401),
        (basic("mallory", "open:sesame"), 401),
        (basic("", ""), 401),
        ("Basic !!!", 401),
        ("Basic YWxpY2U=", 401),
        ("Basic é", 401),
        ("Bearer abc", 401),
        ("", 401),
    ],
)
def test_the_right_password_opens(tmp_path: Path, authorization: str, status: int) -> None:
    """Only the user's own password gets an answer, on every path, health included."""
    path = tmp_path / "web.yml"
    path.write_text(yaml.safe_dump({"basic_auth_users": USERS}))

    async def test() -> list[Answer]:
        source = FakeSource()
        async with serving(build_app(source), web_config=WebConfig(path)) as server:
            paths = ("/metrics", "/-/healthy", "/")
            got = [await ask(server, path, authorization=authorization) for path in paths]
        assert bool(source.asked) is (status == 200)
        return got

    answers = run(test())

    assert [answer.status for answer in answers] == [status] * 3
    if status == 401:
        assert answers[0].headers["www-authenticate"] == 'Basic realm="gpuagent", charset="UTF-8"'
        assert "basic_auth_users" in answers[0].json()["message"]


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2y$"])
def test_every_kind_of_bcrypt(prefix: str) -> None:
    """Hashes of htpasswd ($2y$) and of other tools are all the same thing."""
    users = {"alice": prefix + HASH[4:]}

    assert run(PasswordCheck(lambda: users).allows("alice", b"open:sesame"))


def test_long_passwords_as_htpasswd_has_them() -> None:
    """Bcrypt knows the first 72 bytes of a password; what is longer is no fault."""
    long = b"x" * 72
    users = {"alice": bcrypt.hashpw(long, bcrypt.gensalt(4)).decode()}

    assert run(PasswordCheck(lambda: users).allows("alice", long + b"more"))


def test_a_good_password_is_checked_once() -> None:
    """A scrape per second costs one check in all; a wrong password is checked each time."""
    checks = Checks()
    checks.go_on.set()
    passwords = PasswordCheck(lambda: USERS, checks)

    async def test() -> list[bool]:
        right = [await passwords.allows("alice", b"right") for _ in range(5)]
        return right + [await passwords.allows("alice", b"wrong") for _ in range(2)]

    assert run(test()) == [True] * 5 + [False] * 2
    assert len(checks.hashes) == 1 + 2


def test_a_new_hash_forgets_the_old_password() -> None:
    """What is remembered belongs to the hash: after a change of password it is worth nothing."""
    users = dict(USERS)
    passwords = PasswordCheck(lambda: users)

    async def test() -> list[bool]:
        before = await passwords.allows("alice", b"open:sesame")
        users["alice"] = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()
        return [before, await passwords.allows("alice", b"open:sesame")]

    assert run(test()) == [True, False]


def test_other_users_forget_every_password() -> None:
    """What is remembered goes when the file changes, also of users whose hash is the same."""
    checks = Checks()
    checks.go_on.set()
    users = dict(USERS)
    passwords = PasswordCheck(lambda: users, checks)

    async def test() -> None:
        assert await passwords.allows("alice", b"right")
        users["bob"] = HASH
        assert await passwords.allows("alice", b"right")

    run(test())

    assert len(checks.hashes) == 2


def test_what_is_remembered_is_bounded() -> None:
    """Many users do not make the memory grow; the one longest unseen is checked again."""
    checks = Checks()
    checks.go_on.set()
    users = {str(number): HASH for number in range(65)}
    passwords = PasswordCheck(lambda: users, checks)

    async def test() -> None:
        for user in [*users, "64", "0"]:
            assert await passwords.allows(user, b"right")

    run(test())

    assert len(checks.hashes) == 66


@given(
    costs=st.dictionaries(st.sampled_from(["alice", "bob", "carol"]), st.integers(4, 31), min_size=1),
    user=st.sampled_from(["alice", "bob", "carol", "mallory", ""]),
)
def test_a_refusal_tells_of_no_user(costs: dict[str, int], user: str) -> None:
    """Whoever guesses names learns nothing from the time: a refusal is 2^(highest cost) rounds of bcrypt for each."""
    checks = Checks()
    checks.go_on.set()
    users = {name: HASH.replace("$04$", f"${cost:02}$") for name, cost in costs.items()}

    assert not run(PasswordCheck(lambda: users, checks).allows(user, b"wrong"))

    rounds = sum(2 ** int(hashed.split(b"$")[2]) for hashed in checks.hashes)
    assert rounds == 2 ** max(costs.values())


def test_no_password_costs_nothing() -> None:
    """A request without credentials is refused at once: it names no user that could be told of."""
    checks = Checks()
    guarded = BasicAuth(build_app(FakeSource()), lambda: USERS, PasswordCheck(lambda: USERS, checks))

    async def test() -> int:
        async with serving(guarded) as server:
            return (await ask(server, "/metrics")).status

    assert run(test()) == 401
    assert checks.hashes == []


def test_the_hash_for_nobody_is_a_real_one() -> None:
    """Bcrypt does its whole work on it: a hash that it could not read would be rejected at once."""
    seen: list[bytes] = []

    def check(password: bytes, hashed: bytes) -> bool:
        seen.append(hashed)
        return bcrypt.checkpw(password, hashed)

    assert not run(PasswordCheck(lambda: USERS, check).allows("mallory", b"x"))
    assert bcrypt.checkpw(b"x", seen[0]) is False  # and does not raise ValueError


def test_a_flood_does_not_take_the_machine() -> None:
    """Of many wrong passwords two are checked at a time and eight wait; the rest are told to."""
    checks = Checks()
    passwords = PasswordCheck(lambda: USERS, checks)

    async def test() -> list[bool | BaseException]:
        asked = [asyncio.create_task(passwords.allows("alice", str(number).encode())) for number in range(50)]
        await until(lambda: len(checks.hashes) == 2)
        checks.go_on.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    outcomes = run(test())

    assert checks.most_at_once == 2
    assert len(checks.hashes) == 10
    assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) == 40


def test_who_is_known_gets_in_during_a_flood() -> None:
    """Prometheus, whose password is remembered, scrapes on while strangers guess and get 503."""
    checks = Checks()
    guarded = BasicAuth(build_app(FakeSource()), lambda: USERS, PasswordCheck(lambda: USERS, checks))

    async def test() -> list[int]:
        async with serving(guarded) as server:
            checks.go_on.set()
            good, bad = basic("alice", "right"), basic("alice", "wrong")
            first = await ask(server, "/metrics", authorization=good)
            checks.go_on.clear()
            flood = [asyncio.create_task(ask(server, "/metrics", authorization=bad)) for _ in range(20)]
            await until(lambda: any(task.done() for task in flood))
            again = await ask(server, "/metrics", authorization=good)
            checks.go_on.set()
            refused = [answer.status for answer in await asyncio.gather(*flood)]
            assert sorted(set(refused)) == [401, 503]
            return [first.status, again.status]

    assert run(test()) == [200, 200]


@pytest.mark.parametrize(
    ("user", "peer"), [("alice", "192.0.2.2"), ("prometheus", "192.0.2.1")], ids=["another peer", "the same peer"]
)
def test_a_flood_keeps_nobody_else_waiting(user: str, peer: str) -> None:
    """A right password that is not yet known is checked among the first, before the guesses that came earlier."""
    checks = Checks()
    users = {"alice": HASH, "prometheus": HASH}
    passwords = PasswordCheck(lambda: users, checks)

    async def test() -> bool:
        guesses = [asyncio.create_task(passwords.allows("alice", b"wrong", "192.0.2.1")) for _ in range(50)]
        await until(lambda: len(checks.hashes) == 2)
        right = asyncio.create_task(passwords.allows(user, b"right", peer))
        await asyncio.sleep(0)
        checks.go_on.set()
        outcome = await right
        await asyncio.gather(*guesses, return_exceptions=True)
        return outcome

    assert run(test())
    assert checks.passwords.index(b"right") <= 4


def test_the_same_password_at_once_is_checked_once_each_turn() -> None:
    """Requests that come together with one right password wait for one check, not each for its own."""
    checks = Checks()
    passwords = PasswordCheck(lambda: USERS, checks)

    async def test() -> list[bool]:
        asked = [asyncio.create_task(passwords.allows("alice", b"right")) for _ in range(8)]
        await until(lambda: len(checks.hashes) == 2)
        checks.go_on.set()
        return await asyncio.gather(*asked)

    assert run(test()) == [True] * 8
    assert len(checks.hashes) == 2


def test_the_loop_never_waits_for_bcrypt() -> None:
    """A check runs in a thread: the loop, which measures GPUs, goes on meanwhile."""
    threads: list[int] = []

    def check(password: bytes, hashed: bytes) -> bool:
        threads.append(threading.get_ident())
        return False

    users = {"alice": HASH, "bob": HASH.replace("$04$", "$06$")}
    run(PasswordCheck(lambda: users, check).allows("alice", b"wrong"))

    assert len(threads) == 3
    assert threading.get_ident() not in threads
