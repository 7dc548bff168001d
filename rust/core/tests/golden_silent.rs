//! Sessions whose end nobody says: what is learned of gaps between turns, and when such a session ends; numbers worked out by hand.
#![allow(clippy::float_cmp, reason = "tokens of whole blocks, and seconds that are set, are exact")]

use turnout_core::control::limits::Limits;
use turnout_core::control::view::Values;
use turnout_core::router::Router;
use turnout_core::router::types::{Completion, Hint, ReplicaConfig, RouterConfig, Status, Submit, TurnInput, WorkloadConfig};

const SECOND: u64 = 1_000_000_000;

fn router(ends: bool, one_turn: bool) -> Router {
    let workload = WorkloadConfig { ends, one_turn, ..WorkloadConfig::new("w") };
    let replicas = vec![ReplicaConfig::new("r", 1e6)];
    Router::new(RouterConfig { replicas, workloads: vec![workload], control_period_s: f64::INFINITY, ..RouterConfig::default() }).unwrap()
}

/// One turn of a session, of two seconds.
fn turn(router: &mut Router, session: &str, at: u64) {
    let decision = router.submit(at, &Submit { session: Some(session), ..Submit::new(TurnInput::Count { prompt_tokens: 160 }) }).unwrap();
    assert_eq!(decision.status, Status::Placed);
    router.complete(at + 2 * SECOND, &decision.turn, &Completion { output_tokens: Some(1), ..Completion::default() }).unwrap();
    router.audit().unwrap();
}

fn column(router: &mut Router, now: u64, name: &str) -> f64 {
    match &router.view(now).column(name).unwrap().values {
        Values::F64(values) => values[0],
        Values::I64(values) => values[0] as f64,
        Values::Bool(_) => unreachable!("not asked for"),
    }
}

/// Twenty gaps of ten seconds; answers the end of the last turn.
fn taught(router: &mut Router) -> u64 {
    let mut at = 0;
    for _ in 0..21 {
        turn(router, "s", at);
        at += 12 * SECOND;
    }
    at - 10 * SECOND
}

#[test]
fn gaps_and_activity_are_measured() {
    let mut router = router(true, false);
    let end = taught(&mut router);
    assert!((column(&mut router, end, "gap_s") - 10.0).abs() < 1e-9);
    assert_eq!(column(&mut router, end, "gap_p95_s"), 10.0);
    assert_eq!(column(&mut router, end, "continue_fraction"), 1.0);
    // 21 turns of two seconds and 20 gaps of ten; a live session counts as what it has been so far.
    assert_eq!((column(&mut router, end, "active_s"), column(&mut router, end, "residency_s")), (42.0, 242.0));
    // Idle for longer than the mean: one more gap of at least that much.
    assert!(column(&mut router, end + 100 * SECOND, "gap_s") > 13.0);
    assert_eq!(column(&mut router, end + 100 * SECOND, "gap_p95_s"), 10.0, "one of 21 is beyond the quantile");
    router.end_session(end + 100 * SECOND, "s", true).unwrap();
    assert_eq!((column(&mut router, end + 100 * SECOND, "active_s"), column(&mut router, end + 100 * SECOND, "residency_s")), (42.0, 242.0));
    assert!(column(&mut router, end + 100 * SECOND, "continue_fraction") < 1.0);
}

/// After the longest usual gap a session that nobody ends has ended; its residency has not grown by the wait.
#[test]
fn a_silent_session_ends_after_the_usual_gap() {
    let mut router = router(false, false);
    let end = taught(&mut router);
    assert_eq!(router.wake_at(), Some(end + 10 * SECOND + 1));
    router.tick(end + 10 * SECOND);
    assert_eq!(router.stats().live_sessions, 1);
    router.tick(end + 10 * SECOND + 1);
    assert_eq!((router.stats().live_sessions, router.stats().sessions_finished), (0, 1));
    assert_eq!(column(&mut router, end + 20 * SECOND, "residency_s"), 242.0);
}

/// Longer leases keep it, up to their end, and a hint keeps it until the caller is expected.
#[test]
fn leases_and_hints_keep_a_silent_session() {
    let mut router = router(false, false);
    let end = taught(&mut router);
    let limits = Limits { replicas: router.replicas(), workloads: router.workloads(), lease_s: Some(vec![30.0]), ..Limits::default() };
    let step = router.view(end).step;
    router.set_limits(end, &limits, step).unwrap();
    assert_eq!(router.wake_at(), Some(end + 30 * SECOND + 1));
    router.hint(end, "s", &Hint { idle: Some(50 * SECOND), ..Hint::default() }).unwrap();
    router.tick(end + 49 * SECOND);
    assert_eq!(router.stats().live_sessions, 1);
    router.audit().unwrap();
    turn(&mut router, "s", end + 50 * SECOND);
    router.tick(end + 82 * SECOND + 1);
    assert_eq!(router.stats().live_sessions, 0, "30 s after the turn that the hint was about");
}

/// What is not known protects nothing, and ends nothing before the general time.
#[test]
fn until_gaps_are_known_nothing_is_concluded() {
    let mut router = router(false, false);
    let limits = Limits { replicas: router.replicas(), workloads: router.workloads(), lease_s: Some(vec![30.0]), ..Limits::default() };
    let step = router.view(0).step;
    router.set_limits(0, &limits, step).unwrap();
    turn(&mut router, "s", 0);
    let idle = column(&mut router, 3 * SECOND, "expired_tokens");
    assert!(idle > 0.0, "it has no lease");
    router.tick(3_600 * SECOND);
    assert_eq!(router.stats().live_sessions, 1);
    router.tick(3_602 * SECOND);
    assert_eq!(router.stats().live_sessions, 0);
}

/// Where hardly any turn is followed by another, a session ends with its turn, but for every 32nd, which is watched; stated, every one.
#[test]
fn single_turns_end_their_sessions() {
    let mut stated = router(true, true);
    for at in 0..40 {
        turn(&mut stated, &format!("s{at}"), at * 3 * SECOND);
        assert_eq!(stated.stats().live_sessions, 0);
    }
    let mut learned = router(false, false);
    for at in 0..16 {
        turn(&mut learned, &format!("s{at}"), at * 3 * SECOND);
        learned.end_session(at * 3 * SECOND + 2 * SECOND, &format!("s{at}"), true).unwrap();
    }
    for at in 16..80 {
        turn(&mut learned, &format!("s{at}"), at * 3 * SECOND);
    }
    assert_eq!(learned.stats().live_sessions, 2, "the 32nd and the 64th are watched");
}
