"""TLS and basic authentication in Prometheus' own format: one file serves a node's exporters.

https://prometheus.io/docs/prometheus/latest/configuration/https/ and, where that page is silent,
https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from starlette.types import ASGIApp

from gpuagent.core.clock import Clock, SystemClock
from gpuagent.core.problems import kind_of, listed, shown, write_path
from gpuagent.core.regular_files import read_regular_file
from gpuagent.core.sections import ReadContext, Section, ValueType, key, read_section
from gpuagent.core.yaml_document import Limits, YamlFault, read_document
from gpuagent_exporters.http.auth import BasicAuth
from gpuagent_exporters.http.middleware import SetHeaders
from gpuagent_exporters.http.tls import MAX_FILE_BYTES, TlsError, TlsServerConfig

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


__all__ = ["WebConfig", "WebConfigError"]

log = logging.getLogger(__name__)

_CHECK_SECONDS = 10.0
"""How often certificate files are looked at, at most: renewing them needs no reload."""


class WebConfig:
    """Who may connect to the TCP address, and how. Without a file: everybody, in plain text."""

    def __init__(
        self,
        path: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Read `path`. Raises WebConfigError with all that is wrong with it."""
        self._path = path
        self._clock = clock or SystemClock()
        self._settings = read_file(path) if path else WebSettings()
        self._context = self._new_context()
        self._files_seen = self._files_state()
        self._files_looked_at = self._clock.now()

    @property
    def encrypts(self) -> bool:
        """Whether connections use TLS."""
        return self._context is not None

    @property
    def authenticates(self) -> bool:
        """Whether nobody gets an answer without a password or a verified certificate."""
        return self._settings.authenticates

    def reload(self) -> None:
        """Read the file again. Raises WebConfigError, and then all stays as it was.

        Because TLS and authentication were there at the start, more may be shown than to everybody,
        such as command lines: so a reload cannot take either away.
        """
        self.prepare()()

    def prepare(self) -> Callable[[], None]:
        """Read the file again; what is returned puts it in force. Raises as `reload` does."""
        if self._path is None:
            return lambda: None
        fresh = WebConfig(self._path, self._clock)
        if self.encrypts > fresh.encrypts or self.authenticates > fresh.authenticates:
            raise WebConfigError(self._path, ["TLS or authentication would be taken away; that takes a restart"])

        def use() -> None:
            self._settings, self._context = fresh._settings, fresh._context
            self._files_seen, self._files_looked_at = fresh._files_seen, fresh._files_looked_at

        return use

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context for a new connection, with certificates as on disk; None for plain text.

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

    def protect(self, app: ASGIApp) -> ASGIApp:
        """Return `app` behind basic authentication, as far as there are users."""
        return BasicAuth(app, self._users)

    def with_headers(self, app: ASGIApp) -> ASGIApp:
        """Return `app` with the extra headers on every answer, as far as there are any."""
        return SetHeaders(app, self._headers)

    def _headers(self) -> Mapping[str, str]:
        return self._settings.headers

    def _users(self) -> Mapping[str, str]:
        return self._settings.users

    def _renew(self) -> None:
        try:
            self._context = self._new_context()
        except WebConfigError as error:
            log.warning("keeping the old certificates: %s", error)
        else:
            log.info("certificates were renewed")

    def _new_context(self) -> ssl.SSLContext | None:
        tls = self._settings.tls_server_config
        if self._path is None or not tls.enabled:
            return None
        try:
            return tls.context(self._path.parent)
        except TlsError as error:
            raise WebConfigError(self._path, [f"tls_server_config.{fault}" for fault in error.faults]) from error

    def _files_state(self) -> tuple[Hashable, ...]:
        return (
            ()
            if self._path is None
            else tuple(map(_file_state, self._settings.tls_server_config.files(self._path.parent)))
        )


def _file_state(path: Path) -> tuple[Hashable, ...]:
    try:
        found = path.stat()
    except OSError as error:
        return (error.errno,)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
