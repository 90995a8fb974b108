"""A Slack channel: by its incoming webhook, or by a bot's token, which can keep an incident in one thread.

An incoming webhook can only post. With a token the first message of an incident is its root: it is brought up to date
as the incident goes on (`chat.update`), and what happens is told in its thread, worsenings and reminders in the channel
too.
Slack takes 1 message per second and channel (https://docs.slack.dev/apis/web-api/rate-limits).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import urlencode

from gpuagent_alerts.alert import Incident, Message, News
from gpuagent_alerts.notify.outbox.attempt import DELIVERED, DeliveryOutcome, DeliveryPace, MessageContext, Reason
from gpuagent_alerts.notify.receivers.base import (
    Dependencies,
    HttpRequest,
    PictureOf,
    ReceiverConfig,
    ReceiverKind,
    Transport,
    no_picture,
    url_of,
)
from gpuagent_alerts.notify.receivers.settings import URL_KEYS, KeyType, key, url_file
from gpuagent_alerts.notify.receivers.slack_message import payload
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.secret import HiddenText, Secret
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_alerts.store.tables import Column, Table, text, unix_time, word

if TYPE_CHECKING:
    from gpuagent_alerts.notify.receivers.http import HttpClient

API_URL: Final = "https://slack.com/api"
_MAX_ANSWER_BYTES = 256 * 1024
"""Longest answer read: it repeats the message, and may have the thread's id behind it."""
_MAX_ALT = 1000
_LOUD = frozenset({News.BEGAN, News.WORSENED, News.RESTARTED, News.REMINDER})
"""Told in the channel, too: a reply in a thread alone calls nobody. What begins has a thread if it begins again, or if
its receiver was away."""
_THREAD_IS_GONE = frozenset({"thread_not_found", "message_not_found", "cannot_reply_to_message"})
_PUT_RIGHT = frozenset({
    "invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "missing_scope",
    "no_permission", "channel_not_found", "not_in_channel", "is_archived", "access_denied", "org_login_required",
    "ekm_access_denied", "team_access_not_granted", "restricted_action",
})  # fmt: skip
"""Errors that a person has to put right at Slack or in the configuration."""
_REFUSED = frozenset({"invalid_blocks", "invalid_blocks_format", "msg_too_long", "msg_blocks_too_long", "no_text"})


@dataclass(frozen=True, slots=True)
class SlackConfig:
    """A Slack channel: by its incoming webhook, or by a bot's token, which keeps each incident in one thread."""

    url: str | HiddenText | None = key(
        KeyType.SECRET_WEB_URL, "The URL of the incoming webhook. Better in a file: it is a password.", default=None
    )
    url_file: Path | None = url_file()
    token_file: Path | None = key(
        KeyType.SECRET_FILE,
        "Instead of a URL: a file with a bot's token (`xoxb-...`) that has the scope `chat:write`, and for pictures "
        "`files:write`. Needs `channel`.",
        default=None,
    )
    channel: str | None = key(
        KeyType.TEXT,
        "With `token_file`: the channel's id (`C0123456789`). The bot has to be a member.",
        default=None,
    )


@dataclass(frozen=True, slots=True)
class Slack:
    """Posts to an incoming webhook."""

    http: HttpClient
    url: Secret

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        """Post the message. Raises Misconfigured."""
        body = json.dumps(payload(message, context)).encode()
        return await self.http.send(HttpRequest(self.url.line(), body, {"Content-Type": "application/json"}))


@dataclass(frozen=True, slots=True)
class SlackBot:
    """Posts to a channel in a bot's name, each incident in a thread of its own."""

    http: HttpClient
    token: Secret
    receiver: str
    channel: str
    threads: ThreadStore
    api_url: str = API_URL
    picture_of: PictureOf = no_picture

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        """Post the message. Raises Misconfigured."""
        token = self.token.line()
        said = payload(message, context)
        incident = message.incident
        if incident is None:
            return (await self._call(token, "chat.postMessage", said))[0]
        thread = await self.threads.find(self.receiver, self.channel, incident.key)
        if incident.news is News.UPDATED:
            return await self._rewrite(token, thread, said)
        if thread is not None:
            loud = {"reply_broadcast": True} if incident.news in _LOUD else {}
            outcome, answer = await self._call(token, "chat.postMessage", said | loud | {"thread_ts": thread.ts})
            if outcome.ok:
                # The root is for who looks at the channel later: that it is old is no reason to tell all again.
                await self._call(token, "chat.update", said | {"ts": thread.ts}, thread.channel_id)
                await self._add_picture(token, incident, thread)
                return outcome
            if answer.get("error") not in _THREAD_IS_GONE:
                return outcome
        outcome, answer = await self._call(token, "chat.postMessage", said)
        ts, channel_id = answer.get("ts"), answer.get("channel")
        if outcome.ok and isinstance(ts, str) and isinstance(channel_id, str):
            thread = Thread(ts, channel_id)
            await self.threads.keep(self.receiver, self.channel, incident.key, thread, context.now)
            await self._add_picture(token, incident, thread)
        return outcome

    async def _rewrite(self, token: str, thread: Thread | None, said: Mapping[str, Any]) -> DeliveryOutcome:
        """Rewrite the first message of a thread: nobody is called. What is gone has nothing to rewrite."""
        if thread is None:
            return DELIVERED
        outcome, answer = await self._call(token, "chat.update", {**said, "ts": thread.ts}, thread.channel_id)
        return DELIVERED if answer.get("error") in _THREAD_IS_GONE else outcome

    async def _add_picture(self, token: str, incident: Incident, thread: Thread) -> None:
        """Put a picture into a thread (https://docs.slack.dev/messaging/working-with-files).

        The message has arrived without it: whatever fails here, such as a token without `files:write`, costs the
        picture alone.
        """
        picture = await self.picture_of(incident) if incident.news in _LOUD else b""
        if not picture:
            return
        headline = incident.briefing.headline
        asked = {"filename": "memory.png", "length": str(len(picture)), "alt_txt": headline[:_MAX_ALT]}
        form = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": f"Bearer {token}"}
        body = urlencode(asked).encode()
        outcome, data = await self.http.ask(
            HttpRequest(f"{self.api_url}/files.getUploadURLExternal", body, form, secrets=(token,)), _MAX_ANSWER_BYTES
        )
        answer = _judge(data)[1] if outcome.ok else {}
        url, file_id = answer.get("upload_url"), answer.get("file_id")
        if not answer.get("ok") or not isinstance(url, str) or not isinstance(file_id, str):
            return
        sent = await self.http.send(HttpRequest(url, picture, {"Content-Type": "application/octet-stream"}))
        if sent.ok:
            told = {
                "files": [{"id": file_id, "title": "Memory over time"}],
                "channel_id": thread.channel_id,
                "thread_ts": thread.ts,
            }
            await self._call(token, "files.completeUploadExternal", told)

    async def _call(
        self, token: str, method: str, document: Mapping[str, Any], channel: str = ""
    ) -> tuple[DeliveryOutcome, Mapping[str, Any]]:
        """Call a method; return what came of it, and the answer."""
        body = json.dumps({**document, "channel": channel or self.channel}).encode()
        headers = {"Content-Type": "application/json; charset=utf-8", "Authorization": f"Bearer {token}"}
        request = HttpRequest(f"{self.api_url}/{method}", body, headers, secrets=(token,))
        outcome, data = await self.http.ask(request, _MAX_ANSWER_BYTES)
        if not outcome.ok:
            return outcome, {}
        return _judge(data)


def _judge(data: bytes) -> tuple[DeliveryOutcome, Mapping[str, Any]]:
    """Return what an answer with status 200 means: Slack's refusals have it, too."""
    try:
        answer = json.loads(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        return DeliveryOutcome(Reason.UNAVAILABLE, "it did not answer as Slack does"), {}
    if answer.get("ok") is True:
        return DELIVERED, answer
    error = answer.get("error")
    # Slack's errors are words of its own list; anything else is not repeated.
    word = error if isinstance(error, str) and error.replace("_", "").isalpha() and len(error) <= 60 else "an error"
    if word in _PUT_RIGHT:
        return DeliveryOutcome(Reason.MISCONFIGURED, f"Slack says {word}"), answer
    if word in _REFUSED:
        return DeliveryOutcome(Reason.REFUSED, f"Slack says {word}"), answer
    if word in {"ratelimited", "rate_limited", "message_limit_exceeded"}:
        return DeliveryOutcome(Reason.SLOW_DOWN, f"Slack says {word}"), answer
    return DeliveryOutcome(Reason.UNAVAILABLE, f"Slack says {word}"), answer


KEPT_SECONDS = 30 * 86_400.0
"""An incident that is told again after so long begins a thread of its own."""
_MOST = 2000


class Thread(NamedTuple):
    """The root of a thread."""

    ts: str
    """Slack's name for a message in its channel."""
    channel_id: str
    """The channel as Slack answers it: `chat.update` does not take a name."""


class ThreadStore(Protocol):
    """Finds and keeps the roots of threads."""

    async def find(self, receiver: str, channel: str, incident: str) -> Thread | None:
        """Return the root of an incident's thread; None before its first message."""
        ...

    async def keep(self, receiver: str, channel: str, incident: str, thread: Thread, now: float) -> None:
        """Remember a root."""
        ...


class _Key(NamedTuple):
    receiver: str
    channel: str
    incident: str


@dataclass(frozen=True, slots=True)
class MemoryThreads:
    """Forgets with the process."""

    _found: dict[_Key, Thread] = field(default_factory=dict)

    async def find(self, receiver: str, channel: str, incident: str) -> Thread | None:
        """Return the root of an incident's thread."""
        return self._found.get(_Key(receiver, channel, incident))

    async def keep(self, receiver: str, channel: str, incident: str, thread: Thread, now: float) -> None:  # noqa: ARG002
        """Remember a root."""
        self._found[_Key(receiver, channel, incident)] = thread


@dataclass(frozen=True, slots=True)
class StoredThreads:
    """Keeps them in the state file: a restart goes on in the same thread."""

    store: Store

    async def find(self, receiver: str, channel: str, incident: str) -> Thread | None:
        """Return the root of an incident's thread; None where the file cannot be read: then another one begins."""
        return (await asyncio.to_thread(self._load)).get(_Key(receiver, channel, incident))

    async def keep(self, receiver: str, channel: str, incident: str, thread: Thread, now: float) -> None:
        """Remember a root, and forget those that are old or too many. What was sent is sent if that fails."""
        with suppress(StoreFailure):
            await asyncio.to_thread(self._keep, _Key(receiver, channel, incident), thread, max(now, 0.0))

    def _load(self) -> Mapping[_Key, Thread]:
        return dict(self.store.load(SLACK_THREADS))

    def _keep(self, key: _Key, thread: Thread, now: float) -> None:
        with self.store.transaction():
            self.store.execute("INSERT OR REPLACE INTO slack_threads VALUES (?, ?, ?, ?, ?, ?)", (*key, *thread, now))
            self.store.execute("DELETE FROM slack_threads WHERE at < ?", (now - KEPT_SECONDS,))
            self.store.execute(
                "DELETE FROM slack_threads"
                " WHERE rowid NOT IN (SELECT rowid FROM slack_threads ORDER BY at DESC LIMIT ?)",
                (_MOST,),
            )


def _load_thread(
    receiver: str, channel: str, incident: str, ts: str, channel_id: str, at: float
) -> tuple[_Key, Thread]:
    if at < 0:
        raise ValueError("a time before 1970")
    return _Key(receiver, channel, incident), Thread(ts, channel_id)


SLACK_THREADS = Table(
    "slack_threads",
    ("receiver", "channel", "incident"),
    {
        "receiver": Column(word),
        "channel": Column(word),
        "incident": Column(word, 400),
        "ts": Column(word, 64),
        "channel_id": Column(text, 64),
        "at": Column(unix_time, 64),
    },
    _load_thread,
)


_CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]{8,}", re.ASCII)
_TOKEN = re.compile(r"xox[a-z]-\S+", re.ASCII)


class SlackKind(ReceiverKind[SlackConfig]):
    """Channels of Slack."""

    name = "slack"
    settings = SlackConfig
    exactly_one = (*URL_KEYS, "token_file")

    def faults(self, given: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        """Yield a token without a channel, and a channel without a token."""
        if given.get("token_file") is not None and not given.get("channel"):
            yield "token_file", "needs `channel` beside it: where the bot posts to"
        if given.get("token_file") is None and given.get("channel"):
            yield "channel", "goes with `token_file` alone: an incoming webhook has its own channel"

    def value_problem(self, key: str, text: str) -> str:
        """Return what is wrong with a bot's token or a channel's id."""
        if key == "token" and not _TOKEN.fullmatch(text):
            return "what stands there is no token of a bot, which begins with xoxb-"
        if key == "channel" and not _CHANNEL_ID.fullmatch(text):
            return f"{text} is no id of a channel: Slack shows it (C0123456789) in its details"
        return ""

    def address(self, config: SlackConfig) -> Secret:
        """Return the token, or the URL of the incoming webhook."""
        return url_of(config) if config.token_file is None else Secret("token", None, config.token_file)

    def transport(self, config: SlackConfig, receiver: str, shared: Dependencies) -> Transport:
        """Return what posts: with a token each incident in a thread."""
        address = self.address(config)
        if config.token_file is None:
            return Slack(shared.http, address)
        threads = MemoryThreads() if shared.store is None else StoredThreads(shared.store)
        api_url = shared.api_urls.get(self.name, API_URL)
        return SlackBot(shared.http, address, receiver, config.channel or "", threads, api_url, shared.picture_of)

    def recipient(self, receiver: ReceiverConfig) -> Recipient | None:
        """Return that a bot can rewrite what it has posted."""
        found, config = super().recipient(receiver), getattr(receiver, self.name, None)
        is_bot = isinstance(config, SlackConfig) and config.token_file is not None
        return None if found is None else replace(found, updates_quietly=is_bot)

    def pace(self, config: SlackConfig) -> DeliveryPace:
        """Return one message per second; what waits meanwhile goes together, but for a bot: threads differ."""
        return DeliveryPace(min_interval_seconds=1.0, batch=10 if config.token_file is None else 1)
