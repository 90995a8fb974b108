"""A Slack channel: by its incoming webhook, or by a bot's token, which can keep an incident in one thread.

An incoming webhook can only post. With a token the first message of an incident is its root: it is brought up to date
as the incident goes on (`chat.update`), and what happens is told in its thread, worsenings and reminders in the channel
too.
Slack takes 1 message per second and channel (https://docs.slack.dev/apis/web-api/rate-limits).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuagent_alerts.alert import Message
from gpuagent_alerts.incident import News
from gpuagent_alerts.outbox.outcome import DELIVERED, Outcome, Reason
from gpuagent_alerts.outbox.sender import Context
from gpuagent_alerts.receivers.http import Http, Request
from gpuagent_alerts.receivers.secret import Secret
from gpuagent_alerts.receivers.slack_message import payload
from gpuagent_alerts.receivers.slack_threads import Thread, Threads

API_URL: Final = "https://slack.com/api"
_MAX_ANSWER_BYTES = 256 * 1024
"""It repeats the message, and may have the thread's id behind it."""
_LOUD = frozenset({News.WORSENED, News.REMINDER})
"""Told in the channel, too: a reply in a thread alone calls nobody."""
_THREAD_IS_GONE = frozenset({"thread_not_found", "message_not_found", "cannot_reply_to_message"})
_PUT_RIGHT = frozenset({
    "invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "missing_scope",
    "no_permission", "channel_not_found", "not_in_channel", "is_archived", "access_denied", "org_login_required",
    "ekm_access_denied", "team_access_not_granted", "restricted_action",
})  # fmt: skip
"""Errors that a person has to put right at Slack or in the configuration."""
_REFUSED = frozenset({"invalid_blocks", "invalid_blocks_format", "msg_too_long", "msg_blocks_too_long", "no_text"})


@dataclass(frozen=True, slots=True)
class Slack:
    """Posts to an incoming webhook."""

    http: Http
    url: Secret

    async def send(self, message: Message, context: Context) -> Outcome:
        """Raises Misconfigured."""
        body = json.dumps(payload(message, context)).encode()
        return await self.http.send(Request(self.url.line(), body, {"Content-Type": "application/json"}))


@dataclass(frozen=True, slots=True)
class SlackBot:
    """Posts to a channel in a bot's name, each incident in a thread of its own."""

    http: Http
    token: Secret
    receiver: str
    channel: str
    threads: Threads
    api_url: str = API_URL

    async def send(self, message: Message, context: Context) -> Outcome:
        """Raises Misconfigured."""
        token = self.token.line()
        said = payload(message, context)
        incident = message.incident
        if incident is None:
            return (await self._call(token, "chat.postMessage", said))[0]
        thread = await self.threads.find(self.receiver, self.channel, incident.key)
        if thread is not None:
            loud = {"reply_broadcast": True} if incident.news in _LOUD else {}
            outcome, answer = await self._call(token, "chat.postMessage", said | loud | {"thread_ts": thread.ts})
            if outcome.ok:
                # The root is for who looks at the channel later: that it is old is no reason to tell all again.
                await self._call(token, "chat.update", said | {"ts": thread.ts}, thread.channel_id)
                return outcome
            if answer.get("error") not in _THREAD_IS_GONE:
                return outcome
        outcome, answer = await self._call(token, "chat.postMessage", said)
        ts, channel_id = answer.get("ts"), answer.get("channel")
        if outcome.ok and isinstance(ts, str) and isinstance(channel_id, str):
            await self.threads.keep(self.receiver, self.channel, incident.key, Thread(ts, channel_id), context.now)
        return outcome

    async def _call(
        self, token: str, method: str, document: Mapping[str, Any], channel: str = ""
    ) -> tuple[Outcome, Mapping[str, Any]]:
        """Call a method; return what came of it, and the answer."""
        body = json.dumps({**document, "channel": channel or self.channel}).encode()
        headers = {"Content-Type": "application/json; charset=utf-8", "Authorization": f"Bearer {token}"}
        request = Request(f"{self.api_url}/{method}", body, headers, secrets=(token,))
        outcome, data = await self.http.ask(request, _MAX_ANSWER_BYTES)
        if not outcome.ok:
            return outcome, {}
        return _judge(data)


def _judge(data: bytes) -> tuple[Outcome, Mapping[str, Any]]:
    """Return what an answer with status 200 means: Slack's refusals have it, too."""
    try:
        answer = json.loads(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        return Outcome(Reason.UNAVAILABLE, "it did not answer as Slack does"), {}
    if answer.get("ok") is True:
        return DELIVERED, answer
    error = answer.get("error")
    # Slack's errors are words of its own list; anything else is not repeated.
    word = error if isinstance(error, str) and error.replace("_", "").isalpha() and len(error) <= 60 else "an error"
    if word in _PUT_RIGHT:
        return Outcome(Reason.MISCONFIGURED, f"Slack says {word}"), answer
    if word in _REFUSED:
        return Outcome(Reason.REFUSED, f"Slack says {word}"), answer
    if word in {"ratelimited", "rate_limited", "message_limit_exceeded"}:
        return Outcome(Reason.SLOW_DOWN, f"Slack says {word}"), answer
    return Outcome(Reason.UNAVAILABLE, f"Slack says {word}"), answer
