"""Digests of command lines, by a key of this node: the line may hold a password, and a plain digest is guessed back.

A digest is in the record, the log and the answers of the control socket. The key is in a file of the agent's own in the
state directory, as cool-downs outlive a restart, and nowhere else.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)

_KEY_BYTES = 32
_DIGEST_BYTES = 8
_ID_BYTES = 4


class CommandDigests:
    """Digests that tell two command lines apart, and reveal nothing of them without the key."""

    def __init__(self, key: bytes | None = None) -> None:
        """Without a key, by one that ends with this process."""
        self._key = key or secrets.token_bytes(_KEY_BYTES)
        self._id = hashlib.blake2b(b"which key", key=self._key, digest_size=_ID_BYTES).hexdigest()

    def __call__(self, command_line: bytes) -> str:
        """Return `KEY-DIGEST`: digests by different keys say nothing about each other."""
        digest = hashlib.blake2b(command_line, key=self._key, digest_size=_DIGEST_BYTES).hexdigest()
        return f"{self._id}-{digest}"

    def of_facts(self, facts: Mapping[str, object]) -> str:
        """Return `KEY-DIGEST...` with a digest for each fact, in their order: `differing` names those that differ.

        `id` among them is in each: nobody finds out a fact of another process by giving it to one of their own.
        """
        whose = repr(facts["id"])
        parts = (self._part(f"{whose} {name}={fact!r}") for name, fact in facts.items())
        return f"{self._id}-{''.join(parts)}"

    def differing(self, token: str, facts: Mapping[str, object]) -> list[str]:
        """Return the names of the facts that are not as they were when this was made of them; all, if it was not."""
        now = self.of_facts(facts)
        if token == now:
            return []
        start, size = len(self._id) + 1, 2 * _DIGEST_BYTES
        if len(token) != len(now) or token[:start] != now[:start]:
            return list(facts)
        places = range(start, len(now), size)
        return [
            name
            for name, place in zip(facts, places, strict=True)
            if token[place : place + size] != now[place : place + size]
        ] or list(facts)

    def _part(self, text: str) -> str:
        data = text.encode("utf-8", "surrogateescape")
        return hashlib.blake2b(data, key=self._key, digest_size=_DIGEST_BYTES, person=b"shown").hexdigest()


def load_digests(path: Path | None) -> CommandDigests:
    """Return digests by the key in this file, which is made if it is not there, or not the agent's own.

    Where it can be neither read nor written, by a key that ends with this process.
    """
    if path is None:
        return CommandDigests()
    try:
        return CommandDigests(_read(path) or _write(path))
    except OSError as error:
        log.warning("%s cannot be used, cool-downs of commands count for their whole user: %s", path, error)
        return CommandDigests()


def _read(path: Path) -> bytes | None:
    """Return the key; None where it is no file that this user alone could have written and read. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            log.warning("%s is not the agent's own: it is replaced", path)
            return None
        key = os.read(descriptor, _KEY_BYTES + 1)
        return key if len(key) == _KEY_BYTES else None
    finally:
        os.close(descriptor)


def _write(path: Path) -> bytes:
    """Put a new key in the place of whatever is there. Raises OSError."""
    key = secrets.token_bytes(_KEY_BYTES)
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, key)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.replace(path)
    return key
