"""MISA and MISA-T: KV quotas per workload, by space and by residency (arXiv 2608.11152).

Both divide each replica's KV capacity between the workloads and turn every share into a number of sessions. The
ceiling on tokens stays beside the caps: a quota counts sessions of mean size, the ceiling counts what they really hold.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from turnout.errors import InvalidArgument
from turnout.policies.limits import Limits
from turnout.policies.session_admission import SessionAdmission

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from turnout.policies.view import FleetView

CEILING_SHARE: Final = 0.95
"""Share of a replica's KV that admission may fill; the rest takes the growth of what was admitted."""

LEASE_S: Final = 600.0
"""An admitted session keeps its KV through its tool gaps: the longest lease that the core grants, s."""

DEAD_BAND: Final = 0.75
"""A cap moves only if its unrounded value is this far away, sessions.

Caps admit in an instant and shrink only as sessions end, so noise around a whole number would act by its maximum.
"""

_ROUNDING: Final = 1e-9
"""A share that is a whole number of sessions up to rounding counts as whole, in whatever unit tokens are measured."""


class Misa:
    """Quotas by space: a workload's share of a replica follows the KV tokens that its unfinished sessions hold.

    On replica e, for workload w with N_ew unfinished sessions and mean context k_w (tokens):
    S_ew = N_ew k_w, M_ew = B_e S_ew / sum_w S_ew, K_ew = max(1, floor(M_ew / k_w)).
    The same K_ew / N_ew for every workload, so completions run as N_w / T_w: workloads of long residency lag.

    Args:
        paper: True applies max(1, .) on every replica, as published: a small replica with many workloads is overspent
            and only the ceiling binds. False applies it, per workload, on the replica where the remainder is largest,
            and gives each workload the whole replica where everybody's sessions fit beside each other.
        session_cap: The adaptive cap on a replica's sessions that the paper sets beside the quotas; None = no such cap.

    Raises:
        InvalidArgument: `session_cap` is neither a `SessionAdmission` nor None.

    Example:
        >>> from turnout.policies import FleetView
        >>> view = FleetView.build(["r0"], ["agent", "rlvr", "rlhf"], kv_tokens=1_000_000, held_new=[30, 20, 50],
        ...                        context_tokens=[40_000, 60_000, 8_000])
        >>> Misa().limits(view, Limits()).workload_cap
        array([[10.,  7., 17.]])
    """

    def __init__(self, *, paper: bool = False, session_cap: SessionAdmission | None = None) -> None:
        """Choose how a share below one session is treated, and a cap on all sessions, see the class."""
        self.paper = paper
        self.session_cap = _admission(session_cap)

    def limits(self, view: FleetView, last: Limits) -> Limits:
        """Set `workload_cap` (R, W), a ceiling of 0.95 B and the longest lease, see `Policy.limits`."""
        limits = _quotas(view, last, view.context_tokens, paper=self.paper)
        return _with_session_cap(limits, self.session_cap, view, last)


class MisaT:
    """Quotas by residency: a workload's share of a replica follows the KV token-seconds that its sessions will hold.

    As `Misa`, with R_ew = N_ew k_w T_w in place of S_ew; T_w is the residency in seconds, tool gaps included. k_w alone
    turns tokens into sessions. By Little's law completions x_w = K_w / T_w are then in proportion to N_w: the mixture
    that finishes is the mixture that was asked for.

    Args:
        paper: As in `Misa`.
        session_cap: As in `Misa`.

    Raises:
        InvalidArgument: `session_cap` is neither a `SessionAdmission` nor None.

    Example:
        >>> from turnout.policies import FleetView
        >>> view = FleetView.build(["r0"], ["agent", "rlvr", "rlhf"], kv_tokens=1_000_000, held_new=[30, 20, 50],
        ...                        context_tokens=[40_000, 60_000, 8_000], residency_s=[600, 900, 120])
        >>> MisaT().limits(view, Limits()).workload_cap
        array([[9., 9., 3.]])
    """

    def __init__(self, *, paper: bool = False, session_cap: SessionAdmission | None = None) -> None:
        """Choose how a share below one session is treated, and a cap on all sessions, see the class."""
        self.paper = paper
        self.session_cap = _admission(session_cap)

    def limits(self, view: FleetView, last: Limits) -> Limits:
        """Set `workload_cap` (R, W), a ceiling of 0.95 B and the longest lease, see `Policy.limits`."""
        limits = _quotas(view, last, view.context_tokens * view.residency_s, paper=self.paper)
        return _with_session_cap(limits, self.session_cap, view, last)


def unfinished(view: FleetView) -> NDArray[np.float64]:
    """Count the sessions that each replica answers for.

    Args:
        view: The fleet.

    Returns:
        (R, W) N_ew: sessions charged on e, plus e's part of the workload's waiting and paused ones, which are split
        over the accepting replicas by capacity. A replica of unknown capacity counts as the largest known one.
    """
    finite = view.kv_tokens[np.isfinite(view.kv_tokens)]
    size = np.where(np.isfinite(view.kv_tokens), view.kv_tokens, finite.max(initial=1.0)) * view.accepting
    part = size / max(size.sum(), np.finfo(np.float64).tiny)
    return view.sessions.astype(np.float64) + np.outer(part, view.held_new + view.paused)


def _quotas(view: FleetView, last: Limits, price: NDArray[np.float64], *, paper: bool) -> Limits:
    """Divide every replica in proportion to N * price; `price` (W,) is 0 where it is unknown."""
    size, budget = view.context_tokens, view.kv_tokens[:, None]
    share = unfinished(view) * price
    total = share.sum(axis=1, keepdims=True)
    # A quota divides what is scarce: an empty replica, and one where all its sessions fit, is free for anyone.
    scarce = (total > 0) & (paper | ((unfinished(view) @ size)[:, None] > CEILING_SHARE * budget))
    with np.errstate(divide="ignore", invalid="ignore"):
        quota = np.where(scarce, budget * (share / total), budget)
        exact = np.where((price > 0) & np.isfinite(budget), quota / size, np.inf)  # nothing known: no cap
        cap = np.floor(exact + _ROUNDING)
        names = np.array([*view.replicas, "", *view.workloads])
        if np.array_equal(last.memory.get("names", np.array([])), names):
            cap = np.where(np.abs(exact - last.memory["cap"]) < DEAD_BAND, last.memory["cap"], cap)
    granted = np.maximum(cap, 1.0 if paper else _at_least(view, exact, cap, scarce))
    return Limits(
        workload_cap=granted,
        ceiling_tokens=CEILING_SHARE * view.kv_tokens,
        lease_s=LEASE_S,
        memory={"names": names, "cap": cap},
    )


def _at_least(
    view: FleetView, exact: NDArray[np.float64], cap: NDArray[np.float64], scarce: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """(R, W) the session that nobody is refused: 1 or 0.

    A workload may have one where nothing is scarce, and everywhere else on the accepting replica where its share is
    nearest to one more session. A replica whose every share is below one session goes to the workload with the largest:
    sessions of more than a replica's capacity are then served on as many replicas as there are.
    """
    least = np.broadcast_to(~scarce & view.accepting[:, None], exact.shape).astype(np.float64)
    if not view.accepting.any() or not view.workloads:
        return least
    # Ties go round by the ranks of the names: the order of the rows is no reason, and one replica must not take all.
    turn = np.add.outer(np.argsort(np.argsort(view.replicas)), np.argsort(np.argsort(view.workloads)))
    known = np.where(np.isfinite(exact), exact, 0.0)
    remainder = np.round(known % 1.0, 9) % 1.0
    closed = np.broadcast_to(~view.accepting[:, None], exact.shape)
    order = np.lexsort((turn % len(view.replicas), -remainder, closed), axis=0)
    least[order[0], np.arange(exact.shape[1])] = 1.0
    # Even and odd replicas begin at opposite ends; a workload without sessions has no share, and no part in it.
    share = np.round(known, 9) * (unfinished(view) > 0)
    rank = np.argsort(np.argsort(view.workloads)) * np.where(np.argsort(np.argsort(view.replicas)) % 2, -1, 1)[:, None]
    open_to = np.where(share > 0, np.maximum(cap, least), 0.0).max(axis=1)
    idle = view.accepting & (open_to < 1) & (share.max(axis=1) > 0)
    first = np.lexsort((rank, -share), axis=1)[:, 0]
    least[idle, first[idle]] = 1.0
    return least


def _admission(given: object) -> SessionAdmission | None:
    if given is not None and not isinstance(given, SessionAdmission):
        raise InvalidArgument(f"session_cap: got {given!r}, accepted is a SessionAdmission or None")
    return given


def _with_session_cap(limits: Limits, admission: SessionAdmission | None, view: FleetView, last: Limits) -> Limits:
    """The same limits with the cap of session admission beside the quotas."""
    if admission is None:
        return limits
    cap, memory = admission.cap(view, last)
    return dataclasses.replace(limits, session_cap=cap, memory={**limits.memory, **memory})
