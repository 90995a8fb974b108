"""Commands of the agent are carried out one at a time, and the next may come as soon as one has been answered."""

from __future__ import annotations

import threading
from typing import Any, cast

from gpuagent_client.commands import AllocatorCommands, BlameContext, CommandRunner
from gpuagent_client.protocol import Command, Message
from gpuagent_client.settings import ClientState

PATIENCE_SECONDS = 20


class SlowRemedies:
    """Each waits to be let through."""

    def __init__(self) -> None:
        self.let_through = threading.Semaphore(0)

    def release(self, *_: object) -> dict[str, Any]:
        assert self.let_through.acquire(timeout=PATIENCE_SECONDS)
        return {}

    limit = notice = reset = release


def never() -> BlameContext:
    """What a census would be given."""
    raise AssertionError("nobody blames here")


def release(number: int) -> Command:
    """As the agent asks for it."""
    return Command(number, "release", {}, 5.0)


def test_one_at_a_time() -> None:
    """While one is being carried out, another is refused."""
    allocator_commands, answers = SlowRemedies(), list[Message]()
    commands = CommandRunner(ClientState(), cast("AllocatorCommands", allocator_commands), never)
    commands.submit(release(1), trusted=True, reply=answers.append)
    commands.submit(release(2), trusted=True, reply=answers.append)
    allocator_commands.let_through.release()
    commands.join(PATIENCE_SECONDS)

    assert [(answer["id"], answer["ok"]) for answer in answers] == [(2, False), (1, True)]
    assert answers[0]["err"].startswith("busy")


def test_who_has_the_answer_may_ask_again() -> None:
    """The thread that has answered may still be there: it is no reason to call the app busy."""
    allocator_commands, answers, over = SlowRemedies(), list[Message](), threading.Event()
    commands = CommandRunner(ClientState(), cast("AllocatorCommands", allocator_commands), never)

    def last(answer: Message) -> None:
        answers.append(answer)
        over.set()

    def first(answer: Message) -> None:
        answers.append(answer)
        assert commands.running  # who waits for answers goes on looking
        commands.submit(release(2), trusted=True, reply=last)

    allocator_commands.let_through.release(2)
    commands.submit(release(1), trusted=True, reply=first)
    assert over.wait(PATIENCE_SECONDS)

    assert [(answer["id"], answer["ok"]) for answer in answers] == [(1, True), (2, True)]
