"""Rule files that cannot be used: at a reload what was in force goes on, and at the start nothing begins."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from gpuagent.cli.run import EXIT_CONFIGURATION
from tests.alerts.notify.receivers.sink import sink
from tests.integration.agent import Agent, command, running_agent, write_config
from tests.integration.test_alerts import full_until, keys, shown, wait_until_firing
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def rule(text: str, times: int = 1) -> str:
    """A file with a rule, so many times."""
    lines = "".join(f"  - {{{text.replace('%', str(number))}}}\n" for number in range(times))
    return f"groups:\n- name: g\n  rules:\n{lines}"


BAD = {
    "groups: [": "this is not YAML",
    rule("alert: A, expr: m, experssion: m"): 'the key "experssion" is unknown',
    rule("alert: A, expr: 'rate(m[5m]) > 0'"): "rate",
    rule("alert: A, expr: '1 and m'"): "set operator",
    rule("alert: A, expr: m", 2): "has the same name and the same labels",
    rule(f"alert: A, expr: '{'(' * 500}m{')' * 500}'"): "nested more than 64 deep",
    rule(f"alert: A, expr: '{'m + ' * 3000}m'"): "split it with recording rules",
    rule("alert: A, expr: m", 200_000): "is larger than 1 MiB",
}


def reload(agent: Agent) -> None:
    """As `systemctl reload`."""
    agent.process.send_signal(signal.SIGHUP)


def rules_in_force(agent: Agent) -> int:
    """How many there are."""
    count: int = json.loads(agent.get("/api/v1/alerts").body)["rules"]
    return count


def test_what_was_in_force_goes_on(folder: Path) -> None:
    """Each bad file is refused with its fault, no alert ends; a good one with 1,000 rules is taken at once."""
    with sink() as receiver:
        settings = keys(folder, receiver)
        with running_agent(folder, full_until(folder, "10h"), **settings) as agent:
            wait_until_firing(agent)
            receiver.wait(lambda seen: bool(seen.processed))  # an incident that begins is not told at once
            began, count = shown(agent)["starts_at_seconds"], rules_in_force(agent)
            file = folder / "rules.yaml"
            good = file.read_text(encoding="utf-8")
            for content, words in BAD.items():
                file.write_text(content, encoding="utf-8")
                reload(agent)
                agent.wait_until_logged(words)
                assert (shown(agent)["state"], shown(agent)["starts_at_seconds"]) == ("firing", began)
                assert rules_in_force(agent) == count

            many = rule("alert: A%, expr: gpuagent_gpu_memory_used_bytes > %, for: 10h", 1000).partition("rules:\n")[2]
            file.write_text(good + many.replace("  - {", "      - {"), encoding="utf-8")
            reload(agent)
            until(lambda: rules_in_force(agent) == count + 1000, f"they are in force; {agent.log()}")
            assert shown(agent)["starts_at_seconds"] == began
            assert agent.stop() == 0
        assert "Traceback" not in agent.log()
        assert [json.loads(request.body)["status"] for request in receiver.processed] == ["firing"]


def test_it_does_not_start_with_a_bad_file(folder: Path) -> None:
    """Every fault of every file at once, for the agent as for `gpuagent config check`; and the status of sysexits.h."""
    files = []
    for number, content in enumerate(list(BAD)[:4]):
        path = folder / f"{number}.yaml"
        path.write_text(content, encoding="utf-8")
        files.append(str(path))
    config = str(write_config(folder, 0, rule_files=[*files, "nowhere.yaml"], disabled_rules=["Watchdog"]))

    started = command("run", "--config", config, "--simulate", "healthy")
    assert (started.returncode, started.stdout) == (EXIT_CONFIGURATION, "")
    checked = command("config", "check", config)
    assert checked.returncode == 1
    assert checked.stderr == started.stderr
    for words in [*list(BAD.values())[:4], "nowhere.yaml: cannot be read: No such file"]:
        assert words in started.stderr
