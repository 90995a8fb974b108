"""One agent for one state directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuagent.config.load import load_config
from gpuagent.config.models import Config
from gpuagent.runtime.state_files import LOCK_FILE, StateInUseError, lock_state
from gpuagent.service.assemble import AnotherAgentError, _lock_state

HOLDER = """
import sys
from pathlib import Path
from gpuagent.runtime.state_files import lock_state
lock = lock_state(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def _configuration(folder: Path, name: str) -> Config:
    path = folder / f"{name}.yaml"
    given = {"listen": "", "state_dir": str(folder / "state"), "runtime_dir": str(folder / name)}
    path.write_text(json.dumps(given))
    return load_config(path, is_root=False)


def test_a_second_agent_with_another_runtime_dir_does_not_start(tmp_path: Path) -> None:
    """Two would act by the same limits and write each other's record: the second is refused, until the first ends."""
    faults: dict[str, None] = {}
    config = _configuration(tmp_path, "second")
    first = _lock_state(_configuration(tmp_path, "first"), faults)
    assert first is not None
    with pytest.raises(AnotherAgentError, match="another gpuagent is running: it uses the state in"):
        _lock_state(config, faults)
    first.close()
    again = _lock_state(config, faults)
    assert again is not None
    again.close()
    assert faults == {}


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    """Nothing has to be cleared away after a crash."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StateInUseError):
            lock_state(tmp_path)
        holder.kill()
        holder.wait(20)
        lock_state(tmp_path).close()


def _link(path: Path) -> None:
    path.symlink_to("elsewhere")


def _readable(path: Path) -> None:
    path.touch()
    path.chmod(0o644)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, _link, _readable])
def test_a_lock_that_others_could_hold_is_none(tmp_path: Path, make: Callable[[Path], object]) -> None:
    """What is not the agent's own file starts all the same, with a fault of the state: remedies are off."""
    faults: dict[str, None] = {}
    config = _configuration(tmp_path, "one")
    config.state_dir.mkdir()
    make(config.state_dir / LOCK_FILE)
    assert _lock_state(config, faults) is None
    (fault,) = faults
    assert fault.startswith(f"{config.state_dir / LOCK_FILE} cannot be locked (")
    assert fault.endswith("): another agent may use this state")
