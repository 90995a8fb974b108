"""Attacks over HTTP, by names and by texts: what they could change is what is done, or what is told of it."""

from __future__ import annotations

import base64
import http.client
import json

import pytest

from tests.alerts.notify.receivers.sink import Received, Reply, sink
from tests.attack.arena import Arena, ladder
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SECRET = "5eCr3t-of-the-receiver"


def end_a_holder(arena: Arena, uid: int) -> None:
    """Have another process hold memory for real, and judge."""
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 30)
    arena.judge()


@pytest.mark.parametrize("host", ["rebound.example.org", "rebound.example.org:80", "127.0.0.1.example.org", ""])
def test_a_page_of_another_site(arena: Arena, host: str) -> None:
    """WEB-03: under a name that is not this machine's nothing is served and nothing is commanded (DNS rebinding)."""
    uid = next(arena.uids)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 5)
    agent = arena.start(users=[str(uid)])
    for path in (
        "/metrics",
        "/api/v1/status",
        "/api/v1/remedies",
        f"/api/v1/processes/{innocent.pid}/kill",
        "/nothing",
    ):
        answer = agent.get(path, Host=host)
        assert 400 <= answer.status < 500, (path, answer)
        assert str(innocent.pid) not in answer.text
    assert agent.get("/metrics").status == 200
    end_a_holder(arena, uid)


def test_secrets_are_quoted_back(arena: Arena) -> None:
    """ALERT-07: what a receiver quotes of our own request, however it is written, shows nowhere."""
    forms = (base64.b64encode(f"user:{SECRET}".encode()).decode(), SECRET, SECRET.encode().hex())

    def quotes(request: Received) -> Reply:
        return Reply(500, body=f"no: {' '.join(forms)} {request.headers}".encode())

    uid = next(arena.uids)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 5)
    with sink(quotes) as receiver:
        hook = {"name": "hook", "webhook": {"url": f"http://user:{SECRET}@127.0.0.1:{receiver.port}/hook"}}
        agent = arena.start(remedies={"top": {"receivers": [hook]}}, users=[str(uid)])
        guilty = arena.culprit(arena.crowd.start(uid))
        arena.driver.hold(guilty.pid, 30)
        assert guilty.ends_within()
        until(lambda: "cannot deliver to hook" in agent.log(), "a message was refused")
        arena.let_decide()
        shown = [agent.log(), agent.get("/api/v1/alerts").text, agent.get("/api/v1/status").text, arena.metrics()]
        shown += [agent.command(*words).stdout for words in (("receivers", "list"), ("alerts", "--dead"))]
        assert [form for form in forms if any(form in text for text in shown)] == []
        arena.judge()


def test_a_command_line_against_a_pattern(arena: Arena) -> None:
    """PROC-07: sixty letters that a pattern cannot match hold up nothing: the agent goes on, and acts."""
    uid, attacker = next(arena.uids), next(arena.uids)
    long = arena.innocent(
        arena.crowd.python("print('ready', flush=True); signal.pause()", attacker, words=["a" * 60 + "!"])
    )
    arena.driver.hold(long.pid, 5)
    processes = {"redact": ["(a+)+$"], "preallocates": ["(a+)+$"]}
    arena.start(remedies={"top": {"processes": processes}}, users=[str(uid), str(attacker)])
    arena.sees(long.pid)
    arena.let_decide()
    end_a_holder(arena, uid)


@pytest.mark.parametrize("name", ["vllm", "VLLM::EngineCor", "trtllm-serve"])
def test_a_name_that_excuses_a_full_gpu(arena: Arena, name: str) -> None:
    """ALERT-03: on a GPU that several share, no process silences the alert by the name of a server."""
    uid, attacker = next(arena.uids), next(arena.uids)
    quiet = "unless on (gpu, uuid) gpuagent_gpu_memory_preallocated == 1"
    rule = {"alert": "High", "expr": f"gpuagent_gpu_memory_used_ratio > 0.9 {quiet}"}
    innocent = arena.innocent(arena.crowd.start(uid))
    guilty = arena.culprit(arena.crowd.start(attacker, name=name))
    arena.driver.hold(innocent.pid, 33)
    arena.driver.hold(guilty.pid, 43)
    ladders = [ladder("High", victim="largest")]
    arena.start(ladders=ladders, rules=[rule], users=[str(uid), str(attacker)])
    arena.fires("High")
    arena.judge()


def test_commands_over_tcp(arena: Arena) -> None:
    """WEB-01: the TCP address reads only: whatever is asked of it, nobody is ended."""
    uid = next(arena.uids)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 5)
    agent = arena.start(users=[str(uid)])
    arena.sees(innocent.pid)
    body = json.dumps({"force": True})
    for method in ("POST", "PUT", "DELETE", "PATCH", "GET"):
        connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=10)
        try:
            connection.request(method, f"/api/v1/processes/{innocent.pid}/kill", body)
            assert 400 <= connection.getresponse().status < 500
        finally:
            connection.close()
    end_a_holder(arena, uid)
