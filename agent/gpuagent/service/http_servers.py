"""The ways in: the read-only address, and the control socket that also takes commands."""

from __future__ import annotations

import grp
import logging
from collections.abc import Callable
from pathlib import Path

from gpuagent.config.models import Config
from gpuagent.runtime.state_files import check_socket_directory, make_own_directory
from gpuagent.service.view import View
from gpuagent_exporters.api.alert_routes import (
    AlertSource,
    LeakSource,
    alert_routes,
    leak_command_routes,
    leak_routes,
    read_routes,
    readable_alerts,
)
from gpuagent_exporters.api.control import Commands, control_routes
from gpuagent_exporters.api.process_routes import (
    ClientSource,
    RemedySource,
    client_command_routes,
    client_routes,
    readable_remedies,
    remedy_command_routes,
    remedy_routes,
)
from gpuagent_exporters.api.routes import PageDocuments, build_app
from gpuagent_exporters.api.usage_routes import UsageSource, usage_routes
from gpuagent_exporters.http.hosts import host_names
from gpuagent_exporters.http.limits import HttpLimits
from gpuagent_exporters.http.listeners import ListenAddress, ListenError, is_loopback, parse_listen
from gpuagent_exporters.http.server import HttpServer
from gpuagent_exporters.http.web_config import WebConfig

log = logging.getLogger(__name__)

_EVERY_INTERFACE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  compared, not bound

GROUP = "gpuagent"
"""Members may use the control socket, where the group exists."""


def control_socket(config: Config) -> Path:
    """Where commands reach the agent."""
    return config.runtime_dir / "control.sock"


def own_url(listen: str, hostname: str, *, encrypts: bool) -> str:
    """Return the URL at which other machines reach this listen address; "" where they do not.

    `hostname` stands for every interface. Port 0 has no URL before it is opened, and no use as one.
    """
    if not listen or is_loopback(listen):
        return ""
    address = parse_listen(listen)
    host = hostname if address.host in _EVERY_INTERFACE else address.host
    if not host or not address.port:
        return ""
    return f"{'https' if encrypts else 'http'}://{ListenAddress(host, address.port)}"


class HttpServers:
    """Opens and closes the servers; the configuration is that of the start."""

    def __init__(self, config: Config, web_config: WebConfig) -> None:
        self._config = config
        self._web_config = web_config
        self._servers: list[HttpServer] = []

    async def open(
        self,
        view: View,
        commands: Commands,
        alerts: AlertSource,
        clients: ClientSource,
        remedies: RemedySource,
        leaks: LeakSource,
        usage: UsageSource,
    ) -> None:
        """Listen.

        Raises:
            ListenError: an address or the socket's directory cannot be had; nothing stays open.
        """
        config = self._config
        path = control_socket(config)
        group = _group()
        _make_directory(path.parent)
        routes = (*control_routes(commands), *alert_routes(alerts), *client_routes(clients), *remedy_routes(remedies))
        # Remedies first: of what can be asked of an app, some gives memory back, and goes on record.
        routes = (
            *routes,
            *remedy_command_routes(remedies),
            *client_command_routes(clients),
            *leak_routes(leaks),
            *leak_command_routes(leaks),
            *usage_routes(usage),
        )

        def page_documents(*, show_commands: bool) -> PageDocuments:
            return PageDocuments(
                alerts=lambda: readable_alerts(alerts, show_commands=show_commands),
                remedies=lambda: readable_remedies(remedies, show_commands=show_commands),
                explain=leaks.explain,
            )

        app = build_app(view, control=True, extra_routes=routes, page_documents=page_documents(show_commands=True))
        servers = [HttpServer(app, unix_socket=path, unix_mode=0o660, unix_group=group, limits=_limits(config))]
        if config.listen:
            private = is_loopback(config.listen) or self._web_config.authenticates
            readable = (
                *read_routes(alerts, show_commands=private),
                *client_routes(clients, show_commands=private),
                *remedy_routes(remedies, show_commands=private),
                *leak_routes(leaks, show_commands=private),
                *usage_routes(usage),
            )
            servers.append(
                HttpServer(
                    build_app(
                        view,
                        show_commands=private,
                        extra_routes=readable,
                        page_documents=page_documents(show_commands=private),
                    ),
                    listen=config.listen,
                    limits=_limits(config),
                    web_config=self._web_config,
                    names=host_names(allowed=config.http.allowed_hosts),
                )
            )
        try:
            for server in servers:
                await server.start()
                self._servers.append(server)
        except ListenError:
            await self.close()
            raise
        log.info("listening on %s%s", path, f" and {config.listen}" if config.listen else "")

    def prepare(self, config: Config) -> Callable[[], None]:
        """Read certificates and passwords again; what is returned puts them in force. Raises WebConfigError."""
        if config.web_config_file == self._config.web_config_file:
            return self._web_config.prepare()
        return lambda: log.warning("web_config_file has changed: this takes effect at the next start")

    async def close(self) -> None:
        """Stop listening; what is being answered has a moment to finish."""
        for server in self._servers:
            await server.stop(grace_seconds=0.5)
        self._servers.clear()


def _limits(config: Config) -> HttpLimits:
    http = config.http
    return HttpLimits(
        max_connections=http.max_connections,
        request_timeout_seconds=http.request_timeout,
        write_timeout_seconds=http.response_timeout,
        idle_timeout_seconds=http.idle_timeout,
        max_header_bytes=http.max_header_size,
        max_body_bytes=http.max_body_size,
    )


def _group() -> str | None:
    try:
        return grp.getgrnam(GROUP).gr_name
    except KeyError:
        return None


def _make_directory(path: Path) -> None:
    """Make the socket's directory: others cannot even see what is in it."""
    try:
        make_own_directory(path)
        check_socket_directory(path)
    except OSError as error:
        raise ListenError(f"{path}: {error.strerror}; set runtime_dir to a directory this user may write") from None
