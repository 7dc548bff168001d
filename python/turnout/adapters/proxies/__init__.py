"""Turnout behind proxies that forward the traffic themselves: Envoy, HAProxy, nginx.

Each way in asks a `Gate`: a request becomes a turn, waits while it is held, and the turn ends exactly once, whether
the response ended, the client left or the proxy did.
"""

from __future__ import annotations

from typing import Final

HOLD_S: Final = 600.0
"""How long a request may be held by default, s. The proxy's own patience has to be longer."""
