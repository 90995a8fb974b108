"""The pictures of the README are what the program draws."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

from tests.packaging.pictures import HOSTNAME, IMAGES, PICTURES, kept
from tests.packaging.slack_picture import slack_svg


@pytest.mark.parametrize(("name", "draw"), PICTURES.items(), ids=PICTURES)
def test_pictures_are_current(name: str, draw: Callable[[], str]) -> None:
    """`python -m tests.packaging.pictures` draws them again from what was recorded."""
    assert (IMAGES / name).read_text() == draw()


def test_they_show_the_leak() -> None:
    """What was recorded is a leak, told to Slack and on the screen of the node."""
    assert {problem["kind"] for problem in kept("status")["problems"]} >= {"leak"}
    assert kept("slack")["text"].startswith(f"SIMULATED CRITICAL {HOSTNAME} GPU 0: embed-server (svc-ml, pid ")


def test_they_show_its_end_and_a_lost_gpu() -> None:
    """The end says what ended it, and a lost GPU what it takes."""
    assert kept("slack-end")["text"].startswith(f"SIMULATED RESOLVED {HOSTNAME} GPU 0: ")
    assert " ended; " in kept("slack-end")["text"]
    assert "the GPU is lost" in kept("slack-lost")["text"]


def test_slack_picture_escapes() -> None:
    """Hostile names make no marks in the picture."""
    text = "FIRING <&\"'> `a<b`"
    body = {"type": "mrkdwn", "text": "*A* &lt;script&gt; `x&lt;y` <https://a/?b&amp;c|Page>"}
    drawn = slack_svg({
        "text": text, "attachments": [{"color": "#d1242f", "blocks": [{"type": "section", "text": body}]}],
    })  # fmt: skip
    words = [element.text for element in ET.fromstring(drawn).iter() if element.text and element.text.strip()]
    assert words[-4:] == ["A", "<script>", "x<y", "Page"]


def test_the_story_moves_without_a_script() -> None:
    """It begins with the leak and ends with its memory back; each frame is seen once a turn, and nothing is fetched."""
    root = ET.fromstring((IMAGES / "top-story.svg").read_text())
    style = "".join(each.text or "" for each in root.iter() if each.tag.endswith("}style"))
    captions = [(each.text or "", parent.get("class")) for parent in root for each in parent if _is_caption(each)]
    assert [text[:1] for text, _ in captions] == ["1", "2", "3", "4", "5"]
    assert captions[-1][0].endswith("The memory is back")
    for number, (_, name) in enumerate(captions):
        assert (name, f"@keyframes f{number} " in style) == (f"f{number}", True)
    assert "prefers-reduced-motion" in style
    assert not {"script", "image"} & {each.tag.rpartition("}")[2] for each in root.iter()}
    assert "url(" not in style


def _is_caption(element: ET.Element) -> bool:
    return element.get("class") == "caption"


def test_pictures_are_small() -> None:
    """A clone is not slowed down by them."""
    assert [path.name for path in IMAGES.glob("*.*") if path.stat().st_size > 200 * 1024] == []
