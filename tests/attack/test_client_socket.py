"""The socket for apps, which every user may connect to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.driver import ListedGpu
from tests.attack.processes import Living
from tests.fakes.embedded import hello, stats
from tests.integration.agent import command
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

GIB = 2**30
OVER = {"alert": "OverBudget", "expr": "gpuagent_budget_used_bytes > gpuagent_budget_limit_bytes"}
LADDER = ladder("OverBudget", victim="largest")
CONNECTS = """
one = socket.socket(socket.AF_UNIX)
sys.stdin.readline()
one.connect({path!r})
hello = json.loads({hello!r})
hello["pid"] = os.getpid()
one.sendall(json.dumps(hello).encode() + b"\\n")
one.recv(1)
"""
WAITS = CONNECTS + "signal.pause()"
SPEAKS_BY_A_CHILD = (
    CONNECTS
    + """
one.sendall({first!r})
sys.stdin.readline()
if os.fork() == 0:
    try:
        for _ in range(20):
            one.sendall({second!r})
            one.recv(65536)
    except OSError:
        pass
    os._exit(0)
signal.pause()
"""
)
IS_SILENT = """
held = []
for _ in range({count}):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(1)
    try:
        one.connect({path!r})
    except OSError:
        one.close()
        continue
    held.append(one)
print("ready", flush=True)
signal.pause()
"""


def app(arena: Arena, uid: int, code: str = WAITS, **more: object) -> Living:
    """Start an app called whisper, which connects when it is told to."""
    path = str(arena.folder / "cl" / "client.sock")
    code = code.format(path=path, hello=json.dumps(hello(app="whisper")), **more)
    return arena.crowd.python(f"print('ready', flush=True)\n{code}", uid)


def meet(arena: Arena, *apps: Living) -> None:
    """Have apps connect, and wait until the agent knows them."""
    for each in apps:
        each.say()
    until(lambda: {each.pid for each in apps} <= set(connected(arena)), "the apps are connected")


def connected(arena: Arena) -> dict[int, dict[str, object]]:
    """Return the apps that the agent knows, by pid."""
    assert arena.agent is not None
    return {each["pid"]: each for each in json.loads(arena.agent.get("/api/v1/clients").body)["clients"]}


def test_a_budget_by_app_alone_is_refused(arena: Arena) -> None:
    """KILL-02: what an app calls itself is no account; the check of the configuration says what to add."""
    config = arena.folder / "budgets.yaml"
    for match, code in (({"app": "whisper"}, 1), ({"app": "whisper", "user": "root"}, 0)):
        config.write_text(json.dumps({"budgets": [{"match": match, "memory": "10GiB"}]}), encoding="utf-8")
        checked = command("config", "check", str(config))
        assert (checked.returncode != 0) == bool(code), checked
        assert not code or "a user, unit or container beside it" in checked.stdout + checked.stderr


def test_another_user_takes_the_name_of_an_app(arena: Arena) -> None:
    """KILL-02: what another user's app holds under the same name adds to no account but that user's own."""
    arena.gpus(ListedGpu("GPU-0"), ListedGpu("GPU-1"))
    owner, attacker = next(arena.uids), next(arena.uids)
    budget = {"name": "whisper", "match": {"app": "whisper", "user": str(owner)}, "memory": "10GiB"}
    remedies = {"top": {"budgets": [budget]}}
    arena.start(ladders=[LADDER], rules=[OVER], remedies=remedies, users=[str(owner), str(attacker)])
    innocent, liar, guilty = app(arena, owner), app(arena, attacker), app(arena, owner)
    arena.innocent(innocent)
    arena.innocent(liar)  # it is over nobody's budget
    arena.driver.hold(innocent.pid, 5)
    arena.driver.hold(liar.pid, 30)
    meet(arena, innocent, liar, guilty)
    arena.let_decide()
    arena.culprit(guilty)
    arena.driver.hold(guilty.pid, 15, gpu=1)
    arena.judge()


def test_a_child_speaks_for_its_parent(arena: Arena) -> None:
    """KILL-02: figures that a forked child sends over its parent's connection are not taken for the parent's."""
    uid = next(arena.uids)
    arena.start(users=[str(uid)])

    def figures(gib: int) -> bytes:
        device = {"index": 0, "uuid": "GPU-attacked", "allocated_bytes": gib * GIB, "reserved_bytes": gib * GIB}
        return json.dumps(stats(device)).encode() + b"\n"

    parent = arena.innocent(app(arena, uid, SPEAKS_BY_A_CHILD, first=figures(1), second=figures(70)))
    arena.driver.hold(parent.pid, 2)
    parent.say()
    path = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    until(lambda: float(GIB) in reserved(arena), "the parent's own figures are shown")
    parent.say()
    until(lambda: path.read_text(encoding="ascii").strip(), "the parent has a child")
    until(lambda: not _lives(path), "the child has said what it had to say, or was cut off")
    arena.let_decide()
    assert float(70 * GIB) not in reserved(arena)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 30)
    arena.judge()


def reserved(arena: Arena) -> list[float]:
    """Return what apps say of themselves, as the agent shows it."""
    lines = (line for line in arena.metrics().splitlines() if line.startswith("gpuagent_torch_memory_reserved_bytes{"))
    return [float(line.rpartition(" ")[2]) for line in lines]


def _lives(children: Path) -> bool:
    """Whether the only child has not ended: nobody reaps it."""
    (pid,) = children.read_text(encoding="ascii").split()
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"


def test_silent_connections_of_four_users(arena: Arena) -> None:
    """KILL-02: an app finds a place, however many connections others hold that say nothing."""
    uid = next(arena.uids)
    agent = arena.start(users=[str(uid)])
    path = str(agent.folder / "cl" / "client.sock")
    for _ in range(4):
        arena.crowd.python(IS_SILENT.format(path=path, count=400), next(arena.uids))
    for _ in range(3):
        late = arena.innocent(app(arena, uid))
        meet(arena, late)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 30)
    arena.judge()
