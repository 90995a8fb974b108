"""The way back out of the models: `docs/configuration.md`, the file of a first installation, and what is in force.

Run `python -m gpuagent.config.reference > docs/configuration.md` after a change of the models.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from gpuagent.config.load import DEFAULT_PATH, LIMITS
from gpuagent.config.models import Config
from gpuagent.core.regular_files import MAX_FILE_BYTES
from gpuagent.core.sections import Key, Section
from gpuagent.core.units import table_cell

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
    - match: ['alertname="GpuProcessMemoryLeak"', 'evidence="confirmed"', 'unit!=""']
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
  {LIMITS.depth} levels and {LIMITS.values} values.
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
    """Return the whole page."""
    parts = [_INTRODUCTION, *_section(Config, "")]
    return "\n".join(parts)


def _section(section: type[Section], path: str) -> Iterator[str]:
    """Yield a heading, what the section is for, its keys as a table; then the sections below it."""
    yield f"## {f'`{path}`' if path else 'Top level'}\n"
    yield f"{section.__doc__}\n"
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for name, key in section.keys.items():
        cells = (f"`{name}`", _value(key), _default(key), key.description)
        yield f"| {' | '.join(table_cell(cell) for cell in cells)} |"
    yield ""
    for name, key in section.keys.items():
        below, brackets = (key, "") if key.item is None else (key.item, "[]")
        if below.section is not None:
            yield from _section(below.section, f"{path}.{name}{brackets}".lstrip("."))


def _value(key: Key) -> str:
    if key.section is not None:
        return "see below"
    if key.item is not None:
        return "a list, see below" if key.item.section else f"a list: {key.item.allowed()}"
    return key.allowed()


def _default(key: Key) -> str:
    if key.is_required:
        return "required"
    if key.default is None:
        return "none"
    if key.section is not None:
        return ""
    if key.item is not None:
        return f"`{_list_default(key.item, key.default)}`"
    return f"`{key.write(key.default)}`"


def _list_default(item: Key, values: Iterable[object]) -> str:
    return f"[{', '.join(map(item.write, values))}]"


_HEAD = """\
# gpuagent's configuration. Nothing has to be set: what stands here commented out is the default, or an example where
# it says so. Take away the # before a key, that one character, to change it. Then:
#
# `gpuagent config check` names every fault at once.
# `systemctl reload gpuagent` has it read; a bad file is refused, and the old configuration stays.
#
# Secrets are best put into /etc/gpuagent/secrets, a file each, for root alone, and named here as secrets/NAME.
"""
_DIRECTORIES = frozenset({"state_dir", "runtime_dir", "client_dir"})
"""The unit makes them: another one has to be writable in its sandbox, too."""
_WIDTH = 120


def starter() -> str:
    """Return the whole file."""
    return "\n".join([_HEAD, *_keys(Config)])


def _keys(section: type[Section]) -> Iterator[str]:
    for name, key in section.keys.items():
        if name not in _DIRECTORIES:
            yield from _key(name, key)
            yield ""


def _key(name: str, key: Key) -> Iterator[str]:
    about = key.description or (key.section.__doc__ if key.section else "") or ""
    example = _example(name) if key.section is None or _has_lists(key.section) else ""
    plain = key.section is None and (key.item is None or key.item.section is None)
    yield from _prose(about if plain or not example else f"{about} For example:")
    if example and not plain:
        yield from (f"#{line}" for line in example.splitlines())
    elif key.section is not None:
        yield f"#{name}:"
        yield from _starter_fields(key.section, "  ")
    else:
        yield f"#{name}: {_starter_default(key)}"


def _starter_fields(section: type[Section], indent: str) -> Iterator[str]:
    """Yield the keys of a section. What has no default is left to the reference: there is nothing to write."""
    for name, key in section.keys.items():
        if key.section is not None:
            yield f"#{indent}{name}:"
            yield from _starter_fields(key.section, f"{indent}  ")
        else:
            yield f"#{indent}{name}: {_starter_default(key)}"


def _has_lists(section: type[Section]) -> bool:
    """Return whether the point of a section is in its lists, such as remedies: it says nothing by its defaults."""
    return any(key.item is not None and key.item.section is not None for key in section.keys.values())


def _starter_default(key: Key) -> str:
    if key.default is None:
        return "null"
    if key.item is not None:
        return _list_default(key.item, key.default)
    return key.write(key.default) or '""'


def _example(name: str) -> str:
    """Return the key's part of the reference's example; nothing where that has none."""
    found = re.search(rf"(?m)^{name}:.*\n(?:[ -].*\n)*", EXAMPLE)
    return found[0] if found else ""


def _prose(text: str) -> Iterator[str]:
    joined = " ".join(text.split())
    yield from (f"# {line}" for line in textwrap.wrap(joined, _WIDTH - 2))


def effective(config: Config) -> dict[str, Any]:
    """Return every key with its value, defaults included, in the types of YAML and JSON.

    Secrets are `<hidden>`. Below the top, a key that is not set is left out.
    """
    return {name: _plain(key, getattr(config, name)) for name, key in config.keys.items()}


def to_yaml(config: Config) -> str:
    """`effective` as YAML, in the order of the reference."""
    return yaml.safe_dump(effective(config), sort_keys=False, allow_unicode=True, width=100)


def _plain(key: Key, value: Any) -> Any:  # noqa: ANN401 (whatever JSON can hold)
    if value is None or isinstance(value, bool) or (isinstance(value, int) and key.value_type is None):
        return value
    if isinstance(value, Section):
        found = ((name, _plain(inner, getattr(value, name))) for name, inner in value.keys.items())
        return {name: part for name, part in found if part is not None}
    if key.item is not None:
        return [_plain(key.item, part) for part in value]
    return key.write(value)


if __name__ == "__main__":
    sys.stdout.write(render())
