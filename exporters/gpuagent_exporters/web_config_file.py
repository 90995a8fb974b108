"""The file of `web_config`: what may stand in it, and what its sections come to.

It is in a module of its own because pydantic takes 12 MiB, which an agent without such a file need not have.
"""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gpuagent_exporters.tls import TlsError, TlsServerConfig, allowed_san
from gpuagent_exporters.web_config import WebConfigError

_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")


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


class WebConfigFile(BaseModel):
    """The whole of it. Every key may be missing."""

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

    @property
    def authenticates(self) -> bool:
        """Whether nobody gets an answer without a password or a verified certificate."""
        return bool(self.basic_auth_users) or self.tls_server_config.requires_clients

    @property
    def headers(self) -> Mapping[str, str]:
        """What is added to every answer."""
        return {name: value for name, value in self.http_server_config.headers.items() if value}

    def allows(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client's certificate has one of `client_allowed_sans`, where that is set."""
        allowed = self.tls_server_config.client_allowed_sans
        return allowed is None or allowed_san(certificate, allowed)

    def context(self, path: Path) -> ssl.SSLContext | None:
        """With the certificates as they are now; None for plain text. `path` is the file's. Raises WebConfigError."""
        if not self.tls_server_config.enabled:
            return None
        try:
            return self.tls_server_config.context(path.parent)
        except TlsError as error:
            raise WebConfigError(path, [f"tls_server_config.{fault}" for fault in error.faults]) from error


class _StrictLoader(yaml.SafeLoader):
    """YAML in which no key silently wins over its double; exporter-toolkit is strict too."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        double = next((key for key in keys if keys.count(key) > 1), None)
        if double is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{double!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_file(path: Path) -> WebConfigFile:
    """Raises WebConfigError with all that is wrong with it."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise WebConfigError(path, [f"cannot be read: {error.strerror}"]) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WebConfigError(path, [f"is not YAML: {' '.join(str(error).split())}"]) from error
    try:
        return WebConfigFile.model_validate({} if content is None else content)
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
        section = _SECTIONS.get(where[0], WebConfigFile) if len(where) > 1 else WebConfigFile
        message = "there is no such key"
        nearest = difflib.get_close_matches(where[-1], section.model_fields, n=1)
        message += f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{'.'.join(where)}: {message}" if where else message
