"""Test your own policy: `check_policy` hunts for a fleet, or a history of one, in which it breaks a law.

`laws` and `running` hold the laws, `strategies` makes fleets, views and histories for Hypothesis, and `model` is the
ledger in plain sets, to compare with. Needs `pip install 'turnout[testing]'`.
"""

from __future__ import annotations

from turnout.errors import MissingExtra

try:
    import hypothesis as _hypothesis  # noqa: F401 - asked for here, so that the answer names the extra
except ImportError as error:
    raise MissingExtra("turnout.testing needs hypothesis: pip install 'turnout[testing]'") from error

from turnout.testing.check import LAWS, Law, check_policy
from turnout.testing.violation import PolicyViolation

__all__ = ["LAWS", "Law", "PolicyViolation", "check_policy"]
