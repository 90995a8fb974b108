"""The child of `child_reader`: python -m gpuagent.config.child [FILE] parses a configuration and writes it as records.

Its standard input has the file's content, pickled, or the OSError with which it could not be read.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from pydantic import SecretStr

from gpuagent.config.child_reader import Record, SecretText
from gpuagent.config.faults import ConfigError
from gpuagent.config.files import content_of
from gpuagent.config.load import load_config
from gpuagent.config.section import Section


def as_record(value: object) -> object:
    """Return a section as a record; all else that a configuration can hold as it is."""
    if isinstance(value, Section):
        names = (*type(value).model_fields, *_derived(type(value)))
        return Record(type(value).__name__, {name: as_record(getattr(value, name)) for name in names})
    if type(value) is tuple:  # not a value that is a named tuple
        return tuple(as_record(item) for item in value)
    return SecretText(value.get_secret_value()) if isinstance(value, SecretStr) else value


def _derived(section: type[Section]) -> list[str]:
    """Names of what a section derives from its keys: the properties that it or a base below `Section` defines."""
    own = [base for base in section.__mro__ if issubclass(base, Section) and base is not Section]
    return [name for base in own for name, member in vars(base).items() if isinstance(member, property)]


def main() -> None:
    """Write the configuration, or the ConfigError that has all its faults."""
    outcome: object
    try:
        content = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  the agent, our parent, wrote it
        path = Path(sys.argv[1]) if sys.argv[1:] else None
        outcome = as_record(load_config(path, is_root=os.geteuid() == 0, read=lambda _: content_of(content)))
    except ConfigError as error:
        outcome = error
    sys.stdout.buffer.write(pickle.dumps(outcome))


if __name__ == "__main__":
    main()
