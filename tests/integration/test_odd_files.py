"""What lies in the place of a file of the configuration holds up no start, no reload and no stop of remedies."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.agent import Agent, command, running_agent, write_config
from tests.integration.waiting import free_port, until

pytestmark = pytest.mark.slow

RULES = "groups: [{name: g, rules: [{alert: Mine, expr: gpuagent_up == 1}]}]\n"


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD: list[tuple[Callable[[Path], object], str]] = [
    (os.mkfifo, "a FIFO"),
    (_device, "a device"),
    (Path.mkdir, "a directory"),
]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _wait_for_refusals(agent: Agent, number: int) -> None:
    words = "only a regular file is read"
    until(lambda: agent.log().count(words) >= number, f"{number} refusals in the log of the agent")


@pytest.mark.few(2)
@pytest.mark.parametrize("which", ["gpuagent.yaml", "rules.yaml"])
@pytest.mark.parametrize(("make", "kind"), ODD)
def test_a_reload_names_it_and_the_next_one_is_done(
    folder: Path, make: Callable[[Path], object], kind: str, which: str
) -> None:
    """By command and by SIGHUP: refused in words, the old configuration stays, and a mended one is in force at once."""
    rules, odd = folder / "rules.yaml", folder / which
    rules.write_text(RULES)
    with running_agent(folder, "healthy", rule_files=[str(rules)]) as agent:
        agent.wait_until_ready()
        content = odd.read_text()
        odd.unlink()
        make(odd)
        told = agent.command("config", "reload")
        assert told.returncode == 1
        assert f"{odd}: cannot be read: it is {kind}; only a regular file is read" in told.stderr
        agent.process.send_signal(signal.SIGHUP)
        _wait_for_refusals(agent, 2)

        _remove(odd)
        odd.write_text(content)
        assert agent.command("config", "reload").returncode == 0
        agent.process.send_signal(signal.SIGHUP)
        until(lambda: agent.log().count("the configuration was read again") >= 2, "the reload by SIGHUP")
        assert agent.stop() == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("which", ["gpuagent.yaml", "rules.yaml"])
@pytest.mark.parametrize(("make", "kind"), ODD)
def test_a_start_ends_with_words(folder: Path, make: Callable[[Path], object], kind: str, which: str) -> None:
    """Exit status 78, as for any fault of the configuration: systemd does not wait for a timeout."""
    rules, odd = folder / "rules.yaml", folder / which
    rules.write_text(RULES)
    path = write_config(folder, free_port(), rule_files=[str(rules)])
    odd.unlink()
    make(odd)
    told = command("run", "--config", str(path), "--simulate", "healthy")
    assert told.returncode == 78
    assert f"{odd}: cannot be read: it is {kind}; only a regular file is read" in told.stderr


def test_remedies_are_stopped_without_a_file(folder: Path) -> None:
    """The configuration is unreadable, and a person stops remedies all the same: on record, over a restart."""
    with running_agent(folder, "healthy") as agent:
        agent.wait_until_ready()
        path = folder / "gpuagent.yaml"
        content = path.read_text()
        path.unlink()
        os.mkfifo(path)
        told = agent.command("remedies", "stop")
        assert (told.returncode, told.stderr) == (0, "")
        assert "has stopped them on" in agent.command("remedies").stderr
        assert agent.stop() == 0
    path.unlink()
    path.write_text(content)
    with running_agent(folder, "healthy") as agent:
        agent.wait_until_ready()
        assert "has stopped them on" in agent.command("remedies").stderr
        assert agent.command("remedies", "reset").returncode == 0
        assert "stopped" not in agent.command("remedies").stderr
