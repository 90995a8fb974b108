"""TLS and basic authentication in Prometheus' own format: one file serves a node's exporters.

https://prometheus.io/docs/prometheus/latest/configuration/https/ and, where that page is silent,
https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
import ssl
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.types import ASGIApp

from gpuagent.clock import Clock, SystemClock
from gpuagent_exporters.basic_auth import BasicAuth
from gpuagent_exporters.guards import SetHeaders
from gpuagent_exporters.tls import TlsError, TlsServerConfig, allowed_san

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 10.0
"""How often certificate files are looked at, at most: renewing them needs no reload."""
_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")


class WebConfigError(Exception):
    """A web configuration that cannot be used; `faults` are all its faults, one sentence each."""

    def __init__(self, path: Path, faults: Iterator[str] | list[str] | tuple[str, ...]) -> None:
        self.path = path
        self.faults = tuple(faults)
        super().__init__("\n".join(f"{path}: {fault}" for fault in self.faults))


class _HttpServerConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    http2: bool = True
    """Accepted for the sake of shared files: it permits HTTP/2, and this server speaks 1.1."""
    headers: dict[
        Literal[
            "Content-Security-Policy",
            "X-Frame-Options",
            "X-Content-Type-Options",
            "X-XSS-Protection",
            "Strict-Transport-Security",
        ],
        str,
    ] = {}

    @field_validator("headers")
    @classmethod
    def _printable(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                raise ValueError(f"{name} has characters that a header cannot have")
        return headers


class _WebConfigFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    tls_server_config: TlsServerConfig = Field(default_factory=TlsServerConfig)
    http_server_config: _HttpServerConfig = Field(default_factory=_HttpServerConfig)
    basic_auth_users: dict[str, str] = Field(default_factory=dict, repr=False)

    @field_validator("tls_server_config", "http_server_config", "basic_auth_users", mode="before")
    @classmethod
    def _empty(cls, value: object) -> object:
        return {} if value is None else value  # a section whose keys are all commented out

    @field_validator("basic_auth_users")
    @classmethod
    def _hashed(cls, users: dict[str, str]) -> dict[str, str]:
        plain = [user for user, hashed in users.items() if not _BCRYPT.fullmatch(hashed)]
        if plain:
            raise ValueError(f"{', '.join(plain)}: not a bcrypt hash; `htpasswd -nBC 10 USER` makes one")
        return users


class WebConfig:
    """Who may connect to the TCP address, and how. Without a file: everybody, in plain text."""

    def __init__(self, path: Path | None = None, clock: Clock | None = None) -> None:
        """Read `path`. Raises WebConfigError with all that is wrong with it."""
        self._path = path
        self._clock = clock or SystemClock()
        self._file = _read(path) if path else _WebConfigFile()
        self._context = self._new_context(self._file)
        self._files_seen = self._files_state()
        self._files_looked_at = self._clock.now()

    @property
    def encrypts(self) -> bool:
        """Whether connections use TLS."""
        return self._context is not None

    @property
    def authenticates(self) -> bool:
        """Whether nobody gets an answer without a password or a verified certificate."""
        return bool(self._file.basic_auth_users) or self._file.tls_server_config.requires_clients

    def reload(self) -> None:
        """Read the file again. Raises WebConfigError, and then all stays as it was.

        Because TLS and authentication were there at the start, more may be shown than to everybody,
        such as command lines: so a reload cannot take either away.
        """
        if self._path is None:
            return
        fresh = WebConfig(self._path, self._clock)
        if self.encrypts > fresh.encrypts or self.authenticates > fresh.authenticates:
            raise WebConfigError(self._path, ["TLS or authentication would be taken away; that takes a restart"])
        self._file, self._context = fresh._file, fresh._context
        self._files_seen, self._files_looked_at = fresh._files_seen, fresh._files_looked_at

    def ssl_context(self) -> ssl.SSLContext | None:
        """The context for a new connection, with certificates as on disk; None for plain text.

        While new ones cannot be read (one of two files is written, say), the old ones stay.
        """
        now = self._clock.now()
        if self._context is not None and now - self._files_looked_at >= _CHECK_SECONDS:
            self._files_looked_at = now
            state = self._files_state()
            if state != self._files_seen:
                self._files_seen = state
                self._renew()
        return self._context

    def may_connect(self, transport: asyncio.BaseTransport) -> bool:
        """Whether the client's certificate has one of `client_allowed_sans`, where that is set."""
        allowed = self._file.tls_server_config.client_allowed_sans
        return allowed is None or allowed_san(transport.get_extra_info("peercert"), allowed)

    def protect(self, app: ASGIApp) -> ASGIApp:
        """`app` behind basic authentication and with the extra headers, as far as there are any."""
        return SetHeaders(BasicAuth(app, self._users), self._headers)

    def _headers(self) -> Mapping[str, str]:
        configured = self._file.http_server_config.headers
        return {name: value for name, value in configured.items() if value}

    def _users(self) -> Mapping[str, str]:
        return self._file.basic_auth_users

    def _renew(self) -> None:
        try:
            self._context = self._new_context(self._file)
        except WebConfigError as error:
            logger.warning("keeping the old certificates: %s", error)
        else:
            logger.info("certificates were renewed")

    def _new_context(self, file: _WebConfigFile) -> ssl.SSLContext | None:
        if self._path is None or not file.tls_server_config.enabled:
            return None
        try:
            return file.tls_server_config.context(self._path.parent)
        except TlsError as error:
            raise WebConfigError(self._path, [f"tls_server_config.{fault}" for fault in error.faults]) from error

    def _files_state(self) -> tuple[Hashable, ...]:
        if self._path is None:
            return ()
        return tuple(map(_file_state, self._file.tls_server_config.files(self._path.parent)))


def _file_state(path: Path) -> tuple[Hashable, ...]:
    try:
        found = path.stat()
    except OSError as error:
        return (error.errno,)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


class _StrictLoader(yaml.SafeLoader):
    """YAML in which no key silently wins over its double; exporter-toolkit is strict too."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        double = next((key for key in keys if keys.count(key) > 1), None)
        if double is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{double!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _read(path: Path) -> _WebConfigFile:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise WebConfigError(path, [f"cannot be read: {error.strerror}"]) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WebConfigError(path, [f"is not YAML: {' '.join(str(error).split())}"]) from error
    try:
        return _WebConfigFile.model_validate({} if content is None else content)
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
        raise WebConfigError(path, [_sentence(each) for each in details]) from None


_SECTIONS: dict[str, type[BaseModel]] = {
    "tls_server_config": TlsServerConfig,
    "http_server_config": _HttpServerConfig,
}


def _sentence(detail: Mapping[str, Any]) -> str:
    """One fault of pydantic's, with the key first, without the value (it may be a secret)."""
    where = [str(part) for part in detail["loc"] if part != "[key]"]
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        section = _SECTIONS.get(where[0], _WebConfigFile) if len(where) > 1 else _WebConfigFile
        message = "there is no such key"
        nearest = difflib.get_close_matches(where[-1], section.model_fields, n=1)
        message += f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{'.'.join(where)}: {message}" if where else message
