"""The directory in which a server keeps its state: one journal, and a lock so that one process alone writes it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from typing import TYPE_CHECKING, Final, Self

from turnout import record
from turnout.errors import InvalidArgument, RecordError
from turnout.server.logs import say

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from turnout.router import Router
    from turnout.server.config import ServeConfig

JOURNAL: Final = "journal"
LOCK: Final = "lock"


class StateDirectory:
    """A state that this process alone writes, until it is closed or the process ends, however it ends.

    Args:
        path: The directory; made where it is not there.
        lock: Its file of the lock, open and locked; None = it is locked here.

    Attributes:
        path: The directory.
        journal: The file in it that holds the state.

    Raises:
        InvalidArgument: It cannot be written, or another process writes it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "state"
        >>> with StateDirectory(path) as state:
        ...     try:
        ...         StateDirectory(path)
        ...     except InvalidArgument as error:
        ...         print(error.accepted)
        a directory that no other process writes
    """

    def __init__(self, path: Path, *, lock: int | None = None) -> None:
        """Make and lock it."""
        self.path = path
        self.journal = path / JOURNAL
        self._lock = open_lock(path) if lock is None else lock
        if lock is None and not try_lock(self._lock):
            owner = owner_of(self._lock)
            os.close(self._lock)
            accepted = "a directory that no other process writes"
            message = (
                f"state: got {str(path)!r}, which process {owner} writes, accepted is {accepted} (--state DIR), "
                "or to stand by for it (--standby-of DIR)"
            )
            raise InvalidArgument(message, "state", str(path), accepted)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let another process have it. The file of the lock stays: who waits for it has it open."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        """Answer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def open_lock(path: Path) -> int:
    """Open the file that is locked, and make the directory where it is not there.

    Args:
        path: The directory of the state.

    Returns:
        The file, not locked yet.

    Raises:
        InvalidArgument: It cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        accepted = "a directory that can be written (--state DIR), or --no-state"
        raise InvalidArgument(
            f"state: got {str(path)!r} ({error}), accepted is {accepted}", "state", str(path), accepted
        ) from None


def try_lock(file: int) -> bool:
    """Lock it if nobody else has.

    Args:
        file: The file.

    Returns:
        Whether it is this process' now.
    """
    with contextlib.suppress(BlockingIOError):
        # The kernel gives it up when the process ends, by `kill -9` too: no stale lock is ever left.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def owner_of(file: int) -> str:
    """Which process locked it, as it wrote down itself.

    Args:
        file: The file.

    Returns:
        Its number; `?` before it is written.
    """
    return os.pread(file, 32, 0).decode("ascii", "replace").strip() or "?"


def make_router(config: ServeConfig, state: StateDirectory | None) -> Router:
    """The router: gone on with where its journal ends, or a new one.

    Args:
        config: Settings.
        state: Where it is kept.

    Returns:
        The router.

    Raises:
        RecordError: The journal cannot be used. It is left as it is.
        InvalidArgument: The journal is of a router with other workloads.
    """
    from turnout.router import Router

    policy = config.make_policy()
    if state is None or not state.journal.exists():
        return Router((), config.workload_list(), policy=policy, infer_sessions=config.proxy.infer_sessions)
    try:
        router = record.restore(state.journal, policy=policy, reattach_s=config.state.reattach_s)
    except RecordError as error:
        accepted = "a journal of this version: another --state, or move this file away to begin anew"
        message = f"state: got {str(state.journal)!r}, which cannot be gone on from ({error}); accepted is {accepted}"
        raise RecordError(message, "state", str(state.journal), accepted) from error
    _check_workloads(config, state, router)
    stats = router.stats()
    counts = {name: stats[name] for name in ("live_sessions", "open_turns", "held_turns")}
    text = f"restored: {counts['live_sessions']} sessions, {counts['open_turns']} open turns"
    say(logging.INFO, "restored", text, directory=str(state.path), **counts)
    return router


def _check_workloads(config: ServeConfig, state: StateDirectory, router: Router) -> None:
    """The classes of sessions are part of the state: it cannot be gone on from with others."""
    wanted = {workload.name: workload.target for workload in config.workload_list()}
    if not wanted:
        return
    if set(wanted) != set(router.workloads):
        known = ", ".join(router.workloads)
        message = (
            f"workload: got {', '.join(wanted)}, but the state in {str(state.path)!r} is of {known}; accepted are the "
            "same ones, another --state, or a directory that was moved away"
        )
        raise InvalidArgument(message, "workload", ", ".join(wanted), known)
    view = router.view()
    kept = dict(zip(view.workloads, view.target.tolist(), strict=True))
    differ = [name for name in wanted if repr(wanted[name]) != repr(kept[name])]
    if differ:
        text = f"targets of {', '.join(differ)} are those of the state, not of the settings: a new --state takes others"
        say(logging.WARNING, "targets_kept", text, workloads=differ, directory=str(state.path))
