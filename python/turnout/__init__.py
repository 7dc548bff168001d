"""Turnout: which replica serves a turn of a rollout, and whether it may start now.

`Router` is the decision core, `policies` what computes its limits, `control` the loop between the two.
`PrefixIndex` is the index by itself, for routers that decide on their own.
"""

from __future__ import annotations

import warnings

from turnout import errors, policies
from turnout._core import Decision, Outcome, Prompt, Receipt, build_info
from turnout.config import Replica, Workload
from turnout.errors import TurnoutError
from turnout.prefix_index import PrefixIndex
from turnout.router import Router

__version__: str = build_info()["version"]

__all__ = [
    "Decision",
    "Outcome",
    "PrefixIndex",
    "Prompt",
    "Receipt",
    "Replica",
    "Router",
    "TurnoutError",
    "Workload",
    "__version__",
    "build_info",
    "errors",
    "policies",
]

if build_info()["profile"] == "debug":
    warnings.warn(
        "turnout was built without optimisation and is many times slower; build it with `make build`",
        RuntimeWarning,
        stacklevel=2,
    )
