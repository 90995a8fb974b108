"""Addresses and URLs are judged by their form."""

from __future__ import annotations

import re

import pytest

from gpuagent.config.checks import (
    check_any_url,
    check_cgroup_path,
    check_host_pattern,
    check_listen,
    check_public_url,
    check_url_template,
    check_web_url,
    hide_user,
    split_listen,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9837", "127.0.0.1", 9837),
        (":9837", "", 9837),
        ("0.0.0.0:9837", "0.0.0.0", 9837),
        ("[::1]:9837", "::1", 9837),
        ("[::]:0", "::", 0),
        ("localhost:65535", "localhost", 65535),
        ("gpu-7.example.org:80", "gpu-7.example.org", 80),
    ],
)
def test_addresses_to_listen_on(text: str, host: str, port: int) -> None:
    """IPv4, IPv6 in brackets, names, and every interface."""
    assert split_listen(text) == (host, port)
    assert check_listen(text) == text


def test_listening_can_be_off() -> None:
    """The empty text is no address, and allowed."""
    assert check_listen("") == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("127.0.0.1", "has no port"),
        ("9837", 'is a port without a host: write "127.0.0.1:9837"'),
        ("host:", "has no port"),
        ("host:http", "has no port"),
        ("host:٣", "has no port"),
        ("host:65536", "above 65535"),
        ("host:" + "9" * 5000, "above 65535"),
        ("::1:9837", "without brackets"),
        ("[::1:9837", "without brackets"),
        ("[localhost]:1", "no IP address"),
        ("300.0.0.1:80", "no IP address"),
        ("http://host:80", "without brackets"),
        ("a b:80", "no host name"),
        ("-a:80", "no host name"),
    ],
    ids=lambda value: value[:20],
)
def test_no_addresses(text: str, words: str) -> None:
    """What cannot be listened on is refused in words."""
    with pytest.raises(ValueError, match=words):
        check_listen(text)


@pytest.mark.parametrize(
    ("value", "words"), [(9837, "is a port without a host"), (True, "must be text"), (1.5, "text")]
)
def test_no_text_is_no_address(value: object, words: str) -> None:
    """A port that stands alone is a number in YAML: what to write is said at once, not after quotes were added."""
    with pytest.raises(ValueError, match=words):
        check_listen(value)


@pytest.mark.parametrize("text", ["gpu7", "gpu7.corp.example.com", "*.pool.example.com", "gpu_agent"])
def test_names_to_be_asked_under(text: str) -> None:
    """A host name, or all below a domain."""
    assert check_host_pattern(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "*", "*.", "gpu7:9837", "http://gpu7", "a.*.example.com", "**.example.com", "a b", "[::1]", "gpu7/", "."],
)
def test_no_names_to_be_asked_under(text: str) -> None:
    """A port, a scheme or a star anywhere else is refused in words; there is no way to allow every name."""
    with pytest.raises(ValueError, match="is no host name; write it without scheme and port"):
        check_host_pattern(text)


@pytest.mark.parametrize("text", ["http://a", "https://a.example:8443/x?y=z#f", "http://[::1]:9093"])
def test_web_urls(text: str) -> None:
    """URLs for HTTP pass as they are."""
    assert check_web_url(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "//a",
        "ftp://a",
        "http://",
        "http:a",
        "http://a:b",
        "http://a:99999",
        "http://[::1",
        "http://a b",
        "http://a\n",
        "http://a\t/",
    ],
)
def test_no_web_urls(text: str) -> None:
    """What is no URL for HTTP is refused, without quoting it."""
    with pytest.raises(ValueError, match="must be a URL"):
        check_web_url(text)


def test_other_urls() -> None:
    """Apprise has schemes of its own."""
    assert check_any_url("mailto://ada:pw@example.org") == "mailto://ada:pw@example.org"
    for text in ("", "mailto:ada", "://x", "1://x", "é://x", "a://", "a://x y"):
        with pytest.raises(ValueError, match="must be a URL"):
            check_any_url(text)


def test_a_user_is_hidden() -> None:
    """What is shown of a URL has neither user nor password."""
    assert hide_user("http://ada:pw@host:1/x") == "http://<hidden>@host:1/x"
    assert hide_user("http://host:1/x") == "http://host:1/x"


@pytest.mark.parametrize("text", ["/ecs/*", "/gpu-jobs", "/slurm/uid_*/job_*"])
def test_cgroups(text: str) -> None:
    """A path from the root, with a star for a part."""
    assert check_cgroup_path(text) == text


@pytest.mark.parametrize("text", ["", "/", "ecs", "/*", "/*/x", "/a*", "/ecs/", "//ecs", "/ecs/../x", "/./ecs"])
def test_no_cgroups(text: str) -> None:
    """P2: a path that could be that of any cgroup would let anybody take the id of a container."""
    with pytest.raises(ValueError, match="no path of a cgroup"):
        check_cgroup_path(text)


@pytest.mark.parametrize("text", ["https://gpu.example.org/node7/", "http://node7:9837"])
def test_what_messages_lead_to(text: str) -> None:
    """A URL that a path is put behind, with or without a path of its own."""
    assert check_public_url(text) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node7:9837", "begins with http://"),
        ("https://me:word@node7/", "user or password"),
        ("https://node7/?x=1", "without ? and #"),
    ],
)
def test_what_no_message_leads_to(text: str, words: str) -> None:
    """Everybody who gets a message reads it, and a path is put behind it; a fault does not quote it."""
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        check_public_url(text)
    assert "word@" not in str(caught.value)


def test_templates_of_boards() -> None:
    """The placeholders may stand anywhere in the URL, more than once."""
    text = "https://{node}.example.org/d/gpu?var-gpu={gpu}&var-uuid={uuid}&var-pid={pid}#{node}"
    assert check_url_template(text) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://grafana/d?var-gpu={index}", "there are {node}, {gpu}, {uuid}, {pid}"),
        ("https://grafana/d?var-gpu={{gpu}}", "has a placeholder that is not filled in"),
        ("https://a:b@grafana/d", "user or password"),
        ("grafana/d", "begins with http://"),
        ("https://grafana/d e", "no spaces"),
    ],
)
def test_templates_that_cannot_be_filled_in(text: str, words: str) -> None:
    """A placeholder that nobody fills in would lead nowhere, in the middle of the night."""
    with pytest.raises(ValueError, match=re.escape(words)):
        check_url_template(text)
