"""docs/first-leak.md, followed as it is written: the line that leaks, as root and as an ordinary user."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.blame.kinds import marked_lines
from tests.packaging.documented import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PAGE = (ROOT / "docs" / "first-leak.md").read_text()
LEAKS = ROOT / "client" / "examples" / "served" / "leaks.py"
NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
READS = "+dac_read_search"
AS_USER = (
    *("setpriv", "--reuid", "61234", "--regid", "61234", "--clear-groups"),
    *("--inh-caps", READS, "--ambient-caps", READS),
)
"""An ordinary user, who may also read: the interpreter of the tests may be below /root."""
PLACES = """
set -e
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
ip link set lo up
mkdir -p /run/home /run/user/61234
chown -R 61234:61234 /run/home /run/user/61234
"""
"""Empty places of the system, so that neither an agent of this machine nor its state takes part."""
APP_IS_UP = "timeout 100 sh -c 'until curl -sf localhost:8000/healthz >/dev/null; do sleep 0.2; done'"
CLIENT_IS_THERE = (
    "timeout 30 sh -c 'until curl -s localhost:9837/api/v1/clients | grep -q served-example; do sleep 0.2; done'"
)


def may_isolate() -> bool:
    """Whether namespaces can be made and left for another user here."""
    return os.geteuid() == 0 and all(
        subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
        for words in (NAMESPACES, AS_USER)
    )


def blocks(section: int) -> str:
    """Command lines of one section of the page."""
    text = re.split(r"^## ", PAGE, flags=re.MULTILINE)[section]
    return "\n".join(line.strip() for line in text.splitlines() if line.startswith("    "))


def script() -> str:
    """Sections 2 to 4 and the end, with waits where a person waits, and the pid that the page says how to find."""
    blame = blocks(4).replace("PID ", "$(pgrep -f 'uvicorn app:app') ", 1).replace("--window 30s", "--window 10s")
    (end,) = re.findall(r"End it all with `(.*)`", PAGE)
    return "\n".join(("set -em", blocks(2), APP_IS_UP, CLIENT_IS_THERE, blocks(3), blame, end, ""))


@pytest.mark.skipif(not may_isolate(), reason="needs root, and namespaces")
@pytest.mark.parametrize("user", ["root", "ordinary"])
def test_the_page_leads_to_the_line_that_leaks(user: str, tmp_path: Path, apps_python: Path) -> None:
    """Nothing but what the page says, and the packages it installs, leads from nothing to the line of code."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, words in {"gpuagent": f"{sys.executable} -m gpuagent", "uvicorn": f"{apps_python} -m uvicorn"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (tmp_path / "page.sh").write_text(script())
    (tmp_path / "places.sh").write_text(f'{PLACES}exec "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "client"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/run/home",
        "LANG": "C.UTF-8",
        **({"XDG_RUNTIME_DIR": "/run/user/61234"} if user == "ordinary" else {}),
    }
    become = () if user == "root" else AS_USER
    done = subprocess.run(
        [*NAMESPACES, "bash", tmp_path / "places.sh", *become, "bash", tmp_path / "page.sh"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    line = marked_lines(LEAKS, "# LEAK ")["outputs"]
    assert "is held by `leaks.results` (list, " in done.stdout, done.stdout + done.stderr
    assert f"appended at leaks.py:{line} in `outputs`" in done.stdout
    assert f"leaks.py:{line}" in PAGE
