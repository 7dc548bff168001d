"""Journals in files: what a router did, so that another process can go on with it, or do it again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from turnout import _core
from turnout.errors import RecordError
from turnout.router import Router

if TYPE_CHECKING:
    from types import TracebackType

    from turnout.policies.contract import Policy

ROTATE_BYTES: Final = 256 << 20
"""A journal that has grown by so much begins anew with a snapshot."""


class JournalWriter:
    """Keeps the journal of a router in a file.

    `flush` hands everything since the last one to the operating system: from then on it survives the end of the
    process, `kill -9` included; with `fsync=True` also that of the machine. Flush before you act on a decision, and no
    decision that was acted on is ever lost. When the file has grown by `rotate_bytes`, and by as much as its snapshot
    takes, it is replaced, in one step, by one that begins with a snapshot.

    Args:
        router: The router. One writer at a time.
        path: The file; one that exists is replaced.
        fsync: Wait for the disk at every flush.
        rotate_bytes: Growth after which the file begins anew, bytes.

    Attributes:
        rotations: Times that it began anew.
        size_bytes: Size of the file, bytes.

    Example:
        >>> import tempfile
        >>> from turnout import Replica, Router
        >>> router = Router([Replica("r0", kv_tokens=100_000)])
        >>> path = Path(tempfile.mkdtemp()) / "router.journal"
        >>> with JournalWriter(router, path) as journal:
        ...     decision = router.submit([1, 2, 3], session="s", now=1.0)
        ...     journal.flush()
        >>> restore(path, now=0.0).complete(decision.turn, now=1.0).status
        'done'
    """

    def __init__(
        self, router: Router, path: Path | str, *, fsync: bool = False, rotate_bytes: int = ROTATE_BYTES
    ) -> None:
        """Begin the file with a snapshot."""
        self.router = router
        self.path = Path(path)
        self.fsync = fsync
        self.rotate_bytes = rotate_bytes
        self.rotations = -1
        self.size_bytes = 0
        self._file = -1
        self._grown = 0
        self._rotate_at = rotate_bytes
        self.rotate()

    def rotate(self) -> None:
        """Begin the file anew with a snapshot. Whoever reads it meanwhile has the old one or the new one, whole."""
        self.router.start_journal()
        beside = self.path.with_name(self.path.name + ".new")
        data = self.router.take_journal()
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            _write_all(file, data)
            os.fsync(file)
            beside.replace(self.path)
            _sync_directory(self.path.parent)
        except OSError:
            os.close(file)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._grown, self.size_bytes = file, 0, len(data)
        # A snapshot larger than that would else be written more often than its size in events has come.
        self._rotate_at = max(self.rotate_bytes, len(data))
        self.rotations += 1

    def flush(self) -> None:
        """Hand what was recorded since the last flush to the operating system, and to the disk with `fsync`."""
        data = self.router.take_journal()
        _write_all(self._file, data)
        if self.fsync:
            os.fsync(self._file)
        self._grown += len(data)
        self.size_bytes += len(data)
        if self._grown > self._rotate_at:
            self.rotate()

    def close(self) -> None:
        """Flush, stop recording and close the file."""
        if self._file >= 0:
            self.flush()
            self.router.stop_journal()
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        """Answer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a journal did when it was done again, with the same answers.

    Attributes:
        events: Events by name.
        decisions: Decisions by reason.
        record_bytes: Size of the records, without the snapshot that the journal begins with.
        torn_bytes: Bytes at the end of a record that a crash tore: left out.
    """

    events: dict[str, int]
    decisions: dict[str, int]
    record_bytes: int
    torn_bytes: int


def replay(path: Path | str) -> Replayed:
    """Do every event of a journal again and compare the answers.

    Args:
        path: The journal.

    Returns:
        What it did.

    Raises:
        RecordError: It cannot be read, is of another version or damaged.
        AnswerDiffers: An event is answered otherwise than it was.
    """
    return Replayed(**_core.replay(_read(path)))


def restore(
    path: Path | str, *, policy: Policy | None = None, reattach_s: float | None = None, now: float | None = None
) -> Router:
    """Go on where a journal ends.

    Args:
        path: The journal.
        policy: As for `turnout.Router`.
        reattach_s: As for `turnout.Router.restore`.
        now: Time, s; default `time.monotonic()`.

    Returns:
        The router. Start a new `JournalWriter` for it.

    Raises:
        RecordError: As for `replay`.
    """
    return Router.restore(_read(path), policy=policy, reattach_s=reattach_s, now=now)


def _read(path: Path | str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RecordError(f"record: {error}", "record", str(path), "a journal that can be read") from None


def _sync_directory(path: Path) -> None:
    """Make a rename in a directory survive the machine."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
