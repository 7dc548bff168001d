"""Turns whose callers name no session."""

from __future__ import annotations

from turnout import Replica, Router


def router(*, infer: bool) -> Router:
    return Router([Replica("r0", kv_tokens=100_000)], infer_sessions=infer, control_period_s=float("inf"))


def talk(served: Router) -> list[str]:
    """Answer why each turn of one conversation was placed."""
    history, reasons = list(range(40)), []
    for turn in range(3):
        decision = served.submit(history, now=float(turn))
        reasons.append(decision.reason)
        served.complete(decision.turn, output=[7, 8, 9], now=float(turn))
        history += [7, 8, 9, 100 + turn]
    return reasons


def test_a_conversation_without_a_name_is_one_session() -> None:
    assert talk(router(infer=True)) == ["admitted", "continuation", "continuation"]
    assert talk(router(infer=False)) == ["admitted"] * 3


def test_siblings_are_sessions_of_their_own() -> None:
    served = router(infer=True)
    burst = [served.submit(list(range(40)), now=0.0) for _ in range(4)]
    assert [decision.reason for decision in burst] == ["admitted"] * 4
    for at, decision in enumerate(burst):
        served.complete(decision.turn, output=[500, at], now=1.0)
    assert served.submit([*range(40), 500, 2, 3], now=2.0).reason == "continuation"
    assert served.submit([*range(40), 500, 9, 3], now=2.0).reason == "admitted"


def test_a_journal_keeps_whose_turn_it_was() -> None:
    served = router(infer=True)
    served.start_journal()
    talk(served)
    again = Router.restore(served.take_journal(), now=3.0)
    assert again.submit([*range(40), 7, 8, 9, 100, 7, 8, 9, 101, 7, 8, 9, 5], now=4.0).reason == "continuation"


def test_a_prompt_hashed_elsewhere_begins_a_session() -> None:
    served = router(infer=True)
    talk(served)
    assert served.submit(served.prompt([*range(40), 7, 8, 9, 5]), now=4.0).reason == "admitted"
