"""Addresses, URLs and names as a configuration file has them: checked by their form, never by asking.

Users, services, containers and GPUs are named whole, never by a pattern. What can name none of them is a fault: a name
that nothing ever has is a permission or a budget for nobody, and nobody would notice.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from gpuagent.core.problems import kind_of, shown

_PREFIX = re.compile(
    r"(user|uid|group|gid|pid|container|pod|image|job|slurm_job|unit|name|process|proc|comm|command|cmd|exe|program|path"
    r"|script|module)[:=](?!:)\s*",
    re.IGNORECASE,
)
"""What people put before a name that is to be spared: there are no such prefixes."""
_NO_PROGRAMS = frozenset({"user", "uid", "group", "gid", "pid", "container", "pod", "image", "job", "slurm_job"})
_SEVERAL = re.compile(r"^[^/]*[,;]|\{[^}]*,[^}]*\}")
"""Names with commas between them, and alternatives in braces: the never-list has neither."""
_REGEX = re.compile(r"\.[*+]|\]\+|[\^$|\\]")
_REGEX_IN_PATH = re.compile(r"(?<![0-9])\.[*+]|\]\+|[\^$|\\]")
"""What entries do not have. `/opt/app/1.*/serve` is a version's directory."""
HIDDEN = "<hidden>"
LINK_PLACEHOLDERS = ("{node}", "{gpu}", "{uuid}", "{pid}")
"""What is filled in in the URL of a board."""
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", re.ASCII)


def split_listen(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9837`, `[::1]:9837` or `:9837`, where host "" is every interface.

    Raises ValueError, in words for the person who wrote it.
    """
    host, colon, port = text.rpartition(":")
    if not colon and port.isdecimal():
        raise ValueError(
            f'is a port without a host: write "127.0.0.1:{port[:5]}", or ":{port[:5]}" for every interface'
        )
    if not colon or not (port.isascii() and port.isdigit()):
        raise ValueError("has no port: write host:port, for example 127.0.0.1:9837 or :9837")
    if len(port) > 5 or int(port) > 65535:
        raise ValueError("has a port above 65535")
    return _host(host), int(port)


def _host(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        return str(_address(host[1:-1]))
    if ":" in host:
        raise ValueError('has an IPv6 address without brackets: write "[::1]:9837", in quotes')
    if host and host.replace(".", "").isdigit():
        return str(_address(host))
    if host and not _HOST.fullmatch(host):
        raise ValueError(f"{shown(host)} is no host name or address")
    return host


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is no IP address") from None


def check_listen(value: object) -> str:
    """Pass an address to listen on; "" turns listening off. Raises ValueError, also for a port that is a number."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise ValueError(f"must be text, not {kind_of(text)}")
    if text:
        split_listen(text)
    return text


def check_cgroup_path(text: str) -> str:
    """Return the path of a cgroup, with `*` for a part of it. Raises ValueError where it could be that of any."""
    parts = text.removeprefix("/").split("/")
    if not text.startswith("/") or not all(parts) or {".", ".."} & set(parts) or "*" in parts[0]:
        raise ValueError(f"{shown(text)} is no path of a cgroup whose first part has a name, such as /ecs/*")
    return text


def check_host_pattern(text: str) -> str:
    """Return a host name or `*.DOMAIN`, without a port. Raises ValueError."""
    if not _HOST.fullmatch(text.removeprefix("*.")):
        raise ValueError(f"{shown(text)} is no host name; write it without scheme and port, or *.example.org")
    return text


def check_web_url(text: str) -> str:
    """Pass a URL for HTTP. Raises ValueError, which does not quote it: it may hold a secret."""
    _check_url_text(text)
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        valid = False
    if not valid:
        raise ValueError("must be a URL that begins with http:// or https:// and names a host")
    return text


def check_base_url(text: str) -> str:
    """Pass a URL for HTTP that a path is put behind. Raises ValueError, which does not quote it either."""
    check_web_url(text)
    if "?" in text or "#" in text:  # as a browser shows the address of Alertmanager's page: /#/alerts
        raise ValueError("must be the address of the server alone, without ? and #")
    return text


def check_public_url(text: str) -> str:
    """Pass a URL that a path is put behind, and that everybody who gets a message may see. Raises ValueError."""
    check_base_url(text)
    _refuse_user(text)
    return text


def check_url_template(text: str) -> str:
    """Pass a URL with placeholders of `LINK_PLACEHOLDERS`. Raises ValueError."""
    filled = text
    for name in LINK_PLACEHOLDERS:
        filled = filled.replace(name, "x")
    if "{" in filled or "}" in filled:
        raise ValueError(f"has a placeholder that is not filled in; there are {', '.join(LINK_PLACEHOLDERS)}")
    check_web_url(filled)
    _refuse_user(filled)
    return text


def _refuse_user(url: str) -> None:
    if "@" in urlsplit(url).netloc:
        raise ValueError("must not hold a user or password: it is in every message")


def check_any_url(text: str) -> str:
    """Pass a URL of any scheme. Raises ValueError, which does not quote it either."""
    _check_url_text(text)
    scheme, separator, rest = text.partition("://")
    if not (separator and rest and scheme.isascii() and scheme[:1].isalpha()):
        raise ValueError("must be a URL with a scheme, as in mailto://...")
    return text


def _check_url_text(text: str) -> None:
    if not text.isprintable() or " " in text:  # urlsplit would drop some of these in silence
        raise ValueError("must be a URL: it has no spaces or line breaks")


def hide_user(url: str) -> str:
    """Return the URL without the user and password that may stand in it."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{HIDDEN}@{host}").geturl() if user else url


_PATTERN = re.compile(r"[*?\[\]]")
_SERVICE = re.compile(r"(?:user@\d+\.service/)?[\w:.\\@-]+\.service", re.ASCII)
_OTHER_UNITS = (".scope", ".slice", ".socket", ".timer", ".target", ".mount", ".automount", ".path", ".swap", ".device")
_CONTAINER_ID = re.compile(r"[0-9a-f]{12,64}")
_DIGITS = re.compile(r"[0-9a-f]+")
_ID_DIGITS = 64


def check_user(text: str) -> str:
    """Return the name of one user. Raises ValueError."""
    _check_whole(text)
    if text.startswith("@"):
        raise ValueError(f"{shown(text)} names no user, and groups of users are not taken: name each user")
    return text


def check_service(text: str) -> str:
    """Return the name of one service of systemd: processes in other units are in no unit here. Raises ValueError."""
    _check_whole(text)
    if text.endswith(_OTHER_UNITS):
        raise ValueError(f"{shown(text)} is no service, and no other unit can be restarted")
    if not text.endswith(".service"):
        raise ValueError(f"{shown(text)} has no suffix: write {text}.service")
    if text.endswith("@.service"):
        raise ValueError(f"{shown(text)} is a template, in which nothing runs: name an instance of it")
    if not _SERVICE.fullmatch(text):
        raise ValueError(f"{shown(text)} cannot be the name of a service")
    return text


def check_container(text: str) -> str:
    """Return the id or the name of one container. Raises ValueError."""
    _check_whole(text)
    if "://" in text:
        raise ValueError(f"{shown(text)} is no id: leave out what stands before the digits")
    if len(text) > _ID_DIGITS and _DIGITS.fullmatch(text):
        raise ValueError(f"{shown(text)} has {len(text)} digits, and an id has {_ID_DIGITS}")
    return text


def check_gpu(text: str) -> str:
    """Return the index or UUID of one GPU. Raises ValueError."""
    _check_whole(text)
    return text


def check_never_entry(text: str) -> str:
    """Return an entry of the never-list, which names a program: what could spare none is a fault.

    A path may have blanks in it; whether one is there is for who can ask.
    """
    if text != text.strip():
        raise ValueError(f"{shown(text)} has blanks at an end, and is no name of a program: write {text.strip()}")
    if not text.strip("/"):
        raise ValueError(f"{shown(text)} is the root directory, where every program lies: name what is to be spared")
    if text.startswith(("~", "./", "../")):
        raise ValueError(f"{shown(text)} is no whole path, and nobody's directory is meant: write it from / on")
    if text[0] in "\"'" and text[-1] == text[0]:
        raise ValueError(f"{shown(text)} has quotes in it, which no name has: write {text[1:-1]}")
    if _SEVERAL.search(text):
        raise ValueError(f"{shown(text)} names several: write one entry for each")
    if (prefix := _PREFIX.match(text)) is not None:
        rest = text[prefix.end() :].strip()
        if prefix[1].lower() in _NO_PROGRAMS:
            raise ValueError(
                f"{shown(text)}: never names programs; users, containers and jobs are spared by leaving them out of"
                " remedies.allow"
            )
        raise ValueError(f"{shown(text)} begins with {prefix[0]}, which no name has: write {rest or 'the name alone'}")
    words = text.split()
    if len(words) > 1 and "/" not in words[0]:
        raise ValueError(
            f"{shown(text)} has a blank in it, and is compared with names, not with command lines: write"
            f" {words[0]}, or {'*'.join(words)} if the name has a blank"
        )
    if (_REGEX_IN_PATH if "/" in text else _REGEX).search(text):
        raise ValueError(
            f"{shown(text)} is a regular expression, and an entry has * for any rest and no more: {_as_glob(text)}"
        )
    return text


def _as_glob(text: str) -> str:
    glob = re.sub(r"\\.", ".", re.sub(r"\]\+", "]*", re.sub(r"\.[*+]", "*", text.lstrip("^").rstrip("$"))))
    if re.search(r"[\^$|\\+()\[\]?]", glob):
        return "write one entry for each name, with * for any rest"
    return f"write {glob}"


def needs_runtime(container: str) -> bool:
    """Return whether this is a name that only docker or podman could tell, or a piece of an id that is too short.

    Names of the kubelet's containers, and of those that have a name for an id, have a slash in them. What can name none
    at all is told by `check_container`.
    """
    return not (_CONTAINER_ID.fullmatch(container) or "/" in container or _PATTERN.search(container))


def _check_whole(text: str) -> None:
    if _PATTERN.search(text):
        raise ValueError(f"{shown(text)} is a pattern, and patterns are not taken here: name each")
