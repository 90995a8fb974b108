"""Where messages lead to, by the configuration: the page, a board, a runbook."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.config.load import ConfigError
from gpuagent.config.rules import load_rules
from gpuagent.core.clock import ManualClock
from gpuagent.service.alerting import links_of
from gpuagent.service.http_servers import own_url
from gpuagent_alerts.messages.briefing import Links
from gpuagent_alerts.rules.model import AlertRule
from gpuagent_alerts.shipped import RUNBOOKS_URL
from tests.agent.config.loading import load, write
from tests.agent.service.alerting.bench import BUSY, FULL, alerting, bodies, config, rules, run
from tests.alerts.notify.receivers.sink import sink

OWN = "http://node7:9837"


def runbooks(folder: Path, text: str) -> set[str]:
    """Return the address of every runbook that the rules in force lead to."""
    groups = load_rules(load(write(folder, text)))
    found = (rule for group in groups for rule in group.rules if isinstance(rule, AlertRule))
    return {rule.annotations["runbook_url"].fill({}, 0.0).removesuffix(f"{rule.name}.md") for rule in found}


@pytest.mark.parametrize(
    ("listen", "encrypts", "url"),
    [
        ("", False, ""),
        ("127.0.0.1:9837", False, ""),
        ("localhost:9837", False, ""),
        ("[::1]:9837", True, ""),
        (":0", False, ""),
        (":9837", False, "http://box:9837"),
        ("0.0.0.0:9837", True, "https://box:9837"),
        ("[::]:9837", False, "http://box:9837"),
        ("10.0.0.7:9837", False, "http://10.0.0.7:9837"),
        ("[2001:db8::7]:9837", True, "https://[2001:db8::7]:9837"),
        ("gpu7.example.org:80", False, "http://gpu7.example.org:80"),
    ],
)
def test_the_agents_own_address(listen: str, encrypts: bool, url: str) -> None:
    """Only what another machine reaches is a link; every interface is named by the machine."""
    assert own_url(listen, "box", encrypts=encrypts) == url


def test_what_is_configured_comes_first(tmp_path: Path) -> None:
    """The listen address is the default; a proxy's address with its path replaces it. Both end with a slash."""
    plain = load(write(tmp_path, ""))
    assert links_of(plain, OWN) == Links(page="http://node7:9837/")
    assert links_of(plain, "") == Links()
    text = "external_url: https://gpu.example.org/node7\nlinks: {grafana: 'https://g/d?n={node}'}\n"
    assert links_of(load(write(tmp_path, text)), OWN) == Links("https://gpu.example.org/node7/", "https://g/d?n={node}")


@pytest.mark.parametrize("base", ["https://wiki.example.org/gpu", "https://wiki.example.org/gpu/"])
def test_runbooks_of_ones_own(tmp_path: Path, base: str) -> None:
    """`links.runbook` is what stands before the alert's name, in every shipped rule; the default is the project's."""
    assert runbooks(tmp_path, "") == {RUNBOOKS_URL}
    assert runbooks(tmp_path, f"links: {{runbook: '{base}'}}") == {"https://wiki.example.org/gpu/"}


def test_a_runbook_of_ones_own_rule_stays(tmp_path: Path) -> None:
    """What a rule of the user's leads to is the user's word."""
    (tmp_path / "my.yaml").write_text(
        "groups: [{name: g, rules: [{alert: Mine, expr: vector(1), annotations: {runbook_url: 'https://mine/Mine.md'}}]}]"
    )
    found = runbooks(tmp_path, "rule_files: [my.yaml]\nlinks: {runbook: 'https://wiki/gpu'}\n")
    assert found == {"https://wiki/gpu/", "https://mine/"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("poll_interval: 1s\nexternal_url: node7:9837\n", "2: external_url: "),
        ("links:\n  runbook: ftp://x\n", "2: links.runbook: "),
        ("links:\n  runbook: https://x\n  grafana: 'https://g/{pidd}'\n", "3: links.grafana: "),
        ("links:\n  grafanna: https://g\n", "2: links.grafanna: "),
    ],
)
def test_faults_have_lines(tmp_path: Path, text: str, line: str) -> None:
    """A link that leads nowhere is found before it is needed."""
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert f"{file}:{line}" in str(caught.value)


def test_messages_lead_there_also_after_a_reload(tmp_path: Path) -> None:
    """Page, board and `generatorURL` are in the message that is sent; other links hold from the next message on."""

    async def test() -> None:
        with sink() as receiver:
            first = config(tmp_path, receiver, external_url="https://a/n7", links={"grafana": "https://g/?n={node}"})
            second = config(tmp_path, receiver, external_url="https://b/n7")
            clock = ManualClock()
            async with alerting(first, rules(FULL), clock, tmp_path / "s") as bench:
                await bench.show(BUSY)
                await bench.emptied()
                more = rules(FULL, FULL.replace("alert: Full", "alert: Fuller").replace("0.9", "0.91"))
                await bench.alerting.reload(second, more, lambda: True)
                await bench.show(BUSY)
                await bench.emptied()
        old, *_, new = bodies(receiver)
        assert old["incident"]["links"] == {"page": "https://a/n7/", "grafana": "https://g/?n=node7"}
        assert old["externalURL"] == "https://a/n7/"
        assert {one["generatorURL"] for one in old["alerts"]} == {"https://a/n7/"}
        assert new["incident"]["links"] == {"page": "https://b/n7/"}
        assert {one["generatorURL"] for one in new["alerts"]} == {"https://b/n7/"}

    run(test)
