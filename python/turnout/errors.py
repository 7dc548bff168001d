"""Every error that Turnout raises, in one tree under `TurnoutError`.

Each names the argument, its value and what is accepted, in the message and as attributes. A call that raises one has
left the state as it was.
"""

from __future__ import annotations

import typing


class TurnoutError(Exception):
    """Base of all errors of Turnout.

    Args:
        message: What was wrong, for a person.
        argument: Name of the argument or field, where there is one.
        value: The refused value, as text.
        accepted: What is accepted instead.

    Example:
        >>> from turnout.errors import InvalidArgument, TurnoutError
        >>> error = InvalidArgument("kv_tokens: got 0", "kv_tokens", "0", "tokens above 0")
        >>> isinstance(error, TurnoutError), str(error), error.accepted
        (True, 'kv_tokens: got 0', 'tokens above 0')
    """

    def __init__(self, message: str = "", argument: str = "", value: str = "", accepted: str = "") -> None:
        super().__init__(message, argument, value, accepted)
        self.message = message
        self.argument = argument
        self.value = value
        self.accepted = accepted

    def __str__(self) -> str:
        return self.message


class InvalidArgument(TurnoutError, ValueError):
    """An argument is out of range."""


class InvalidTokens(TurnoutError, ValueError):
    """A token sequence cannot be used; the message gives index and value."""


class UnknownReplica(TurnoutError, LookupError):
    """No replica has this name."""


class UnknownWorkload(TurnoutError, LookupError):
    """No workload has this name."""


class UnknownSession(TurnoutError, LookupError):
    """No session has this name."""


class UnknownTurn(TurnoutError, LookupError):
    """No turn of this name was submitted."""


class UnknownPolicy(TurnoutError, LookupError):
    """No policy has this name."""


class HistoryMismatch(TurnoutError, ValueError):
    """An append does not fit the history that the router knows: send the whole prompt."""


class TurnConflict(TurnoutError, ValueError):
    """A turn id was used again with other content."""


class PolicyError(TurnoutError, ValueError):
    """A policy raised, or returned limits that cannot be enforced."""


class RecordError(TurnoutError, ValueError):
    """A snapshot or a journal is of another version, damaged, or does not do again what it says."""


class AnswerDiffers(RecordError):
    """An event of a journal is answered otherwise than it was when it was recorded; the message says which."""


class TraceError(TurnoutError, ValueError):
    """A trace file cannot be read; the message gives the line."""


class MissingExtra(TurnoutError, ImportError):
    """An optional extra is not installed; the message says which."""


class RouterClosed(TurnoutError, RuntimeError):
    """The router of this shell is closed: it takes no new turns, and nobody waits in it any more."""


class ServerUnreachable(TurnoutError, ConnectionError):
    """The server of a client does not answer, or it is not known whether it got the request."""


class Unauthorized(TurnoutError, PermissionError):
    """The server wants a token, or another one."""


class TurnNotPlaced(TurnoutError, RuntimeError):
    """A turn that was waited for is not placed.

    Attributes:
        decision: The `turnout.Decision` that says so; None where there is none, and after pickling.
    """

    decision: typing.Any = None


class TurnRejected(TurnNotPlaced):
    """It can never be served like this, or the line is full: `decision.reason` says which."""


class TurnExpired(TurnNotPlaced):
    """It waited for its `deadline_s`."""


class TurnLost(TurnNotPlaced):
    """Its replica is gone, its session was ended, or nobody spoke for it in time: `decision.reason` says which."""


class TurnEnded(TurnNotPlaced):
    """Somebody else completed or aborted it while it was waited for."""


class InternalError(TurnoutError, RuntimeError):
    """Turnout found its own state inconsistent: a defect to report."""
