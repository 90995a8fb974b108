"""`scripts/services` on a machine that has other packages than this one: the tools that it calls are made up."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = {
    "id": "echo 0",
    "apt-cache": "exit 0",
    # Ubuntu 22.04: the library is no package of its own.
    "apt-get": 'case $* in *libsystemd-shared) exit 100 ;; download*) : >"$5_1_all.deb" ;; esac',
    "dpkg-deb": "mkdir -p .tools/usr/bin && cp ../nspawn .tools/usr/bin/systemd-nspawn",
    **dict.fromkeys(("prometheus", "promtool", "alertmanager", "amtool"), "exit 0"),
}


@pytest.mark.skipif(not Path("/lib/systemd/systemd").exists(), reason="no systemd here, so none is booted")
@pytest.mark.parametrize("runs", [True, False], ids=["it runs", "it does not"])
def test_nspawn_without_a_package_of_its_library(tmp_path: Path, runs: bool) -> None:
    """What was unpacked is used if it runs as it is; if not, the tests that need it are skipped with words."""
    folder, programs = tmp_path / "checkout", tmp_path / "bin"
    (folder / "scripts").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(ROOT / "scripts" / "services", folder / "scripts")
    _program(tmp_path / "nspawn", "exit 0" if runs else "echo 'cannot open shared object file' >&2; exit 127")
    for name, text in TOOLS.items():
        _program(programs / name, text)
    for name in ("cp", "dirname", "mkdir", "rm", "sh"):
        (programs / name).symlink_to(str(shutil.which(name)))
    environment = {key: value for key, value in os.environ.items() if key != "CI"} | {"PATH": str(programs)}

    done = subprocess.run(
        [folder / "scripts" / "services"], capture_output=True, text=True, check=False, env=environment
    )

    assert done.returncode == 0, done.stderr
    assert ("does not run" in done.stderr) is not runs
    assert "not set" not in done.stderr
    assert "not found" not in done.stderr


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
