"""What the loaded rules, or the node, leave without effect is told: and nothing of what can act."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from gpuagent.config.models import Config
from gpuagent.config.rules import load_rules
from gpuagent.config_notes import user_database
from gpuagent.config_notes.inert_ladders import may_end_nobody, never_acts
from gpuagent.config_notes.user_database import existing_users, no_user_problems, user_problems
from gpuagent_alerts.remedies.facts import symlinks
from gpuagent_alerts.remedies.facts.symlinks import SearchLimits
from gpuagent_alerts.rules.file import load_rule_text
from gpuagent_alerts.rules.model import RuleFileError
from tests.agent.config.loading import COMPLETE, load, write

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
HIGH, BUDGET, LEAK = (f'alertname="Gpu{name}"' for name in ("MemoryHigh", "BudgetExceeded", "ProcessMemoryLeak"))
KILL = "{kill: {}}"
NOT_THE_PROCESS = "and match looks at the labels of the alert, not at the process"
USERS, UNITS = (f"remedies.allow.{key} says whose processes are meant" for key in ("users", "units"))
SUPERVISED = (
    "what remedies.allow.units permits is supervised by systemd, and gets no kill (but in containers of podman)"
)
IGNORED = (
    "ends with terminate, which a process may ignore: then nothing more is done, and the result is no_effect; a kill"
    " step behind it ends the process"
)
EVIDENCE = "asks for evidence with which no step beyond release_cache is taken: that needs confirmed"


def ladder(*match: str, steps: str = KILL, victim: str = "largest", scope: str = "process") -> str:
    """One ladder; without a victim where that is empty."""
    chosen = f", victim: {victim}" if victim else ""
    return f"{{match: [{', '.join(repr(each) for each in match)}], steps: [{steps}]{chosen}, scope: {scope}}}"


def text(*ladders: str, allow: str = "users: [ada]", more: str = "", budget: bool = True, top: str = "") -> str:
    """A configuration with these ladders."""
    budgets = "budgets: [{name: whisper, match: {user: ada}, memory: 6GiB}]\n" if budget else ""
    return f"{top}{budgets}remedies: {{allow: {{{allow}}}, ladders: [{', '.join(ladders)}]{more}}}\n"


def notes_on(folder: Path, given: str) -> list[str]:
    """The notes on a configuration, every user of which exists, with the shipped rules."""
    config = load(write(folder, given))
    return never_acts(config, load_rules(config), no_user_problems)


@pytest.mark.parametrize(
    ("given", "note"),
    [
        (
            text(ladder('alertname="GpuMemroyHigh"')),
            ".match: there is no rule GpuMemroyHigh; did you mean GpuMemoryHigh?",
        ),
        (text(ladder('alertname=~"Gpu.*Hihg"')), '.match: no rule has a name of which alertname=~"Gpu.*Hihg" holds'),
        (
            text(ladder(HIGH), top="disabled_rules: [GpuMemoryHigh]\n"),
            ".match: GpuMemoryHigh is among disabled_rules: there is no such alert",
        ),
        (text(ladder(BUDGET, 'budget="wisper"')), ".match: there is no budget wisper; did you mean whisper?"),
        (
            text(ladder(BUDGET, 'budget="whisper"'), budget=False),
            '.match: budget="whisper" never holds: there are no budgets',
        ),
        (text(ladder(BUDGET), budget=False), ": GpuBudgetExceeded never fires: there are no budgets"),
        (
            text(ladder(HIGH, 'unit!=""')),
            f'.match: unit!="" never holds: GpuMemoryHigh has no label unit, {NOT_THE_PROCESS}: {UNITS}',
        ),
        (
            text(ladder(BUDGET, 'user="ada"')),
            f'.match: user="ada" never holds: GpuBudgetExceeded has no label user, {NOT_THE_PROCESS}: {USERS}',
        ),
        (
            text(ladder(HIGH, 'unit=""')),
            f'.match[1]: unit="" holds of every alert: GpuMemoryHigh has no label unit, {NOT_THE_PROCESS}: {UNITS}',
        ),
        (
            text(ladder(HIGH, 'node="gpu7"')),
            f'.match: node="gpu7" never holds: GpuMemoryHigh has no label node, {NOT_THE_PROCESS}',
        ),
        (
            text(ladder(LEAK, 'usr="ada"')),
            ('.match: usr="ada" never holds: GpuProcessMemoryLeak has no label usr (did you mean user?),'
            f" {NOT_THE_PROCESS}"),
        ),
        (
            text(ladder('alertname=~"GpuProcessMemoryLeak|GpuMemoryHigh"', 'user!="root"')),
            '.match[1]: user!="root" holds of every alert of GpuMemoryHigh: no label user there',
        ),
        (
            text(ladder(HIGH, 'alertname!="GpuMemroyHigh"')),
            ('.match[1]: alertname!="GpuMemroyHigh" leaves out nobody: there is no rule GpuMemroyHigh; did you mean'
            " GpuMemoryHigh?"),
        ),
        (
            text(ladder(BUDGET, 'budget!="wisper"')),
            '.match[1]: budget!="wisper" leaves out nobody: budget is never "wisper"; did you mean whisper?',
        ),
        (text(ladder(HIGH, 'severity="page"')), '.match: severity="page" holds of no alert of GpuMemoryHigh'),
        (
            text(ladder(HIGH, victim="")),
            ": GpuMemoryHigh names a GPU and no process, and without victim nobody is chosen",
        ),
        (
            text(ladder(HIGH), allow="units: [a.service]"),
            f".steps: {SUPERVISED}: use restart_unit",
        ),
        (
            text(ladder(HIGH, steps="{signal: {name: USR1}}, {restart_unit: {}}"), allow="units: [a.service]"),
            f".steps: {SUPERVISED.replace('kill', 'signal SIGUSR1')}: use restart_unit",
        ),
        (
            text(ladder(LEAK, 'unit=""', steps="{restart_unit: {}}"), allow="units: [a.service]"),
            '.match: asks for unit="", and remedies.allow.units does not: nobody is acted on',
        ),
        (
            text(ladder(LEAK, 'user="bob"')),
            '.match: asks for user="bob", and remedies.allow.users does not: nobody is acted on',
        ),
        (text(ladder(LEAK, 'evidence="balanced"')), f".match: {EVIDENCE}"),
        (
            text(ladder(HIGH, steps='{exec: {command: [/bin/true, "{container_id}"]}}', scope="container")),
            ".steps[0].exec: needs {container_id}, and remedies.allow.containers permits no container",
        ),
    ],
)  # fmt: skip
def test_a_ladder(tmp_path: Path, given: str, note: str) -> None:
    """A ladder that waits in vain, or a matcher that looks at nothing, is told once, with what is there instead."""
    assert notes_on(tmp_path, given) == [f"remedies.ladders[0]{note}"]


@pytest.mark.parametrize(
    ("matchers", "why"),
    [
        ((LEAK, 'usr!="7602"'), "GpuProcessMemoryLeak has no label usr (did you mean user?)"),
        ((LEAK, 'usr!~"7602|root"'), "GpuProcessMemoryLeak has no label usr (did you mean user?)"),
        ((LEAK, 'Unit=~"a|"'), "GpuProcessMemoryLeak has no label Unit (did you mean unit?)"),
        ((HIGH, 'user!="root"'), "GpuMemoryHigh has no label user"),
        ((BUDGET, 'budgt!="whisper"'), "GpuBudgetExceeded has no label budgt (did you mean budget?)"),
        (('severity="warning"', 'nodes!="gpu7"'), "alerts has a label nodes"),
        ((LEAK, 'user!="root"'), ""),
        ((LEAK, 'unit!=""'), ""),
        ((HIGH, 'unit=""'), ""),
        ((BUDGET, 'budget!="whisper"'), ""),
        ((LEAK, 'severity!="info"', 'simulated!="true"'), ""),
    ],
)
def test_a_matcher_that_leaves_out_nobody(tmp_path: Path, matchers: tuple[str, ...], why: str) -> None:
    """KILL-01: whoever excludes by a label that the alert cannot have spares nobody: it is a fault, with its place."""
    config = load(write(tmp_path, text(ladder(*matchers))))
    if not why:
        assert load_rules(config)
        return
    with pytest.raises(RuleFileError) as raised:
        load_rules(config)
    assert str(raised.value).startswith(
        f"remedies.ladders[0].match[{len(matchers) - 1}]: {matchers[-1]} leaves out nob"
    )
    assert why in str(raised.value)


def test_a_rule_that_matches_a_label_has_not_therefore_one(tmp_path: Path) -> None:
    """KILL-01: the same slip in the rule and in its ladder is a fault all the same."""
    rule = "{alert: Mine, expr: 'gpuagent_process_memory_used_bytes{usr!=\"7602\"} > 1e9'}"
    (tmp_path / "mine.yaml").write_text(f"groups: [{{name: g, rules: [{rule}]}}]\n")
    given = text(ladder('alertname="Mine"', 'usr!="7602"'), top=f"rule_files: [{tmp_path}/mine.yaml]\n")
    with pytest.raises(RuleFileError, match=r"leaves out nobody: Mine has no label usr \(did you mean user\?\)"):
        load_rules(load(write(tmp_path, given)))


SHADOWED = "remedies.ladders[1]: is never reached: ladders[0] before it matches all that it could"


@pytest.mark.parametrize(
    ("ladders", "shadowed"),
    [
        ([ladder('severity="warning"'), ladder(HIGH)], True),
        ([ladder(LEAK), ladder(LEAK, 'user="ada"')], True),
        ([ladder(LEAK, 'user=~"a.*"'), ladder(LEAK, 'user="ada"')], True),
        ([ladder(LEAK, 'evidence=~"confirmed|strict"'), ladder(LEAK, 'evidence="confirmed"')], True),
        ([ladder(BUDGET, 'budget!="other"'), ladder(BUDGET, 'budget="whisper"')], True),
        ([ladder(LEAK, 'user="ada"'), ladder(LEAK)], False),
        ([ladder(LEAK, 'unit!=""'), ladder(LEAK, 'unit=""')], False),
        ([ladder(LEAK, 'evidence="confirmed"'), ladder(LEAK, 'evidence=~"confirmed|strict"')], False),
        ([ladder(HIGH), ladder('severity="warning"')], False),
    ],
)
def test_a_ladder_behind_another(tmp_path: Path, ladders: list[str], shadowed: bool) -> None:
    """Only a ladder of which every alert goes to one before it is told to be out of reach."""
    notes = notes_on(tmp_path, text(*ladders))
    assert any(note.startswith(SHADOWED) for note in notes) == shadowed
    told = ("is never reached", "no ladder disrupts", "leaves out nobody")
    assert all(any(words in note for words in told) for note in notes)


@pytest.mark.parametrize(
    ("given", "note"),
    [
        (
            text(ladder(HIGH), allow=""),
            "allow: names no user, unit or container: every ladder is refused, in a dry run",
        ),
        (
            text(ladder(HIGH), allow="units: [a.service], containers: [3f4e1c9a7b20]"),
            "allow: units and containers stand side by side, and all that is given must hold",
        ),
        (text(ladder(HIGH), more=", limits: {per_hour: 0}"), "limits.per_hour: is 0: rules take no step beyond"),
        (text(ladder(HIGH), more=", limits: {unit_per_hour: 0}"), "limits.unit_per_hour: is 0: rules take no step"),
        (text(ladder(HIGH), more=", never: ['*']"), "never: has *, which is every program"),
    ],
)
def test_what_holds_all_ladders_back(tmp_path: Path, given: str, note: str) -> None:
    """Lists and limits by which nothing is ever done are told, and taken: they are the safe side."""
    (found,) = notes_on(tmp_path, given)
    assert found.startswith(f"remedies.{note}")


RULES = """
groups:
- name: g
  rules:
  - {alert: Full, expr: gpuagent_gpu_memory_used_ratio > 0.9, labels: {severity: critical, team: ml}}
  - {alert: Old, expr: 'old:memory:sum > 1', labels: {severity: critical}}
  - {alert: Writes, expr: gpuagent_gpu_memory_used_ratio > 0.9, labels: {user: '{{ $labels.gpu }}'}}
"""


@pytest.mark.parametrize(
    ("ladders", "told"),
    [
        ([ladder('alertname="Old"')], ["Old"]),
        ([ladder('alertname=~"Old|Full|Writes"')], ["Old", "Writes"]),
        ([ladder('severity="critical"')], ["Old"]),
        ([ladder('alertname="Full"')], []),
        ([ladder('alertname="Full"', 'team="ml"')], []),
        ([ladder('alertname="Old"', steps="{release_cache: {}}")], []),
        ([ladder('alertname="Old"', steps="{notify: {}}"), ladder('alertname=~"Old|Full"')], []),
    ],
)
def test_a_rule_that_is_no_reason(tmp_path: Path, ladders: list[str], told: list[str]) -> None:
    """A rule without grounds is told for the ladder that it gets, with the reason: not for one that disrupts nobody."""
    config = load(write(tmp_path, text(*ladders)))
    notes = never_acts(config, load_rule_text(RULES), no_user_problems)
    assert [note.split()[1] for note in notes] == told
    assert all("read the metrics themselves" in note or "is a template" in note for note in notes)


def test_users_that_do_not_exist(tmp_path: Path) -> None:
    """A name that nobody has is told with its place; so is the number of somebody who has a name."""
    given = (
        "budgets: [{match: {user: no-such-user}, memory: 1GiB}]\nremedies: {allow: {users: [root, '0', '4123456']}}\n"
    )
    config = load(write(tmp_path, given))
    assert never_acts(config, load_rules(config)) == [
        "budgets[0].match.user: this machine knows no user no-such-user",
        "remedies.allow.users[1]: 0 is the number of root: write the name",
    ]


def test_a_user_database_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a start nor a check waits for a directory server: what it does not tell in time is no finding."""

    def hang(_: Iterable[str], found: dict[str, str]) -> None:
        found["ghost"] = "told late"
        started.wait()

    started = threading.Event()
    monkeypatch.setattr(user_database, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(user_database, "_look_up", hang)
    found = user_problems(["ghost", "other"])
    started.set()
    assert "other" not in found


def documented() -> list[tuple[str, str]]:
    """Every configuration in the documentation, with its page."""
    pages = [ROOT / "README.md", ROOT / "client" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [(page.name, block) for page in pages for block in BLOCK.findall(page.read_text())]
    return [(name, block) for name, block in blocks if set(yaml.safe_load(block)) <= set(Config.keys)]


@pytest.mark.parametrize(("page", "block"), documented())
def test_what_is_documented_gives_no_note(tmp_path: Path, page: str, block: str) -> None:
    """Whoever copies an example has a configuration that acts as it looks."""
    (tmp_path / "rules").mkdir()
    keys = yaml.safe_load(block)
    for file in keys.get("rule_files", ()):
        if not Path(file).is_absolute():
            (tmp_path / file).write_text("groups: []\n")
    config = load(write(tmp_path, block))
    rules = load_rules(config) if all(path.exists() for path in config.rule_files) else load_rules(Config())
    assert never_acts(config, rules, no_user_problems) == [], page


def test_what_is_shipped_gives_no_note() -> None:
    """Neither do the defaults, nor a file with every part of the configuration in use."""
    for config in (Config(), load(COMPLETE)):
        assert never_acts(config, load_rules(config), no_user_problems) == []
    assert len([block for _, block in documented() if "ladders" in block]) >= 5


def never(*entries: str, allow: str = "users: [ada]") -> str:
    """A configuration with these entries of the never-list."""
    return text(ladder(HIGH), allow=allow, more=f", never: [{', '.join(map(repr, entries))}]")


def test_entries_that_mean_an_interpreter(tmp_path: Path) -> None:
    """An entry that leads to an interpreter spares all that it runs; of an environment, what has no path of its own."""
    interpreter = os.path.realpath(sys.executable)
    link, environment = tmp_path / "link", tmp_path / "venv" / "bin" / "python"
    environment.parent.mkdir(parents=True)
    for each in (link, environment):
        each.symlink_to(interpreter)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    own = (
        f"{environment} is the interpreter of a virtual environment: processes that run {interpreter} and were started"
        " by their name alone are spared too"
    )
    plain = tmp_path / "serve"
    plain.touch()
    spares = "is an interpreter: all that it runs is spared"
    assert notes_on(tmp_path, never(str(link), interpreter, "python3", str(environment), str(plain), "serve")) == [
        f"remedies.never[0]: {link} leads to {interpreter}, which {spares}",
        f"remedies.never[1]: {interpreter} {spares}",
        f"remedies.never[2]: python3 {spares}",
        f"remedies.never[3]: {own}",
    ]


def test_units_that_are_allowed_and_never_restarted(tmp_path: Path) -> None:
    """A unit of the never-list, built in or by an entry, is allowed in vain; so is one that runs work of others."""
    restart = ladder(HIGH, steps="{restart_unit: {}}")
    given = text(
        restart, allow="units: [docker.service, jupyterhub.service, a.service], shared_units: [whisper.service]",
        more=", never: [whisper]",
    )  # fmt: skip
    docker, hub, whisper = notes_on(tmp_path, given)
    assert docker == "remedies.allow.units[0]: docker.service is on the never-list (docker): others depend on it"
    assert hub.startswith("remedies.allow.units[1]: jupyterhub.service runs other people's work (jupyterhub*)")
    assert whisper.startswith("remedies.allow.shared_units[0]: whisper.service is on the never-list (whisper)")


def test_a_ladder_whose_last_step_may_be_ignored(tmp_path: Path) -> None:
    """It acts, so it is no warning of the agent's: `config check` says what happens where the process ignores it."""
    ends, kills = "{release_cache: {}}, {terminate: {}}", "{terminate: {}}, {kill: {}}"
    config = load(write(tmp_path, text(ladder(HIGH, steps=ends), ladder(BUDGET, steps=kills))))
    never = never_acts(config, load_rules(config), no_user_problems)
    assert never == []
    assert may_end_nobody(config, never) == [f"remedies.ladders[0].steps: {IGNORED}"]
    assert may_end_nobody(config, ["remedies.ladders[0]: is never reached"]) == []


def test_an_entry_that_is_a_directory(tmp_path: Path) -> None:
    """A directory means all that lies in it, with a slash at its end or without: there is nothing to note."""
    assert notes_on(tmp_path, never(f"{tmp_path}/x", str(tmp_path), f"{tmp_path}/")) == []


def test_an_entry_that_is_a_command_line(tmp_path: Path) -> None:
    """A path with blanks is one where such a file is there; else it was meant as a command line."""
    (tmp_path / "my app").touch()
    assert notes_on(tmp_path, never(f"{tmp_path}/my app")) == []
    assert notes_on(tmp_path, never(f"{tmp_path}/serve --port 1")) == [
        (
            f"remedies.never[0]: there is no file {tmp_path}/serve --port 1: an entry is compared with paths, not with"
            f" command lines; write {tmp_path}/serve"
        )
    ]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("docker://prod", "is an address, and no name or path of a program: containers and images are spared by"),
        ("oci+ssh://host/prod", "is an address"),
        ("1234", "is a number, and is compared with names of programs, not with pids, uids or jobs"),
        ("GPU-attacked", "is a GPU, and never names programs: GPUs are spared by leaving them out"),
        ("MIG-1c2d", "is a GPU"),
        ("0000:01:00.0", "is a PCI address"),
        ("3f4e1c9a7b20", "looks like the id of a container"),
        ("/opt/prod/**", ": * means any text here, slashes too, so that ** is no more: write /opt/prod/*"),
        ("/opt/prod/**/serve", "write /opt/prod/*/serve and, for what lies in the directory itself, /opt/prod/serve"),
        ("prod[0-9].py", ": [ and ? mean themselves here, and * alone stands for any text: write prod*.py, if"),
        ("/opt/prod/b?n", "write /opt/prod/b*n, if it is meant as a shell's pattern"),
        ("432?", ""),
        ("4321", ""),
        ("deadbeeffeed", ""),
        ("prod-1234", ""),
        ("GPU", ""),
        ("/opt/prod/*", ""),
    ],
)  # fmt: skip
def test_an_entry_in_the_form_of_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, told: str
) -> None:
    """KILL-01: what is no name of a program spares nobody, and the note says what is meant; a program's name does."""
    (tmp_path / "4321").touch(mode=0o755)
    (tmp_path / "432?").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = notes_on(tmp_path, never(entry))
    assert [each.startswith(f"remedies.never[0]: {entry}") and told in each for each in found] == (
        [True] if told else []
    )


def test_an_entry_that_is_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's name spares programs of that name alone: it is told, unless there is such a program."""
    program = tmp_path / "postgres"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    config = load(write(tmp_path, never("daemon", "postgres", "whisper", "/opt/daemon")))
    users = frozenset({"daemon", "postgres"})
    assert never_acts(config, load_rules(config), no_user_problems, users.intersection) == [
        (
            "remedies.never[0]: daemon is a user of this machine, and never names programs: users are spared by leaving"
            " them out of remedies.allow.users"
        )
    ]
    assert existing_users(["root", "no-such-user"]) == {"root"}


def test_an_entry_that_cannot_be_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a pattern over more than can be searched nobody is ever acted on: that is told before it is needed."""
    (tmp_path / "a").touch()
    entry = f"{tmp_path}/*"
    assert notes_on(tmp_path, never(entry)) == []
    monkeypatch.setattr(symlinks, "SearchLimits", lambda: SearchLimits(entries=0))
    (note,) = notes_on(tmp_path, never(entry))
    assert note.startswith(
        f"remedies.never[0]: {entry} cannot be looked up, so every ladder is refused: there are more"
    )
