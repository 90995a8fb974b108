"""`scope: job` without a scheduler: who shows that they are one job falls together, and nobody else does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.processes import a_tick_later

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FAMILY = ladder("TooMuch", scope="job")
SLOW: dict[str, Any] = {"top": {"slow_interval": "10m"}}
HAS_A_COPY = """
if not os.fork():
    {then}
    signal.pause()
print("ready", flush=True)
signal.pause()
"""

_READY = 'print("ready", flush=True); signal.pause()\n'
RANKS = (
    'told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}\n'
    "for rank in (0, 1):\n"
    '    subprocess.Popen(["/bin/sleep", f"100000{rank}"], env=told | {"RANK": str(rank)}, start_new_session=True)\n'
    + _READY
)
ONE_GROUP = 'for tenant in (1, 2): subprocess.Popen(["/bin/sleep", f"100000{tenant}"])\n' + _READY
PREFORK = "for _ in (1, 2):\n    if not os.fork():\n        signal.pause()\n" + _READY
SUPERVISED = 'for tenant in (1, 2): subprocess.Popen(["/bin/sleep", f"100000{tenant}"], process_group=0)\n' + _READY
SESSIONS = (
    'for tenant in (1, 2): subprocess.Popen(["/bin/sleep", f"100000{tenant}"], start_new_session=True)\n' + _READY
)
ADOPTED = (
    "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"  # PR_SET_CHILD_SUBREAPER, include/uapi/linux/prctl.h
    "for number in (1, 2):\n"
    "    shell = os.fork()\n"
    "    if not shell:\n"
    "        os.setsid()\n"
    '        subprocess.Popen(["/bin/sleep", f"100000{number}"])\n'
    "        os._exit(0)\n"
    "    os.waitpid(shell, 0)\n" + _READY
)


@pytest.mark.parametrize(
    "code",
    [SUPERVISED, SESSIONS, ADOPTED, ONE_GROUP, PREFORK],
    ids=["two servers of a supervisor", "two sessions", "adopted daemons", "a loop in one group", "forked servers"],
)
def test_one_parent_is_no_family(arena: Arena, code: str) -> None:
    """KILL-03: who a supervisor started or a subreaper adopted falls with no other, whatever their commands."""
    uid = next(arena.uids)
    first, second = arena.crowd.children_of(arena.crowd.python(code, uid))
    guilty, innocent = arena.culprit(first), arena.innocent(second)
    arena.driver.hold(innocent.pid, 5)
    arena.driver.hold(guilty.pid, 30)
    arena.start(ladders=[FAMILY], users=[str(uid)])
    arena.judge()


def test_the_ranks_of_a_server(arena: Arena) -> None:
    """Processes whose environments count them as ranks of one job fall together, each in a session of its own."""
    uid = next(arena.uids)
    for number, rank in enumerate(arena.crowd.children_of(arena.crowd.python(RANKS, uid))):
        arena.driver.hold(arena.culprit(rank).pid, 5 + 25 * number)
    arena.start(ladders=[FAMILY], users=[str(uid)])
    arena.judge()


def test_a_parent_whose_number_another_has(arena: Arena) -> None:
    """KILL-03: an orphan does not fall with a stranger that was given the number of its parent."""
    uid = next(arena.uids)
    parent = arena.crowd.python(HAS_A_COPY.format(then="pass"), uid)
    innocent = arena.innocent(arena.crowd.child_of(parent))
    arena.driver.hold(innocent.pid, 5)
    arena.start(ladders=[FAMILY], remedies=SLOW, users=[str(uid)])
    arena.sees(innocent.pid)
    number = parent.pid
    parent.end()
    a_tick_later()
    guilty = arena.culprit(arena.crowd.given(number, uid))
    arena.driver.hold(guilty.pid, 30)
    arena.judge()


def test_a_child_of_another_user(arena: Arena) -> None:
    """KILL-03: what a process has started for another user, who is allowed as well, may end with it: neither falls."""
    uid, other = next(arena.uids), next(arena.uids)
    then = f"os.setgroups([]); os.setresgid({other}, {other}, {other}); os.setresuid({other}, {other}, {other})"
    code = HAS_A_COPY.format(then=then).replace('print("ready"', f'os.setresuid({uid}, {uid}, {uid}); print("ready"')
    parent = arena.innocent(arena.crowd.python(code))
    innocent = arena.innocent(arena.crowd.child_of(parent))
    arena.driver.hold(innocent.pid, 5)
    arena.driver.hold(parent.pid, 30)
    arena.start(ladders=[FAMILY], users=[str(uid), str(other)])
    assert f"pid {innocent.pid} (" in arena.refused(parent)
    guilty = arena.culprit(arena.crowd.start(uid, name="other"))
    arena.driver.hold(guilty.pid, 25)
    arena.judge()


def test_a_family(arena: Arena) -> None:
    """A process and its copy hold memory: both fall, and another process of the same user does not."""
    uid = next(arena.uids)
    parent = arena.culprit(arena.crowd.python(HAS_A_COPY.format(then="pass"), uid))
    child = arena.culprit(arena.crowd.child_of(parent))
    innocent = arena.innocent(arena.crowd.start(uid, name="other"))
    for living, gib in ((innocent, 5), (child, 5), (parent, 30)):
        arena.driver.hold(living.pid, gib)
    arena.start(ladders=[FAMILY], users=[str(uid)])
    arena.judge()
