"""How a single value is read: durations, sizes, addresses, paths, URLs, patterns, matchers.

Every type carries an `Allowed`: what may be written, in words. The faults and the reference both
print it, so that they never say different things. Values are written back as they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, SecretStr, ValidationInfo

from gpuagent.config.checks import (
    HIDDEN,
    check_any_url,
    check_base_url,
    check_cgroup_path,
    check_container,
    check_gpu,
    check_host_pattern,
    check_listen,
    check_public_url,
    check_service,
    check_url_template,
    check_user,
    check_web_url,
    hide_user,
)
from gpuagent.config.faults import shown
from gpuagent.core.matchers import (
    MATCHER_HELP,
    REGEX_HELP,
    Matcher,
    check_regex,
    compile_pattern,
    is_label_name,
    parse_matcher,
)
from gpuagent.core.units import parse_bytes, parse_duration, write_bytes, write_duration

_MAX_PATTERN = 1000


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a value may be, in words, and how one is written (for defaults and bounds)."""

    text: str
    write: Callable[[Any], str] = str


_KINDS = (
    (bool, "true or false"),
    (int, "a number"),
    (float, "a number with a point"),
    (str, "text"),
    (dict, "a mapping"),
    (tuple, "a list"),
    (type(None), "nothing"),
)


def kind_of(value: object) -> str:
    """Return what stands in the file, by the names that people have for it."""
    return next((words for kind, words in _KINDS if isinstance(value, kind)), "something else")


def _from_text(read: Callable[[str], object]) -> BeforeValidator:
    """Read text by `read`, which says in a ValueError what is wrong with it."""

    def validate(value: object) -> object:
        if isinstance(value, bool | int | float):
            raise ValueError(f"must be text, not {kind_of(value)}: put it in quotes")
        if not isinstance(value, str):
            raise ValueError(f"must be text, not {kind_of(value)}")
        return read(value)

    return BeforeValidator(validate)


def _quantity(parse: Callable[[Any], float], what: str) -> BeforeValidator:
    """Read a number with a unit by `parse`."""

    def validate(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"must be {what}, not {kind_of(value)}")
        return parse(value)

    return BeforeValidator(validate)


def _path(value: object, info: ValidationInfo) -> Path:
    """Return a relative one is beside the configuration file."""
    return Path((info.context or {}).get("folder", "/"), _path_text(value))


def _secret_path(value: object, info: ValidationInfo) -> Path:
    """Likewise; under systemd below its $CREDENTIALS_DIRECTORY, where `LoadCredential=name:/a/file` puts it.

    There is no folder in there: of a folder that is loaded, systemd joins name and file by `_` (systemd.exec(5)).
    """
    context = info.context or {}
    path = Path(_path_text(value))
    if context.get("credentials") and not path.is_absolute():
        return Path(context["credentials"], "_".join(path.parts))
    return Path(context.get("folder", "/"), path)


def _path_text(value: object) -> str | Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str):
        raise ValueError(f"must be a path, not {kind_of(value)}")
    if not value or "\0" in value:
        raise ValueError("must not be empty")
    if value.startswith("~"):
        raise ValueError("~ is not expanded here: write the whole path")
    return value


def _pattern(text: str) -> str:
    if len(text) > _MAX_PATTERN:
        raise ValueError(f"is longer than {_MAX_PATTERN} characters")
    return check_regex(text)


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _program_pattern(text: str) -> str:
    _not_empty(text)
    if "\0" in text:
        raise ValueError("has a NUL, which no name and no path has")
    if text.endswith("/"):
        raise ValueError(f"{shown(text)} is a directory and can never be a program: write {text}* for all in there")
    return text


def _label(text: str) -> str:
    if not is_label_name(text):
        raise ValueError(f"{shown(text)} cannot be the name of a label")
    return text


def _matcher(text: str) -> Matcher:
    matcher = parse_matcher(text)
    if matcher.op.is_pattern:
        compile_pattern(matcher)  # whoever uses it does so again: what crosses to the agent is text
    return matcher


def _secret(check: Callable[[str], str]) -> BeforeValidator:
    return _from_text(lambda text: SecretStr(check(text)))


_hide = PlainSerializer(lambda _: HIDDEN, when_used="json-unless-none")

Duration = Annotated[
    float,
    _quantity(parse_duration, "a duration"),
    PlainSerializer(write_duration, when_used="json-unless-none"),
    Allowed("a duration such as 30s", write_duration),
]
"""Seconds."""

Size = Annotated[
    int,
    _quantity(parse_bytes, "a size"),
    PlainSerializer(write_bytes, when_used="json-unless-none"),
    Allowed("a size such as 6GiB", write_bytes),
]
"""Bytes."""

ListenAddress = Annotated[
    str,
    _from_text(check_listen),
    Allowed('host:port such as 127.0.0.1:9837, :9837 or "[::1]:9837"; "" is off'),
]

HostPattern = Annotated[
    str,
    _from_text(check_host_pattern),
    Allowed("a host name, or *. and a domain"),
]

FilePath = Annotated[
    Path,
    BeforeValidator(_path),
    Allowed("a path"),
]

CgroupPath = Annotated[
    str,
    _from_text(check_cgroup_path),
    Allowed("a path such as /ecs/*, whose first part has a name; * stands for any characters of one part"),
]

SecretFilePath = Annotated[
    Path,
    BeforeValidator(_secret_path),
    Allowed("a path; a relative one is below $CREDENTIALS_DIRECTORY where systemd sets that, with _ for /"),
]

Text = Annotated[str, _from_text(_not_empty), Allowed("text")]


def _name(check: Callable[[str], str]) -> BeforeValidator:
    return _from_text(lambda text: check(_not_empty(text)))


UserName = Annotated[str, _name(check_user), Allowed("the name of one user")]

ServiceName = Annotated[str, _name(check_service), Allowed("the name of one service such as whisper.service")]

ContainerName = Annotated[
    str,
    _name(check_container),
    Allowed("an id, at least its first 12 digits, or a name where names are known"),
]

GpuName = Annotated[str, _name(check_gpu), Allowed("an index or a UUID")]

ProgramPattern = Annotated[
    str, _from_text(_program_pattern), Allowed("the name or the whole path of a program or script, * for any rest")
]

Pattern = Annotated[str, _from_text(_pattern), Allowed(REGEX_HELP)]
"""Kept as text: whoever uses it compiles it."""

LabelName = Annotated[str, _from_text(_label), Allowed("the name of a label")]

MatcherText = Annotated[
    Matcher,
    _from_text(_matcher),
    PlainSerializer(str, when_used="json"),
    Allowed(MATCHER_HELP),
]

WebUrl = Annotated[
    str,
    _from_text(check_base_url),
    PlainSerializer(hide_user, when_used="json-unless-none"),
    Allowed("a URL that begins with http:// or https://"),
]

PublicUrl = Annotated[str, _from_text(check_public_url), Allowed("a URL that begins with http:// or https://")]

UrlTemplate = Annotated[
    str,
    _from_text(check_url_template),
    Allowed("a URL that begins with http:// or https://, with {node}, {gpu}, {uuid} and {pid}"),
]

SecretWebUrl = Annotated[
    SecretStr,
    _secret(check_web_url),
    _hide,
    Allowed("a URL that begins with http:// or https://; it is kept secret"),
]

SecretUrl = Annotated[
    SecretStr,
    _secret(check_any_url),
    _hide,
    Allowed("a URL of Apprise such as mailto://...; it is kept secret"),
]

SecretText = Annotated[
    SecretStr,
    _secret(_not_empty),
    _hide,
    Allowed("text; it is kept secret"),
]
