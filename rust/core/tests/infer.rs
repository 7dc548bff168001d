//! Turns without a session: which one they continue.

#[path = "common/fleet.rs"]
mod fleet;

use fleet::{Fleet, SECOND, placed};
use proptest::prelude::*;
use turnout_core::record::recorder::Recorder;
use turnout_core::router::Router;
use turnout_core::router::types::{Completion, Decision, Reason, ReplicaConfig, RouterConfig, Submit, TurnInput, WorkloadConfig};

/// Blocks of `block` tokens, one replica, two workloads; sessions are inferred.
fn inferring(block: u32) -> Fleet {
    let mut fleet = Fleet::new(block, &[("r", 10_000.0)], &["a", "b"]);
    fleet.router = Router::new(RouterConfig {
        replicas: vec![ReplicaConfig::new("r", 10_000.0), ReplicaConfig::new("q", 10_000.0)],
        workloads: ["a", "b"].map(WorkloadConfig::new).to_vec(),
        block_tokens: block,
        control_period_s: f64::INFINITY,
        infer_sessions: true,
        ..RouterConfig::default()
    })
    .unwrap();
    fleet
}

/// As a caller does it that names no session: the one that is continued is looked up with the tokens.
fn submit(router: &mut Router, now: u64, turn: Option<(&str, u32)>, workload: Option<&str>, tokens: &[u32]) -> Decision {
    let prompt = router.hasher().prompt(tokens);
    let attempt = turn.map_or(0, |turn| turn.1);
    let asked = Submit { turn: turn.map(|turn| turn.0), attempt, workload, ..Submit::new(TurnInput::Prompt(&prompt)) };
    let found = router.continued_session(&asked, tokens);
    let decision = router.submit(now, &Submit { session: found.as_deref(), ..asked }).unwrap();
    router.audit().unwrap();
    decision
}

fn complete(router: &mut Router, now: u64, decision: &Decision, output: &[u32]) {
    router.complete(now, &decision.turn, &Completion { output: Some(&[output]), ..Completion::default() }).unwrap();
    router.audit().unwrap();
}

fn tokens(parts: &[(u32, u32)]) -> Vec<u32> {
    parts.iter().flat_map(|&(first, n)| first..first + n).collect()
}

#[test]
fn a_conversation_is_one_session() {
    let mut fleet = inferring(16);
    let router = &mut fleet.router;
    let mut history = tokens(&[(0, 37)]);
    for turn in 0..5u64 {
        let decision = submit(router, turn * SECOND, None, None, &history);
        placed(&decision);
        assert_eq!(decision.reason, if turn == 0 { Reason::Admitted } else { Reason::Continuation });
        let output = tokens(&[(1_000 + turn as u32 * 100, 7)]);
        complete(router, turn * SECOND, &decision, &output);
        history.extend(output);
        history.extend(tokens(&[(5_000 + turn as u32 * 100, 5)]));
    }
    assert_eq!(router.stats().live_sessions, 1);
}

#[test]
fn siblings_and_equal_prompts_stay_apart() {
    let mut fleet = inferring(16);
    let router = &mut fleet.router;
    let prompt = tokens(&[(0, 40)]);
    let first = submit(router, 0, None, None, &prompt);
    let second = submit(router, 0, None, None, &prompt);
    assert_eq!((first.reason, second.reason), (Reason::Admitted, Reason::Admitted), "one of them runs");
    // Their outputs differ within one block: the tail decides whose turn is next.
    complete(router, 1, &first, &[900, 901]);
    complete(router, 2, &second, &[900, 902]);
    let asked = |tail: &[u32]| [&prompt[..], tail].concat();
    assert_eq!(submit(router, 3, None, None, &asked(&[900])).reason, Reason::Admitted, "no history is a prefix of it");
    let next = asked(&[900, 901, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    assert_eq!(submit(router, 3, Some(("t", 0)), None, &next).reason, Reason::Continuation);
    assert_eq!(submit(router, 4, Some(("u", 0)), None, &next).reason, Reason::Admitted, "the first runs again, the second differs");
    // What is asked is the whole history: nothing follows it, so it is no continuation.
    assert_eq!(submit(router, 4, None, None, &asked(&[900, 902])).reason, Reason::Admitted);
}

#[test]
fn the_longest_history_wins_then_the_latest() {
    let mut fleet = inferring(1);
    let router = &mut fleet.router;
    let named = |router: &mut Router, now: u64, session: &str, workload: &str, n: u32| {
        let prompt = router.hasher().prompt(&tokens(&[(0, n)]));
        let submit = Submit { session: Some(session), workload: Some(workload), ..Submit::new(TurnInput::Prompt(&prompt)) };
        let decision = router.submit(now, &submit).unwrap();
        complete(router, now, &decision, &tokens(&[(n, 1)]));
    };
    named(router, 0, "long", "a", 50);
    named(router, 1, "early", "a", 30);
    named(router, 2, "late", "a", 30);
    named(router, 3, "other", "b", 40);
    let whose = |router: &Router, workload: Option<&str>, n: u32| {
        let tokens = tokens(&[(0, n)]);
        let prompt = router.hasher().prompt(&tokens);
        router.continued_session(&Submit { workload, ..Submit::new(TurnInput::Prompt(&prompt)) }, &tokens).map(|name| name.to_string())
    };
    assert_eq!(whose(router, None, 60).as_deref(), Some("long"));
    assert_eq!(whose(router, None, 51).as_deref(), Some("other"), "the whole of the longest is asked again");
    assert_eq!(whose(router, Some("a"), 51).as_deref(), Some("late"), "another workload is another session");
    assert_eq!(whose(router, None, 31), None);
}

#[test]
fn what_nobody_can_name_goes_when_nothing_is_left_of_it() {
    let mut fleet = inferring(16);
    let router = &mut fleet.router;
    let prompt = tokens(&[(0, 40)]);
    let first = submit(router, 0, Some(("t", 0)), None, &prompt);
    let again = submit(router, 1, Some(("t", 1)), None, &prompt);
    assert_ne!(first.replica, again.replica, "the same session on another replica");
    assert_eq!(router.stats().live_sessions, 1);
    router.abort(2, "t", &Completion::default()).unwrap();
    router.audit().unwrap();
    assert_eq!(router.stats().live_sessions, 0);
    let prompt_of = router.hasher().prompt(&prompt);
    let owned = Submit { owner: Some("o"), ..Submit::new(TurnInput::Prompt(&prompt_of)) };
    placed(&router.submit(2, &owned).unwrap());
    router.owner_lost(2, "o");
    router.audit().unwrap();
    assert_eq!((router.stats().live_sessions, router.stats().sessions_dropped), (0, 2), "each once");
    // One with a history stays until it was quiet for too long.
    let kept = submit(router, 3, None, None, &prompt);
    complete(router, 4, &kept, &[1, 2]);
    assert_eq!(router.stats().live_sessions, 1);
    router.tick(4 + 3_600 * SECOND);
    router.audit().unwrap();
    assert_eq!((router.stats().live_sessions, router.stats().sessions_finished), (0, 1));
}

#[test]
fn a_restored_router_infers_the_same() {
    let mut fleet = inferring(16);
    let turn = submit(&mut fleet.router, 0, None, None, &tokens(&[(0, 40)]));
    complete(&mut fleet.router, 1, &turn, &[1, 2, 3]);
    let copy = Recorder::restore(&fleet.router.snapshot(), 1).unwrap();
    let next = tokens(&[(0, 40), (1, 3), (70, 9)]);
    let prompt = copy.hasher().prompt(&next);
    let asked = Submit::new(TurnInput::Prompt(&prompt));
    assert!(copy.continued_session(&asked, &next).is_some());
    assert_eq!(copy.continued_session(&asked, &next), fleet.router.continued_session(&asked, &next));
}

/// A session as its caller knows it.
struct Known {
    name: String,
    history: Vec<u32>,
    running: Option<(Decision, Vec<u32>)>,
    latest: u64,
}

proptest! {
    /// Two token values and blocks of 3: histories that begin alike, differ in their tails alone, or are equal, all the time.
    #[test]
    fn the_table_finds_what_comparing_every_history_finds(
        events in proptest::collection::vec((0..4u8, any::<prop::sample::Index>(), proptest::collection::vec(0..2u32, 1..9)), 1..60),
    ) {
        let mut fleet = inferring(3);
        let router = &mut fleet.router;
        let mut known: Vec<Known> = Vec::new();
        for (now, (kind, index, more)) in (1u64..).zip(events) {
            let running: Vec<usize> = (0..known.len()).filter(|&at| known[at].running.is_some()).collect();
            if kind == 0 && !running.is_empty() {
                let at = running[index.index(running.len())];
                let (decision, mut prompt) = known[at].running.take().unwrap();
                complete(router, now, &decision, &more);
                prompt.extend(&more);
                (known[at].history, known[at].latest) = (prompt, now);
                continue;
            }
            let mut prompt = if known.is_empty() || kind == 1 { Vec::new() } else { known[index.index(known.len())].history.clone() };
            prompt.extend(&more);
            let turn = format!("t{now}");
            let hashed = router.hasher().prompt(&prompt);
            let asked = Submit { turn: Some(&turn), ..Submit::new(TurnInput::Prompt(&hashed)) };
            let found = router.continued_session(&asked, &prompt);
            let expected = (0..known.len())
                .filter(|&at| known[at].running.is_none() && known[at].history.len() < prompt.len() && prompt.starts_with(&known[at].history))
                .max_by_key(|&at| (known[at].history.len(), known[at].latest));
            prop_assert_eq!(found.as_deref(), expected.map(|at| &*known[at].name));
            let decision = submit(router, now, Some((&turn, 0)), None, &prompt);
            placed(&decision);
            if let Some(at) = expected {
                known[at].running = Some((decision, prompt));
            } else {
                let name = router.continued_session(&asked, &prompt).unwrap().to_string();
                known.push(Known { name, history: Vec::new(), running: Some((decision, prompt)), latest: now });
            }
        }
    }
}
