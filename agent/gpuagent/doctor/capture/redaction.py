"""Hide who and what runs on a machine: names, command lines, users, serial numbers and UUIDs become digests.

The same text becomes the same digest within one file, and another one in the next: the key is made anew for each.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Any

_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_SERIAL_CALLS = ("nvmlDeviceGetSerial",)
_FIRST_UID = 200_001
"""The first uid that stands for a user in a redacted file: root alone keeps its number."""
_KNOWN_PARTS = frozenset(
    {
        *("", "init.scope", "system.slice", "user.slice", "machine.slice", "app.slice", "session.slice"),
        *("kubepods", "kubepods.slice", "kubepods-burstable.slice", "kubepods-besteffort.slice", "burstable"),
        *("besteffort", "docker", "slurm", "slurmstepd.scope", "user", "..", "init", "supervisor", "payload"),
    }
)
"""Parts of a cgroup's path that say what kind it is, and not whose."""
_SUFFIXES = (".service", ".scope", ".slice")
_PREFIXES = (
    *("cri-containerd-", "crio-", "docker-", "libpod-", "kubepods-burstable-pod", "kubepods-besteffort-pod"),
    *("kubepods-pod", "pod", "job_", "step_", "task_", "uid_", "session-"),
)
_NAMES = {
    "process": "p-",
    "name_of_process": "p-",
    "command": "w-",
    "user": "u-",
    "unit": "c-",
    "cgroup": "c-",
    "container_name": "c-",
    "container_id": "c-",
    "container": "c-",
    "pod": "c-",
    "namespace": "c-",
    "app": "c-",
    "slurm_job": "c-",
    "hostname": "h-",
    "node": "h-",
    "instance": "h-",
}
"""Keys of the agent's documents and labels whose texts name somebody, with the beginnings of their digests."""
_NOBODY = frozenset({"", "root", "init"})
_SHORTEST_WORD = 3
_HEX_ID = re.compile(r"[0-9a-f]{12,64}")
_USER_PART = re.compile(r"user(-|@)(\d+)\.(slice|service)")


class CaptureRedactor:
    """Replace what identifies somebody. With `key` None nothing is replaced."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key
        self._uids: dict[int, int] = {0: 0}
        self._words: dict[str, str] = {}
        """Names that were met, and what stands for each."""

    @classmethod
    def with_new_key(cls) -> CaptureRedactor:
        """Return a redactor whose digests no other file shares."""
        return cls(secrets.token_bytes(32))

    @property
    def active(self) -> bool:
        """Whether anything is replaced."""
        return self._key is not None

    def answer(self, key: str, value: Any) -> Any:
        """Redact the answer of a call."""
        if self._key is None:
            return value
        if isinstance(value, str):
            if key.startswith(_SERIAL_CALLS):
                return self._digits(value)
            return _UUID.sub(lambda found: self._uuid(found[0]), value)
        if isinstance(value, Mapping):
            return {name: self.answer(key, each) for name, each in value.items()}
        return value

    def document(self, value: Any) -> Any:
        """Redact a document of the agent's API: names by their keys, and wherever else they stand in it."""
        if self._key is None:
            return value
        self._meet(value)
        return self._replaced(value)

    def text(self, text: str) -> str:
        """Redact free text: UUIDs, and every name that was met so far."""
        if self._key is None:
            return text
        text = _UUID.sub(lambda found: self._uuid(found[0]), text)
        words = sorted((word for word in self._words if len(word) >= _SHORTEST_WORD), key=len, reverse=True)
        if not words:
            return text
        names = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, words))})(?![\w-])")
        return names.sub(lambda found: self._words[found[0]], text)

    def _meet(self, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, each in value.items():
                if key in _NAMES and isinstance(each, str) and each not in _NOBODY:
                    self._word(each, _NAMES[key])
                else:
                    self._meet(each)
        elif isinstance(value, list | tuple):
            for each in value:
                self._meet(each)

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {
                key: self.uid(each) if key == "uid" and isinstance(each, int) else self._replaced(each)
                for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._replaced(each) for each in value]
        if isinstance(value, str):
            return self._words[value] if value in self._words else self.text(value)
        return value

    def process(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Redact the facts of a process."""
        if self._key is None:
            return facts
        found = dict(facts)
        if "name" in found:
            found["name"] = self._word(str(found["name"]), "p-")
        if "command" in found:
            first, *rest = [str(word) for word in found["command"]] or [""]
            found["command"] = [self._word(first, "w-"), *([self._word("\0".join(rest), "w-")] if rest else [])]
        if "uid" in found:
            found["uid"] = self.uid(found["uid"])
        if "user" in found:
            found["user"] = "root" if found.get("uid") == 0 else self._word(str(found["user"]), "u-")
        if "cgroup" in found:
            found["cgroup"] = self.cgroup(str(found["cgroup"]))
        return found

    def uid(self, uid: int) -> int:
        """Return a number that stands for a user."""
        if self._key is None:
            return uid
        return self._uids.setdefault(uid, _FIRST_UID + len(self._uids) - 1)

    def cgroup(self, text: str) -> str:
        """Redact the paths of a /proc/<pid>/cgroup, and keep their form: which kind of unit or container it is."""
        if self._key is None:
            return text
        lines = []
        for line in text.splitlines():
            head, slash, path = line.partition("/")
            lines.append(head + slash + "/".join(self._part(part) for part in path.split("/")))
        return "\n".join(lines)

    def _part(self, part: str) -> str:
        if part in _KNOWN_PARTS:
            return part
        user = _USER_PART.fullmatch(part)
        if user is not None:
            return f"user{user[1]}{self.uid(int(user[2]))}.{user[3]}"
        suffix = next((each for each in _SUFFIXES if part.endswith(each)), "")
        stem = part.removesuffix(suffix)
        prefix = next((each for each in _PREFIXES if stem.startswith(each) and len(stem) > len(each)), "")
        stem = stem[len(prefix) :]
        if _UUID.fullmatch(stem.replace("_", "-")):
            stem = self._uuid(stem.replace("_", "-")).replace("-", "_" if "_" in stem else "-")
        elif _HEX_ID.fullmatch(stem):
            stem = self._digest(stem)[: len(stem)]
        elif prefix == "uid_" and stem.isdecimal():
            stem = str(self.uid(int(stem)))
        elif not stem.isdecimal():
            stem = self._word(stem, "c-")
        return prefix + stem + suffix

    def _digest(self, text: str) -> str:
        return hmac.new(self._key or b"", text.encode(errors="replace"), hashlib.sha256).hexdigest()

    def _word(self, text: str, prefix: str) -> str:
        if not text:
            return text
        return self._words.setdefault(text, f"{prefix}{self._digest(text)[:8]}")

    def _digits(self, text: str) -> str:
        return f"{int(self._digest(text)[:16], 16) % 10 ** len(text):0{len(text)}d}" if text else text

    def _uuid(self, text: str) -> str:
        digest = self._digest(text.lower())
        return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
