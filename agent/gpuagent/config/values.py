"""How a single value is read: durations, sizes, addresses, paths, URLs, patterns, matchers.

Every type carries a `ValueType`: what may be written, in words. The faults and the reference both
print it, so that they never say different things. Values are written back as they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from gpuagent.config.checks import (
    HIDDEN,
    check_any_url,
    check_base_url,
    check_cgroup_path,
    check_container,
    check_gpu,
    check_host_pattern,
    check_listen,
    check_never_entry,
    check_public_url,
    check_service,
    check_url_template,
    check_user,
    check_web_url,
    hide_user,
)
from gpuagent.core.matchers import (
    MATCHER_HELP,
    REGEX_HELP,
    Matcher,
    check_regex,
    compile_pattern,
    is_label_name,
    parse_matcher,
)
from gpuagent.core.problems import kind_of, shown
from gpuagent.core.sections import ReadContext, SecretText, ValueType
from gpuagent.core.units import parse_bytes, parse_duration, write_bytes, write_duration

_MAX_PATTERN = 1000


Read = Callable[[object, ReadContext], Any]


def _from_text(read: Callable[[str], object]) -> Read:
    """Read text by `read`, which says in a ValueError what is wrong with it."""

    def checked(value: object, _: ReadContext) -> object:
        if isinstance(value, bool | int | float):
            raise ValueError(f"must be text, not {kind_of(value)}: put it in quotes")
        if not isinstance(value, str):
            raise ValueError(f"must be text, not {kind_of(value)}")
        return read(value)

    return checked


def _quantity(parse: Callable[[Any], float], what: str) -> Read:
    """Read a number with a unit by `parse`."""

    def checked(value: object, _: ReadContext) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"must be {what}, not {kind_of(value)}")
        return parse(value)

    return checked


def _number(value: object, _: ReadContext) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"must be a number, not {kind_of(value)}")
    return float(value)


def _path(value: object, context: ReadContext) -> Path:
    """Read a path. A relative one is relative to the configuration file's folder."""
    return Path(context.folder, _path_text(value))


def _secret_path(value: object, context: ReadContext) -> Path:
    """Read the path of a secret. Under systemd a relative one is below $CREDENTIALS_DIRECTORY.

    `LoadCredential=name:/a/file` puts it there; without such a folder it is a path like any other.

    There is no folder in there: of a folder that is loaded, systemd joins name and file by `_` (systemd.exec(5)).
    """
    path = Path(_path_text(value))
    if context.credentials and not path.is_absolute():
        return Path(context.credentials, "_".join(path.parts))
    return Path(context.folder, path)


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
    return check_never_entry(text)


def _label(text: str) -> str:
    if not is_label_name(text):
        raise ValueError(f"{shown(text)} cannot be the name of a label")
    return text


def _matcher(text: str) -> Matcher:
    matcher = parse_matcher(text)
    if matcher.op.is_pattern:
        compile_pattern(matcher)  # whoever uses it does so again: what crosses to the agent is text
    return matcher


def _secret(check: Callable[[str], str]) -> Read:
    return _from_text(lambda text: SecretText(check(text)))


def _name(check: Callable[[str], str]) -> Read:
    return _from_text(lambda text: check(_not_empty(text)))


def _hide(_: object) -> str:
    return HIDDEN


Duration = Annotated[
    float, ValueType("a duration such as 30s", _quantity(parse_duration, "a duration"), write_duration)
]
"""Seconds."""

Size = Annotated[int, ValueType("a size such as 6GiB", _quantity(parse_bytes, "a size"), write_bytes)]
"""Bytes."""

ListenAddress = Annotated[
    str,
    ValueType(
        'host:port such as 127.0.0.1:9837, :9837 or "[::1]:9837"; "" is off', lambda value, _: check_listen(value)
    ),
]

HostPattern = Annotated[str, ValueType("a host name, or *. and a domain", _from_text(check_host_pattern))]

FilePath = Annotated[Path, ValueType("a path", _path)]

CgroupPath = Annotated[
    str,
    ValueType(
        "a path such as /ecs/*, whose first part has a name; * stands for any characters of one part",
        _from_text(check_cgroup_path),
    ),
]

SecretFilePath = Annotated[
    Path,
    ValueType(
        "a path; a relative one is below $CREDENTIALS_DIRECTORY where systemd sets that, with _ for /", _secret_path
    ),
]

Number = Annotated[float, ValueType("a number such as 2.5", _number)]

Text = Annotated[str, ValueType("text", _from_text(_not_empty))]

UserName = Annotated[str, ValueType("the name of one user", _name(check_user))]

ServiceName = Annotated[str, ValueType("the name of one service such as whisper.service", _name(check_service))]

ContainerName = Annotated[
    str, ValueType("an id, at least its first 12 digits, or a name where names are known", _name(check_container))
]

GpuName = Annotated[str, ValueType("an index or a UUID", _name(check_gpu))]

ProgramPattern = Annotated[
    str,
    ValueType("the name or the whole path of a program or script, * for any rest", _from_text(_program_pattern)),
]

Pattern = Annotated[str, ValueType(REGEX_HELP, _from_text(_pattern))]
"""Kept as text: whoever uses it compiles it."""

LabelName = Annotated[str, ValueType("the name of a label", _from_text(_label))]

MatcherText = Annotated[Matcher, ValueType(MATCHER_HELP, _from_text(_matcher))]

_WEB_URL = "a URL that begins with http:// or https://"

WebUrl = Annotated[str, ValueType(_WEB_URL, _from_text(check_base_url), hide_user)]

PublicUrl = Annotated[str, ValueType(_WEB_URL, _from_text(check_public_url))]

UrlTemplate = Annotated[
    str, ValueType(f"{_WEB_URL}, with {{node}}, {{gpu}}, {{uuid}} and {{pid}}", _from_text(check_url_template))
]

SecretWebUrl = Annotated[SecretText, ValueType(f"{_WEB_URL}; it is kept secret", _secret(check_web_url), _hide)]

SecretUrl = Annotated[
    SecretText,
    ValueType("a URL of Apprise such as mailto://...; it is kept secret", _secret(check_any_url), _hide),
]

SecretTextValue = Annotated[SecretText, ValueType("text; it is kept secret", _secret(_not_empty), _hide)]
