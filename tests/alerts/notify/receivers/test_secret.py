"""Secrets: where they are read from, and that nobody shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.sections import SecretText
from gpuagent_alerts.masker import Masker
from gpuagent_alerts.secret import Misconfigured, Secret

URL = "https://user:passw0rd@hooks.example.org/services/T0000/B0000/tops3cret?token=s3cond%20one"


def test_a_given_secret_is_not_shown() -> None:
    """Neither a text nor a SecretText is in what a log line or a traceback prints."""
    for value in (URL, SecretText(URL)):
        secret = Secret("URL", value)

        assert (secret.line(), "s3cret" in repr(secret)) == (URL, False)


def test_a_file_is_read_at_every_use(tmp_path: Path) -> None:
    """A secret that was replaced counts at once, without what editors put before it and behind."""
    file = tmp_path / "url"
    secret = Secret("URL", file=file)
    file.write_text("https://a\n")
    first = secret.line()
    file.write_text("\ufeff  https://b \r\n")

    assert (first, secret.line()) == ("https://a", "https://b")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\xff\xfe", "holds no text"),
        (b"x" * 5000, "longer than 4096 bytes"),
        (b"https://a\nhttps://b", "one line without spaces"),
        (b"https://a\x00b", "one line without spaces"),
    ],
)
def test_what_a_file_may_not_hold(tmp_path: Path, content: bytes, why: str) -> None:
    """Each mistake is named, with the file and without its content."""
    (tmp_path / "url").write_bytes(content)
    with pytest.raises(Misconfigured, match=why) as caught:
        Secret("URL", file=tmp_path / "url").line()

    assert "https" not in str(caught.value)


def test_a_pipe_in_its_place_does_not_hold_up_anything(tmp_path: Path) -> None:
    """Opening a pipe waits for a writer: not here."""
    os.mkfifo(tmp_path / "url")
    with pytest.raises(Misconfigured, match="it is a FIFO; only a regular file is read"):
        Secret("URL", file=tmp_path / "url").line()


def test_no_file() -> None:
    """Its name is what a person needs."""
    with pytest.raises(Misconfigured, match="/no/such/file: No such file or directory"):
        Secret("URL", file=Path("/no/such/file")).line()


@given(st.text(max_size=30), st.text(max_size=30))
def test_redacting_leaves_no_piece(before: str, after: str) -> None:
    """Host, user, password, path, query and its values: none of them is left, wherever they stand."""
    pieces = ("passw0rd", "hooks.example.org", "/services/T0000/B0000/tops3cret", "tops3cret", "s3cond one", URL)
    for piece in pieces:
        text = Masker([Secret("URL", URL)]).hide(f"{before} {piece} {after}")

        assert piece not in text
        assert text.isprintable()


def test_redacting_hides_every_url() -> None:
    """Also of receivers that this text is not about."""
    assert Masker().hide("curl: https://other.example/x failed") == "curl: <hidden> failed"
