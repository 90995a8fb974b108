"""What the client was told: arguments, environment, defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuagent_client.settings import (
    COMMANDS,
    Settings,
    default_name,
    disabled,
    load_settings,
    socket_path,
)


def settled(environment: dict[str, str] | None = None, program: str = "app.py", **given: Any) -> Settings:
    """What comes of it."""
    return load_settings(environment or {}, program, **given)


def test_nothing_given_is_enough() -> None:
    """One line without arguments: named after the script, the usual socket, all commands, the agent's pace."""
    assert settled() == Settings(app="app", socket="", obeyed=COMMANDS, interval_seconds=None, on_notice=None)


def test_the_environment_gives_name_and_socket() -> None:
    """An app can be named and connected without a change to its code."""
    settings = settled({"GPUAGENT_APP": "whisper", "GPUAGENT_SOCKET": "/mnt/agent/client.sock"})

    assert (settings.app, settings.socket) == ("whisper", "/mnt/agent/client.sock")


def test_an_argument_wins_over_the_environment(tmp_path: Path) -> None:
    """What the code says is more specific; a path object is a path too."""
    environment = {"GPUAGENT_APP": "whisper", "GPUAGENT_SOCKET": "/elsewhere"}

    settings = settled(environment, app="mine", socket=tmp_path)

    assert (settings.app, settings.socket) == ("mine", str(tmp_path))


@pytest.mark.parametrize(
    ("allow", "variable", "obeyed"),
    [
        (None, "", COMMANDS),
        (None, "0", COMMANDS),
        (None, "census,lines", COMMANDS - {"census", "lines"}),
        (None, " Census , LINES ", COMMANDS - {"census", "lines"}),
        (["release"], "", {"release"}),
        (["release", "census"], "census", {"release"}),
        ([], "", set()),
    ],
)
def test_each_command_can_be_forbidden(allow: list[str] | None, variable: str, obeyed: set[str]) -> None:
    """By the code and by the environment; neither gives back what the other took."""
    assert settled({"GPUAGENT_DISABLE": variable}, allow=allow).obeyed == obeyed


@pytest.mark.parametrize(
    ("variable", "off"), [("1", True), ("true", True), ("", False), ("0", False), ("census", False)]
)
def test_one_variable_switches_it_off(variable: str, *, off: bool) -> None:
    """GPUAGENT_DISABLE=1 is for whoever runs an app and cannot change it."""
    assert disabled({"GPUAGENT_DISABLE": variable}) is off


def test_every_fault_is_named_at_once() -> None:
    """Nobody likes to be told of one mistake after the other."""
    with pytest.raises(ValueError, match="app must") as raised:
        settled(
            {"GPUAGENT_DISABLE": "census,tea"},
            app="x" * 101,
            socket="/" + "x" * 107,
            allow=["coffee"],
            interval=0.1,
            on_notice=7,
        )

    text = str(raised.value)
    assert all(part in text for part in ("socket must", "'coffee'", "no tea", "interval must", "on_notice must"))


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("/srv/whisper/app.py", "app"),
        ("/usr/bin/uvicorn", "uvicorn"),
        ("/usr/lib/python3/site-packages/uvicorn/__main__.py", "uvicorn"),
        ("-c", ""),
        ("-m", ""),
        ("", ""),
    ],
)
def test_an_app_without_a_name_has_that_of_its_program(program: str, name: str) -> None:
    """A newcomer finds the app in a dashboard without having named it."""
    assert default_name(program) == name


def test_an_ordinary_user_finds_the_agent_of_their_own(tmp_path: Path) -> None:
    """On a laptop the agent runs as the user, below $XDG_RUNTIME_DIR, if the node has none."""
    environment, system = {"XDG_RUNTIME_DIR": str(tmp_path)}, str(tmp_path / "run" / "gpuagent-client" / "client.sock")

    own = f"{tmp_path}/gpuagent-client/client.sock"
    assert socket_path(settled(), environment, user_id=1000, system=system) == own
    assert socket_path(settled(), environment, user_id=0, system=system) == system
    assert socket_path(settled(), {}, user_id=1000, system=system) == system
    assert socket_path(settled(socket="/x"), environment, user_id=1000, system=system) == "/x"
    Path(system).parent.mkdir(parents=True)
    Path(system).touch()
    assert socket_path(settled(), environment, user_id=1000, system=system) == system


@pytest.mark.parametrize("user_id", [0, 1000])
def test_a_simulated_agent_is_found_where_there_is_no_other(tmp_path: Path, user_id: int) -> None:
    """The socket of a simulation is looked for beside the usual one, and never instead of a real agent's."""
    environment = {"XDG_RUNTIME_DIR": str(tmp_path / "user")}
    system = tmp_path / "run" / "gpuagent-client" / "client.sock"
    usual = system if user_id == 0 else tmp_path / "user" / "gpuagent-client" / "client.sock"
    simulated = usual.parent.with_name("gpuagent-simulated-client") / "client.sock"
    for path in (simulated, usual):
        path.parent.mkdir(parents=True)

    def found() -> str:
        return socket_path(settled(), environment, user_id, system=str(system))

    assert found() == str(usual)
    simulated.touch()
    assert found() == str(simulated)
    usual.touch()
    assert found() == str(usual)
