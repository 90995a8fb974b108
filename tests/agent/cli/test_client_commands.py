"""`release`, `blame` and `workers` as they are typed, against an agent that answers as it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuagent.cli.agent import absent_text
from gpuagent.cli.app import app
from gpuagent.cli.pause import measure_waiting, predict_pause
from gpuagent.cli.workers import VARIABLE, fitting
from tests.fakes.answering import answering, says
from tests.fakes.identified import identified, identity, row, shows
from tests.fakes.source import status_document

GIB = 2**30
DEVICE = {"gpu": 0, "gpu_uuid": "GPU-0", "allocated_bytes": 2 * GIB, "cached_bytes": GIB, "memory_used_bytes": 4 * GIB}
RELEASED: dict[str, Any] = {
    "pid": 7, "collected": False, "took_ms": 12.5, "reserved_before_bytes": 8 * GIB, "reserved_after_bytes": 3 * GIB,
    "before": [DEVICE], "after": [DEVICE], "returned_bytes": 5 * GIB, "result": "released", "detail": "",
    "dry_run": False,
}  # fmt: skip
GROUP: dict[str, Any] = {
    "key": "", "kind": "list", "container": "app.results", "path": "", "file": "app.py", "function": "predict",
    "cause": "outputs are kept with their graph", "remedy": "detach()", "line": 42, "count": 412, "bytes": 2 * GIB,
    "growth_bytes": GIB, "container_length": 412, "allocated_file": "model.py", "allocated_function": "embed",
    "allocated_line": 57, "allocated_bytes": GIB,
}  # fmt: skip
BLAMED: dict[str, Any] = {
    "pid": 7, "window_seconds": 60.0, "verdict": "+1.0 GiB in 60 s is held by `app.results`", "groups": [GROUP],
    "lines": [{"file": "model.py", "function": "forward", "line": 7, "bytes": GIB, "count": 3, "growth_bytes": None}],
    "notes": ["a note\x1b[2J"], "stall_seconds": 0.0123,
}  # fmt: skip
ABSENT = {"error": "x", "reason": "absent", "message": "no app"}


def run(*words: str, **environment: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    result = CliRunner().invoke(app, list(words), env={VARIABLE: None, **environment})
    return result.exit_code, result.stdout, result.stderr


def asked(answer: Any, *words: str, status: str = "200 OK") -> tuple[int, str, str, bytes]:
    """The same, of an agent that answers so; and what it was asked."""
    requests: list[bytes] = []
    is_remedy = words[0] == "release"
    agent = shows(identified(row(7)), answer, status, requests) if is_remedy else says(answer, status, requests)
    with answering(agent) as place:
        result = run(*words, "--socket", str(place))
    return *result, requests[-1]


def test_release_says_how_much_came_back() -> None:
    """By the allocator's count, by the driver's, and what is left."""
    code, output, errors, request = asked(RELEASED, "release", "7", "--collect")

    assert (code, errors) == (0, "")
    assert request.startswith(b"POST /api/v1/clients/7/release ")
    body = json.loads(request.partition(b"\r\n\r\n")[2])
    assert body == {"collect": True, "dry_run": False, "force": False, **identity(7)}
    assert output.splitlines() == [
        "the allocator gave back 5.0 GiB in 12 ms: 8.0 GiB reserved before, 3.0 GiB now",
        "by the driver's count 5.0 GiB came back",
        "GPU 0: tensors hold 2.0 GiB, cached 1.0 GiB",
    ]


def test_release_of_an_app_that_does_not_say() -> None:
    """What is not known is not made up."""
    unknown = dict.fromkeys(("took_ms", "reserved_before_bytes", "reserved_after_bytes", "returned_bytes"))
    _, output, _, _ = asked(RELEASED | unknown | {"after": []}, "release", "7")

    assert output == "the app has emptied its cache, and does not say what it held\n"


def test_memory_that_was_taken_meanwhile_is_said() -> None:
    """Another part of the app may have allocated: that is no negative gift."""
    assert "512.0 MiB more is used than before" in asked(RELEASED | {"returned_bytes": -(GIB // 2)}, "release", "7")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("returned", "before", "after", "code"),
    [
        (0, 28 * GIB, 3 * GIB, 1),
        (GIB, 28 * GIB, 3 * GIB, 1),
        (24 * GIB, 28 * GIB, 3 * GIB, 0),
        (0, 3 * GIB, 3 * GIB, 0),
        (0, 3 * GIB + 2**20, 3 * GIB, 0),
        (None, 28 * GIB, 3 * GIB, 0),
    ],
)
def test_an_app_that_gave_back_less_than_it_says(returned: int | None, before: int, after: int, code: int) -> None:
    """The driver's count comes first, and the command fails: what the app says of itself proves nothing."""
    answer = RELEASED | {"returned_bytes": returned, "reserved_before_bytes": before, "reserved_after_bytes": after}
    found, output, _, _ = asked(answer, "release", "7")
    assert found == code
    assert output.startswith("not released: by the driver's count") is bool(code)
    assert ("the app says that its allocator gave back 25.0 GiB" in output) is bool(code)
    assert asked(answer, "release", "7", "--json")[0] == code


@pytest.mark.parametrize("command", ["release", "blame"])
def test_an_app_without_a_client(command: str) -> None:
    """Exit status 1, and how to put that right."""
    failed = RELEASED | {"result": "failed", "reason": "absent"}
    answer, status = (failed, "200 OK") if command == "release" else (ABSENT, "404 Not Found")
    code, output, errors, _ = asked(answer, command, "7", status=status)

    assert (code, output) == (1, "")
    assert "Process 7 has no client" in errors
    assert "gpuagent_client.start()" in errors


def test_a_process_of_a_scenario_has_no_app(tmp_path: Path) -> None:
    """No package can be installed in it, and no agent is asked."""
    text = absent_text(2**22 + 1, tmp_path / "none")
    assert ("made up by the scenario" in text, "pip install" in text, "first-leak.md" in text) == (True, False, True)


@pytest.mark.parametrize("path", ["/run/gpuagent-simulated-client/client.sock", ""])
def test_an_app_without_a_client_is_told_where_this_agent_listens(path: str) -> None:
    """An app that was started for another socket needs GPUAGENT_SOCKET; where apps cannot connect, none is named."""
    with answering(says({"clients": [], "socket": path})) as place:
        text = absent_text(7, place)
    assert (f"listens for apps at {path};" in text, f"GPUAGENT_SOCKET={path}." in text) == (bool(path), bool(path))


def test_an_app_that_refuses() -> None:
    """Its reason, without what a terminal would obey."""
    refusal = {"error": "x", "reason": "refused", "message": "once a minute\x1b[2J"}
    failed = RELEASED | {"result": "failed", "reason": "refused", "detail": "once a minute\x1b[2J"}
    said = (1, "The app did not do it: once a minute\n")

    assert asked(refusal, "blame", "7", status="502 Bad Gateway")[0:3:2] == said
    assert asked(failed, "release", "7")[0:3:2] == said


def test_a_release_that_the_agent_refuses() -> None:
    """By the same checks as a kill: the reason is said, and the exit status is 1."""
    refused = {
        "pid": 7, "result": "refused", "detail": "bob is not in remedies.allow.users", "dry_run": False,
        "advice": ["Say --force."],
    }  # fmt: skip
    code, output, errors, request = asked(refused, "release", "7", "--dry-run", "--force")

    assert (code, output) == (1, "")
    assert errors == ("The agent did not ask the app: bob is not in remedies.allow.users\n  what to do: Say --force.\n")
    body = json.loads(request.partition(b"\r\n\r\n")[2])
    assert body == {"collect": False, "dry_run": True, "force": True, **identity(7)}


def test_a_dry_run_of_a_release() -> None:
    """Says that the app was not asked, in place of figures that there are none of."""
    dry = {"pid": 7, "result": "dry_run", "detail": "nothing was done: dry run", "dry_run": True}

    assert asked(dry, "release", "7", "--dry-run")[:2] == (0, "Dry run: the app would have been asked.\n")


def test_the_longest_pause_is_handed_on() -> None:
    """Where it is given; without it the app's own limit holds, and an agent that knows of none is asked."""
    request = asked(BLAMED, "blame", "7", "--max-pause", "50ms")[3]

    assert json.loads(request.partition(b"\r\n\r\n")[2])["max_pause_seconds"] == 0.05


@pytest.mark.parametrize(
    ("capabilities", "seccomp", "milliseconds"),
    [("0", "0", 640), ("1ffffffffff", "0", 64), ("1ffffffffff", "2", 640)],
    ids=["user", "root", "container"],
)
def test_the_pause_is_foretold(capabilities: str, seccomp: str, milliseconds: int, tmp_path: Path) -> None:
    """By the anonymous memory, and by what work takes now unless the fork has priority; else nothing is said."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(
        f"VmRSS:\t{3 * 2**20} kB\nRssAnon:\t{2 * 2**20} kB\nCapEff:\t{capabilities}\nSeccomp:\t{seccomp}\n"
    )

    assert (
        predict_pause(7, tmp_path, 10.0) == f"; it is paused twice, for about {milliseconds} ms each (2.0 GiB resident)"
    )
    assert predict_pause(8, tmp_path, 10.0) == ""


def test_an_older_kernel_tells_less(tmp_path: Path) -> None:
    """Without capabilities nothing is in a hurry; without the time of waiting the clock is taken."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(f"VmRSS:\t{2**20} kB\n")

    assert predict_pause(7, tmp_path, 2.0) == "; it is paused twice, for about 68 ms each (1.0 GiB resident)"
    assert 1.0 <= measure_waiting(tmp_path) <= 100.0


def test_blame_prints_the_verdict_first() -> None:
    """In words; then who holds it, where it was allocated, notes and the stall."""
    code, output, errors, request = asked(BLAMED, "blame", "7", "--window", "30s", "--no-lines")

    assert (code, errors) == (0, "")
    assert json.loads(request.partition(b"\r\n\r\n")[2]) == {
        "window_seconds": 30.0, "census": True, "lines": False, "show_keys": False
    }  # fmt: skip
    assert output.splitlines() == [
        "+1.0 GiB in 60 s is held by `app.results`",
        "",
        "held by",
        "              +1.0 GiB  412 tensors  app.results (list of 412 items)  at app.py:42 in predict",
        "                        allocated at model.py:57 in embed",
        "                        outputs are kept with their graph: detach()",
        "",
        "allocated at",
        "               1.0 GiB  3 allocations  at model.py:7 in forward",
        "",
        "note: a note",
        "",
        "The app was paused for 12 ms",
    ]


def test_blame_that_finds_nothing_says_so() -> None:
    """Silence would read like a fault."""
    empty = BLAMED | {"verdict": "", "groups": [], "lines": [], "notes": [], "stall_seconds": None}

    assert asked(empty, "blame", "7")[1] == "Nothing was found that holds growing memory.\n"


@pytest.mark.parametrize("command", ["release", "blame"])
def test_everything_as_json(command: str) -> None:
    """For programs: the agent's document."""
    answer = RELEASED if command == "release" else BLAMED

    assert json.loads(asked(answer, command, "7", "--json")[1]) == answer


def test_a_window_that_is_none() -> None:
    """Told before anybody is asked."""
    code, _, errors = run("blame", "7", "--window", "long")

    assert (code, "--window" in errors) == (2, True)


def gpu(index: int, total_gib: int | None) -> dict[str, Any]:
    """One GPU of the status document."""
    return {"index": index, "memory_total_bytes": None if total_gib is None else total_gib * GIB}


def test_workers_is_the_smaller_of_cores_and_memory() -> None:
    """min(2 x cores + 1, memory / typical), each GPU by itself: no worker lies on two."""
    gpus = [gpu(0, 80), gpu(1, 80), gpu(2, None)]

    assert fitting(gpus, 6 * GIB, 0, cores=32).workers == 26
    assert fitting(gpus, 6 * GIB, 0, cores=4).workers == 9
    assert fitting(gpus, 50 * GIB, 0, cores=32).workers == 2
    assert fitting(gpus, 81 * GIB, 0, cores=32).workers == 0
    assert fitting(gpus, 6 * GIB, 0, cores=32, only=frozenset({1})).gpus == (1,)
    assert fitting([gpu(0, 80), gpu(1, 8)], 6 * GIB, 10 * GIB, cores=32).gpus == (0,)


def test_workers_prints_the_number_alone() -> None:
    """For `gunicorn --workers $(gpuagent workers --typical 6GiB)`."""
    code, output, errors, _ = asked(status_document(), "workers", "--typical", "40GiB")

    assert (code, output, errors) == (0, "2\n", "")
    assert json.loads(asked(status_document(), "workers", "--typical", "40GiB", "--json")[1])["by_memory"] == 2


def test_workers_when_not_even_one_fits() -> None:
    """0 and exit status 1: gunicorn would start one for 0."""
    code, output, errors, _ = asked(status_document(), "workers", "--typical", "100GiB")

    assert (code, output) == (1, "0\n")
    assert "Not even one worker of 100.0 GiB fits on GPU 0" in errors


def test_the_environment_overrides() -> None:
    """GPUAGENT_WORKERS is taken without asking anybody; nonsense in it is told."""
    assert run("workers", **{VARIABLE: "3"})[:2] == (0, "3\n")
    assert run("workers", **{VARIABLE: "many"})[0] == 2


@pytest.mark.parametrize("words", [[], ["--typical", "big"], ["--typical", "6GiB", "--gpu", "x"]])
def test_workers_that_cannot_be_computed(words: list[str]) -> None:
    """Without a size, or with a wrong one: exit status 2, and what is missing."""
    with answering(says(status_document())) as place:
        assert run("workers", *words, "--socket", str(place))[0] == 2


def test_workers_by_what_an_app_declares() -> None:
    """The largest of its workers counts; an app that is not there is told, with status 3."""
    own = {"pid": 7, "app": "web", "declared_minimum_bytes": None, "declared_typical_bytes": 40 * GIB}
    apps = {"schema": 1, "clients": [own, own | {"pid": 8, "declared_typical_bytes": 30 * GIB}]}
    both = status_document() | apps

    assert asked(both, "workers", "--app", "web")[:2] == (0, "2\n")
    assert asked(both, "workers", "--pid", "9")[0] == 3
    assert asked(both | {"clients": []}, "workers", "--app", "web")[0] == 3


def one(pid: int, parent_pid: int, app: str = "web", **changes: Any) -> dict[str, Any]:
    """A connected process, as the agent tells of it."""
    device = {"memory_used_bytes": 7 * GIB, "allocated_bytes": 5 * GIB}
    return {
        "pid": pid, "app": app, "parent_pid": parent_pid, "process": "python3", "command": "gunicorn app:app",
        "declared_typical_bytes": 6 * GIB, "connected_seconds": 75.0, "devices": [device], **changes,
    }  # fmt: skip


def test_the_workers_that_there_are() -> None:
    """By server; the master serves nobody and is no worker, and what is not known is not zero."""
    clients = [
        one(40, 1, "gunicorn", devices=[]), one(42, 40), one(41, 40),
        one(7, 1, "train\x1b", devices=[], declared_typical_bytes=None, command=""),
    ]  # fmt: skip
    code, output, errors, request = asked({"schema": 1, "clients": clients}, "workers", "--list")

    assert (code, errors) == (0, "")
    assert request.startswith(b"GET /api/v1/clients ")
    assert output.splitlines() == [
        "train?: 1 worker",
        "      PID  GPU MEMORY     TENSORS    DECLARED    CONNECTED  COMMAND",
        "        7           -           -           -   1 min 15 s  python3",
        "web: 2 workers of process 40",
        "      PID  GPU MEMORY     TENSORS    DECLARED    CONNECTED  COMMAND",
        "       41     7.0 GiB     5.0 GiB     6.0 GiB   1 min 15 s  gunicorn app:app",
        "       42     7.0 GiB     5.0 GiB     6.0 GiB   1 min 15 s  gunicorn app:app",
    ]


def test_the_workers_of_one_app() -> None:
    """As a document too; where there is none, status 3 and why."""
    clients = {"schema": 1, "clients": [one(41, 40), one(42, 40, "other")]}

    assert [each["pid"] for each in json.loads(asked(clients, "workers", "--list", "--app", "web", "--json")[1])] == [
        41
    ]
    code, _, errors, _ = asked(clients, "workers", "--list", "--app", "absent")
    assert (code, "No such app" in errors) == (3, True)
