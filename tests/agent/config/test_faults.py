"""Every fault at once, each with its line, what is wrong and what was meant."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gpuagent.config.load import ConfigError, Fault
from gpuagent.core.problems import listed, nearest, write_path
from gpuagent_alerts.notify.receivers.registry import KINDS
from tests.agent.config.loading import faults_of, lines_of, load, write

COLON = "this is not YAML: a colon does not fit: is the line indented right, does a text with a colon need quotes?"

TWENTY_FAULTS = """\
poll_interval: 10ms
slow_intervall: 15s
listen: 127.0.0.1
listen: ":9837"
alerting: nodes
processes:
  top: many
  command: "yes"
  redact: ["(", ok]
leaks: balanced
receivers:
  - name: ops
    slack: {url_fle: /etc/gpuagent/slack_url}
  - name: ops
    webhook:
      url: https://example.org/gpu
      url_file: /etc/gpuagent/url
  - {name: pager, pager: {}}
  - name:
    exec: {command: []}
routes:
  - match: ['severity=="critical"']
    receivers: [opps]
budgets:
  - {match: {unit: a.service}, memory: 6G}
remedies:
  ladders:
    - match: [alertname=GpuProcessMemoryLeak]
      steps: [{terminate: {}, kill: {}}, reset]
"""


def test_twenty_faults(tmp_path: Path) -> None:
    """A file with twenty faults is told twenty faults, in order, each on its own line."""
    lines = lines_of(write(tmp_path, TWENTY_FAULTS))
    assert lines == [
        "1: poll_interval: 10ms is too little: it must be at least 100ms",
        "2: slow_intervall: unknown key; did you mean slow_interval?",
        "3: listen: has no port: write host:port, for example 127.0.0.1:9837 or :9837",
        "4: listen: is given twice: see line 3",
        "5: alerting: 'nodes' is unknown; did you mean node?",
        "7: processes.top: must be a whole number, not text",
        "8: processes.command: must be true or false, not text",
        "9: processes.redact[0]: is not a regular expression as RE2 has them: missing ): (",
        "10: leaks: must be a mapping, not text",
        "13: receivers[0].slack.url_fle: unknown key; did you mean url_file?",
        "14: receivers[1].name: 'ops' is already the name of receivers[0]",
        "17: receivers[1].webhook.url_file: cannot stand beside url: one of them is enough",
        "18: receivers[2].pager: unknown receiver kind; did you mean pagerduty?",
        "19: receivers[3].name: has no value",
        "20: receivers[3].exec.command: is empty",
        '22: routes[0].match[0]: == is no operator of a matcher: write severity="critical"',
        "23: routes[0].receivers[0]: there is no receiver 'opps'; did you mean ops?",
        "25: budgets[0].memory: '6G' has the unknown unit G: write 6GiB or 6GB",
        "29: remedies.ladders[0].steps[0].kill: cannot stand beside terminate: one of them is enough",
        "29: remedies.ladders[0].steps[1]: must be a mapping, not text",
    ]
    assert len(lines) == 20


def test_a_fault_in_full(tmp_path: Path) -> None:
    """A fault says file, line, path, what is wrong, what was meant and what is allowed."""
    file = write(tmp_path, "receivers:\n  - name: ops\n    slack: {url_fle: /etc/x}\n")
    (fault,) = faults_of(file)
    allowed = "url, url_file, token_file, channel"
    assert fault == Fault(str(file), 3, 13, "receivers[0].slack.url_fle", "unknown key", allowed, "url_file")
    assert str(fault) == (
        f"{file}:3: receivers[0].slack.url_fle: unknown key; did you mean url_file? (allowed: {allowed})"
    )


def test_all_faults_in_one_text() -> None:
    """The error's text has one line for each fault."""
    faults = [Fault("a.yaml", line, 1, f"key{line}", "is missing") for line in (1, 2)]
    assert str(ConfigError(faults)) == "a.yaml:1: key1: is missing\na.yaml:2: key2: is missing"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "receivers: [{name: a}]",
            f"1: receivers[0]: needs one of {listed(tuple(KINDS))}",
        ),
        ("receivers: [{webhook: {url: 'https://a'}}]", "1: receivers[0].name: is missing"),
        ("receivers: [{name: a, slack: {}}]", "1: receivers[0].slack: needs one of url, url_file or token_file"),
        ("receivers: [{name: a, slack: {url: }}]", "1: receivers[0].slack.url: has no value"),
        (
            "receivers: [{name: a, alertmanager: {url: 'http://am:9093/#/alerts'}}]",
            "1: receivers[0].alertmanager.url: must be the address of the server alone, without ? and #",
        ),
        ("receivers: [{name: a, slack: 5}]", "1: receivers[0].slack: must be a mapping, not a number"),
        (
            "receivers: [{name: 5, exec: {command: [a]}}]",
            "1: receivers[0].name: must be text, not a number: put it in quotes",
        ),
        ("receivers: [{name: ' ', exec: {command: [a]}}]", "1: receivers[0].name: must not be empty"),
        ("receivers: [{name: a, exec: {command: a}}]", "1: receivers[0].exec.command: must be a list, not text"),
        ("receivers: {name: a}", "1: receivers: must be a list, not a mapping"),
        ("routes:\n- receivers: [a]", "2: routes[0].receivers[0]: there is no receiver 'a'"),
        ("routes:\n- match: []", "2: routes[0].receivers: is missing"),
        (
            "remedies:\n  ladders:\n  - match: ['a=~\"b|(\"']\n    steps: [{kill: {}}]",
            '3: remedies.ladders[0].match[0]: a=~"b|(": not a regular expression as RE2 has them: missing ): b|(',
        ),
        ("budgets: [{match: {}, memory: 1GiB}]", "1: budgets[0].match: is empty: it would match every process"),
        (
            "budgets: [{match: {user: ada}, memory: 0}]",
            "1: budgets[0].memory: 0B is too little: it must be at least 1MiB",
        ),
        ("poll_interval: 20s", "1: poll_interval: poll_interval is longer than slow_interval"),
        (
            "nvml: {memory_kind: coherent}\nremedies:\n  ladders: [{match: ['a=\"b\"'], steps: [{drop_caches: {}}]}]",
            "3: remedies.ladders[0].steps[0].drop_caches: page cache is no memory of the GPU by nvml.memory_kind: coherent",  # noqa: E501
        ),
        ("poll_interval: 5s\nslow_interval: 4s", "2: slow_interval: poll_interval is longer than slow_interval"),
        ("poll_interval:\n", "1: poll_interval: has no value"),
        ("poll_interval: [1s]", "1: poll_interval: must be a duration, not a list"),
        ("http: {max_connections: 1.5}", "1: http.max_connections: must be a whole number, not a number with a point"),
        ("http: {max_connections: 100000}", "1: http.max_connections: 100000 is too much: it must be at most 10000"),
        ("log: {level: trace}", "1: log.level: 'trace' is unknown"),
        ("log: {level: on}", "1: log.level: must be text, not true or false"),
        ("on: 1", "1: on: unknown key"),
        ("{[a]: 1}", "1: a key is no text"),
        ("state_dir: ~/gpu", "1: state_dir: ~ is not expanded here: write the whole path"),
        ("state_dir: ''", "1: state_dir: must not be empty"),
        ("rule_files: rules.yml", "1: rule_files: must be a list, not text"),
        (
            "remedies: {ladders: [{match: [a=b], steps: [{kill: }]}]}",
            "1: remedies.ladders[0].steps[0].kill: has no value",
        ),
        (
            "remedies:\n  dry_run: false\n  ladders: [{match: [a=b], steps: [{kill: {}}]}]",
            "1: remedies.allow: dry_run is false, but nothing may be acted on",
        ),
        ("listen: 9837", '1: listen: is a port without a host: write "127.0.0.1:9837", or ":9837" for every interface'),
        (
            "receivers: [{name: a, slack: 'https://x/'}]",
            "1: receivers[0].slack: must be a mapping, not text: write slack: {url: ...}",
        ),
        ("receivers: [{name: a, email: b}]", "1: receivers[0].email: unknown receiver kind: mail is sent by apprise"),
        (
            "routes: [{match: ['a==\"b\"'], receivers: [c]}]\nreceivers: [{name: c, webhook: {url: 'http://x/'}}]",
            '1: routes[0].match[0]: == is no operator of a matcher: write a="b"',
        ),
        ("- a", "1: the file must be a mapping (key: value), not a list"),
        (
            "a: b: c",
            f"1: {COLON}",
        ),
        ("a:\n\tb: 1", "2: this is not YAML: a tab stands where only spaces may"),
        ("a: [1 {b: 2}]", "1: this is not YAML: a comma or a closing bracket is missing"),
        ("a: [1", "1: this is not YAML: a quote or bracket is never closed"),
        ("a: 'x", "1: this is not YAML: a quote or bracket is never closed"),
        ("a: *b", "1: *b refers to nothing before it: a text that begins with * needs quotes"),
        ("a: @b", "1: this is not YAML: a text that begins with this character needs quotes"),
        (
            "a: 1\n b: 2",
            f"2: {COLON}",
        ),
        ("a: 1\n---\nb: 2", "2: a second document begins, and there may be only one: write one file for each"),
        (
            "a: !!python/object:os.system x",
            "1: the tag 'tag:yaml.org,2002:python/object:os.system' has no place here: leave it out",
        ),
        ("a: !!int x", "1: has a number that cannot be read"),
        ("a: 0xfffffffffffffffff", "1: has a number of more than 64 bits"),
        ('a: "\\ud800"', "1: has half a character (a surrogate)"),
        ("a: 1\nb: \x07", "2: has a control character"),
        ("<<: 5", "1: << takes a mapping"),
    ],
)
def test_one_fault(tmp_path: Path, text: str, line: str) -> None:
    """Each kind of fault is told once, in plain words, on its line."""
    assert lines_of(write(tmp_path, text)) == [line]


def test_what_is_below_a_mistyped_key_is_examined(tmp_path: Path) -> None:
    """Its own faults are told with it, and not only once the key is put right."""
    assert lines_of(write(tmp_path, "leaks: {}\nusages:\n  keep: 1h 30m\n")) == [
        "2: usages: unknown key; did you mean usage?",
        "3: usages.keep: '1h 30m' is not a duration: write it like 500ms, 1s, 5m, 1h30m or 2d (ms, s, m, h, d, w, y)",
    ]


def test_keys_that_are_not_indented(tmp_path: Path) -> None:
    """YAML takes them for keys of the receiver, so the fault says where they belong."""
    lines = lines_of(write(tmp_path, "receivers:\n- name: a\n  slack:\n  url_file: /b"))
    assert lines[-1] == (
        "4: receivers[0].url_file: unknown receiver kind: it belongs below slack, with more spaces before it"
    )


def test_not_utf8(tmp_path: Path) -> None:
    """A file in another encoding is told where it stops being UTF-8."""
    (fault,) = faults_of(write(tmp_path, b"# \xc3\xa4\n# \xe4\n"))
    assert (fault.line, fault.column, fault.problem) == (2, 3, "is not UTF-8 text")


_LETTERS = "abcdefghij"
ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 10)}]\n" for last, name in itertools.pairwise(_LETTERS)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ALIAS_BOMB, "more than 5000 values"),
        (ALIAS_BOMB.replace("[x", "{<<: [x").replace("[*", "{<<: [*").replace("]", "]}"), "more than 5000 values"),
        ("&a [*a]", "*a stands inside of what it refers to"),
        ("&a {<<: *a}", "*a stands inside of what it refers to"),
        ("a: " + "[" * 100_000, "more than 32 levels"),
        ("a: [" + "x," * 6000 + "]", "more than 5000 values"),
        ("a: " + "x" * 9000, "more than 8192 characters"),
        ("a: 1" + ":1" * 9000, "more than 8192 characters"),
        ("#" * (1024 * 1024 + 1), "larger than 1024 KiB"),
    ],
    ids=["aliases", "merges", "itself", "merges-itself", "deep", "many", "text", "base-60", "large"],
)
def test_a_file_costs_no_more_than_its_bounds(tmp_path: Path, text: str, words: str) -> None:
    """A file that would take all memory or time is refused by a bound that it is told."""
    (fault,) = faults_of(write(tmp_path, text))
    assert words in fault.problem


def test_a_fault_shows_no_secret(tmp_path: Path) -> None:
    """A wrong URL may hold a password: no fault repeats it."""
    text = """
receivers:
  - {name: a, slack: {url: "htps://ada:s3cret@hooks.example"}}
  - {name: b, alertmanager: {url: "http://ada:s3cret@"}}
  - {name: c, apprise: {url: "mailto:ada:s3cret"}}
  - {name: d, webhook: {url: ["https://s3cret.example"]}}
"""
    faults = faults_of(write(tmp_path, text))
    assert len(faults) == 4
    assert not any("s3cret" in str(fault) for fault in faults)


def test_hostile_text_stays_on_its_line(tmp_path: Path) -> None:
    """Keys and values cannot bring line breaks or escape sequences to the terminal."""
    text = '"a\\nb\\e[31m": 1\nalerting: "\\e[2J\\n"\n"' + "k" * 500 + '": 1\n'
    for fault in faults_of(write(tmp_path, text)):
        assert str(fault).isprintable()
        assert len(fault.path) <= 70


def test_paths() -> None:
    """A path reads like code; an odd key is quoted."""
    assert write_path(("receivers", 0, "slack", "url_file")) == "receivers[0].slack.url_file"
    assert write_path(("a b", 3)) == "'a b'[3]"
    assert write_path(()) == ""


def test_nearest() -> None:
    """A suggestion is made for a slip, not for anything."""
    assert nearest("poll-interval", ["poll_interval", "slow_interval"]) == "poll_interval"
    assert nearest("banana", ["poll_interval"]) == ""
    assert nearest("poll_interval" * 100, ["poll_interval"]) == ""


def test_the_push_to_a_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers for nobody, a receiver of its name, and packages that are missing, with how to get them."""
    file = write(tmp_path, "otlp: {interval: 30s, headers_file: /etc/gpuagent/headers}\n")
    assert lines_of(file) == ["1: otlp.headers_file: nothing is pushed without otlp.endpoint"]

    receivers = "receivers: [{name: otlp, slack: {url: https://example.org/x}}]\n"
    load(write(tmp_path, f"otlp: {{interval: 30s}}\n{receivers}"))
    file = write(tmp_path, f"otlp: {{endpoint: http://127.0.0.1:4318}}\n{receivers}")
    assert lines_of(file) == ["2: receivers[0].name: the push by OTLP has this name"]

    file = write(tmp_path, "otlp: {endpoint: http://127.0.0.1:4318}\n")
    load(file)
    monkeypatch.setattr("gpuagent.config.otlp.is_installed", lambda: False)
    assert lines_of(file) == [
        "1: otlp.endpoint: the packages of OpenTelemetry are not installed: pip install 'gpuagent[otlp]'"
    ]
