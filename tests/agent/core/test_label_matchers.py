"""Matchers on sets of labels, as receivers, silences and ladders have them."""

from __future__ import annotations

import pytest

from gpuagent.core.matchers import Matchers, parse_matcher

LABELS = {"severity": "critical", "gpu": "10", "unit": "a.service\nb"}


def match(*texts: str) -> Matchers:
    """From their texts."""
    return Matchers([parse_matcher(text) for text in texts])


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('severity="critical"', True),
        ('severity!="critical"', False),
        ('severity=~"crit.*|warning"', True),
        ('severity=~"crit"', False),  # the whole value has to match
        ('gpu=~"1|0"', False),
        ('gpu=~"1|10"', True),
        ('gpu!~"1"', True),
        ('gpu!~"1."', False),
        ('missing=""', True),
        ('missing!=""', False),
        ('missing=~".*"', True),
        ('missing=~".+"', False),
        ('unit=~"a.*"', False),  # a dot is no line break, as in Prometheus
        ('unit=~"(?s)a.*"', True),
        ('severity=~"(?i)CRITICAL"', True),
    ],
)
def test_a_matcher_holds_as_in_alertmanager(text: str, holds: bool) -> None:
    """Anchored, RE2, and a label that is missing is an empty one."""
    assert match(text)(LABELS) is holds


def test_all_of_them_must_hold() -> None:
    """None at all hold of everything."""
    assert match('severity="critical"', 'gpu="10"')(LABELS)
    assert not match('severity="critical"', 'gpu="1"')(LABELS)
    assert match()({})


@pytest.mark.parametrize("text", ['a=~"("', 'a=~"(?=b)"', 'a!~"\\1"', 'a=~"x{2000}"'])
def test_what_re2_does_not_take_is_refused(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    """With the matcher and the reason, and nothing on standard error."""
    with pytest.raises(ValueError, match="not a regular expression as RE2 has them"):
        match(text)

    assert capfd.readouterr().err == ""


def test_a_pattern_cannot_be_made_to_hang() -> None:
    """What takes Python's re for ever is linear here."""
    assert not match('a=~"(x+x+)+y"')({"a": "x" * 5000})


def test_half_a_character_is_no_error() -> None:
    """A process may have half of a surrogate pair in its name."""
    assert match('a=~"x.*"')({"a": "x\ud800"})
