"""What shells load to complete the command: typer's own scripts, for the places where shells look by themselves.

`gpuagent --install-completion` writes to one user's start-up files instead; a machine-wide installation must not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from typer._completion_shared import get_completion_script  # what --show-completion prints; it has no public name

from gpuagent.install.placing import Placed

_ETC_FISH = Path("/etc/fish/completions")
_ZSH_AT_ONCE = """
# zsh loads this file when it completes the command for the first time: it wants an answer then, too.
if [ "$funcstack[1]" = "_gpuagent" ]; then
  _gpuagent_completion "$@"
fi
"""


def completion_scripts(prefix: Path) -> Iterator[Placed]:
    """One for each shell that people have."""
    share = prefix / "share"
    places = {
        "bash": share / "bash-completion/completions/gpuagent",
        "zsh": share / "zsh/site-functions/_gpuagent",
        # fish looks below /usr and in /etc, and not below /usr/local.
        "fish": (share / "fish/vendor_completions.d" if prefix == Path("/usr") else _ETC_FISH) / "gpuagent.fish",
    }
    for shell, place in places.items():
        text = get_completion_script(prog_name="gpuagent", complete_var="_GPUAGENT_COMPLETE", shell=shell) + "\n"
        yield Placed(place, text + _ZSH_AT_ONCE if shell == "zsh" else text)
