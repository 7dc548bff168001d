"""Policies: small pure functions that compute the limits which the core enforces.

`contract` says what a policy reads and returns; `lookup` finds one by name. A policy imports NumPy and
this package only.
"""

from turnout.policies.block_time import BlockTime
from turnout.policies.cache_aware import CacheAware
from turnout.policies.concur import Concur
from turnout.policies.contract import FleetView, Limits, Policy
from turnout.policies.dynamo_cost import DynamoCost
from turnout.policies.lease_gate import LeaseGate
from turnout.policies.misa import Misa, MisaT
from turnout.policies.open import Open
from turnout.policies.registry import POLICIES, lookup
from turnout.policies.round_robin import RoundRobin
from turnout.policies.session_admission import SessionAdmission
from turnout.policies.static_cap import StaticCap
from turnout.policies.sticky_least_loaded import StickyLeastLoaded

__all__ = [
    "POLICIES",
    "BlockTime",
    "CacheAware",
    "Concur",
    "DynamoCost",
    "FleetView",
    "LeaseGate",
    "Limits",
    "Misa",
    "MisaT",
    "Open",
    "Policy",
    "RoundRobin",
    "SessionAdmission",
    "StaticCap",
    "StickyLeastLoaded",
    "lookup",
]
