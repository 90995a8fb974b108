"""`gpuagent ack`: somebody is at it, so the alert is not repeated."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from gpuagent.cli.control import ask_agent
from gpuagent.cli.source import Socket


def ack(
    alert: Annotated[
        str, typer.Argument(help="Key of an incident, name of a rule, or the fingerprint that `gpuagent alerts` shows")
    ],
    comment: Annotated[str, typer.Option(help="For those who see it too")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Nobody is at it any more: take it back")] = False,
    socket: Socket = None,
) -> None:
    """Acknowledge alerts that fire: they are not repeated any more, and their end is told all the same.

    It lasts until the alert has ended: when it begins anew, that is told. Exit status: 0 done, 1 nothing of that fires,
    or with --remove is acknowledged.
    """
    if remove:
        if comment:
            raise typer.BadParameter("there is nothing to comment on with --remove", param_hint="--comment")
        found = ask_agent("DELETE", f"/api/v1/acks/{quote(alert, safe='')}", socket)["removed"]
        typer.echo(f"no longer acknowledged: {' '.join(found)}")
        return
    answer = ask_agent("POST", "/api/v1/acks", socket, {"alert": alert, "comment": comment})
    found = answer["acknowledged"]
    if found == [alert] and alert.startswith("inc-"):
        typer.echo(f"acknowledged incident {alert}")
        return
    typer.echo(f"acknowledged {len(found)} alert{'' if len(found) == 1 else 's'}: {' '.join(found)}")
