"""`attach` as it is typed: a question to the agent, with the client brought in before and removed after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuagent.attach import attachment as module
from gpuagent.attach.attachment import Attachment, Leftovers
from gpuagent.attach.target import NotAttachable, Target
from tests.agent.cli.test_client_commands import ABSENT, BLAMED, asked, run

PID = "7"


class Attached:
    """Stands for the process: notes when the client came and went."""

    def __init__(self, left: Leftovers | None, fault: str = "") -> None:
        self.events: list[str] = []
        self._left = left
        self._fault = fault

    @contextmanager
    def __call__(self, pid: int, *, client_directory: str, safe_point_seconds: float) -> Iterator[Attachment]:
        """Attach."""
        if self._fault:
            raise NotAttachable(self._fault)
        self.events.append(f"came to {pid}, {client_directory}, {safe_point_seconds:g} s")
        attachment = Attachment(Target(pid, 1, 0, 0, ""))
        attachment.own = self._left is not None and self._left.own
        try:
            yield attachment
        finally:
            attachment.left = self._left
            self.events.append("went")


def attach(monkeypatch: pytest.MonkeyPatch, process: Attached, answer: Any, *words: str) -> Any:
    """Exit status, output, errors and what the agent was asked."""
    monkeypatch.setattr(module, "attached", process)
    return asked(answer, "attach", PID, "--client", "/srv/client", *words)


def test_the_answer_is_that_of_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client comes before the question and goes after it; nothing is said of what is as it should be."""
    process = Attached(Leftovers([], [], own=False))
    code, output, errors, request = attach(monkeypatch, process, BLAMED, "--window", "30s", "--wait", "5s")

    assert (code, errors) == (0, "")
    assert output.startswith("+1.0 GiB in 60 s is held by `app.results`")
    assert request.startswith(b"POST /api/v1/clients/7/blame ")
    assert process.events == ["came to 7, /srv/client, 5 s", "went"]


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (None, "did not say that the client was removed"),
        (Leftovers(["gpuagent-command"], [], own=False), "not all of the client was removed: gpuagent-command"),
        (Leftovers([], [], own=True), "the app has the client by itself, and keeps it"),
    ],
)
def test_what_stays_is_said(monkeypatch: pytest.MonkeyPatch, left: Leftovers | None, said: str) -> None:
    """Beside the answer, which is as good as any."""
    code, _, errors, _ = attach(monkeypatch, Attached(left), BLAMED)

    assert code == 0
    assert said in errors


def test_a_process_that_cannot_be_attached_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason, and nothing else."""
    code, output, errors, _ = attach(monkeypatch, Attached(None, fault="It runs Python 3.11."), BLAMED)

    assert (code, output, errors) == (1, "", "It runs Python 3.11.\n")


def test_a_refusal_removes_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app said no: exit status 1, and the client goes."""
    process = Attached(Leftovers([], [], own=False))
    refused = ABSENT | {"reason": "refused", "message": "a CUDA graph is being captured"}
    code, _, errors, _ = attach(monkeypatch, process, refused)

    assert code == 1
    assert "The app did not do it: a CUDA graph is being captured" in errors
    assert process.events[-1] == "went"


def test_without_an_agent_the_app_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing could be asked."""
    process = Attached(None)
    monkeypatch.setattr(module, "attached", process)
    code, _, errors = run("attach", PID, "--client", "/srv/client", "--socket", str(tmp_path / "none.sock"))

    assert (code, process.events) == (1, [])
    assert "Is it running?" in errors


def test_where_the_configuration_forbids_it_the_app_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEAK-01: nothing is brought in and nothing asked; the way out is said."""
    process = Attached(None)
    code, output, errors, request = attach(monkeypatch, process, {"clients": [], "attach": False})

    assert (code, output, process.events) == (1, "", [])
    assert "forbids attaching (`clients.attach`)" in errors
    assert "gpuagent-client enable" in errors
    assert request.startswith(b"GET /api/v1/clients ")


@pytest.mark.parametrize("words", [["x"], ["7", "--window", "soon"], ["7", "--wait", "-1s"]])
def test_a_wrong_call(words: list[str]) -> None:
    """Exit status 2, as of every command."""
    assert run("attach", *words)[0] == 2
