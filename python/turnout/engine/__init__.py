"""Built-in model engine: a server with the interfaces, caches and times of an inference engine, without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnout.engine.config import EngineConfig
from turnout.errors import MissingExtra

if TYPE_CHECKING:
    from turnout.engine.server import EngineServer

__all__ = ["EngineConfig", "EngineServer"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as the language wants it
    """Import the server when it is asked for: it needs an extra, and the command's options do not."""
    if name != "EngineServer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from turnout.engine.server import EngineServer
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "turnout":
            raise
        raise MissingExtra(f"the engine needs {error.name}: pip install 'turnout[serve]'") from error
    return EngineServer
