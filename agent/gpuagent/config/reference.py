"""The reference of the configuration file, made from the models: `docs/configuration.md`.

Run `python -m gpuagent.config.reference > docs/configuration.md` after a change of the models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gpuagent.config.contents import MAX_FILE_BYTES
from gpuagent.config.describe import Spot
from gpuagent.config.directories import DEFAULT_PATH
from gpuagent.config.document import MAX_DEPTH, MAX_VALUES
from gpuagent.config.models import Config

EXAMPLE = """\
poll_interval: 1s
listen: 127.0.0.1:9837
processes:
  top: 64
  redact: ["AKIA[A-Z0-9]{16}"]
rule_files: [rules/site.yml]
disabled_rules: [Watchdog]
receivers:
  - name: ops
    slack: {url_file: secrets/slack_url}
  - name: fleet
    alertmanager: {url: "http://alertmanager:9093"}
routes:
  - match: ['severity="critical"']
    receivers: [ops, fleet]
    repeat_interval: 4h
budgets:
  - match: {unit: whisper.service}
    memory: 6GiB
remedies:
  dry_run: true
  allow: {users: [svc-ml], units: [whisper.service], min_age: 5m}
  ladders:
    - match: ['alertname="GpuProcessMemoryLeak"', 'unit!=""']
      steps: [{release_cache: {wait: 30s}}, {restart_unit: {wait: 60s}}]
"""

_INTRODUCTION = f"""\
# Configuration

<!-- Made by `python -m gpuagent.config.reference`: change the models, not this file. -->

One YAML file: `{DEFAULT_PATH}`, or the one given with `--config`.
No file is needed: every key has a default.

    gpuagent config check FILE    every fault at once, each with its line (exit status 1); notes on what never acts
    gpuagent config show          what is in force, defaults included, secrets hidden

The agent reads the file when it starts and on SIGHUP. With a fault it does not start; on SIGHUP it
keeps what it has and says what is wrong.

- A **duration** is written as for Prometheus: `500ms`, `30s`, `5m`, `1h30m`, `2d`; a plain number
  is in seconds.
- A **size** is `500MB` (10^6) or `6GiB` (2^30); a plain number is in bytes.
- A **matcher** is one of Alertmanager's: `severity="critical"`, `unit!=""`, `gpu=~"0|1"`,
  `user!~"svc-.*"`. In YAML it needs quotes of its own: `'severity="critical"'`.
- A **user, unit, container or GPU** is named whole, one by one: no patterns. A unit is a service with its suffix
  (`whisper.service`). Of a container give the id, at least its first 12 digits; a name only where the kubelet tells it
  (`namespace/pod/container`), where it stands for an id (`lxc/web`), or with `processes.container_socket`.
- A **path** that does not begin with `/` starts at the folder of the configuration file.
- A key that ends in `_file` names a file whose whole content is the value: the place for secrets.
- YAML's anchors, aliases and `<<` work. A file has at most {MAX_FILE_BYTES // 1024} KiB,
  {MAX_DEPTH} levels and {MAX_VALUES} values.
- A list or section with nothing below it is as if it were not there.
- While remedies act for real (`dry_run: false`, below `remedies` or in a ladder), this file, the rule files, what
  `exec` runs, `processes.container_socket`, and every directory and link on the way
  to them must be changeable by root and the agent's user alone: by owner, mode and ACL, whatever the group. Where
  `state_dir` or the agent's own files there are not, the agent starts, and remedies are off until the next start.
- What `exec` runs is then given by absolute paths. Examined are the program, its interpreters, every absolute path in
  an argument (also after `=`, `:`, `,`, `@`, `+` and the like), the entries of a directory that is named, and for a
  script in Python, Perl and other languages the entries of its directory. A shell or an interpreter gets a script by
  its absolute path. Refused are texts and modules (`-c`, `-e`, `-m`, `-r`), `env` with `-S`, `-C` or a variable that
  changes what is loaded (`LD_*`, `PYTHON*`, `PATH`, ...), `find -exec`, `xargs`, `run-parts`, `ld.so`, `make`,
  `chroot` and the like: write it into a file of root's and name that file. Not examined is what a program or a script
  does by itself, what lies deeper than one level in a directory, and options of other programs that run a text.

An example:

```yaml
{EXAMPLE}```
"""


def render() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, *_section(Config, "")]
    return "\n".join(parts)


def _section(section: type[BaseModel], path: str) -> Iterator[str]:
    """A heading, what the section is for, its keys as a table; then the sections below it."""
    fields = {name: (field, Spot.of_field(field)) for name, field in section.model_fields.items()}
    yield f"## {f'`{path}`' if path else 'Top level'}\n"
    yield f"{section.__doc__}\n"
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for name, (field, spot) in fields.items():
        cells = (f"`{name}`", _value(spot), _default(field, spot), field.description or "")
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"
    yield ""
    for name, (_, spot) in fields.items():
        below, brackets = (spot, "") if spot.item is None else (spot.item, "[]")
        if below.section is not None:
            yield from _section(below.section, f"{path}.{name}{brackets}".lstrip("."))


def _value(spot: Spot) -> str:
    if spot.section is not None:
        return "see below"
    if spot.item is not None:
        return "a list, see below" if spot.item.section else f"a list: {spot.item.allowed()}"
    return spot.allowed()


def _default(field: FieldInfo, spot: Spot) -> str:
    default = field.get_default(call_default_factory=True)
    if field.is_required():
        return "required"
    if default is None:
        return "none"
    if spot.section is not None:
        return ""
    if spot.item is not None:
        return "`[]`"
    return f"`{spot.write(default)}`"


def _cell(text: str) -> str:
    """Text that cannot break out of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(render())
