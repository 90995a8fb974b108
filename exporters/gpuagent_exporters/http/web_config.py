"""TLS and basic authentication in Prometheus' own format: one file serves a node's exporters.

https://prometheus.io/docs/prometheus/latest/configuration/https/ and, where that page is silent,
https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from gpuagent.core.clock import Clock, SystemClock
from gpuagent_exporters.http.auth import BasicAuth
from gpuagent_exporters.http.middleware import SetHeaders
from gpuagent_exporters.http.tls import TlsError, TlsServerConfig, allowed_san

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 10.0
"""How often certificate files are looked at, at most: renewing them needs no reload."""


class WebConfigError(Exception):
    """A web configuration that cannot be used; `faults` are all its faults, one sentence each."""

    def __init__(self, path: Path, faults: Iterator[str] | list[str] | tuple[str, ...]) -> None:
        self.path = path
        self.faults = tuple(faults)
        super().__init__("\n".join(f"{path}: {fault}" for fault in self.faults))

    def __reduce__(self) -> tuple[type[WebConfigError], tuple[Path, tuple[str, ...]]]:
        return WebConfigError, (self.path, self.faults)  # a child tells it: an exception goes by its text otherwise


@dataclass(frozen=True, slots=True)
class WebSettings:
    """What such a file says."""

    tls: TlsServerConfig = field(default_factory=TlsServerConfig)
    headers: Mapping[str, str] = field(default_factory=dict)
    """What is added to every answer."""
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Hashed passwords by name."""

    @property
    def authenticates(self) -> bool:
        """Whether nobody gets an answer without a password or a verified certificate."""
        return bool(self.users) or self.tls.requires_clients

    def allows(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether a client's certificate has one of `client_allowed_sans`, where that is set."""
        allowed = self.tls.client_allowed_sans
        return allowed is None or allowed_san(certificate, allowed)

    def context(self, path: Path) -> ssl.SSLContext | None:
        """Return a context with the certificates as they are now; None for plain text. Raises WebConfigError."""
        if not self.tls.enabled:
            return None
        try:
            return self.tls.context(path.parent)
        except TlsError as error:
            raise WebConfigError(path, [f"tls_server_config.{fault}" for fault in error.faults]) from error


def read_here(path: Path) -> WebSettings:
    """Return the file, read in this process. Raises WebConfigError with all that is wrong with it."""
    from gpuagent_exporters.http.web_config_file import read_file  # noqa: PLC0415  it loads pydantic

    return read_file(path)


class WebConfig:
    """Who may connect to the TCP address, and how. Without a file: everybody, in plain text."""

    def __init__(
        self,
        path: Path | None = None,
        clock: Clock | None = None,
        *,
        read: Callable[[Path], WebSettings] = read_here,
    ) -> None:
        """Read `path`. Raises WebConfigError with all that is wrong with it."""
        self._path = path
        self._clock = clock or SystemClock()
        self._read = read
        self._settings = read(path) if path else WebSettings()
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
        fresh = WebConfig(self._path, self._clock, read=self._read)
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

    def may_connect(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether the client's certificate has one of `client_allowed_sans`, where that is set."""
        return self._settings.allows(transport.get_extra_info("peercert"))

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
            logger.warning("keeping the old certificates: %s", error)
        else:
            logger.info("certificates were renewed")

    def _new_context(self) -> ssl.SSLContext | None:
        return None if self._path is None else self._settings.context(self._path)

    def _files_state(self) -> tuple[Hashable, ...]:
        return () if self._path is None else tuple(map(_file_state, self._settings.tls.files(self._path.parent)))


def _file_state(path: Path) -> tuple[Hashable, ...]:
    try:
        found = path.stat()
    except OSError as error:
        return (error.errno,)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
