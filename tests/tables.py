"""Tests over a table: one test for all rows, which names each row that fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable

import pytest

from tests.exhaustive import RARELY

Test = Callable[..., None]
Row = tuple[object, ...]


def table(names: str, rows: Iterable[object]) -> Callable[[Test], Test]:
    """Run a test for every row of values for `names` ("text, bytes"), and fail with all rows that fail.

    A row of one name may stand without its tuple. Fixtures are made once for all rows.
    """
    own = tuple(name.strip() for name in names.split(","))
    cases = [_as_row(row, len(own)) for row in rows]
    assert cases, "a table without rows tests nothing"

    def decorate(test: Test) -> Test:
        def run(**fixtures: object) -> None:
            _run(test, own, cases, fixtures)

        return _with_signature(run, test, own)

    return decorate


def table_evenly(names: str, rows: Iterable[object], usual: int) -> Callable[[Test], Test]:
    """Run a test as `table` does for `usual` of the rows, evenly spread; all others are one exhaustive test."""
    own = tuple(name.strip() for name in names.split(","))
    cases = [_as_row(row, len(own)) for row in rows]
    usual = min(usual, len(cases))
    chosen = {number * len(cases) // usual for number in range(usual)}
    usual_rows = [row for number, row in enumerate(cases) if number in chosen]
    other_rows = [row for number, row in enumerate(cases) if number not in chosen]
    parts = [pytest.param(usual_rows, id="usual"), pytest.param(other_rows, id="others", marks=RARELY)]

    def decorate(test: Test) -> Test:
        def run(table_rows: list[Row], **fixtures: object) -> None:
            _run(test, own, table_rows, fixtures)

        made = _with_signature(run, test, own, inspect.Parameter("table_rows", inspect.Parameter.KEYWORD_ONLY))
        return pytest.mark.parametrize("table_rows", parts if other_rows else parts[:1])(made)

    return decorate


def _as_row(row: object, width: int) -> Row:
    found = row if isinstance(row, tuple) and (width > 1) else (row,)
    assert len(found) == width, f"{row!r} does not have {width} values"
    return found


def _run(test: Test, names: tuple[str, ...], rows: list[Row], fixtures: dict[str, object]) -> None:
    failed: list[str] = []
    first: BaseException | None = None
    for row in rows:
        try:
            test(**dict(zip(names, row, strict=True)), **fixtures)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - the next row is tested all the same
            first = first or error
            failed.append(f"{', '.join(map(repr, row))}: {type(error).__name__}: {error}")
    if failed:
        raise AssertionError(f"{len(failed)} of {len(rows)} rows failed:\n" + "\n".join(failed)) from first


def _with_signature(run: Test, test: Test, own: tuple[str, ...], *added: inspect.Parameter) -> Test:
    """Return `run` under the test's name and marks, asking pytest for its fixtures only."""
    functools.update_wrapper(run, test)
    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would read the signature of the test itself
    signature = inspect.signature(test)
    fixtures = [parameter for name, parameter in signature.parameters.items() if name not in own]
    fixtures = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in fixtures]
    run.__signature__ = signature.replace(parameters=[*fixtures, *added])  # type: ignore[attr-defined]
    return run
