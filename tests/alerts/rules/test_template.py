"""Templates: what is filled in, and what is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.rules.template import TemplateFault, parse_template

LABELS = {"gpu": "0", "name": "H200"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("plain", "plain"),
        ("", ""),
        ("a }} b", "a }} b"),
        ("GPU {{ $labels.gpu }}: {{ $value }}", "GPU 0: 1.2345e+06"),
        ("{{.Labels.name}} {{.Value}}", "H200 1.2345e+06"),
        ("<{{ $labels.none }}>", "<>"),
        ("{{ $value | humanize }} {{ humanize $value }}", "1.234M 1.234M"),
        ("{{ $value | humanize1024 }}B", "1.177MiB"),
        ("{{ humanizePercentage $value }}", "1.234e+08%"),
        ("{{ humanizeDuration $value }}", "14d 6h 55m 0s"),
        ('{{ printf "%.1f W" $value }}', "1234500.0 W"),
        ('{{ $value | printf "%s has %.0f %%" $labels.gpu }}', "0 has 1234500 %"),
        ("a {{- $labels.gpu -}} b", "a0b"),
        ("a {{- /* no more */ -}} b", "ab"),
        ('{{ "}}" }}', "}}"),
        ("{{ `raw` }}", "raw"),
        ("{{\n$labels.gpu\n}}", "0"),
    ],
)
def test_what_is_filled_in(text: str, filled: str) -> None:
    """Labels, the value and the functions, in all the ways to write them."""
    assert parse_template(text).fill(LABELS, 1_234_500.0) == filled


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{{ query "up" }}', "query"),
        ("{{ $labels.gpu | toUpper }}", "toUpper"),
        ("{{ toUpper $labels.gpu }}", "toUpper"),
        ("{{ if $value }}x{{ end }}", "if"),
        ("{{ range $labels }}{{ end }}", "range"),
        ("{{ $externalLabels.site }}", r"\$externalLabels"),
        ("{{ $external_url }}", r"Prometheus calls it \{\{ externalURL \}\}"),
        ("{{ $holders }}", r"\$holders is not available .* every message"),
        ("{{ $incident }}", r"\$incident is not available .* every message"),
        ("{{ externalURL | humanize }}", "takes a number"),
        ("{{ externalURL $value }}", "externalURL takes nothing"),
        ('{{ printf "%s" $externalURL }}', "cannot be printed"),
        ("{{ $labels }}", "name a label"),
        ("{{ humanize $labels.gpu }}", "humanize takes one number"),
        ("{{ humanize }}", "humanize takes one number"),
        ("{{ humanize $value $value }}", "humanize takes one number"),
        ("{{ $value | humanize | humanize }}", "takes a number"),
        ("{{ humanizeTimestamp $value }}", "humanizeTimestamp"),
        ('{{ printf "%d" $value }}', "%d"),
        ('{{ printf "%5.1f" $value }}', "%5"),
        ('{{ printf "%.1f" }}', "more verbs"),
        ('{{ printf "x" $value }}', "fewer verbs"),
        (r'{{ printf "\n" }}', "printf|not available"),
        ("{{ printf $value }}", "printf takes a text"),
        ("{{", "has no }}"),
        ("{{ }}", "empty"),
        ("{{ | }}", "nothing beside"),
        ('{{ "x }}', "quote"),
        ("{{/* x }}", "comment"),
        ("{{ $value $value }}", "takes no arguments"),
        ("{{ $x := 1 }}", r"\$x"),
        ("{{ 5 }}", "5"),
        ("{{ ($value) }}", "not available"),
        ("x" * 20_000, "longer than"),
    ],
)
def test_what_is_refused(text: str, names: str) -> None:
    """Whatever else Go's templates can do is an error when the file is loaded, and says what it is."""
    with pytest.raises(TemplateFault, match=names):
        parse_template(text)


def test_a_text_without_places_is_constant() -> None:
    """So that what must not be a template can be checked."""
    assert parse_template("keep").is_constant
    assert not parse_template("{{ $value }}").is_constant


@given(st.text(alphabet='{}$-./*"`|% \nlabelsvhumiz1.f', max_size=40), st.floats())
def test_any_text_fills_or_is_refused(text: str, value: float) -> None:
    """Filling in never fails: what could is refused before."""
    try:
        template = parse_template(text)
    except TemplateFault:
        return
    assert isinstance(template.fill(LABELS, value), str)


def test_the_address_of_the_page_is_filled_in_once_it_is_known() -> None:
    """Prometheus has `externalURL` as a function and as a variable, and prints its own address."""
    template = parse_template("{{ externalURL }}/a {{ $externalURL }}/b {{ $value }}")
    assert template.fill({}, 1.0) == "/a /b 1"
    assert template.with_external_url("https://node7").fill({}, 1.0) == "https://node7/a https://node7/b 1"


def test_people_read_words() -> None:
    """No digits below a second, and no underscore in a result; the same template prints Prometheus' own there."""
    template = parse_template("in {{ $value | humanizeDuration }}: {{ $labels.result }} of {{ $labels.process }}")
    labels = {"result": "dry_run", "process": "a_b"}
    assert template.fill(labels, 0.5) == "in 500ms: dry_run of a_b"
    assert template.fill(labels, 0.5, house_format=True) == "in less than 1 s: dry run of a_b"
    forecast = parse_template("GPU 0: memory is full in {{ $value | humanizeDuration }} at this pace")
    assert forecast.fill({}, 0.5, house_format=True) == "GPU 0: memory is full now"
