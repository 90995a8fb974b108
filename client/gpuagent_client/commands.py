"""Carries out what the agent asks for: from a fixed list, each as the app allows it, one at a time.

A command runs in a thread of its own, so that the figures go on flowing while a census waits for its second look.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from typing import Any, Callable

from gpuagent_client import messages
from gpuagent_client.guard import log
from gpuagent_client.messages import Command
from gpuagent_client.protocol import Message
from gpuagent_client.remedies import Refused, Remedies
from gpuagent_client.told import Told
from gpuagent_client.torch_door import Torch

LONG = frozenset({"census", "lines", "reset"})
"""These say first that they have begun."""
MAX_ERROR_CHARACTERS = 400

Handler = Callable[[Mapping[str, Any], float], dict[str, Any]]
Reply = Callable[[Message], None]


class BlameContext:
    """What `gpuagent_client.blame` may know of the app."""

    def __init__(self, thread_id: int, told: Told, torch: Torch, wait: Callable[[float], bool]) -> None:
        self.thread_id = thread_id
        """The client's own thread: its frames hold nothing of the app's."""
        self._told = told
        self._torch = torch
        self._wait = wait

    def requests_served(self) -> int | None:
        """Requests so far; None where nobody counts them."""
        return self._told.requests_served()

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured."""
        return self._torch.capturing()

    def wait(self, seconds: float) -> bool:
        """Wait; True as soon as the app is about to end."""
        return self._wait(seconds)


class Commands:
    """The list, and who is at work on it."""

    def __init__(self, told: Told, remedies: Remedies, blame_context: Callable[[], BlameContext]) -> None:
        self._told = told
        self._blame_context = blame_context
        self._worker: threading.Thread | None = None
        self._answered = False
        """The worker is done: who has its answer may ask for the next thing, also before the thread has ended."""
        self._handlers: dict[str, Handler] = {
            "census": lambda args, deadline: self._blame("census", args, deadline),
            "limit": remedies.limit,
            "lines": lambda args, deadline: self._blame("lines", args, deadline),
            "notice": remedies.notice,
            "release": remedies.release,
            "reset": remedies.reset,
        }

    @property
    def at_work(self) -> bool:
        """Whether a command is being carried out, or its answer is on the way."""
        return self._worker is not None and self._worker.is_alive()

    def take(self, command: Command, *, trusted: bool, reply: Reply) -> None:
        """Begin with a command, or say why not; the answer goes to `reply`, from another thread maybe."""
        handler = self._handlers.get(command.name)
        if handler is None:
            reply(messages.refused(command.id, "unsupported"))
        elif not trusted:
            reply(messages.refused(command.id, "forbidden: the client does not know this server as its agent"))
        elif command.name not in self._told.settings.obeyed:
            reply(messages.refused(command.id, "forbidden: the app does not allow it"))
        elif self.at_work and not self._answered:
            reply(messages.refused(command.id, "busy: another command is being carried out"))
        else:
            if command.name in LONG:
                reply(messages.begun(command.id))
            self._answered = False
            self._worker = threading.Thread(
                target=self._carry_out, args=(handler, command, reply), name="gpuagent-command", daemon=True
            )
            try:
                self._worker.start()
            except RuntimeError as error:  # no more threads, or the interpreter is ending
                self._worker = None
                reply(messages.refused(command.id, f"no thread: {error}"))

    def join(self, seconds: float) -> None:
        """Wait for the command that is being carried out, if any."""
        worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join(seconds)

    def _carry_out(self, handler: Handler, command: Command, reply: Reply) -> None:
        try:
            answer = messages.done(command.id, handler(command.args, command.deadline_seconds))
        except Refused as refusal:
            answer = messages.refused(command.id, str(refusal)[:MAX_ERROR_CHARACTERS])
        except Exception as error:  # noqa: BLE001 - a failure is an answer
            log.warning("gpuagent_client could not carry out %s", command.name, exc_info=True)
            answer = messages.refused(command.id, f"failed: {type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS])
        self._answered = True
        reply(answer)

    def _blame(self, command: str, args: Mapping[str, Any], deadline_seconds: float) -> dict[str, Any]:
        # Not loaded before it is asked for: an app that never leaks never pays for it.
        blame = importlib.import_module("gpuagent_client.blame")
        wanted = dict(args)
        if "lines" not in self._told.settings.obeyed:
            wanted.pop("lines", None)  # a census may record lines beside it: not in an app that forbids that
        result: dict[str, Any] = blame.run(command, wanted, deadline_seconds, self._blame_context())
        if result.get("ok") is False:
            raise Refused(str(result.get("err", "refused")))
        return result
