"""Turnout behind proxies that forward the traffic themselves: Envoy, HAProxy, nginx.

Each way in asks a `Gate`: a request becomes a turn, waits while it is held, and the turn ends exactly once, whether
the response ended, the client left or the proxy did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from turnout.errors import InvalidArgument

HOLD_S: Final = 600.0
"""How long a request may be held by default, s."""

MOST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class GatesConfig:
    """Where proxies ask.

    Attributes:
        ext_proc_port: Port for Envoy's external processing; 0 = any free one, None = none.
        spoe_port: Port for HAProxy's agent; 0 = any free one, None = none.
        hold_s: How long a request may be held, s. The proxy's own patience has to be longer.

    Raises:
        InvalidArgument: A value is out of range.

    Example:
        >>> GatesConfig(ext_proc_port=9002).hold_s
        600.0
    """

    ext_proc_port: int | None = None
    spoe_port: int | None = None
    hold_s: float = HOLD_S

    def __post_init__(self) -> None:
        """Check."""
        for name, port in (("ext_proc_port", self.ext_proc_port), ("spoe_port", self.spoe_port)):
            if port is not None and not 0 <= port <= MOST_PORT:
                accepted = f"a port, 0..{MOST_PORT}"
                raise InvalidArgument(f"{name}: got {port}, accepted is {accepted}", name, str(port), accepted)
        if not 0 < self.hold_s < math.inf:
            accepted = "a finite number of seconds, above 0"
            message = f"hold_s: got {self.hold_s}, accepted is {accepted}"
            raise InvalidArgument(message, "hold_s", str(self.hold_s), accepted)
