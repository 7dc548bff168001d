//! Small scenarios with numbers worked out by hand: guarantees, limits, families, owners, the fleet, what callers choose themselves.
#![allow(clippy::float_cmp, reason = "whole numbers of tokens")]

#[path = "common/fleet.rs"]
mod fleet;

use fleet::{Fleet, SECOND, held, placed};
use turnout_core::router::types::{Completion, Decision, Effect, Metrics, Reason, ReplicaConfig, Status, Submit, TurnInput};

/// Blocks of 1. Ceiling 1,000, equal shares, A is guaranteed 400. B holds ten times 100, four of them idle under a lease of 60 s.
/// A needs 250: it is entitled to 250 and B to 750, so B's longest idle go until it fits. A needs 200 more: B is entitled to 550,
/// room 50 and reclaimable 100 are too little, and nothing is taken. When one more of B's is idle, both go.
#[test]
fn guarantee() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["a", "b"]);
    fleet.limit(0, |limits| {
        limits.guarantee_tokens = Some(vec![400.0, 0.0]);
        limits.lease_s = Some(vec![60.0; 2]);
    });
    let b: Vec<Decision> = (0..10).map(|at| fleet.submit(0, &format!("b{at}"), "b", &[(at * 1_000, 100)])).collect();
    b.iter().for_each(placed);
    for (at, turn) in b.iter().enumerate().take(5).skip(1) {
        fleet.complete(at as u64 * SECOND, turn, 0);
    }
    let first = fleet.submit(10 * SECOND, "a0", "a", &[(50_000, 250)]);
    placed(&first);
    assert_eq!((fleet.books(10 * SECOND).1, fleet.column(10 * SECOND, "pauses")[1]), (950.0, 3.0));
    let second = fleet.submit(10 * SECOND, "a1", "a", &[(60_000, 200)]);
    held(&second, Reason::Ceiling);
    assert_eq!((second.receipt.reclaimable_tokens, fleet.column(10 * SECOND, "pauses")[1]), (100, 3.0));
    fleet.complete(12 * SECOND, &b[5], 0);
    let woken = fleet.drain();
    assert_eq!((woken.len(), &woken[0].turn), (1, &second.turn));
    assert_eq!((fleet.books(12 * SECOND).1, fleet.column(12 * SECOND, "pauses")[1]), (950.0, 5.0));
}

/// Blocks of 1. Who has less than its guarantee comes first, whatever the virtual times say, and only to its guarantee.
#[test]
fn below_the_guarantee_comes_first() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["a", "b"]);
    fleet.limit(0, |limits| limits.session_cap = Some(vec![0.0]));
    for at in 0..4 {
        held(&fleet.submit(0, &format!("b{at}"), "b", &[(at * 1_000, 100)]), Reason::SessionCap);
        held(&fleet.submit(0, &format!("a{at}"), "a", &[(50_000 + at * 1_000, 100)]), Reason::SessionCap);
    }
    // b is guaranteed 150 tokens: its first two turns go before any of a, though ties go to a; then they alternate, a first.
    fleet.limit(1, |limits| {
        limits.guarantee_tokens = Some(vec![0.0, 150.0]);
        limits.session_cap = Some(vec![6.0]);
    });
    let order: Vec<String> = fleet.drain().iter().map(|word| word.receipt.commit_tokens.to_string() + &word.turn).collect();
    assert_eq!(order.len(), 6);
    let view = fleet.column(1, "sessions_running");
    assert_eq!(view, [3.0, 3.0]);
    assert_eq!(fleet.column(1, "virtual_time"), [3.0, 3.0]);
    // Guarantees that the ceilings cannot give are scaled down alike.
    fleet.limit(2, |limits| limits.guarantee_tokens = Some(vec![3_000.0, 1_000.0]));
    assert_eq!(fleet.column(2, "guaranteed_tokens"), [750.0, 250.0]);
}

/// Blocks of 1. Two parents fill both slots and wait for their children: a child takes no slot, and takes its own parent's room.
#[test]
fn sub_agents() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["w"]);
    fleet.limit(0, |limits| {
        limits.session_cap = Some(vec![2.0]);
        limits.lease_s = Some(vec![1e9]);
    });
    for (name, first) in [("p1", 0), ("p2", 10_000)] {
        let turn = fleet.submit(0, name, "w", &[(first, 450)]);
        placed(&turn);
        fleet.complete(0, &turn, 0);
    }
    let stranger = fleet.submit(1, "s", "w", &[(20_000, 10)]);
    held(&stranger, Reason::SessionCap);
    let child = |fleet: &mut Fleet, name: &str, parent: &str, first: u32| {
        let prompt = fleet.prompt(&[(first, 200)]);
        let submit = Submit { session: Some(name), parent: Some(parent), ..Submit::new(TurnInput::Prompt(&prompt)) };
        fleet.router.submit(SECOND, &submit).unwrap()
    };
    let c1 = child(&mut fleet, "c1", "p1", 30_000);
    placed(&c1);
    // p1 was paused for its child, which counts in no cap: a slot is free for the stranger.
    assert_eq!(fleet.drain().iter().map(|word| word.turn.clone()).collect::<Vec<_>>(), std::slice::from_ref(&stranger.turn));
    assert_eq!(fleet.books(SECOND).1, 660.0);
    fleet.end(SECOND, "s");
    assert_eq!((fleet.books(SECOND).1, fleet.column(SECOND, "pauses")[0]), (650.0, 1.0));
    let c2 = child(&mut fleet, "c2", "p2", 40_000);
    placed(&c2);
    assert_eq!((fleet.books(SECOND).1, fleet.column(SECOND, "pauses")[0]), (850.0, 1.0));
    fleet.end(SECOND, "c1");
    assert_eq!(fleet.books(SECOND).1, 650.0);
    let back = fleet.submit(2 * SECOND, "p1", "w", &[(0, 450), (50_000, 20)]);
    held(&back, Reason::Ceiling);
    assert_eq!(back.receipt.limit - back.receipt.commit_tokens as f64, 350.0);
    let woken = fleet.end(3 * SECOND, "c2");
    assert_eq!((woken.len(), &woken[0].turn), (1, &back.turn));
    assert_eq!(fleet.books(3 * SECOND).1, 920.0);
}

/// Blocks of 16. A workload's charge and limit count what it shares with others in full: nothing that they do changes them.
#[test]
fn isolation_of_charge() {
    let mut fleet = Fleet::new(16, &[("r", 1e6)], &["w1", "w2"]);
    fleet.limit(0, |limits| limits.limit_tokens = Some(vec![1_700.0, f64::INFINITY]));
    placed(&fleet.submit(0, "a", "w1", &[(0, 1_600)]));
    placed(&fleet.submit(0, "b", "w2", &[(0, 640)]));
    assert_eq!((fleet.books(0).0, fleet.column(0, "workload_tokens")), (100.0, vec![1_600.0, 640.0]));
    for time in [1, 2] {
        placed(&fleet.submit(time, "six", "w1", &[(0, 1_600), (10_000, 96)]));
        assert_eq!(fleet.column(time, "committed_tokens")[0], 1_696.0);
        let more = fleet.submit(time, "more", "w1", &[(0, 1_600), (20_000, 16)]);
        held(&more, Reason::Limit);
        assert_eq!((more.receipt.need_tokens, more.receipt.limit), (16, 1_696.0), "1,712 is above the whole blocks of 1,700 tokens");
        fleet.end(time, "more");
        fleet.end(time, "six");
        // 7 blocks more than the shared 100 could never be placed: not held, but refused.
        let seven = fleet.submit(time, "seven", "w1", &[(0, 1_600), (10_000, 112)]);
        assert_eq!((seven.status, seven.reason), (Status::Rejected, Reason::TooLarge));
        fleet.end(time, "b");
    }
}

/// Blocks of 1. The limit of a workload counts on all replicas, and so do the idle sessions that can be paused for it.
#[test]
fn a_limit_is_met_by_pauses_anywhere() {
    let mut fleet = Fleet::new(1, &[("r0", 1_000.0), ("r1", 1_000.0)], &["w"]);
    fleet.limit(0, |limits| limits.limit_tokens = Some(vec![500.0]));
    for (name, replica, first) in [("s0", "r0", 0), ("s1", "r1", 10_000)] {
        let prompt = fleet.prompt(&[(first, 200)]);
        let submit = Submit { session: Some(name), candidates: Some(&[replica]), ..Submit::new(TurnInput::Prompt(&prompt)) };
        let turn = fleet.router.submit(0, &submit).unwrap();
        placed(&turn);
        fleet.complete(0, &turn, 0);
    }
    let prompt = fleet.prompt(&[(20_000, 400)]);
    let submit = Submit { session: Some("s2"), candidates: Some(&["r0"]), ..Submit::new(TurnInput::Prompt(&prompt)) };
    placed(&fleet.router.submit(1, &submit).unwrap());
    assert_eq!((fleet.column(1, "committed_tokens")[0], fleet.column(1, "pauses")[0]), (400.0, 2.0));
}

/// Blocks of 1. A replica that is drained admits nobody; what runs goes on, and an idle session moves with its next turn. Removed,
/// it goes when the last turn ends; a new configuration opens it again.
#[test]
fn drain_remove_and_open_again() {
    let mut fleet = Fleet::new(1, &[("r0", 1_000.0)], &["w"]);
    let running = fleet.submit(0, "running", "w", &[(0, 100)]);
    let idle = fleet.submit(0, "idle", "w", &[(10_000, 100)]);
    fleet.complete(0, &idle, 10);
    fleet.router.drain_replica(1, "r0").unwrap();
    assert_eq!(fleet.column(1, "accepting"), [0.0]);
    held(&fleet.submit(1, "new", "w", &[(20_000, 100)]), Reason::NoReplica);
    let joins = fleet.submit(1, "running", "w", &[(0, 100), (30_000, 5)]);
    assert_eq!((joins.status, joins.reason), (Status::Placed, Reason::Continuation));
    held(&fleet.submit(1, "idle", "w", &[(10_000, 100), (40_000, 20)]), Reason::NoReplica);
    fleet.router.add_replica(2, ReplicaConfig::new("r1", 500.0)).unwrap();
    let words = fleet.drain();
    assert_eq!(
        words.iter().map(|word| (word.reason, word.replica.as_deref())).collect::<Vec<_>>(),
        [(Reason::Resumed, Some("r1")), (Reason::Admitted, Some("r1"))]
    );
    fleet.router.remove_replica(3, "r0").unwrap();
    fleet.complete(4, &running, 0);
    assert_eq!(fleet.router.replicas().len(), 2);
    fleet.complete(5, &joins, 0);
    assert_eq!(fleet.router.replicas().iter().map(|name| &**name).collect::<Vec<_>>(), ["r1"]);
    fleet.router.drain_replica(6, "r1").unwrap();
    let opened = fleet.router.set_replica(7, ReplicaConfig::new("r1", 200.0)).unwrap();
    assert_eq!(opened.effect, Effect::Done);
    assert_eq!((fleet.column(7, "accepting"), fleet.column(7, "kv_tokens")), (vec![1.0], vec![200.0]));
    assert_eq!(fleet.router.set_replica(8, ReplicaConfig::new("r1", 200.0)).unwrap().effect, Effect::Duplicate);
    // What runs there is more than the smaller replica holds: the paused session of the removed one waits until that is over.
    let back = fleet.submit(9, "running", "w", &[(0, 100), (30_000, 10)]);
    held(&back, Reason::Overcommitted);
    assert!(fleet.end(10, "idle").is_empty(), "100 are charged, and 110 needed");
    assert_eq!(fleet.end(11, "new").iter().map(|word| word.turn.clone()).collect::<Vec<_>>(), [back.turn]);
}

/// Blocks of 1. The sessions of an owner that is gone end, its waiting turns too; those of others stay.
#[test]
fn a_lost_owner_leaves_nothing() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["w"]);
    let submit = |fleet: &mut Fleet, name: &str, owner: Option<&str>, first: u32| {
        let prompt = fleet.prompt(&[(first, 400)]);
        fleet.router.submit(0, &Submit { session: Some(name), owner, ..Submit::new(TurnInput::Prompt(&prompt)) }).unwrap()
    };
    let runs = submit(&mut fleet, "a", Some("one"), 0);
    placed(&runs);
    placed(&submit(&mut fleet, "b", Some("two"), 10_000));
    let waited = submit(&mut fleet, "c", Some("one"), 20_000);
    held(&waited, Reason::Ceiling);
    let waits = submit(&mut fleet, "d", None, 30_000);
    held(&waits, Reason::Ceiling);
    // Who names a session last answers for it.
    placed(&submit(&mut fleet, "b", Some("one"), 10_000));
    placed(&submit(&mut fleet, "b", Some("two"), 10_000));
    assert_eq!(fleet.router.owner_lost(1, "one").effect, Effect::Done);
    let words: Vec<_> = fleet.drain().into_iter().map(|word| (word.turn, word.status, word.reason)).collect();
    let ended = |turn: &Decision| (turn.turn.clone(), Status::Lost, Reason::SessionEnded);
    assert!(words.contains(&ended(&runs)) && words.contains(&ended(&waited)), "whoever waits is told: {words:?}");
    assert_eq!(words[2..], [(waits.turn, Status::Placed, Reason::Admitted)]);
    assert_eq!(fleet.router.stats().live_sessions, 2);
    assert_eq!(fleet.router.owner_lost(2, "one").effect, Effect::Unknown);
}

/// Blocks of 16. A turn that nobody reports on is charged nowhere, and what shares its prompt follows it.
#[test]
fn chosen_without_a_trace() {
    let mut fleet = Fleet::new(16, &[("r0", 1e6), ("r1", 1e6)], &["w"]);
    let choose = |fleet: &mut Fleet, session: Option<&str>, parts: &[(u32, u32)]| {
        let prompt = fleet.prompt(parts);
        fleet.router.choose(0, &Submit { session, ..Submit::new(TurnInput::Prompt(&prompt)) }).unwrap()
    };
    let first = choose(&mut fleet, None, &[(0, 1_600)]);
    assert_eq!((first.status, first.reason, &*first.turn, first.cached_tokens), (Status::Placed, Reason::Chosen, "", 0));
    let second = choose(&mut fleet, Some("unknown"), &[(0, 1_600), (5_000, 16)]);
    assert_eq!((second.replica, second.cached_tokens), (first.replica.clone(), 1_600));
    assert_eq!((fleet.column(0, "charge_tokens"), fleet.router.stats().live_sessions, fleet.router.stats().chosen), (vec![0.0, 0.0], 0, 2));
    // A session that is charged stays where it is, whatever others hold.
    let known = fleet.submit(0, "known", "w", &[(90_000, 160)]);
    assert_ne!(known.replica, first.replica, "the prefill that was chosen counts as queued");
    assert_eq!(choose(&mut fleet, Some("known"), &[(0, 1_600), (5_000, 16)]).replica, known.replica);
}

/// Blocks of 1. The caller's own choice stands, and seconds that it adds to a cost move a tie.
#[test]
fn at_and_bias() {
    let mut fleet = Fleet::new(1, &[("r0", 1_000.0), ("r1", 1_000.0)], &["w"]);
    for (at, bias) in [("r0", 0.5), ("r1", -0.5)].into_iter().cycle().take(8).enumerate() {
        let prompt = fleet.prompt(&[(at as u32 * 1_000, 10)]);
        let submit = Submit { bias: &[bias], ..Submit::new(TurnInput::Prompt(&prompt)) };
        assert_eq!(fleet.router.submit(0, &submit).unwrap().replica.as_deref(), Some("r1"));
    }
    let prompt = fleet.prompt(&[(90_000, 995)]);
    let mut at = |name: &'static str, session: &'static str| {
        let submit = Submit { session: Some(session), at: Some(name), ..Submit::new(TurnInput::Prompt(&prompt)) };
        fleet.router.submit(0, &submit).unwrap()
    };
    let (free, full) = (at("r0", "a"), at("r1", "b"));
    assert_eq!((free.reason, free.replica.as_deref()), (Reason::Admitted, Some("r0")));
    assert_eq!((full.reason, full.replica.as_deref()), (Reason::Forced, Some("r1")));
    fleet.complete(1, &free, 0);
    // Its idle session moves with it.
    let prompt = fleet.prompt(&[(90_000, 996)]);
    let submit = Submit { session: Some("a"), at: Some("r1"), ..Submit::new(TurnInput::Prompt(&prompt)) };
    assert_eq!(fleet.router.submit(2, &submit).unwrap().replica.as_deref(), Some("r1"));
    assert_eq!(fleet.column(2, "charge_tokens")[0], 0.0);
    let both = Submit { at: Some("r1"), candidates: Some(&["r0"]), ..submit };
    assert!(fleet.router.submit(2, &both).unwrap_err().to_string().starts_with("at: got \"r1\""));
    let nonsense = Submit { at: None, bias: &[("r0", f64::NAN)], ..submit };
    assert!(fleet.router.submit(2, &nonsense).unwrap_err().to_string().starts_with("bias: got NaN for \"r0\""));
}

/// Reports of an engine reach the view; a counter that falls back belongs to a restarted engine, and a capacity replaces the configured one.
#[test]
fn what_engines_report() {
    let mut fleet = Fleet::new(1, &[("r", f64::INFINITY)], &["w"]);
    assert!(fleet.column(0, "engine_waiting")[0].is_nan() && fleet.column(0, "preemptions_per_s")[0].is_nan());
    assert_eq!(fleet.column(0, "metrics_age_s"), [f64::INFINITY]);
    let mut observe = |now: u64, total: u64| {
        let metrics = Metrics { waiting: Some(7), preemptions_total: Some(total), kv_tokens: Some(500.0), ..Metrics::default() };
        fleet.router.observe(now * SECOND, "r", &metrics).unwrap();
    };
    observe(1, 100);
    observe(2, 110);
    observe(3, 5);
    assert_eq!((fleet.column(5 * SECOND, "engine_waiting"), fleet.column(5 * SECOND, "metrics_age_s")), (vec![7.0], vec![2.0]));
    let rate = fleet.column(3 * SECOND, "preemptions_per_s")[0];
    assert!((0.16..=15.0 / 86.56).contains(&rate), "15 in the time constant of 86.56 s, slightly faded: {rate}");
    assert_eq!(fleet.column(5 * SECOND, "kv_tokens"), [500.0]);
    placed(&fleet.submit(5 * SECOND, "a", "w", &[(0, 400)]));
    held(&fleet.submit(5 * SECOND, "b", "w", &[(1_000, 200)]), Reason::Ceiling);
    let nonsense = Metrics { kv_fraction: Some(1.5), ..Metrics::default() };
    assert!(fleet.router.observe(6 * SECOND, "r", &nonsense).unwrap_err().to_string().starts_with("kv_fraction: got 1.5"));
}

/// Blocks of 1. Inside a workload the highest priority is placed first, then the earliest; a paused session before all new ones.
#[test]
fn priority_inside_a_workload() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["w"]);
    let paused = fleet.submit(0, "paused", "w", &[(90_000, 10)]);
    fleet.complete(0, &paused, 0);
    fleet.router.lose_replica(0, "r").unwrap();
    for (at, priority) in [0, 5, -1, 5].into_iter().enumerate() {
        let (name, prompt) = (format!("s{at}"), fleet.prompt(&[(at as u32 * 1_000, 10)]));
        let submit = Submit { turn: Some(&name), session: Some(&name), priority, ..Submit::new(TurnInput::Prompt(&prompt)) };
        assert_eq!(fleet.router.submit(0, &submit).unwrap().status, Status::Held);
    }
    let back = fleet.submit(0, "paused", "w", &[(90_000, 10), (95_000, 1)]);
    fleet.router.add_replica(1, ReplicaConfig::new("r", 1_000.0)).unwrap();
    let order: Vec<String> = fleet.drain().iter().map(|word| word.turn.to_string()).collect();
    assert_eq!(order, [&*back.turn, "s1", "s3", "s0", "s2"]);
}

/// Blocks of 1. A retry ends the last turn of a replica that is being removed, and may go nowhere else: held, and lost at once.
#[test]
fn a_retry_that_only_a_removed_replica_could_serve() {
    let mut fleet = Fleet::new(1, &[("r0", 1_000.0), ("r1", 1_000.0)], &["w"]);
    let prompt = fleet.prompt(&[(0, 100)]);
    let submit = Submit { turn: Some("t"), candidates: Some(&["r0"]), ..Submit::new(TurnInput::Prompt(&prompt)) };
    placed(&fleet.router.submit(0, &submit).unwrap());
    fleet.router.remove_replica(1, "r0").unwrap();
    held(&fleet.router.submit(2, &Submit { attempt: 1, ..submit }).unwrap(), Reason::NoReplica);
    let words = fleet.drain();
    assert_eq!((words.len(), words[0].status, words[0].attempt), (1, Status::Lost, 1));
    assert_eq!(fleet.router.replicas().len(), 1);
}

/// Blocks of 1. A turn that a replica is reserved for is given up: who was kept out is placed, though nothing else changed there.
#[test]
fn a_reservation_that_is_given_up_lets_others_in() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["w"]);
    fleet.limit(0, |limits| limits.bypass = Some(0.0));
    placed(&fleet.submit(0, "x", "w", &[(0, 600)]));
    let large = fleet.submit(0, "large", "w", &[(10_000, 700)]);
    held(&large, Reason::Ceiling);
    let small = fleet.submit(0, "small", "w", &[(20_000, 100)]);
    held(&small, Reason::Reserved);
    fleet.router.abort(1, &large.turn, &Completion::default()).unwrap();
    assert_eq!(fleet.drain().iter().map(|word| word.turn.clone()).collect::<Vec<_>>(), [small.turn]);
}

/// Blocks of 1. A replica is reserved for a turn, and more turns than a scan looks at come before it in the line: it is asked all the
/// same. Nobody else may have the replica, so otherwise it would stand empty for ever.
#[test]
fn a_reserved_turn_is_asked_behind_the_lookahead() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["w"]);
    fleet.limit(0, |limits| limits.bypass = Some(0.0));
    placed(&fleet.submit(0, "x", "w", &[(0, 600)]));
    let large = fleet.submit(0, "large", "w", &[(10_000, 700)]);
    held(&large, Reason::Ceiling);
    for at in 0..20u32 {
        let (name, prompt) = (format!("s{at}"), fleet.prompt(&[(20_000 + at * 1_000, 100)]));
        let submit = Submit { turn: Some(&name), session: Some(&name), priority: 1, ..Submit::new(TurnInput::Prompt(&prompt)) };
        held(&fleet.router.submit(1, &submit).unwrap(), if at < 8 { Reason::Reserved } else { Reason::Behind });
    }
    let woken: Vec<String> = fleet.end(2, "x").iter().map(|word| word.turn.to_string()).collect();
    assert_eq!(woken, [&*large.turn, "s0", "s1", "s2"]);
}

/// Blocks of 1. The only slot is taken by a parent whose turn runs and waits for a child: the child counts in no cap. A stranger does.
#[test]
fn a_child_of_a_running_parent_needs_no_slot() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["w"]);
    fleet.limit(0, |limits| limits.session_cap = Some(vec![1.0]));
    placed(&fleet.submit(0, "parent", "w", &[(0, 100)]));
    held(&fleet.submit(0, "stranger", "w", &[(10_000, 100)]), Reason::SessionCap);
    let prompt = fleet.prompt(&[(20_000, 100)]);
    let submit = Submit { session: Some("child"), parent: Some("parent"), ..Submit::new(TurnInput::Prompt(&prompt)) };
    placed(&fleet.router.submit(0, &submit).unwrap());
}

/// Blocks of 1. B needs room and finds an idle session of A whose lease is over. While A has no more than its guarantee it gives
/// nothing; without the guarantee it gives way.
#[test]
fn who_has_no_more_than_its_guarantee_gives_nothing() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["a", "b"]);
    fleet.limit(0, |limits| limits.guarantee_tokens = Some(vec![400.0, 0.0]));
    let idle = fleet.submit(0, "a", "a", &[(0, 300)]);
    fleet.complete(0, &idle, 0);
    placed(&fleet.submit(0, "b0", "b", &[(10_000, 600)]));
    let waits = fleet.submit(SECOND, "b1", "b", &[(20_000, 200)]);
    held(&waits, Reason::Ceiling);
    assert_eq!(fleet.column(SECOND, "pauses"), [0.0, 0.0]);
    fleet.limit(2 * SECOND, |limits| limits.guarantee_tokens = None);
    assert_eq!(fleet.drain().iter().map(|word| word.turn.clone()).collect::<Vec<_>>(), [waits.turn]);
    assert_eq!(fleet.column(2 * SECOND, "pauses"), [1.0, 0.0]);
}

/// Blocks of 1. Two idle sessions of 300, the lease of one is over: 800 tokens need both, so neither goes until the other lease ends.
#[test]
fn one_lease_that_is_over_opens_no_other() {
    let mut fleet = Fleet::new(1, &[("r", 1_000.0)], &["a", "b"]);
    fleet.limit(0, |limits| limits.lease_s = Some(vec![0.0, 60.0]));
    for (workload, first) in [("a", 0), ("b", 10_000)] {
        let turn = fleet.submit(0, workload, workload, &[(first, 300)]);
        fleet.complete(0, &turn, 0);
    }
    let waits = fleet.submit(SECOND, "new", "a", &[(20_000, 800)]);
    held(&waits, Reason::Ceiling);
    assert_eq!(fleet.column(SECOND, "pauses"), [0.0, 0.0]);
    fleet.router.tick(60 * SECOND);
    assert_eq!(fleet.drain().iter().map(|word| word.turn.clone()).collect::<Vec<_>>(), [waits.turn]);
}
