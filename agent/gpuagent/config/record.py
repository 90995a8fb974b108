"""A configuration as it was read elsewhere: what a `Config` says, without what is needed to read one.

The parts of the agent look at attributes alone, so that to them a record is a `Config`.
"""

from __future__ import annotations

from collections.abc import Mapping


class Record:
    """A section: its keys, and what it derives from them, as attributes. Frozen, compared by its values."""

    __slots__ = ("_section", "_values")
    _section: str
    _values: Mapping[str, object]

    def __init__(self, section: str, values: Mapping[str, object]) -> None:
        object.__setattr__(self, "_section", section)
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> object:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"{self._section} has no {name}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self._section} is frozen")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self._section, self._values) == (other._section, other._values)

    def __hash__(self) -> int:
        return hash((self._section, *self._values.values()))

    def __repr__(self) -> str:
        return f"<{self._section}>"  # the values may be secret: an address may hold a password

    def __reduce__(self) -> tuple[type[Record], tuple[str, Mapping[str, object]]]:
        return Record, (self._section, self._values)


class SecretText:
    """A text that does not show itself. See `gpuagent_alerts.secret.Hidden`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        """The text."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretText) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "SecretText(<hidden>)"
