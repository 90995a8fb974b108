"""The rules in force, by the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.config.models import Config
from gpuagent.config.rules import load_rules
from gpuagent_alerts.rules.model import RuleFileError


def test_every_fault_at_once(tmp_path: Path) -> None:
    """A name that no shipped rule has is told beside the faults of the files, not only once those are mended."""
    (tmp_path / "a.yaml").write_text("groups: [")
    (tmp_path / "b.yaml").write_text("groups:\n- name: g\n  rules:\n  - {alert: Mine, expr: m}\n")
    config = Config(
        rule_files=(tmp_path / "a.yaml", tmp_path / "b.yaml"), disabled_rules=("Watchdgo", "Mine", "Watchdog")
    )

    with pytest.raises(RuleFileError) as refused:
        load_rules(config)

    told = str(refused.value)
    assert [fault.file for fault in refused.value.faults] == [str(tmp_path / "a.yaml"), *["disabled_rules"] * 2]
    assert "Watchdgo" in told
    assert "is a rule of your own files" in told
