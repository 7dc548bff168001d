"""Turnout as the rollout router of verl 0.9.1: `TurnoutBalancer` for `rollout.router_config_path`.

With this package installed, verl also loads `turnout.adapters.verl.plugin`: what trajectories generate, find cached and
belong to is then told to the balancer, which verl itself does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnout.adapters.verl.balancer import TurnoutBalancer

__all__ = ["TurnoutBalancer"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - an actor class
    """Import Ray when the balancer is asked for, not when verl loads the plug-in in each of its processes."""
    if name == "TurnoutBalancer":
        from turnout.adapters.verl.balancer import TurnoutBalancer

        return TurnoutBalancer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
