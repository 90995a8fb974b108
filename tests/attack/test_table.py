"""The table at the end."""

from __future__ import annotations

from tests.attack.table import Row, written


def test_tries_of_one_attack_stand_together() -> None:
    """Each attack has one line with the sums of its tries, and the last line has the sum of all."""
    rows = [Row("b", 1, 0, 1, 1), Row("a", 1, 1, 0, 2), Row("b", 1, 0, 2, 2)]
    assert [line.split() for line in written(rows)] == [
        ["attack", "|", "tries", "|", "innocent", "hit", "|", "guilty", "ended"],
        ["a", "|", "1", "|", "1", "|", "0", "of", "2"],
        ["b", "|", "2", "|", "0", "|", "3", "of", "3"],
        ["all", "|", "3", "|", "1", "|", "3", "of", "5"],
    ]


def test_without_attacks_there_is_no_table() -> None:
    """A run of other tests prints nothing."""
    assert list(written([])) == []
