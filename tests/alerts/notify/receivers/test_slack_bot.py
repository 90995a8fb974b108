"""A Slack channel by a bot's token: one thread for each incident."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from gpuagent_alerts.alert import Incident, Message, News
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, Reason
from gpuagent_alerts.notify.receivers.base import PictureOf, no_picture
from gpuagent_alerts.notify.receivers.http import HttpClient
from gpuagent_alerts.notify.receivers.slack import (
    KEPT_SECONDS,
    MemoryThreads,
    SlackBot,
    StoredThreads,
    Thread,
    ThreadStore,
)
from gpuagent_alerts.secret import Secret
from gpuagent_alerts.store.database import Store
from tests.alerts.incident_messages import BRIEFING, KEY, about, incident
from tests.alerts.messages import CONTEXT, NOW, message
from tests.alerts.notify.receivers.sink import Received, Reply, Sink, sink

TOKEN = "xoxb-tops3cret"
CHANNEL = "C0123456789"


def slack(errors: Mapping[str, str] | None = None) -> Callable[[Received], Reply]:
    """Slack's API: posts get a `ts` each; `errors` are what methods answer instead, with status 200."""
    posted = 0

    def answer(request: Received) -> Reply:
        nonlocal posted
        method = request.path.rpartition("/")[2]
        if error := (errors or {}).get(method):
            return Reply(200, body=json.dumps({"ok": False, "error": error}).encode())
        posted += 1
        # The message comes back, before what follows it.
        echo = {"ok": True, "message": json.loads(request.body), "channel": CHANNEL, "ts": f"{posted}.000100"}
        return Reply(200, body=json.dumps(echo).encode())

    return answer


def told(receiver: Sink) -> list[tuple[str, str, bool]]:
    """Methods that were called, with the thread or message they were about, and whether the channel saw it."""
    found = []
    for request in receiver.asked:
        body = json.loads(request.body)
        assert body["channel"] == CHANNEL
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        where = body.get("thread_ts") or body.get("ts") or ""
        found.append((request.path.rpartition("/")[2], where, bool(body.get("reply_broadcast"))))
    return found


def send(
    receiver: Sink, threads: ThreadStore, messages: Sequence[Message], picture_of: PictureOf = no_picture
) -> list[DeliveryOutcome]:
    """Send one after the other."""

    async def run() -> list[DeliveryOutcome]:
        http = HttpClient()
        try:
            bot = SlackBot(http, Secret("token", TOKEN), "ops", CHANNEL, threads, receiver.url, picture_of)
            return [await bot.send(one, CONTEXT) for one in messages]
        finally:
            await http.close()

    return asyncio.run(run())


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine."""
    return asyncio.run(work)


def test_an_incident_is_one_thread() -> None:
    """The first message is the root; what follows is told in its thread, also if it begins again."""
    story = [about(incident(news)) for news in (News.BEGAN, News.WORSENED, News.REMINDER, News.ENDED, News.BEGAN)]
    with sink(slack()) as receiver:
        outcomes = send(receiver, MemoryThreads(), story)
        calls = told(receiver)

    assert all(outcome.ok for outcome in outcomes)
    assert calls == [
        ("chat.postMessage", "", False),
        ("chat.postMessage", "1.000100", True),
        ("chat.update", "1.000100", False),
        ("chat.postMessage", "1.000100", True),
        ("chat.update", "1.000100", False),
        ("chat.postMessage", "1.000100", False),
        ("chat.update", "1.000100", False),
        ("chat.postMessage", "1.000100", True),
        ("chat.update", "1.000100", False),
    ]


@pytest.mark.parametrize("fails", ["", "getUploadURLExternal", "upload", "completeUploadExternal"])
def test_a_picture_follows_in_the_thread(fails: str) -> None:
    """What begins and worsens has a picture in its thread; a step that fails costs the picture alone."""
    shared: list[Any] = []

    async def drawn(_: Incident) -> bytes:
        return b"\x89PNG drawn"

    def answer(request: Received) -> Reply:
        method = request.path.rpartition("/")[2].removeprefix("files.")
        if method == fails:
            return Reply(500 if fails == "upload" else 200, body=b'{"ok": false, "error": "missing_scope"}')
        if method == "upload":
            assert (request.body, "authorization" in request.headers) == (b"\x89PNG drawn", False)
            return Reply()
        if method == "getUploadURLExternal":
            asked = parse_qs(request.body.decode())
            assert (asked["length"], asked["alt_txt"]) == (["10"], [BRIEFING.headline])
            return Reply(
                body=json.dumps({"ok": True, "upload_url": f"{receiver.url}/upload", "file_id": "F1"}).encode()
            )
        if method == "completeUploadExternal":
            shared.append(json.loads(request.body))
        return posts(request)

    posts = slack()
    with sink(answer) as receiver:
        story = [about(incident(news)) for news in (News.BEGAN, News.WORSENED, News.ENDED)]
        outcomes = send(receiver, MemoryThreads(), story, drawn)

    assert all(outcome.ok for outcome in outcomes)
    assert [(one["files"][0]["id"], one["channel_id"], one["thread_ts"]) for one in shared] == (
        [] if fails else [("F1", CHANNEL, "1.000100")] * 2
    )


def test_each_incident_has_its_own() -> None:
    """Two incidents, and an alert that belongs to none, do not share a thread."""
    other = incident(key="inc-other")
    with sink(slack()) as receiver:
        send(receiver, MemoryThreads(), [about(incident()), about(other), message()])
        assert [where for _, where, _ in told(receiver)] == ["", "", ""]


def test_a_restart_goes_on_in_the_thread(tmp_path: Path) -> None:
    """The root's name is in the state file."""
    with sink(slack()) as receiver:
        store = Store(tmp_path / "state.db")
        send(receiver, StoredThreads(store), [about(incident())])
        store.close()
        store = Store(tmp_path / "state.db")
        send(receiver, StoredThreads(store), [about(incident(News.WORSENED))])
        store.close()
        assert told(receiver)[1:] == [("chat.postMessage", "1.000100", True), ("chat.update", "1.000100", False)]


def test_old_threads_are_forgotten(tmp_path: Path) -> None:
    """The table does not grow for ever."""
    threads = StoredThreads(store := Store(tmp_path / "state.db"))
    run(threads.keep("ops", CHANNEL, "old", Thread("1.0", CHANNEL), NOW - KEPT_SECONDS - 1))
    run(threads.keep("ops", CHANNEL, KEY, Thread("2.0", CHANNEL), NOW))

    assert run(threads.find("ops", CHANNEL, "old")) is None
    assert run(threads.find("ops", CHANNEL, KEY)) == Thread("2.0", CHANNEL)
    assert run(threads.find("other", CHANNEL, KEY)) is None
    store.close()


def test_a_thread_that_somebody_deleted() -> None:
    """The message is not lost: it begins a thread of its own."""
    threads = MemoryThreads()
    run(threads.keep("ops", CHANNEL, KEY, Thread("gone", CHANNEL), NOW))
    answer = slack()

    def behave(request: Received) -> Reply:
        if json.loads(request.body).get("thread_ts") == "gone":
            return Reply(200, body=b'{"ok": false, "error": "thread_not_found"}')
        return answer(request)

    with sink(behave) as receiver:
        (outcome,) = send(receiver, threads, [about(incident(News.WORSENED))])
        assert outcome.ok
        assert told(receiver) == [("chat.postMessage", "gone", True), ("chat.postMessage", "", False)]
    assert run(threads.find("ops", CHANNEL, KEY)) == Thread("1.000100", CHANNEL)


def test_a_root_that_cannot_be_changed_costs_nothing() -> None:
    """What was told is told: a failed update does not send it again."""
    with sink(slack({"chat.update": "cant_update_message"})) as receiver:
        outcomes = send(receiver, MemoryThreads(), [about(incident()), about(incident(News.ENDED))])
    assert [outcome.reason for outcome in outcomes] == [Reason.DELIVERED, Reason.DELIVERED]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("invalid_auth", Reason.MISCONFIGURED),
        ("not_in_channel", Reason.MISCONFIGURED),
        ("ratelimited", Reason.SLOW_DOWN),
        ("msg_too_long", Reason.REFUSED),
        ("internal_error", Reason.UNAVAILABLE),
        (f"<{TOKEN}>", Reason.UNAVAILABLE),
    ],
)
def test_a_refusal_with_status_200(error: str, reason: Reason) -> None:
    """Slack answers 200 to what it did not take; it is no delivery, and what it says shows no token."""
    with sink(slack({"chat.postMessage": error})) as receiver:
        (outcome,) = send(receiver, MemoryThreads(), [about(incident())])
    assert (outcome.reason, TOKEN in str(outcome)) == (reason, False)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'"ok"'])
def test_an_answer_that_is_not_slacks(body: bytes) -> None:
    """A proxy's page with status 200 is no delivery."""
    with sink(lambda _: Reply(200, body=body)) as receiver:
        (outcome,) = send(receiver, MemoryThreads(), [message()])
    assert outcome.reason is Reason.UNAVAILABLE


def test_an_update_calls_nobody() -> None:
    """What somebody is at is rewritten where it stands: no post, neither in the channel nor in the thread."""
    began, updated = about(incident(News.BEGAN)), about(incident(News.UPDATED))
    with sink(slack()) as receiver:
        outcomes = send(receiver, MemoryThreads(), [updated, began, updated])
    assert all(one.ok for one in outcomes)
    assert told(receiver) == [("chat.postMessage", "", False), ("chat.update", "1.000100", False)]
    with sink(slack({"chat.update": "message_not_found"})) as receiver:
        assert all(one.ok for one in send(receiver, MemoryThreads(), [began, updated]))
