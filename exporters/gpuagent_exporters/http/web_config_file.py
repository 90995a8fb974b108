"""The file of `web_config`: what may stand in it, with all faults at once.

It is in a module of its own because pydantic takes 8 MiB, which the agent need not have: see `web_config_child`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from gpuagent.core.regular_files import read_regular_file
from gpuagent_exporters.http.tls import CIPHERS, MAX_FILE_BYTES, TLS13_CIPHERS, TlsServerConfig
from gpuagent_exporters.http.web_config import WebConfigError, WebSettings

_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
_UNVERIFIED = {"RequestClientCert", "RequireAnyClientCert", "RequireClientCert"}


class _TlsServerConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    cert: str = ""
    key: SecretStr = SecretStr("")
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: Literal["", "NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = ""
    client_allowed_sans: list[str] | None = None
    min_version: Literal["TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS12", "TLS13"] = "TLS13"
    cipher_suites: list[str] = []
    prefer_server_cipher_suites: bool = True
    curve_preferences: list[Literal["CurveP256", "CurveP384", "CurveP521", "X25519"]] = []

    @field_validator("key", mode="before")
    @classmethod
    def _secret(cls, value: object) -> object:
        return SecretStr(value) if isinstance(value, str) else value

    @field_validator("client_auth_type", mode="before")
    @classmethod
    def _verifiable(cls, value: object) -> object:
        if value in _UNVERIFIED:
            raise ValueError(
                f"{value} asks for certificates without verifying them, which Python cannot; "
                "RequireAndVerifyClientCert is what protects"
            )
        return value

    @field_validator("min_version", "max_version", mode="before")
    @classmethod
    def _current(cls, value: object) -> object:
        if value in {"TLS10", "TLS11"}:
            raise ValueError(f"{value} is no longer offered (RFC 8996); write TLS12 or TLS13")
        return value

    @field_validator("cipher_suites")
    @classmethod
    def _known_ciphers(cls, names: list[str]) -> list[str]:
        unknown = [name for name in names if name not in CIPHERS and name not in TLS13_CIPHERS]
        if unknown:
            known = ", ".join(CIPHERS)
            raise ValueError(f"{', '.join(unknown)}: not offered; write Go's names: {known}")
        return names

    @field_validator("curve_preferences")
    @classmethod
    def _one_curve(cls, names: list[str]) -> list[str]:
        if len(names) > 1:
            raise ValueError("Python can be given one curve, not a list; leave it out to offer all")
        return names

    @model_validator(mode="after")
    def _consistent(self) -> _TlsServerConfig:
        faults = list(self.as_told().contradictions())
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def as_told(self) -> TlsServerConfig:
        """Return the same without pydantic."""
        told = self.model_dump() | {"key": self.key.get_secret_value()}
        return TlsServerConfig(enabled=bool(self.model_fields_set), **told)


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
    """The whole of it. Every key may be missing."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    tls_server_config: _TlsServerConfig = Field(default_factory=_TlsServerConfig)
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

    def as_told(self) -> WebSettings:
        """Return the same without pydantic."""
        headers: dict[str, str] = {name: value for name, value in self.http_server_config.headers.items() if value}
        return WebSettings(self.tls_server_config.as_told(), headers, self.basic_auth_users)


class _StrictLoader(yaml.SafeLoader):
    """YAML in which no key silently wins over its double; exporter-toolkit is strict too."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        double = next((key for key in keys if keys.count(key) > 1), None)
        if double is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{double!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _content(path: Path) -> bytes:
    content = read_regular_file(path, MAX_FILE_BYTES)
    if len(content) > MAX_FILE_BYTES:
        raise WebConfigError(path, [f"is larger than {MAX_FILE_BYTES // 1024} KiB"])
    return content


def read_file(path: Path) -> WebSettings:
    """Read the file. Raises WebConfigError with all that is wrong with it."""
    try:
        content = yaml.load(_content(path).decode(), _StrictLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise WebConfigError(path, [f"cannot be read: {error.strerror}"]) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WebConfigError(path, [f"is not YAML: {' '.join(str(error).split())}"]) from error
    try:
        return _WebConfigFile.model_validate({} if content is None else content).as_told()
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
        raise WebConfigError(path, [_sentence(each) for each in details]) from None


_SECTIONS: dict[str, type[BaseModel]] = {
    "tls_server_config": _TlsServerConfig,
    "http_server_config": _HttpServerConfig,
}


def _sentence(detail: Mapping[str, Any]) -> str:
    """Return one fault of pydantic's, with the key first, without the value (it may be a secret)."""
    where = [str(part) for part in detail["loc"] if part != "[key]"]
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        section = _SECTIONS.get(where[0], _WebConfigFile) if len(where) > 1 else _WebConfigFile
        message = "there is no such key"
        nearest = difflib.get_close_matches(where[-1], section.model_fields, n=1)
        message += f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{'.'.join(where)}: {message}" if where else message
