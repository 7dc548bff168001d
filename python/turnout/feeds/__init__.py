"""What engines say about themselves, brought to the router: cache events, load, capacity, health.

`Fleet` holds the engines of one router. It finds their endpoints, follows their cache events undecoded, polls
their metrics, takes a dead engine out and puts it back, and says in words when the books and the engines disagree. No
decision waits for it: every engine is followed by tasks of its own, with bounded queues. Needs
`pip install 'turnout[feeds]'`.
"""

from __future__ import annotations

from turnout.errors import MissingExtra

try:
    import aiohttp as _aiohttp  # noqa: F401 - asked for here, so that the answer names the extra
    import prometheus_client as _prometheus_client  # noqa: F401 - as above
    import zmq as _zmq  # noqa: F401 - as above
except ImportError as error:
    raise MissingExtra(f"turnout.feeds needs {error.name}: pip install 'turnout[feeds]'") from error

from turnout.feeds.config import Engine, KvSource, Timing
from turnout.feeds.fleet import Fleet
from turnout.feeds.shortfall import HitMonitor, Shortfall
from turnout.feeds.status import EngineStatus, FeedStatus, FleetStatus, RankStatus

__all__ = [
    "Engine",
    "EngineStatus",
    "FeedStatus",
    "Fleet",
    "FleetStatus",
    "HitMonitor",
    "KvSource",
    "RankStatus",
    "Shortfall",
    "Timing",
]
