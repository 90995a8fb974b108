"""The file of `web_config`: what may stand in it, with all faults at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from gpuagent.core.problems import kind_of, listed, shown, write_path
from gpuagent.core.regular_files import read_regular_file
from gpuagent.core.sections import ReadContext, Section, ValueType, key, read_section
from gpuagent.core.yaml_document import Limits, YamlFault, read_document
from gpuagent_exporters.http.tls import MAX_FILE_BYTES, TlsServerConfig

_LIMITS = Limits(depth=8, values=10_000, typed=True)
_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
_HEADERS = (
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
)


class WebConfigError(Exception):
    """A web configuration that cannot be used; `faults` are all its faults, one sentence each."""

    def __init__(self, path: Path, faults: Iterable[str], lines: Iterable[int] = ()) -> None:
        """`lines` has the line of each fault, where the file has one."""
        self.path = path
        self.faults = tuple(faults)
        places = [f"{path}:{line}" if line else str(path) for line in lines] or [str(path)] * len(self.faults)
        super().__init__("\n".join(f"{place}: {fault}" for place, fault in zip(places, self.faults, strict=True)))


def _texts(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping, not {kind_of(value)}")
    for name, text in value.items():
        if not isinstance(text, str):
            raise ValueError(f"{shown(name)} must be text, not {kind_of(text)}")
    return value


def _headers(value: object, _: ReadContext) -> Mapping[str, str]:
    headers = _texts(value)
    for name, text in headers.items():
        if name not in _HEADERS:
            raise ValueError(f"{shown(name)} is no header that can be set; there are {listed(_HEADERS)}")
        if not (text.isascii() and text.isprintable()):
            raise ValueError(f"{name} has characters that a header cannot have")
    return headers


def _users(value: object, _: ReadContext) -> Mapping[str, str]:
    users = _texts(value)
    plain = [user for user, hashed in users.items() if not _BCRYPT.fullmatch(hashed)]
    if plain:
        raise ValueError(f"{', '.join(plain)}: not a bcrypt hash; `htpasswd -nBC 10 USER` makes one")
    return users


class HttpServerConfig(Section):
    """How answers are given."""

    http2: bool = key(default=True)
    """Accepted for the sake of shared files: it permits HTTP/2, and this server speaks 1.1."""
    headers: Annotated[Mapping[str, str], ValueType("names of headers with their values", _headers)] | None = key(
        default=None
    )


class WebSettings(Section):
    """The whole of it. Every key may be missing."""

    tls_server_config: TlsServerConfig = key(default=TlsServerConfig())
    http_server_config: HttpServerConfig = key(default=HttpServerConfig())
    basic_auth_users: Annotated[Mapping[str, str], ValueType("names of users with bcrypt hashes", _users)] | None = key(
        default=None, repr=False
    )

    @property
    def headers(self) -> Mapping[str, str]:
        """What is added to every answer."""
        given = self.http_server_config.headers or {}
        return {name: value for name, value in given.items() if value}

    @property
    def users(self) -> Mapping[str, str]:
        """Hashed passwords by name."""
        return self.basic_auth_users or {}

    @property
    def authenticates(self) -> bool:
        """Whether nobody gets an answer without a password or a verified certificate."""
        return bool(self.users) or self.tls_server_config.requires_clients


def read_file(path: Path) -> WebSettings:
    """Read the file. Raises WebConfigError with all that is wrong with it."""
    try:
        content = read_regular_file(path, MAX_FILE_BYTES)
        if len(content) > MAX_FILE_BYTES:
            raise WebConfigError(path, [f"is larger than {MAX_FILE_BYTES // 1024} KiB"])
        document = read_document(content.decode("utf-8-sig"), _LIMITS)
    except OSError as error:
        raise WebConfigError(path, [f"cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError:
        raise WebConfigError(path, ["is not UTF-8 text"]) from None
    except YamlFault as fault:
        raise WebConfigError(path, [fault.problem], [fault.place.line]) from None
    given: Any = {} if document.value is None else document.value
    if not isinstance(given, dict):
        raise WebConfigError(path, [f"the file must be a mapping (key: value), not {kind_of(given)}"])
    settings, problems = read_section(WebSettings, given)
    found = [*document.problems, *((document.place_of(problem.path), problem) for problem in problems)]
    if settings is None or found:
        found.sort(key=lambda one: one[0])
        faults = []
        for _, problem in found:
            guess = f"; did you mean {problem.suggestion}?" if problem.suggestion else ""
            where = write_path(problem.path)
            told = not problem.allowed or problem.allowed in problem.problem
            allowed = "" if told else f" (allowed: {problem.allowed})"
            faults.append(f"{f'{where}: ' if where else ''}{problem.problem}{guess}{allowed}")
        raise WebConfigError(path, faults, [place.line for place, _ in found])
    return settings
