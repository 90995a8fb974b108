"""What a configuration names, looked up: with file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuagent.config.load import load_config
from gpuagent.config.rules import load_rules
from gpuagent.config_notes.notes import ConfigFile, Machine, config_notes

HOOK = "receivers:\n  - {name: hook, webhook: {url: 'http://127.0.0.1/'}}\n"


def notes(folder: Path, text: str, machine: Machine | None = None, *, asked: bool = False) -> list[str]:
    """The notes on a file with this text, without the folder's name."""
    path = folder / "gpuagent.yaml"
    path.write_text(text)
    config = load_config(path, is_root=True)
    machine = machine or Machine(lambda _: {}, ())
    found = config_notes(config, load_rules(config), ConfigFile(path), machine, asked=asked)
    return [note.replace(f"{folder}/", "") for note in found]


def secret(folder: Path, content: str | None) -> str:
    """A configuration with a receiver whose URL stands in this file."""
    if content is not None:
        (folder / "url").write_text(content)
    return f"poll_interval: 1s\nreceivers:\n  - name: ops\n    slack:\n      url_file: {folder}/url\n"


def test_a_good_one_has_no_note(tmp_path: Path) -> None:
    """CONF-09: one receiver and no route: everybody is told everything."""
    assert notes(tmp_path, secret(tmp_path, "https://hooks.example/x\n")) == []


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (" \n", "is empty")])
def test_a_secret_that_is_missing_or_empty(tmp_path: Path, content: str | None, why: str) -> None:
    """CONF-09: with line, file and reason, before the first message is lost to it."""
    (note,) = notes(tmp_path, secret(tmp_path, content))
    assert note.startswith("gpuagent.yaml:5: receivers[0].slack.url_file: ")
    assert why in note
    assert note.endswith("ops cannot be told")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees what another user may not read")
def test_a_secret_that_the_service_may_not_read(tmp_path: Path) -> None:
    """CONF-09: root can read everything, the service cannot."""
    text = secret(tmp_path, "https://hooks.example/x\n")
    (tmp_path / "url").chmod(0o600)
    (note,) = notes(tmp_path, text, Machine(lambda _: {}, (), "nobody"))
    assert "may not be read by the user nobody" in note


@pytest.mark.parametrize(
    ("match", "why"),
    [
        ('alertname="GpuLots"', "there is no rule GpuLots; did you mean GpuLost?"),
        ('alertname=~"Nothing.*"', 'no rule has a name of which alertname=~"Nothing.*" holds'),
        ('alertname=~"GpuLost|GpuMemoryFul"', "there is no rule GpuMemoryFul; did you mean GpuMemoryFull?"),
        ('alertname!="GpuLots"', "there is no rule GpuLots; did you mean GpuLost?"),
        ('alertname!~"(GpuLots|Watchdog)"', "there is no rule GpuLots; did you mean GpuLost?"),
        ('severity="fatal"', 'severity is never "fatal", only critical or info or none or warning'),
        ('severity=~"critcal|warning"', 'severity is never "critcal"; did you mean critical?'),
        ('tier="minute"', 'tier is never "minute"; did you mean minutes?'),
        ('evidence="stric"', 'evidence is never "stric"; did you mean strict?'),
        ('severty="critical"', "no alert has a label severty; did you mean severity?"),
        ('alertnam=~"Gpu.*"', "no alert has a label alertnam; did you mean alertname?"),
        ('gpu="GPU 0"', 'gpu is a number, as in gpu="0", and never "GPU 0"'),
        ('uuid="GPU-nonsense"', 'uuid is never "GPU-nonsense": `nvidia-smi -L` shows those of this machine'),
        ('budget="inference"', 'budget is never "inference": none is configured'),
    ],
)
def test_a_route_that_takes_nothing(tmp_path: Path, match: str, why: str) -> None:
    """CONF-09: a name that no rule has is told with what was probably meant."""
    text = HOOK + f"  - {{name: all, webhook: {{url: 'http://127.0.0.1/'}}}}\nroutes:\n  - match: ['{match}']\n"
    assert notes(tmp_path, text + "    receivers: [hook]\n") == [f"gpuagent.yaml:5: routes[0].match[0]: {why}"]


def test_a_disabled_rule_in_a_route(tmp_path: Path) -> None:
    """CONF-09: it is said that the rule was left out."""
    text = HOOK + "  - {name: all, webhook: {url: 'http://127.0.0.1/'}}\ndisabled_rules: [GpuLost]\n"
    text += "routes:\n  - {match: ['alertname=\"GpuLost\"'], receivers: [hook]}\n"
    (note,) = notes(tmp_path, text)
    assert note.endswith("GpuLost is among disabled_rules: there is no such alert")


def test_a_route_to_a_heartbeat_leads_nowhere(tmp_path: Path) -> None:
    """CONF-09: a heartbeat takes no alerts."""
    text = HOOK + "  - {name: pulse, heartbeat: {url: 'http://127.0.0.1/'}}\nroutes: [{receivers: [pulse]}]\n"
    assert [note.partition(": ")[2] for note in notes(tmp_path, text)] == [
        "routes[0].receivers: only heartbeats: they take no alerts, so this route leads nowhere"
    ]


def test_alerts_that_nobody_is_told_of(tmp_path: Path) -> None:
    """CONF-09: where every receiver has a route, what no route takes is named."""
    text = HOOK + "routes:\n  - {match: ['severity=\"critical\"'], receivers: [hook]}\n"
    (note,) = notes(tmp_path, text)
    assert note.startswith("gpuagent.yaml:3: routes: nobody is told of GpuMemoryHigh, ")
    assert note.endswith(" more: no route takes them")


def test_units_that_do_not_exist(tmp_path: Path) -> None:
    """CONF-09: a unit, or the template of an instance, has to be where systemd looks."""
    folder = tmp_path / "system"
    folder.mkdir()
    (folder / "whisper.service").touch()
    (folder / "worker@.service").touch()
    text = "remedies:\n  allow:\n    units: [whisper.service, worker@1.service, wisper.service]\n"
    text += "  supervisors: [whisper.service, ml-jobs.service]\n"
    found = notes(tmp_path, text, Machine(lambda _: {}, [folder]))
    assert found == [
        "gpuagent.yaml:3: remedies.allow.units[2]: this machine has no unit wisper.service",
        "gpuagent.yaml:4: remedies.supervisors[1]: this machine has no unit ml-jobs.service",
    ]


def test_an_alias_of_a_unit_is_noted(tmp_path: Path) -> None:
    """CONF-09: a process is known by its unit's own name; an alias, as `Alias=` makes it, means nobody."""
    folder = tmp_path / "system"
    folder.mkdir()
    for name in ("whisper.service", "worker@.service"):
        (folder / name).touch()
    (folder / "speech.service").symlink_to("/usr/lib/systemd/system/whisper.service")
    (folder / "worker@1.service").symlink_to("worker@.service")
    (folder / "masked.service").symlink_to("/dev/null")
    text = "remedies:\n  allow:\n    units: [whisper.service, worker@1.service, masked.service, speech.service]\n"
    (note,) = notes(tmp_path, text, Machine(lambda _: {}, [folder]))
    assert note.startswith("gpuagent.yaml:3: remedies.allow.units[3]: speech.service is an alias of whisper.service")


def test_what_never_acts_has_its_line_too(tmp_path: Path) -> None:
    """CONF-09: notes on users and ladders say where they stand."""
    text = "remedies:\n  allow:\n    users: [nobody-here]\n"
    found = notes(tmp_path, text, Machine(lambda names: dict.fromkeys(names, "this machine knows no such user"), ()))
    assert found == ["gpuagent.yaml:3: remedies.allow.users[0]: this machine knows no such user"]


def test_a_ladder_that_may_end_nobody(tmp_path: Path) -> None:
    """CONF-09: it acts, so the agent warns of nothing at its start; a person who asks is told, with the line."""
    text = (
        "remedies:\n  allow: {users: [ada]}\n  ladders:\n"
        "  - {match: ['alertname=\"GpuMemoryHigh\"'], steps: [{terminate: {}}], victim: largest}\n"
    )
    assert notes(tmp_path, text) == []
    (note,) = notes(tmp_path, text, asked=True)
    assert note.startswith(
        "gpuagent.yaml:4: remedies.ladders[0].steps: ends with terminate, which a process may ignore"
    )


@pytest.mark.parametrize(
    ("poll", "refusal", "told"),
    [
        ("1s", "", []),
        ("1s", "no helper", ["gpuagent.yaml:4: remedies.ladders[0].steps[0].drop_caches: is passed: no helper"]),
        ("5s", "", ["gpuagent.yaml:1: poll_interval: at more than 3 s"]),
    ],
)
def test_page_cache_that_is_dropped_never_or_too_late(tmp_path: Path, poll: str, refusal: str, told: list[str]) -> None:
    """CONF-09: a step that the agent has no right to, and readings too far apart to see a stall come."""
    text = (
        f"poll_interval: {poll}\nremedies:\n  ladders:\n"
        "    - {match: ['alertname=\"GpuMemoryStallImminent\"'], victim: largest, steps: [{drop_caches: {}}]}\n"
    )
    found = notes(tmp_path, text, Machine(lambda _: {}, (), reclaim_refusal=lambda: refusal))
    found = [note for note in found if "remedies.allow" not in note]
    assert len(found) == len(told)
    assert all(note.startswith(begin) for note, begin in zip(found, told, strict=True))


PASSED_OVER = (
    "gpuagent.yaml:3: remedies.ladders[0].steps[0].limit: is passed over, or refused as the last step: no helper"
)


@pytest.mark.parametrize(
    ("text", "refusal", "told"),
    [
        ("", "no helper", []),
        (
            "remedies:\n  ladders:\n    - {match: ['alertname=\"GpuProcessMemoryLeak\"'], steps: [{limit: {}}]}\n",
            "no helper",
            [PASSED_OVER],
        ),
    ],
)
def test_limits_that_are_never_set(tmp_path: Path, text: str, refusal: str, told: list[str]) -> None:
    """A step that asks for a memory limit which this machine refuses."""
    found = notes(tmp_path, text, Machine(lambda _: {}, (), limit_refusal=lambda: refusal))
    assert [note for note in found if "limit" in note.split(" ")[1]] == told


LADDER = "ladders: [{match: ['alertname=\"GpuLost\"'], steps: [{notify: {}}]}]"


@pytest.mark.parametrize(
    ("never", "may_trace", "told"),
    [
        ("['/opt/prod/*']", False, True),
        ("[serve, /opt/prod/a.py]", False, True),
        ("['/opt/prod/*']", True, False),
        ("['/opt/prod/*']", None, False),
        ("[serve]", False, False),
    ],
)
def test_paths_that_the_agent_may_not_look_up(tmp_path: Path, never: str, may_trace: bool | None, told: bool) -> None:
    """CONF-09: entries with a path spare every relative path where the right to see directories is missing."""
    text = f"remedies:\n  never: {never}\n  {LADDER}\n"
    found = notes(tmp_path, text, Machine(lambda _: {}, (), may_trace=lambda: may_trace))
    assert any("Add CAP_SYS_PTRACE to AmbientCapabilities=" in note for note in found) is told
    if told:
        assert any(note.startswith("gpuagent.yaml:2: remedies.never[") for note in found)


@pytest.mark.parametrize(
    ("expression", "spared"),
    [
        ('USED > 1e9 unless on (gpu, uuid, pid) USED{user="svc_prod"}', ["svc_prod"]),
        ('USED{user!="svc_prod"} > 1e9', ["svc_prod"]),
        ('USED{user!~"svc_prod|svc-prod|ghost"} > 1e9', ["svc_prod", "ghost"]),
        ('USED > 1e9 unless (USED unless USED{user!="svc_prod"})', ["svc_prod"]),
        ('USED{user="svc_prod"} > 1e9', []),
        ('USED > 1e9 unless USED{user!="svc_prod"}', []),
        ('USED{user!~"svc_.*"} > 1e9', []),
        ('USED{user!="svc-prod"} > 1e9', []),
        ('USED{process!="svc_prod"} > 1e9', []),
    ],
)
def test_users_whom_a_rule_spares_and_nobody_has(tmp_path: Path, expression: str, spared: list[str]) -> None:
    """KILL-01: a rule that leaves out a user of whom this machine does not know leaves out nobody: it is told."""
    expr = expression.replace("USED", "gpuagent_process_memory_used_bytes")
    (tmp_path / "rules.yaml").write_text(f"groups: [{{name: g, rules: [{{alert: A, expr: '{expr}'}}]}}]\n")
    machine = Machine(lambda names: {name: "unknown" for name in names if name != "svc-prod"}, ())
    found = notes(tmp_path, f"rule_files: [{tmp_path}/rules.yaml]\n", machine)
    assert found == [
        f'rules.yaml:1: group "g", rule "A": user "{name}" is left out, and that spares nobody: unknown'
        for name in spared
    ]


def test_a_budget_or_gpu_that_a_rule_spares_and_is_not_there(tmp_path: Path) -> None:
    """KILL-01: so it is of budgets that are not configured, and of GPUs that the driver does not have."""
    gpu = tmp_path / "gpus" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("GPU UUID: GPU-aaaaaaaa-0000-0000-0000-000000000000\n")
    rules = (
        "groups: [{name: g, rules: [{alert: A, expr: 'gpuagent_budget_used_bytes{budget!=\"whispr\"} > 5e9'},"
        " {alert: B, expr: 'gpuagent_gpu_memory_used_ratio{uuid!=\"GPU-a\"} > 0.9'}]}]\n"
    )
    (tmp_path / "rules.yaml").write_text(rules)
    text = f"rule_files: [{tmp_path}/rules.yaml]\nbudgets: [{{name: whisper, match: {{user: root}}, memory: 6GiB}}]\n"
    budget, uuid = notes(tmp_path, text, Machine(lambda _: {}, (), gpus=gpu.parent))
    assert budget.endswith(
        'budget "whispr" is left out, and that spares nobody: there is no budget whispr; did you mean whisper?'
    )
    assert uuid.endswith(
        'uuid "GPU-a" is left out, and that spares nobody: no GPU of this machine has that uuid, but '
        "GPU-aaaaaaaa-0000-0000-0000-000000000000"
    )


UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
H100 = "NVIDIA H100 80GB HBM3"
NO_GPU, SPARES_NOBODY = "no GPU of this machine has that", "is left out, and that spares nobody"
KEPT = "the kernel keeps 15 bytes of a name; write text-generation"


def of_one_gpu(folder: Path) -> Machine:
    """A machine with one GPU, and with one user."""
    gpu = folder / "gpus" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text(f"Model: \t\t {H100}\nIRQ:   \t\t 30\nGPU UUID: \t {UUID}\n")
    return Machine(lambda names: {name: f"no user {name}" for name in names if name != "ann"}, (), gpus=gpu.parent)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ('USED{uuid!~"GPU-b.*"} > 1e9', f'uuid "GPU-b.*" {SPARES_NOBODY}: {NO_GPU} uuid, but {UUID}'),
        (f'USED{{uuid!="{UUID.upper()}"}} > 1e9', f"did you mean {UUID}?"),
        ('USED{uuid!="MIG-1"} > 1e9', f"{NO_GPU} uuid"),
        ('USED > 1e9 unless on (gpu, uuid) gpuagent_gpu_info{name="NVIDIA H100"}', f"{NO_GPU} name, but {H100}"),
        ('USED > 1e9 and on (gpu, uuid) gpuagent_gpu_info{name!~".*A100.*|T4"}', f"{NO_GPU} name"),
        (f'USED{{uuid="{UUID}", gpu!="3"}} > 1e9', f"{NO_GPU} gpu, but 0"),
        ('USED{process=~"a.*", process!="text-generation-server"} > 1e9', KEPT),
        ('VERDICT{verdict!~"steady|leeking"} == 1', f'"leeking" {SPARES_NOBODY}: did you mean leaking?'),
        ('USED{uuid!~"GPU-a.*"} > 1e9', ""),
        ('USED > 1e9 and on (gpu, uuid) gpuagent_gpu_info{name!~".*H100.*"}', ""),
        ('USED > 1e9 and on (gpu, uuid) gpuagent_gpu_info{name="NVIDIA A100"}', ""),
        ('USED{uuid!=""} > 1e9', ""),
        ('USED{process!~"text-generation.*"} > 1e9', ""),
    ],
)  # fmt: skip
def test_what_a_rule_spares_and_nothing_here_is_called(tmp_path: Path, expression: str, told: str) -> None:
    """KILL-01: patterns too, and names of GPUs, of the kernel's length, and of fixed sets of values."""
    expr = expression.replace("USED", "gpuagent_process_memory_used_bytes")
    expr = expr.replace("VERDICT", "gpuagent_process_memory_verdict")
    (tmp_path / "rules.yaml").write_text(f"groups: [{{name: g, rules: [{{alert: A, expr: '{expr}'}}]}}]\n")
    found = notes(tmp_path, f"rule_files: [{tmp_path}/rules.yaml]\n", of_one_gpu(tmp_path))
    assert [told in each for each in found] == ([True] if told else [])


@pytest.mark.parametrize(
    ("matcher", "told"),
    [
        ('user!="bob"', 'user!="bob" leaves out nobody: no user bob'),
        ('user!~"ann|bob"', 'user!~"ann|bob" leaves out nobody: no user bob'),
        (f'uuid!="{UUID[:-1]}1"', f"{NO_GPU} uuid, but {UUID}; did you mean {UUID}?"),
        ('user!="ann"', ""),
        (f'uuid!="{UUID}"', ""),
    ],
)  # fmt: skip
def test_what_a_ladder_spares_and_nothing_here_is_called(tmp_path: Path, matcher: str, told: str) -> None:
    """KILL-01: a matcher that excludes whom this machine does not have is noted with the line of its ladder."""
    rule = "{alert: A, expr: 'gpuagent_process_memory_used_bytes > 9e9'}"
    (tmp_path / "rules.yaml").write_text(f"groups: [{{name: g, rules: [{rule}]}}]\n")
    text = (
        f"rule_files: [{tmp_path}/rules.yaml]\nremedies:\n  allow: {{users: [ann]}}\n  ladders:\n"
        f"    - match: ['alertname=\"A\"', '{matcher}']\n      steps: [{{terminate: {{}}}}, {{kill: {{}}}}]\n"
    )
    found = [each for each in notes(tmp_path, text, of_one_gpu(tmp_path)) if "leaves out" in each]
    assert [told in each for each in found] == ([True] if told else [])
    assert all(each.startswith("gpuagent.yaml:5: remedies.ladders[0].match[1]") for each in found)
