"""A configuration that a child reads is, to the agent, the very same."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from gpuagent.config.child import as_record
from gpuagent.config.child_reader import Record, SecretText, load_config_apart
from gpuagent.config.faults import ConfigError, ConfigUnreadableError
from gpuagent.config.load import load_config
from gpuagent.config.models import Config
from gpuagent.config.section import Section
from gpuagent.remedy_settings import ladders_of, rules_of
from tests.agent.config.loading import COMPLETE, faults_of, load, write


def _differences(section: object, record: object, path: str = "") -> Iterator[str]:
    """Where a record does not tell what the section tells, keys and properties alike."""
    if isinstance(section, Section):
        names = {name for name in dir(type(section)) if not name.startswith(("_", "model_"))}
        for name in sorted(names - set(dir(Section)) - {"check", "key_names"} | type(section).model_fields.keys()):
            yield from _differences(getattr(section, name), getattr(record, name, "nothing"), f"{path}.{name}")
    elif type(section) is type(record) is tuple and len(section) == len(record):
        for number, (one, other) in enumerate(zip(section, record, strict=True)):
            yield from _differences(one, other, f"{path}[{number}]")
    elif isinstance(section, SecretStr):
        if not isinstance(record, SecretText) or record.get_secret_value() != section.get_secret_value():
            yield path
    elif section != record or type(section) is not type(record):
        yield path


def test_a_record_tells_all_that_a_section_tells() -> None:
    """With every part of the configuration in use: values, their types, and what is derived from them."""
    config = load(COMPLETE)
    record = as_record(config)

    assert list(_differences(config, record)) == []
    assert isinstance(record, Record)
    assert list(_differences(config, as_record(Config())))


def test_a_child_reads_what_is_read_here() -> None:
    """The agent works by the record, by which remedies and rules are the same too."""
    here, apart = load_config(COMPLETE, is_root=True), load_config_apart(COMPLETE)

    assert list(_differences(here, apart)) in ([], [".client_dir", ".runtime_dir", ".state_dir"])  # root's, or a user's
    assert [ladder.steps for ladder in ladders_of(apart.remedies)] == [each.steps for each in ladders_of(here.remedies)]
    assert rules_of(apart.remedies) == rules_of(here.remedies)


def test_every_fault_comes_back(tmp_path: Path) -> None:
    """As they would be told by this process: file, line, what is allowed."""
    file = write(tmp_path, "poll_intervall: 1\nslow_interval: never\n")

    with pytest.raises(ConfigError) as caught:
        load_config_apart(file)
    assert caught.value.faults == faults_of(file)
    assert len(caught.value.faults) == 2


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """The kind of error stays what it is."""
    with pytest.raises(ConfigUnreadableError, match="there is no such file"):
        load_config_apart(tmp_path / "none.yaml")


def test_what_comes_with_an_odd_name_is_a_file(tmp_path: Path) -> None:
    """A file whose name begins with a dash is no option of the child's."""
    file = write(tmp_path, "poll_interval: 2s\n").rename(tmp_path / "-c")

    assert load_config_apart(file).poll_interval == 2.0


@pytest.mark.parametrize("child", ["/nonexistent/python", "/bin/false", "/bin/true", "/bin/echo"])
def test_without_a_child_the_file_is_read_here(tmp_path: Path, child: str, caplog: pytest.LogCaptureFixture) -> None:
    """It cannot be started, fails, says nothing, says something else: a line of the log, and a configuration."""
    assert load_config_apart(write(tmp_path, "poll_interval: 2s\n"), python=child).poll_interval == 2.0
    assert "it is read here" in caplog.text


def test_the_child_takes_no_module_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent may be started anywhere, in a folder of somebody else's too."""
    (tmp_path / "gpuagent").mkdir()
    (tmp_path / "gpuagent" / "__init__.py").write_text("raise SystemExit(1)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    assert isinstance(load_config_apart(write(tmp_path, ""), python=sys.executable), Record)


def test_a_record_is_frozen_and_compared_by_its_values() -> None:
    """As the sections are: a reload finds out by comparing what has changed."""
    one, same, other = (Record("Log", {"level": level}) for level in ("info", "info", "debug"))

    assert one == same != other
    assert hash(one) == hash(same)
    assert one != Record("Nvml", {"level": "info"})
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(AttributeError, match="frozen"):
        one.level = "debug"
    with pytest.raises(AttributeError, match="Log has no levle"):
        _ = one.levle


def test_secrets_do_not_show_themselves() -> None:
    """Neither alone nor in what holds them, and a new one is seen to be another."""
    record = Record("Webhook", {"url": SecretText("https://hooks.example.org/T0/B0"), "proxy": "http://me:word@proxy"})

    assert "hooks" not in f"{record!r}{record}{record.url!r}{record.url}"
    assert "word" not in repr(record)
    assert SecretText("a") == SecretText("a") != SecretText("b")
    assert hash(SecretText("a")) == hash(SecretText("a"))
