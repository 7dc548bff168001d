"""What is accepted of a policy's own arguments."""

from __future__ import annotations

from turnout.errors import InvalidArgument


def number(name: str, value: object, accepted: str, *, least: float = 0.0, most: float = float("inf")) -> float:
    """Check a number.

    Args:
        name: Name of the argument.
        value: What was given.
        accepted: The range, in words.
        least: Smallest value that is accepted.
        most: Largest value that is accepted; infinity itself never is.

    Returns:
        The number as a float.

    Raises:
        InvalidArgument: It is no number, or out of range.

    Example:
        >>> number("share", 2, "a number from 0 to 1", most=1.0)
        Traceback (most recent call last):
        turnout.errors.InvalidArgument: share: got 2, accepted is a number from 0 to 1
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidArgument(f"{name}: got {value!r}, accepted is {accepted}")
    if value == float("inf"):
        raise InvalidArgument(f"{name}: got {value!r}, accepted is {accepted}")
    return float(value)


def flag(name: str, value: object) -> bool:
    """Check a truth value.

    Args:
        name: Name of the argument.
        value: What was given.

    Returns:
        The value.

    Raises:
        InvalidArgument: It is neither True nor False.
    """
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name}: got {value!r}, accepted is True or False")
    return value
