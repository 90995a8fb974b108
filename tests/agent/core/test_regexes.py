"""Patterns of the configuration on texts that any user writes."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.matchers import RegexError, TextRegex, check_regex, compile_regex, literal_alternatives
from gpuagent.core.metrics.process import CONFIGURED, Framework, framework_recognizer
from gpuagent.procfs.redact import MASK, Redactor
from tests.agent.config.loading import faults_of, write
from tests.agent.core.metrics.test_preallocation import info
from tests.tables import table

HANGS_PYTHON = (r"(a+)+$", r"(x+x+)+y", r"(a|a)*b", r"(.*)*=", r"(?:a?){30}a{30}", r"\s+\s+\s+$")
TEXTS = (b"a" * 4096, b"x" * 4096, b"a" * 60 + b"!", b" " * 4095 + b"!", b"=a" * 2048)


@table("pattern, text", product(HANGS_PYTHON, TEXTS))
def test_no_command_line_makes_a_pattern_hang(pattern: str, text: bytes) -> None:
    """PROC-07: what keeps Python's re busy for years is done here, on command line and name, and recognized or not."""
    assert len(Redactor([pattern]).command(text).encode()) <= 256
    assert framework_recognizer((pattern,))(info("a" * 15, text.decode())) in {
        None,
        Framework(CONFIGURED, preallocates=True),
    }


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing )"),
        (r"(?=a)", "there are no look-around"),
        (r"(a)\1", "there are no look-around"),
        (r"a\Z", r"the end of the text is \z"),
        ("a{2000}", "repetition"),
        ("((a{999}){999}){999}", "repetition"),
        ("[b-a]", "range"),
        ("a\ud800", "half a character"),
    ],
)
def test_what_re2_does_not_take_is_refused(pattern: str, why: str, capfd: pytest.CaptureFixture[str]) -> None:
    """With RE2's reason and what to do about it, and nothing on standard error."""
    with pytest.raises(ValueError, match=re.escape(why)):
        check_regex(pattern)

    assert capfd.readouterr().err == ""


def test_every_fault_of_a_configuration_is_told_at_once(tmp_path: Path) -> None:
    """Each pattern of each list is checked when the file is loaded."""
    text = (
        'processes: {redact: ["(", ok, "(?=a)"], preallocates: ["a{2000}"]}\n'
        'sources: [{name: a, vllm: "http://a", match: ["[b-a]"]}]\n'
    )
    faults = faults_of(write(tmp_path, text))

    assert [fault.path for fault in faults] == [
        "processes.redact[0]",
        "processes.redact[2]",
        "processes.preallocates[0]",
        "sources[0].match[0]",
    ]
    assert all("is not a regular expression as RE2 has them" in str(fault) for fault in faults)
    assert all("(allowed: a regular expression, as RE2 has them" in str(fault) for fault in faults)


def test_bytes_that_are_no_utf_8_are_matched_and_shown() -> None:
    r"""PROC-07: `\S+` takes them, as any other character, and what is not masked is shown as it was."""
    assert Redactor([r"-p \S+"]).command(b"a\xff\0-p\0b\xfec\0\xe9") == f"a\\xff {MASK} \\xe9"


@given(st.text(st.characters(exclude_characters="\n"), max_size=40), st.sampled_from([r"\d+", "x*", "[^a]", "é|b."]))
def test_it_replaces_as_python_does(text: str, pattern: str) -> None:
    """For patterns that both have, the result is that of Python's re, without its empty matches."""
    expected = re.sub(pattern, lambda found: MASK if found[0] else "", text, flags=re.ASCII)

    assert TextRegex(pattern).replaced(text, MASK) == expected
    assert TextRegex(pattern).is_in(text) is (re.search(pattern, text, re.ASCII) is not None)


@given(
    st.lists(st.text(st.sampled_from("ab-_ /.*"), max_size=3), min_size=1, max_size=3).map("|".join),
    st.text(st.sampled_from("ab-_ /.|\n"), max_size=3),
)
def test_alternatives_match_what_re2_matches(pattern: str, text: str) -> None:
    """A set of texts in the place of a pattern changes no answer, and any other pattern is left alone."""
    literals = literal_alternatives(pattern)
    try:
        expected = compile_regex(pattern).fullmatch(text) is not None
    except RegexError:
        assert literals is None
        return

    assert literals is None or (text in literals) is expected
