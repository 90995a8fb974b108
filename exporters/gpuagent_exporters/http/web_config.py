"""TLS and basic authentication in Prometheus' own format: one file serves a node's exporters.

https://prometheus.io/docs/prometheus/latest/configuration/https/ and, where that page is silent,
https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path

from starlette.types import ASGIApp

from gpuagent.core.clock import Clock, SystemClock
from gpuagent_exporters.http.auth import BasicAuth
from gpuagent_exporters.http.middleware import SetHeaders
from gpuagent_exporters.http.tls import TlsError
from gpuagent_exporters.http.web_config_file import WebConfigError, WebSettings, read_file

__all__ = ["WebConfig", "WebConfigError"]

logger = logging.getLogger(__name__)

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
            logger.warning("keeping the old certificates: %s", error)
        else:
            logger.info("certificates were renewed")

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
