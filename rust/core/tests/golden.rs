//! Small scenarios with numbers worked out by hand: charge, commit, leases, order, bypass. Block size and unit are stated with each.
#![allow(clippy::float_cmp, reason = "whole numbers of tokens")]

#[path = "common/fleet.rs"]
mod fleet;

use fleet::{Fleet, SECOND, held, placed};
use turnout_core::router::Router;
use turnout_core::router::types::{Completion, Decision, Reason, ReplicaConfig, Status, Submit, TurnInput, WeightsMode};

/// Blocks of 16. A prompt that two sessions share is claimed once, until the last of them leaves.
#[test]
fn shared_once() {
    let mut fleet = Fleet::new(16, &[("r", 1e6)], &["w"]);
    fleet.submit(0, "a", "w", &[(0, 160)]);
    assert_eq!(fleet.books(0).0, 10.0);
    fleet.submit(0, "b", "w", &[(0, 160)]);
    assert_eq!(fleet.books(0).0, 10.0);
    fleet.submit(0, "c", "w", &[(0, 96), (10_000, 64)]);
    assert_eq!(fleet.books(0).0, 14.0);
    fleet.end(1, "a");
    assert_eq!(fleet.books(1).0, 14.0);
    fleet.end(1, "b");
    assert_eq!(fleet.books(1).0, 10.0);
    fleet.end(1, "c");
    assert_eq!(fleet.books(1).0, 0.0);
}

/// Blocks of 16. phi(0; 1000) = 368 tokens = 23 blocks; phi(500) = 607 = 38 blocks against 32 of own growth; beyond L nothing.
#[test]
fn expected_growth() {
    let mut fleet = Fleet::new(16, &[("r", 1e6)], &["w"]);
    fleet.limit(0, |limits| limits.growth_tokens = Some(vec![1_000.0]));
    let turn = fleet.submit(0, "a", "w", &[(0, 160)]);
    assert_eq!(fleet.books(0), (10.0, 33.0));
    fleet.router.progress(1, &turn.turn, 500, None).unwrap();
    assert_eq!(fleet.books(1), (42.0, 48.0));
    fleet.router.progress(2, &turn.turn, 1_000, None).unwrap();
    assert_eq!(fleet.books(2), (73.0, 73.0));
}

/// Blocks of 16. B = 300, ceiling 285, L = 1,000 tokens, prompts of 50 blocks, output 160 tokens: need 50 + 10 + (27 - 10) = 77.
#[test]
fn ceiling_on_commit() {
    let mut fleet = Fleet::new(16, &[("r", 4_800.0)], &["w"]);
    fleet.limit(0, |limits| {
        limits.ceiling_tokens = Some(vec![285.0 * 16.0]);
        limits.growth_tokens = Some(vec![1_000.0]);
        limits.output_tokens = Some(vec![160.0]);
    });
    for at in 0..3 {
        let decision = fleet.submit(0, &format!("s{at}"), "w", &[(at * 10_000, 800)]);
        placed(&decision);
        assert_eq!(decision.receipt.need_tokens, 77 * 16);
    }
    assert_eq!(fleet.books(0).1, 231.0);
    let fourth = fleet.submit(0, "s3", "w", &[(30_000, 800)]);
    held(&fourth, Reason::Ceiling);
    assert_eq!((fourth.receipt.commit_tokens, fourth.receipt.limit), (231 * 16, 285.0 * 16.0));
    let woken = fleet.end(1, "s0");
    assert_eq!((woken.len(), &woken[0].turn), (1, &fourth.turn));
    assert_eq!(fleet.books(1).1, 231.0);
}

/// Blocks of 1. Charge at the ceiling: a newcomer is held, the next turn of a charged session passes, even above the ceiling.
#[test]
fn continuations_pass() {
    let mut fleet = Fleet::new(1, &[("r", 100.0)], &["w"]);
    fleet.limit(0, |limits| (limits.ceiling_tokens, limits.overflow_tokens) = (Some(vec![80.0]), Some(vec![100.0])));
    let first = fleet.submit(0, "a", "w", &[(0, 70)]);
    fleet.limit(0, |limits| limits.lease_s = Some(vec![100.0]));
    fleet.complete(1, &first, 10);
    held(&fleet.submit(2, "b", "w", &[(10_000, 20)]), Reason::Ceiling);
    let output: Vec<u32> = (500..515).collect();
    let submit = Submit { session: Some("a"), ..Submit::new(TurnInput::Append { base_tokens: 80, tokens: &output }) };
    let next = fleet.router.submit(3, &submit).unwrap();
    assert_eq!((next.status, next.reason), (Status::Placed, Reason::Continuation));
    assert_eq!(fleet.books(3).0, 95.0);
}

/// Blocks of 1. A lease protects an idle session; at its end a bare tick reclaims it for the one that waits.
#[test]
fn lease_and_timer() {
    let mut fleet = Fleet::new(1, &[("r", 100.0)], &["w"]);
    fleet.limit(0, |limits| limits.lease_s = Some(vec![30.0]));
    let a = fleet.submit(0, "a", "w", &[(0, 60)]);
    fleet.complete(0, &a, 0);
    let b = fleet.submit(10 * SECOND, "b", "w", &[(1_000, 50)]);
    held(&b, Reason::Ceiling);
    assert_eq!(fleet.router.wake_at(), Some(30 * SECOND));
    fleet.router.tick(30 * SECOND);
    let woken = fleet.drain();
    assert_eq!((woken.len(), &woken[0].turn), (1, &b.turn));
    assert_eq!(fleet.router.stats().pauses, 1);
    let again = fleet.submit(40 * SECOND, "a", "w", &[(0, 60)]);
    held(&again, Reason::Ceiling);
    let woken = fleet.end(50 * SECOND, "b");
    assert_eq!((woken.len(), &woken[0].turn, woken[0].reason), (1, &again.turn, Reason::Resumed));
}

/// Blocks of 1, one slot, weights 3 and 1, both always waiting, price 300: A B A A, A B A A. With equal weights A B A B.
#[test]
fn weights_between_workloads() {
    for (weights, expected) in [([3.0, 1.0], "ABAAABAAABAA"), ([1.0, 1.0], "ABABABABABAB")] {
        let mut fleet = Fleet::new(1, &[("r", 1e6)], &["A", "B"]);
        fleet.limit(0, |limits| (limits.session_cap, limits.weight, limits.price) = (Some(vec![0.0]), Some(weights.to_vec()), Some(vec![300.0; 2])));
        let mut sessions = std::collections::BTreeMap::new();
        for at in 0..30 {
            for workload in ["A", "B"] {
                let name = format!("{workload}{at}");
                let decision = fleet.submit(0, &name, workload, &[(at * 100, 10)]);
                assert_eq!(decision.status, Status::Held);
                sessions.insert(decision.turn, name);
            }
        }
        fleet.limit(1, |limits| limits.session_cap = Some(vec![1.0]));
        let mut order = String::new();
        let mut placed = fleet.drain();
        for now in 2..14 {
            assert_eq!(placed.len(), 1);
            let session = &sessions[&placed[0].turn];
            order.push_str(&session[..1]);
            placed = fleet.end(now, session);
        }
        assert_eq!(order, expected);
    }
}

/// Two idle replicas, 10,000 tokens/s, one 1,600-token prompt twice: beside its sibling the second waits 0.16 s and computes
/// the last block (2 * 0.0016 s), elsewhere it computes everything (0.32 s). It joins.
#[test]
fn siblings_join() {
    let mut fleet = Fleet::new(16, &[("r0", 1e6), ("r1", 1e6)], &["w"]);
    fleet.limit(0, |limits| limits.cost_decode = Some(vec![0.0; 2]));
    let first = fleet.submit(0, "a", "w", &[(0, 1_600)]);
    let second = fleet.submit(0, "b", "w", &[(0, 1_600)]);
    assert_eq!(first.replica, second.replica);
    assert_eq!(second.cached_tokens, 1_584);
    assert!((second.receipt.cost_s - 0.163_2).abs() < 1e-9 && (second.receipt.runner_up_cost_s - 0.32).abs() < 1e-9, "{second:?}");
}

/// Blocks of 16. A flush empties the cache and frees the next move, the charge stays; a lost replica pauses its sessions.
#[test]
fn flush_and_loss() {
    let mut fleet = Fleet::new(16, &[("r1", 1_600.0)], &["w"]);
    let a = fleet.submit(0, "a", "w", &[(0, 960)]);
    fleet.complete(1, &a, 0);
    fleet.router.add_replica(2, ReplicaConfig { prefill_tokens_per_s: 10_000.0, ..ReplicaConfig::new("r2", 1_600.0) }).unwrap();
    let busy = fleet.submit(3, "b", "w", &[(50_000, 320)]);
    assert_eq!(busy.replica.as_deref(), Some("r2"), "r1 is charged with 60 blocks, r2 is empty");
    fleet.end(4, "b");
    fleet.router.weights_updated(5, 1, WeightsMode::Flush, Some("r1")).unwrap();
    assert_eq!(fleet.column(5, "charge_tokens"), [960.0, 0.0]);
    assert_eq!(fleet.column(5, "resident_tokens")[0], 0.0);
    assert!(fleet.router.peek_session("a").unwrap().is_empty());
    // r1 is loaded with its own charge; on r2 the decode would be faster, and the move is free.
    let next = fleet.submit(6, "a", "w", &[(0, 976)]);
    assert_eq!((next.replica.as_deref(), next.reason, next.cached_tokens), (Some("r2"), Reason::Moved, 0));
    fleet.complete(7, &next, 0);
    let running = fleet.submit(8, "c", "w", &[(70_000, 160)]);
    let home = running.replica.clone().unwrap();
    fleet.router.lose_replica(9, &home).unwrap();
    let words = fleet.drain();
    assert_eq!((words.len(), words[0].status, words[0].reason, &words[0].turn), (1, Status::Lost, Reason::ReplicaLost, &running.turn));
    fleet.router.lose_replica(9, if &*home == "r1" { "r2" } else { "r1" }).unwrap();
    assert_eq!(fleet.column(10, "paused"), [2.0]);
    let waits = fleet.submit(11, "a", "w", &[(0, 992)]);
    held(&waits, Reason::NoReplica);
    fleet.router.add_replica(12, ReplicaConfig::new("r3", 1_600.0)).unwrap();
    let words = fleet.drain();
    assert_eq!((words[0].status, words[0].reason, words[0].replica.as_deref()), (Status::Placed, Reason::Resumed, Some("r3")));
}

/// Blocks of 1. One replica, ceiling 95,000, growth 8,192; 22 samples of one 32,000-token prompt: the first needs 35,014, the
/// others 3,014, and 20 are placed. Reserving the prompt per sample would place 2.
#[test]
fn burst_of_siblings() {
    let mut fleet = Fleet::new(1, &[("r", 100_000.0)], &["w"]);
    fleet.limit(0, |limits| (limits.ceiling_tokens, limits.growth_tokens) = (Some(vec![95_000.0]), Some(vec![8_192.0])));
    let needs: Vec<(Status, u64)> =
        (0..22).map(|at| fleet.submit(0, &format!("s{at}"), "w", &[(0, 32_000)])).map(|d| (d.status, d.receipt.need_tokens)).collect();
    assert_eq!(needs[0], (Status::Placed, 35_014));
    assert!(needs[1..20].iter().all(|&need| need == (Status::Placed, 3_014)), "{needs:?}");
    assert_eq!(needs[20], (Status::Held, 3_014));
    assert_eq!(fleet.books(0), (32_000.0, 92_280.0));
}

/// Blocks of 1. B 10,000, ceiling 9,500, overflow 9,800, growth 2,000, lease 30 s: lease, true-up, and the price of a pause.
#[test]
fn lease_and_true_up() {
    for returns_early in [false, true] {
        let mut fleet = Fleet::new(1, &[("r", 10_000.0)], &["w"]);
        fleet.limit(0, |limits| {
            limits.ceiling_tokens = Some(vec![9_500.0]);
            limits.overflow_tokens = Some(vec![9_800.0]);
            limits.growth_tokens = Some(vec![2_000.0]);
            limits.lease_s = Some(vec![30.0]);
        });
        let a = fleet.submit(0, "a", "w", &[(0, 4_000)]);
        assert_eq!(fleet.books(0).1, 4_736.0);
        fleet.submit(0, "b", "w", &[(100_000, 4_000)]);
        assert_eq!(fleet.books(0).1, 9_472.0);
        let c = fleet.submit(0, "c", "w", &[(200_000, 20)]);
        held(&c, Reason::Ceiling);
        assert_eq!((c.receipt.need_tokens, c.receipt.limit - c.receipt.commit_tokens as f64), (756, 28.0));
        fleet.complete(10 * SECOND, &a, 500);
        assert_eq!(fleet.books(10 * SECOND), (8_500.0, 9_681.0));
        assert_eq!(fleet.router.wake_at(), Some(40 * SECOND));
        let history = [(0, 4_000), (900_000_000 + a.seq as u32 * 100_000, 500), (700_000, 100)];
        if returns_early {
            let again = fleet.submit(35 * SECOND, "a", "w", &history);
            assert_eq!((again.status, again.reason), (Status::Placed, Reason::Continuation));
            assert_eq!(fleet.books(35 * SECOND).1, 9_729.0);
            assert!(fleet.drain().is_empty());
            continue;
        }
        fleet.router.tick(40 * SECOND);
        assert_eq!(fleet.drain()[0].turn, c.turn);
        assert_eq!(fleet.books(40 * SECOND).1, 5_492.0);
        let again = fleet.submit(50 * SECOND, "a", "w", &history);
        held(&again, Reason::Ceiling);
        assert_eq!((again.receipt.need_tokens, again.receipt.limit - again.receipt.commit_tokens as f64), (4_993, 4_008.0));
        assert!(fleet.end(60 * SECOND, "c").is_empty());
        assert_eq!(fleet.end(70 * SECOND, "b")[0].turn, again.turn);
        assert_eq!(fleet.books(70 * SECOND).1, 4_993.0);
    }
}

/// Order between workloads: weights A 2, B 1, price 1; cap 0 -> 4: A1 B1 A2 A3; then one end at a time: B2 A4 A5; C arrives
/// with V 0 and is lifted to the clock: B3 C1 A6.
#[test]
fn order_and_lift() {
    let mut fleet = Fleet::new(1, &[("r", 1e6)], &["A", "B", "C"]);
    fleet.limit(0, |limits| (limits.session_cap, limits.weight) = (Some(vec![0.0]), Some(vec![2.0, 1.0, 1.0])));
    let mut names = std::collections::BTreeMap::new();
    for workload in ["A", "B"] {
        for at in 1..=8 {
            let name = format!("{workload}{at}");
            names.insert(fleet.submit(0, &name, workload, &[(at * 100, 10)]).turn, name);
        }
    }
    fleet.limit(1, |limits| limits.session_cap = Some(vec![4.0]));
    let name_all =
        |names: &std::collections::BTreeMap<_, String>, words: Vec<Decision>| words.iter().map(|word| names[&word.turn].clone()).collect::<Vec<_>>();
    let mut running = name_all(&names, fleet.drain());
    assert_eq!(running, ["A1", "B1", "A2", "A3"]);
    let mut next = |fleet: &mut Fleet, names: &std::collections::BTreeMap<_, String>, now: u64| {
        let ended = running.remove(0);
        let words = name_all(names, fleet.end(now, &ended));
        assert_eq!(words.len(), 1);
        running.push(words[0].clone());
        words[0].clone()
    };
    assert_eq!([2, 3, 4].map(|now| next(&mut fleet, &names, now)), ["B2", "A4", "A5"]);
    for at in 1..=3 {
        let name = format!("C{at}");
        names.insert(fleet.submit(5, &name, "C", &[(at * 100, 10)]).turn, name);
    }
    assert_eq!([6, 7, 8].map(|now| next(&mut fleet, &names, now)), ["B3", "C1", "A6"]);
}

/// Blocks of 1. Ceiling 1,000, X 600 running, bypass 2: a blocked turn of 700 lets 1,400 tokens pass, then its replica drains for it.
#[test]
fn bounded_bypass() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["w"]);
    fleet.limit(0, |limits| limits.bypass = Some(2.0));
    fleet.submit(0, "x", "w", &[(0, 600)]);
    let big = fleet.submit(0, "h", "w", &[(10_000, 700)]);
    held(&big, Reason::Ceiling);
    let mut small = 0u32;
    let mut running = std::collections::VecDeque::new();
    for _ in 0..4 {
        small += 1;
        placed(&fleet.submit(1, &format!("s{small}"), "w", &[(20_000 + small * 1_000, 100)]));
        running.push_back(small);
    }
    while small < 14 {
        small += 1;
        let next = fleet.submit(2, &format!("s{small}"), "w", &[(20_000 + small * 1_000, 100)]);
        held(&next, Reason::Ceiling);
        let woken = fleet.end(2, &format!("s{}", running.pop_front().unwrap()));
        assert_eq!((woken.len(), &woken[0].turn), (1, &next.turn));
        running.push_back(small);
    }
    let last = fleet.submit(3, "s15", "w", &[(90_000, 100)]);
    held(&last, Reason::Reserved);
    assert!(fleet.end(4, "x").is_empty(), "room 600 for a need of 700");
    let woken = fleet.end(5, &format!("s{}", running.pop_front().unwrap()));
    assert_eq!((woken.len(), &woken[0].turn), (1, &big.turn));
    let waits = fleet.submit(6, "s15", "w", &[(90_000, 101)]);
    held(&waits, Reason::Ceiling);
}

/// Blocks of 1. Ceiling 1,000, bypass 0.1. A paused session that blocks ahead of it in the line does not take the credit of
/// the oldest blocked turn: the replica drains for the 700 that came first, not for the 300 that came back.
#[test]
fn the_oldest_blocked_turn_owns_the_credit() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["w"]);
    fleet.limit(0, |limits| limits.bypass = Some(0.1));
    fleet.submit(0, "x", "w", &[(0, 500)]);
    let first = fleet.submit(0, "p", "w", &[(1_000, 300)]);
    fleet.complete(1, &first, 0);
    placed(&fleet.submit(2, "q", "w", &[(2_000, 400)]));
    assert_eq!(fleet.router.stats().pauses, 1, "q took the place of the idle p");
    let oldest = fleet.submit(3, "h", "w", &[(3_000, 700)]);
    held(&oldest, Reason::Ceiling);
    let back = fleet.submit(4, "p", "w", &[(1_000, 300)]);
    held(&back, Reason::Ceiling);
    for at in 0..2 {
        placed(&fleet.submit(5, &format!("s{at}"), "w", &[(5_000 + at * 100, 50)]));
    }
    assert!(fleet.end(6, "x").is_empty(), "room 500: enough for p, kept for h");
    let woken = fleet.end(7, "q");
    assert_eq!(woken.iter().map(|word| &word.turn).collect::<Vec<_>>(), [&oldest.turn]);
    let woken = fleet.end(8, "h");
    assert_eq!(woken.iter().map(|word| &word.turn).collect::<Vec<_>>(), [&back.turn]);
}

/// Blocks of 1. "Never fits" is tested on the prompt, not on prompt + expected growth: a first session is placed alone.
#[test]
fn tiny_replica() {
    let mut fleet = Fleet::new(1, &[("r", 10_000.0)], &["w"]);
    fleet.limit(0, |limits| {
        (limits.ceiling_tokens, limits.overflow_tokens, limits.growth_tokens) = (Some(vec![9_500.0]), Some(vec![10_000.0]), Some(vec![60_000.0]));
    });
    placed(&fleet.submit(0, "a", "w", &[(0, 3_000)]));
    assert_eq!(fleet.books(0).1, 25_073.0);
    let second = fleet.submit(0, "b", "w", &[(10_000, 3_000)]);
    held(&second, Reason::Ceiling);
    assert_eq!((second.receipt.need_tokens, second.receipt.limit - second.receipt.commit_tokens as f64), (25_073, -15_573.0));
    for tokens in [9_700, 12_000] {
        let decision = fleet.submit(0, "c", "w", &[(50_000, tokens)]);
        assert_eq!((decision.status, decision.reason), (Status::Rejected, Reason::TooLarge));
    }
    assert_eq!(fleet.end(1, "a")[0].turn, second.turn);
}

/// Blocks of 16. A compacted context is charged as what it is now: the old path goes when the new prompt is placed.
#[test]
fn compaction() {
    let mut fleet = Fleet::new(16, &[("r", 1e6)], &["w"]);
    let a = fleet.submit(0, "a", "w", &[(0, 4_000)]);
    fleet.complete(1, &a, 4_000);
    fleet.submit(2, "b", "w", &[(0, 2_000), (500_000, 1_600)]);
    assert_eq!(fleet.books(2).0, 600.0);
    placed(&fleet.submit(3, "a", "w", &[(0, 2_000), (600_000, 1_008)]));
    assert_eq!(fleet.books(3).0, 288.0);
    assert_eq!(fleet.router.stats().edited, 1);
    fleet.end(4, "b");
    assert_eq!(fleet.books(4).0, 188.0);
    fleet.end(5, "a");
    fleet.end(5, "a");
    assert_eq!(fleet.books(5), (0.0, 0.0));
}

/// Charge is not protection: the engine evicts what was used least recently, and the ledger follows. Block 1.
#[test]
fn an_idle_session_loses_what_the_engine_evicts() {
    let mut fleet = Fleet::new(1, &[("r", 100.0)], &["w"]);
    fleet.limit(0, |limits| limits.lease_s = Some(vec![600.0]));
    let a = fleet.submit(0, "a", "w", &[(1_000, 40)]);
    fleet.complete(SECOND, &a, 0);
    let b = fleet.submit(2 * SECOND, "b", "w", &[(2_000, 50)]);
    fleet.complete(3 * SECOND, &b, 0);
    fleet.end(4 * SECOND, "b");
    assert_eq!(fleet.books(4 * SECOND).0, 40.0);
    // c fits beside a's charge; in the cache the ended b is newer than the idle a, so a's tail makes room: 40 + 50 + 45 - 100.
    let c = fleet.submit(5 * SECOND, "c", "w", &[(3_000, 45)]);
    placed(&c);
    assert_eq!(fleet.books(5 * SECOND).0, 5.0 + 45.0);
    assert_eq!(fleet.column(5 * SECOND, "lost_tokens"), [35.0]);
    assert_eq!(fleet.router.peek_session("a").unwrap()[0].1, 5);
    // a keeps its place: its next turn passes at once and claims its whole prompt again.
    let again = fleet.submit(6 * SECOND, "a", "w", &[(1_000, 40), (4_000, 2)]);
    assert_eq!((again.status, again.reason, again.cached_tokens), (Status::Placed, Reason::Continuation, 5));
    assert_eq!(fleet.books(6 * SECOND).0, 42.0 + 45.0);
    fleet.end(7 * SECOND, "a");
    fleet.end(7 * SECOND, "c");
    assert_eq!(fleet.books(7 * SECOND), (0.0, 0.0));
}

/// A flush frees those who were there: who was admitted since, on a replica that came back under its number, stays. Block 16.
#[test]
fn a_replica_that_came_back_frees_nobody() {
    let mut fleet = Fleet::new(16, &[("r1", 1e6), ("r2", 1e6)], &["w"]);
    fleet.router.lose_replica(0, "r1").unwrap();
    fleet.router.add_replica(0, ReplicaConfig::new("r1", 1e6)).unwrap();
    // Another session makes r1 the dearer one, and nothing of a's short prompt is ever cached.
    let (prompt, other) = (fleet.prompt(&[(0, 4)]), fleet.prompt(&[(1_000, 1_600)]));
    let only_r1 = Some(&["r1"][..]);
    fleet.router.submit(1, &Submit { session: Some("b"), candidates: only_r1, ..Submit::new(TurnInput::Prompt(&other)) }).unwrap();
    let submit = |router: &mut Router, now, only: Option<&[&str]>| {
        router.submit(now, &Submit { session: Some("a"), candidates: only, ..Submit::new(TurnInput::Prompt(&prompt)) }).unwrap()
    };
    let first = submit(&mut fleet.router, 1, only_r1);
    // It never completed a turn, but what it generated is its history.
    fleet.router.abort(2, &first.turn, &Completion { output: Some(&[&[7; 16]]), ..Completion::default() }).unwrap();
    for now in 3..20 {
        let next = submit(&mut fleet.router, now, None);
        assert_eq!((next.reason, next.replica.as_deref()), (Reason::Continuation, Some("r1")));
        fleet.router.abort(now, &next.turn, &Completion { output: Some(&[&[7]]), ..Completion::default() }).unwrap();
    }
    fleet.router.audit().unwrap();
}
