"""Names of users, services, containers and GPUs: each whole, never a pattern. What can name none of them is a fault.

A name that nothing ever has is a permission or a budget for nobody, and nobody would notice.
"""

from __future__ import annotations

import re

from gpuagent.config.faults import shown

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


def needs_runtime(container: str) -> bool:
    """Return whether this is a name that only docker or podman could tell, or a piece of an id that is too short.

    Names of the kubelet's containers, and of those that have a name for an id, have a slash in them. What can name none
    at all is told by `check_container`.
    """
    return not (_CONTAINER_ID.fullmatch(container) or "/" in container or _PATTERN.search(container))


def _check_whole(text: str) -> None:
    if _PATTERN.search(text):
        raise ValueError(f"{shown(text)} is a pattern, and patterns are not taken here: name each")
