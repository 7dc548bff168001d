"""Lines on stderr: one JSON object for each thing that matters, or text for people."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from turnout.server.config import LogConfig

LOGGER: Final = logging.getLogger("turnout.serve")
"""Where `say` says it."""

_FIELDS: Final = "turnout_fields"


def say(level: int, event: str, message: str, **fields: Any) -> None:  # noqa: ANN401 - whatever JSON takes
    """Say that something happened.

    Args:
        level: Level of `logging`.
        event: What it is, for machines: a word that does not change.
        message: The same for people.
        **fields: What belongs to it.
    """
    LOGGER.log(level, "%s", message, extra={_FIELDS: {"event": event, **fields}})


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return dict(getattr(record, _FIELDS, {}))


class JsonFormatter(logging.Formatter):
    r"""One JSON object a line: `time` (UTC), `level`, `logger`, `event`, `message`, and the fields of the event.

    Example:
        >>> record = logging.makeLogRecord({"levelname": "INFO", "name": "x", "msg": "two\nlines", "created": 0.0})
        >>> JsonFormatter().format(record)
        '{"time":"1970-01-01T00:00:00.000+00:00","level":"info","logger":"x","event":"log","message":"two\\nlines"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Make the line."""
        fields = _fields(record)
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": fields.pop("event", "log"),
            "message": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"), default=str)


class TextFormatter(logging.Formatter):
    """`time LEVEL message key='value'`. Names that callers choose cannot break a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Make the line."""
        fields = _fields(record)
        fields.pop("event", None)
        shown = "".join(f" {name}={value!r}" for name, value in fields.items())
        message = record.getMessage().replace("\n", "\\n")
        text = f"{_time(record)} {record.levelname:7} {message}{shown}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def set_up(config: LogConfig) -> None:
    """Send all that is logged in this process to stderr: what Turnout says, and what others warn of.

    Args:
        config: Format and level.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("turnout").setLevel(config.level.upper())
    for name in ("uvicorn", "uvicorn.error"):
        # An HTTP server that was made with its defaults has given them handlers of their own.
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.captureWarnings(capture=True)
