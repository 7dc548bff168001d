//! What callers say of sessions before their next turn, and the order of the line that follows from it; numbers worked out by hand.
#![allow(clippy::float_cmp, reason = "tokens of whole blocks, and seconds that are set, are exact")]

#[path = "common/fleet.rs"]
mod fleet;

use fleet::{Fleet, SECOND, held, placed};
use turnout_core::error::Error;
use turnout_core::router::types::{Effect, Hint, Reason, Submit, TurnInput};

fn idle(seconds: u64) -> Hint {
    Hint { idle: Some(seconds * SECOND), ..Hint::default() }
}

/// Ceiling 100, lease 60 s: a is idle with 60 since t = 0 and b needs 50.
fn a_idle_and_b_waiting(hint: Option<(u64, Hint)>) -> Fleet {
    let mut fleet = Fleet::new(1, &[("r1", 100.0)], &["w"]);
    fleet.limit(0, |limits| limits.lease_s = Some(vec![60.0]));
    let turn = fleet.submit(0, "a", "w", &[(0, 50)]);
    if let Some((0, hint)) = hint {
        fleet.router.hint(0, "a", &hint).unwrap();
    }
    fleet.complete(0, &turn, 10);
    if let Some((at, hint)) = hint.filter(|hint| hint.0 > 0) {
        fleet.router.hint(at, "a", &hint).unwrap();
    }
    held(&fleet.submit(10 * SECOND, "b", "w", &[(1_000, 50)]), Reason::Ceiling);
    fleet
}

/// A gap within the lease is what the session is protected for: said while it ran, or ten seconds later when it is idle.
#[test]
fn a_short_gap_ends_the_lease() {
    for (hint, end) in [(None, 60), (Some((0, idle(20))), 20), (Some((5 * SECOND, idle(20))), 25), (Some((5 * SECOND, idle(55))), 60)] {
        let mut fleet = a_idle_and_b_waiting(hint);
        assert_eq!(fleet.router.wake_at(), Some(end * SECOND), "{hint:?}");
        fleet.router.tick(end * SECOND - 1);
        assert!(fleet.drain().is_empty());
        fleet.router.tick(end * SECOND);
        assert_eq!(fleet.drain().len(), 1, "b has the room of a");
    }
}

/// A gap beyond the lease frees at once, and the view says so; the hint is for one gap.
#[test]
fn a_long_gap_frees_the_session_at_once() {
    let mut fleet = a_idle_and_b_waiting(None);
    fleet.router.hint(11 * SECOND, "a", &idle(300)).unwrap();
    let told = fleet.drain();
    assert_eq!((told.len(), told[0].reason), (1, Reason::Admitted));
    assert_eq!(fleet.column(12 * SECOND, "paused"), [1.0]);
    fleet.end(13 * SECOND, "b");
    // Back again: the next gap is an ordinary one.
    let again = fleet.submit(14 * SECOND, "a", "w", &[(0, 50)]);
    assert_eq!(again.reason, Reason::Resumed);
    fleet.complete(20 * SECOND, &again, 10);
    assert_eq!((fleet.column(20 * SECOND, "idle_tokens")[0], fleet.column(20 * SECOND, "expired_tokens")[0]), (60.0, 0.0));
    held(&fleet.submit(21 * SECOND, "c", "w", &[(2_000, 50)]), Reason::Ceiling);
    assert_eq!(fleet.router.wake_at(), Some(80 * SECOND));
    fleet.router.hint(22 * SECOND, "a", &idle(59)).unwrap();
    assert_eq!(fleet.drain().len(), 1, "22 s + 59 s is beyond 20 s + 60 s");
}

/// Shorter leases come into force for hinted sessions as well; longer ones protect them again.
#[test]
fn a_hint_is_weighed_against_the_lease_of_the_moment() {
    let mut fleet = Fleet::new(1, &[("r1", 1_000.0)], &["w"]);
    fleet.limit(0, |limits| limits.lease_s = Some(vec![60.0]));
    let turn = fleet.submit(0, "a", "w", &[(0, 50)]);
    fleet.complete(0, &turn, 10);
    fleet.router.hint(0, "a", &idle(30)).unwrap();
    assert_eq!(fleet.column(SECOND, "expired_tokens")[0], 0.0);
    fleet.limit(SECOND, |limits| limits.lease_s = Some(vec![20.0]));
    assert_eq!(fleet.column(SECOND, "expired_tokens")[0], 60.0, "30 s is more than anybody is kept for");
    fleet.limit(SECOND, |limits| limits.lease_s = Some(vec![40.0]));
    assert_eq!(fleet.column(SECOND, "expired_tokens")[0], 0.0);
    assert_eq!(fleet.column(30 * SECOND, "expired_tokens")[0], 60.0);
    fleet.router.audit().unwrap();
}

/// A hint is advice: it fails for no session, and changes nothing where it says nothing.
#[test]
fn a_hint_never_fails_for_a_session() {
    let mut fleet = Fleet::new(1, &[("r1", 1_000.0)], &["w"]);
    assert_eq!(fleet.router.hint(0, "never", &idle(1)).unwrap().effect, Effect::Unknown);
    placed(&fleet.submit(0, "a", "w", &[(0, 50)]));
    assert_eq!(fleet.router.hint(0, "a", &Hint::default()).unwrap().effect, Effect::Done);
    let beyond = Hint { expected_tokens: Some(1 << 41), ..Hint::default() };
    assert!(matches!(fleet.router.hint(0, "a", &beyond), Err(Error::InvalidArgument { argument: "expected_tokens", .. })));
}

/// Whoever waits is put where its new priority belongs; a submit's own priority wins.
#[test]
fn a_hint_changes_the_priority_of_those_that_wait() {
    let mut fleet = Fleet::new(1, &[("r1", 1_000.0)], &["w"]);
    fleet.limit(0, |limits| limits.session_cap = Some(vec![1.0]));
    let submit = |fleet: &mut Fleet, now: u64, name: &str, priority| {
        let prompt = fleet.prompt(&[(now as u32 * 1_000, 50)]);
        fleet.router.submit(now, &Submit { turn: Some(name), session: Some(name), priority, ..Submit::new(TurnInput::Prompt(&prompt)) }).unwrap()
    };
    placed(&submit(&mut fleet, 0, "a", 0));
    for (now, name) in [(1, "b"), (2, "c"), (3, "d")] {
        held(&submit(&mut fleet, now, name, 0), Reason::SessionCap);
    }
    fleet.router.hint(4, "d", &Hint { priority: Some(5), ..Hint::default() }).unwrap();
    fleet.router.hint(4, "b", &Hint { priority: Some(-1), ..Hint::default() }).unwrap();
    held(&submit(&mut fleet, 5, "e", 9), Reason::SessionCap);
    let (mut order, mut running) = (String::new(), "a".to_owned());
    for now in 10..14 {
        running = fleet.end(now, &running)[0].turn.to_string();
        order += &running;
    }
    assert_eq!(order, "edcb");
}

/// Order of the line by expected output, said by the submit, by a hint, or bounded by `max_new_tokens`; changed while they wait.
#[test]
fn the_line_may_be_ordered_by_length() {
    for (order, expected) in [("fifo", "bcd"), ("longest_first", "cdb"), ("shortest_first", "bdc")] {
        let mut fleet = Fleet::new(1, &[("r1", 1_000.0)], &["w"]);
        fleet.limit(0, |limits| limits.session_cap = Some(vec![1.0]));
        let prompt = |fleet: &Fleet, first| fleet.prompt(&[(first, 50)]);
        let (a, b, c, d) = (prompt(&fleet, 0), prompt(&fleet, 1_000), prompt(&fleet, 2_000), prompt(&fleet, 3_000));
        let named = |name, prompt| Submit { turn: Some(name), session: Some(name), ..Submit::new(TurnInput::Prompt(prompt)) };
        placed(&fleet.router.submit(0, &named("a", &a)).unwrap());
        held(&fleet.router.submit(1, &named("b", &b)).unwrap(), Reason::SessionCap);
        held(&fleet.router.submit(2, &Submit { expected_tokens: Some(900), ..named("c", &c) }).unwrap(), Reason::SessionCap);
        held(&fleet.router.submit(3, &Submit { max_new_tokens: Some(500), ..named("d", &d) }).unwrap(), Reason::SessionCap);
        fleet.limit(4, |limits| limits.order = Some(vec![order.into()]));
        let (mut told, mut running) = (String::new(), "a".to_owned());
        for now in 10..13 {
            running = fleet.end(now, &running)[0].turn.to_string();
            told += &running;
        }
        assert_eq!(told, expected, "{order}");
    }
    let mut fleet = Fleet::new(1, &[("r1", 1_000.0)], &["w"]);
    fleet.limits.order = Some(vec!["by_mood".into()]);
    let step = fleet.router.view(0).step;
    let refused = fleet.router.set_limits(0, &fleet.limits, step).unwrap_err();
    assert_eq!(refused.to_string(), "limits.order[w]: got \"by_mood\", accepted is fifo, longest_first or shortest_first");
}
