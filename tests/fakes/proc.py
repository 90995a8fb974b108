"""A /proc made of dictionaries, and a watcher that hears what it is told."""

from __future__ import annotations

STARTSTACK, ARG_START, ARG_END = 28, 48, 49


def stat_text(
    pid: int,
    name: bytes = b"python3",
    *,
    state: str = "S",
    parent_pid: int = 1,
    threads: int = 1,
    start_ticks: int = 1000,
    resident_pages: int = 10,
    terminal: int = 0,
    addresses: tuple[int, int, int] = (140_000_000, 140_000_100, 140_000_200),
) -> bytes:
    """Text of /proc/<pid>/stat with all its 52 fields; fields that nobody reads are 0."""
    fields = ["0"] * 53
    fields[3:5] = [state, str(parent_pid)]
    fields[7] = str(terminal)
    fields[20] = str(threads)
    fields[22] = str(start_ticks)
    fields[24] = str(resident_pages)
    for field, address in zip((STARTSTACK, ARG_START, ARG_END), addresses, strict=True):
        fields[field] = str(address)
    return b"%d (%s) " % (pid, name) + " ".join(fields[3:]).encode() + b"\n"


class FakeProc:
    """Files by pid and name; a file may be an exception, which is raised then."""

    def __init__(self) -> None:
        self.files: dict[int, dict[str, bytes | OSError]] = {}
        self.reads: list[tuple[int, str]] = []
        """All that was read, in order."""

    def put(self, pid: int, stat: bytes | OSError | None = None, **files: bytes | OSError) -> None:
        """Let a process exist; files are given by name, a link `ns/pid` as `ns_pid`."""
        known = {name.replace("_", "/"): content for name, content in files.items()}
        self.files[pid] = {"stat": stat_text(pid) if stat is None else stat, **known}

    def end(self, pid: int) -> None:
        """Let a process be gone."""
        del self.files[pid]

    def read(self, pid: int, name: str) -> bytes:
        self.reads.append((pid, name))
        content = self.files.get(pid, {}).get(name)
        if content is None:
            raise FileNotFoundError(f"/proc/{pid}/{name}")
        if isinstance(content, OSError):
            raise content
        return content

    def link(self, pid: int, name: str) -> str:
        return self.read(pid, name).decode()

    def owner(self, pid: int) -> int:
        return int(self.read(pid, "owner"))

    def exists(self, pid: int) -> bool:
        return pid in self.files

    def threads(self, pid: int) -> list[int]:
        found = {int(name.split("/")[1]) for name in self.files.get(pid, {}) if name.startswith("task/")}
        return sorted(found | {pid})


class FakeWatcher:
    """Watches what it may (`able`), and hears of an end when the test lets it."""

    def __init__(self, *, able: bool = True) -> None:
        self.able = able
        self.watched: set[int] = set()
        self.fired: set[int] = set()

    def add(self, pid: int) -> bool:
        if self.able:
            self.watched.add(pid)
        return self.able

    def has_exited(self, pid: int) -> bool:
        return pid in self.watched & self.fired

    def exited(self) -> set[int]:
        return self.watched & self.fired

    def remove(self, pid: int) -> None:
        self.watched.discard(pid)

    def close(self) -> None:
        self.watched.clear()
