"""What the client brings into an app that embeds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROBE = """
import sys
before = set(sys.modules)
import gpuagent_client
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names)))
"""

APP = """
import agent, alerts, client, exporters, gpuagent_client
print(agent.MINE, alerts.MINE, client.MINE, exporters.MINE, gpuagent_client.__name__)
"""


def test_the_client_loads_only_the_standard_library() -> None:
    """An app that embeds the client gets no module it did not ask for."""
    run = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)

    assert run.stdout.split() == ["gpuagent_client"]


def test_the_client_lives_with_an_apps_own_modules(tmp_path: Path) -> None:
    """An app with its own agent.py, alerts.py and the like can embed the client."""
    for name in ("agent", "alerts", "client", "exporters"):
        (tmp_path / f"{name}.py").write_text(f"MINE = {name!r}\n")
    app = tmp_path / "app.py"
    app.write_text(APP)

    run = subprocess.run([sys.executable, app], capture_output=True, text=True, check=True)

    assert run.stdout.split() == ["agent", "alerts", "client", "exporters", "gpuagent_client"]
