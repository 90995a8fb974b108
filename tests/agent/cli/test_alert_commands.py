"""`alerts`, `silence`, `ack` and `receivers` as they are typed, against an agent that answers as it is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.cells import cell_len

from gpuagent.cli.alert_screen import alert_screen, receiver_lines
from gpuagent.cli.cells import Paint
from tests.agent.cli.alerts_document import ALERT, LETTER, NOW, RECEIVER, SILENCE, asked, document, run
from tests.fakes.answering import answering, says


def test_the_screen_tells_everything() -> None:
    """State, severity, age, place, value, summary and who is told; silences; receivers: all in words."""
    code, output, errors, request = asked(document(), "alerts")

    assert (code, errors) == (0, "")
    assert request.startswith(b"GET /api/v1/alerts ")
    assert output.splitlines() == [
        "1 firing, 0 pending, 19 rules",
        "FIRING   GpuMemoryFull, critical",
        "         firing for 2 h 14 min, GPU 3, pid 4242, value 85899345920",
        "         GPU 3: memory is full",
        "         goes to pager, chat [0123456789abcdef]",
        "",
        "Silences in force",
        "023876e1 for 1 h more, by alice",
        '         gpu="3"',
        "         driver work",
        "",
        "RECEIVER                                             QUEUED    DEAD       OLDEST",
        "pager                                                     2       1   1 min 30 s",
        "gpuagent alerts --dead shows what could not be delivered",
    ]


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({}, "GpuMemoryFull is true, fires in 4 min 40 s if it stays so"),
        ({"pending_summary": "filling up"}, "filling up"),
    ],
)
def test_a_pending_alert_does_not_say_what_is_true_of_a_firing_one(annotations: dict[str, str], words: str) -> None:
    """For how long it has been pending, and what becomes of it: by the rule's words, or by some true of any rule."""
    alert = ALERT | {
        "state": "pending", "active_seconds": 20.0, "fires_in_seconds": 280.0,
        "annotations": {"summary": "used for 5 minutes", **annotations},
    }  # fmt: skip
    output = asked(document(alerts=[alert]), "alerts")[1]

    assert "pending for 20 s" in output
    assert words in output
    assert "used for 5 minutes" not in output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"store_problem": "/x is full"}, "STORE    /x is full"),
        ({"failing_rules": [{"group": "g", "rule": "R", "error": "many-to-many"}]}, "RULE     R of group g cannot be"),
        ({"receivers": [RECEIVER | {"off": "410"}]}, "OFF      pager is switched off: 410"),
        ({"alerting": "prometheus"}, "NOTE     alerting: prometheus is configured"),
        ({"alerts": [ALERT | {"silenced_by": ["023876e1"]}]}, "silenced by 023876e1"),
        ({"alerts": [ALERT | {"muted_by": "GpuLost"}]}, "GpuMemoryFull by GpuLost"),
        ({"alerts": [ALERT | {"acknowledged_by": "bob"}]}, "acknowledged by bob"),
        ({"alerts": [ALERT | {"receivers": []}]}, "no receiver"),
        ({"alerts": [ALERT | {"severity": "", "value": None}]}, "GpuMemoryFull, no severity"),
        ({"receivers": []}, "No receivers are configured: alerts go nowhere."),
        ({"alerts": [ALERT | {"value": 1_790_000_000.5}]}, "value 1790000000"),
        ({"alerts": [ALERT | {"value": 0.0625}]}, "value 0.0625"),
    ],
)
def test_what_stands_in_the_way_is_told(changes: dict[str, Any], words: str) -> None:
    """Whatever keeps a person from being told is on the screen."""
    assert words in asked(document(**changes), "alerts")[1]


def test_incidents_come_with_their_alerts() -> None:
    """What goes on is shown by incident, with its key; what has ended is not; what is held back is."""
    incident = {
        "key": "inc-1", "kind": "group", "labels": {"slurm_job": "77", "user": "alice"}, "severity": "critical",
        "starts_at_seconds": NOW - 600, "ends_at_seconds": None, "alerts": [ALERT["fingerprint"]],
        "acknowledged_by": "bob",
    }  # fmt: skip
    over = incident | {"key": "inc-2", "ends_at_seconds": NOW - 5}
    held = [{"receiver": "chat", "messages": 3, "since_seconds": NOW, "alerts": ["A"]}]
    shown = "\n".join(alert_screen(document(incidents=[incident, over], held_back=held), 100, Paint()))

    assert "inc-1" in shown
    assert "inc-1  for 10 min, acknowledged by bob" in shown
    assert "critical, group user alice slurm_job 77" in shown
    assert "chat: 3 messages about A held back by max_messages_per_hour, the first 0 s ago" in shown
    assert "inc-2" not in shown
    told = document(incidents=[incident | {"silenced": True}])
    assert "inc-1  for 10 min, silenced, acknowledged by bob" in "\n".join(alert_screen(told, 100, Paint()))
    told = document(incidents=[incident | {"headline": "CRITICAL node7 GPU 0: api leaking"}])
    assert "CRITICAL node7 GPU 0: api leaking" in "\n".join(alert_screen(told, 100, Paint()))


def test_receivers_show_what_is_held_back() -> None:
    """How much, of what and since when: who waits for a message learns why it does not come."""
    held = [{"receiver": "pager", "messages": 1, "since_seconds": NOW - 120, "alerts": ["A", "B", "C", "D", "E"]}]
    shown = "\n".join(receiver_lines(document(receivers=[RECEIVER], held_back=held), 120, Paint()))
    assert "1 message about A, B, C, D and 1 more held back by max_messages_per_hour, the first 2 min ago" in shown


def test_where_prometheus_tells_no_receiver_is_promised() -> None:
    """What routes would choose is not told to anybody by this agent."""
    shown = "\n".join(alert_screen(document(alerting="prometheus", alerts=[ALERT]), 100, Paint()))
    assert "Prometheus tells of it" in shown
    assert "goes to" not in shown


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_screen_keeps_its_width(width: int) -> None:
    """Long and hostile texts neither widen the screen nor reach the terminal as they are."""
    nasty = "x\x1b[2J\u202e" + "很" * 300
    alert = ALERT | {"name": nasty, "annotations": {"summary": nasty}, "labels": {"gpu": nasty}, "receivers": [nasty]}
    silence = SILENCE | {"comment": nasty, "creator": nasty, "matchers": [nasty]}
    failing = {"group": nasty, "rule": nasty, "error": nasty}
    shown = document(
        alerts=[alert], silences=[silence], receivers=[RECEIVER | {"receiver": nasty, "off": nasty}],
        failing_rules=[failing], store_problem=nasty,
    )  # fmt: skip

    lines = alert_screen(shown, width, Paint())

    assert max(cell_len(line) for line in lines) <= width
    assert all(line.isprintable() for line in lines)


def test_made_up_alerts_say_so() -> None:
    """The screen of a simulated node begins with that word; a real node's never has it."""
    assert asked(document(simulated=True), "alerts")[1].startswith("SIMULATED: ")
    assert "SIMULATED" not in asked(document(simulated=False), "alerts")[1]


def test_the_worst_comes_first() -> None:
    """What fires goes before what is pending, and critical before all else."""
    alerts = [
        ALERT | {"name": "P", "state": "pending"},
        ALERT | {"name": "N", "severity": "none"},
        ALERT | {"name": "W", "severity": "warning"},
        ALERT | {"name": "C"},
    ]
    output = asked(document(alerts=alerts), "alerts")[1]

    heads = [line.split()[1].rstrip(",") for line in output.splitlines() if line.startswith(("FIRING", "PENDING"))]
    assert heads == ["C", "W", "N", "P"]


def test_alerts_as_json() -> None:
    """--json is the agent's document, unchanged."""
    assert json.loads(asked(document(), "alerts", "--json")[1]) == document()


def test_dead_letters_are_listed() -> None:
    """--dead tells what could not be delivered, to whom and why."""
    shown = {"schema": 1, "time_seconds": NOW, "dead": [LETTER]}
    code, output, _, request = asked(shown, "alerts", "--dead")

    assert (code, request.split()[1]) == (0, b"/api/v1/alerts/dead")
    assert output.splitlines()[:4] == [
        "gpa_7",
        "         to pager: firing, queued 1 h ago, 3 attempts",
        "         GpuMemoryFull",
        "         it answered 400",
    ]


def test_nobody_answers() -> None:
    """Without an agent there is nothing to show (3), and nothing can be done (1)."""
    assert run("alerts", "--socket", "/nowhere")[0] == 3
    code, output, errors = run("ack", "X", "--socket", "/nowhere")
    assert (code, output) == (1, "")
    assert "Cannot reach the agent: /nowhere: No such file or directory" in errors


@pytest.mark.parametrize(
    ("words", "answer", "method", "path", "body", "output"),
    [
        (
            ["silence", "add", 'gpu="3"', "a=b", "--for", "2h", "--comment", "c"], SILENCE,
            "POST", "/api/v1/silences", {"matchers": ['gpu="3"', "a=b"], "seconds": 7200.0, "comment": "c"},
            "023876e1\n",
        ),
        (
            ["silence", "add", "GpuMemoryHigh", "gpu=3", "--for", "1h", "--comment", "c"], SILENCE,
            "POST", "/api/v1/silences",
            {"matchers": ["alertname=GpuMemoryHigh", "gpu=3"], "seconds": 3600.0, "comment": "c"}, "023876e1\n",
        ),
        (
            ["silence", "add", "--incident", "inc-1", "--for", "1h", "--comment", "c"], SILENCE,
            "POST", "/api/v1/silences", {"matchers": ['incident="inc-1"'], "seconds": 3600.0, "comment": "c"},
            "023876e1\n",
        ),
        (
            ["ack", "inc-1"], {"acknowledged": ["inc-1"]},
            "POST", "/api/v1/acks", {"alert": "inc-1", "comment": ""}, "Acknowledged incident inc-1.\n",
        ),
        (["silence", "expire", "a/b"], SILENCE, "DELETE", "/api/v1/silences/a%2Fb", None, "The silence has ended.\n"),
        (
            ["ack", "Full"], {"acknowledged": ["f1", "f2"]},
            "POST", "/api/v1/acks", {"alert": "Full", "comment": ""}, "Acknowledged 2 alerts: f1 f2\n",
        ),
        (
            ["ack", "a/b", "--remove"], {"removed": ["f1", "f2"]},
            "DELETE", "/api/v1/acks/a%2Fb", None, "No longer acknowledged: f1 f2\n",
        ),
        (
            ["receivers", "test", "a b"], {"taken": True, "outcome": "delivered"},
            "POST", "/api/v1/receivers/a%20b/test", None, "a b accepted the message.\n",
        ),
        (
            ["receivers", "replay"], {"replayed": 2},
            "POST", "/api/v1/receivers/replay", None, "Queued 2 messages again.\n",
        ),
        (
            ["receivers", "replay", "g&1"], {"replayed": 1},
            "POST", "/api/v1/receivers/replay?id=g%261", None, "Queued 1 message again.\n",
        ),
    ],
)  # fmt: skip
def test_what_the_agent_is_told(words: list[str], answer: Any, method: str, path: str, body: Any, output: str) -> None:
    """Each command asks for what was typed, and says that it is done."""
    code, printed, _, request = asked(answer, *words)
    head, _, sent = request.partition(b"\r\n\r\n")

    assert (code, printed) == (0, output)
    assert head.startswith(f"{method} {path} ".encode())
    assert (json.loads(sent) if sent else None) == body


def test_a_test_that_fails() -> None:
    """A receiver that does not take the message is exit status 1, with the outcome in words."""
    answer = {"taken": False, "outcome": "it refused\x1b the connection"}
    code, output, errors, _ = asked(answer, "receivers", "test", "hook", status="502 Bad Gateway")

    assert (code, output) == (1, "")
    assert "hook did not accept the message: it refused? the connection" in errors


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ({"message": "there is no silence 5"}, "404 Not Found", "The agent refused: there is no silence 5"),
        ({}, "503 Service Unavailable", "The agent refused: HTTP 503"),
        (b"<html>", "200 OK", "another program answered"),
    ],
)
def test_refusals(answer: object, status: str, words: str) -> None:
    """A refusal is exit status 1 with the agent's own words."""
    code, output, errors, _ = asked(answer, "silence", "expire", "5", status=status)

    assert (code, output) == (1, "")
    assert words in errors


def test_a_duration_that_is_none() -> None:
    """A bad --for is a usage error, and no agent is asked."""
    code, _, errors = run("silence", "add", "a=b", "--for", "soon", "--comment", "c", "--socket", "/nowhere")

    assert code == 2
    assert "soon" in errors


def test_silences_are_listed() -> None:
    """Those in force and to come; with --all also those that have ended."""
    pending = SILENCE | {"id": "p", "state": "pending", "starts_at_seconds": NOW + 60}
    expired = SILENCE | {"id": "e", "state": "expired", "ends_at_seconds": NOW - 60}
    shown = document(silences=[SILENCE, pending, expired])

    def heads(*options: str) -> list[str]:
        return [line for line in asked(shown, "silence", "list", *options)[1].splitlines() if line[0] != " "]

    assert heads() == ["023876e1 for 1 h more, by alice", "p        begins in 1 min, by alice"]
    assert heads("--all")[2:] == ["e        ended 1 min ago, by alice"]
    listed = json.loads(asked(shown, "silence", "list", "--json")[1])["silences"]
    assert [silence["id"] for silence in listed] == ["023876e1", "p"]


def test_nothing_to_say_about_what_is_taken_back() -> None:
    """A comment with --remove is a usage error, and no agent is asked."""
    assert run("ack", "X", "--remove", "--comment", "c", "--socket", "/nowhere")[0] == 2


def test_alerts_of_another_node() -> None:
    """--url asks the address that everybody may read; messages are not told of there."""
    with answering(says(document()), unix=False) as url:
        code, output, _ = run("alerts", "--url", url)
        assert (code, output.splitlines()[0]) == (0, "1 firing, 0 pending, 19 rules")
        refused, _, errors = run("alerts", "--dead", "--url", url)
    assert refused == 2
    assert "dead letters" in " ".join(errors.split())
