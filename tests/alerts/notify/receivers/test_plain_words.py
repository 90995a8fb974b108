"""What is shown of a receiver's answer: words, and nothing that a secret could be made of."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.notify.receivers.http import plain_words

FORMS: dict[str, Callable[[str], str]] = {
    "as it is": lambda secret: secret,
    "another case": str.swapcase,
    "with blanks": " ".join,
    "with NUL": "\0".join,
    "UTF-16": lambda secret: secret.encode("utf-16-le").decode("latin1"),
    "zero width": "\u200b".join,
    "soft hyphens": "\u00ad".join,
    "full width": lambda secret: "".join(chr(ord(c) + 0xFEE0) for c in secret),
    "with tags": "<b></b>".join,
    "percent": lambda secret: "".join(f"%{ord(c):02X}" for c in secret),
    "percent u": lambda secret: "".join(f"%u{ord(c):04X}" for c in secret),
    "octal": lambda secret: "".join(f"\\{ord(c):03o}" for c in secret),
    "braces": lambda secret: "".join(f"\\u{{{ord(c):x}}}" for c in secret),
    "quoted printable": lambda secret: "".join(f"={ord(c):02X}" for c in secret),
    "HTML": lambda secret: "".join(f"&#{ord(c)};" for c in secret),
    "HTML without semicolons": lambda secret: "".join(f"&#{ord(c)}" for c in secret),
    "bytes": lambda secret: str(list(secret.encode())),
    "bytes, commas": lambda secret: ",".join(map(str, secret.encode())),
    "hexadecimal": lambda secret: secret.encode().hex(),
    "hexadecimal, dashes": lambda secret: secret.encode().hex("-"),
    "hexadecimal, commas": lambda secret: secret.encode().hex(","),
    "hexadecimal, blanks": lambda secret: secret.encode().hex(" "),
    "hexadecimal, 0x": lambda secret: " ".join(f"0x{c:02x}" for c in secret.encode()),
    "base32": lambda secret: base64.b32encode(secret.encode()).decode(),
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "the middle": lambda secret: secret[4:-4],
}
SECRETS = ("Zk7qPw2mXv9RtL4bNc8H", "tK-5uY_1sJ.6gE~0oAiQ", "xoxb-2847-aR7tQ2pL9vBx")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", SECRETS)
def test_no_form_of_a_secret_is_a_plain_word(secret: str, form: str) -> None:
    """ALERT-07: whatever a receiver makes of a key, it is not shown, also where no list has that form."""
    written = FORMS[form](secret)

    shown = plain_words(f"invalid token {written} for this hook")

    assert "for this hook" in shown
    left = shown.removeprefix("invalid token").removesuffix("for this hook")
    assert len(re.findall(r"[A-Za-z0-9]", left.replace("<hidden>", ""))) <= 6, shown


@pytest.mark.parametrize(
    "text",
    [
        "invalid_token",
        "channel_not_found",
        "Invalid JSON at line 3, column 15.",
        '{"status":"error","errorType":"bad_data","error":"no alerts in the message"}',
        "rate limit: 5 requests per 10 s, again at 12:30:05",
        "Der Schlüssel ist ungültig",
        "请求无效",
        "404 page not found",
    ],
)
def test_what_helps_is_shown(text: str) -> None:
    """An operator reads why a receiver refused a message: words, lines and columns, dates."""
    assert plain_words(text) == text


def test_a_page_is_its_words() -> None:
    """What a proxy answers is a page of HTML, of which the tags say nothing."""
    assert plain_words("<html><title>502 Bad Gateway</title>\n<hr>nginx</html>") == "502 Bad Gateway nginx"


@given(st.text(max_size=300))
def test_any_text_is_a_line(text: str) -> None:
    """Whatever comes in becomes one line, and none of its pieces is longer than a word."""
    shown = plain_words(text)

    assert "\n" not in shown
    assert max(map(len, re.split(r"[\s\"'`{}\[\](),;<>|=]|\\", shown))) <= 40


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789", min_size=12, max_size=60))
def test_letters_and_figures_together_are_hidden(key: str) -> None:
    """ALERT-07: a key of letters and figures is never a word, however it is made up."""
    if any(c.isdigit() for c in key) and any(c.isalpha() for c in key):
        assert plain_words(f"refused {key}") == "refused <hidden>"
