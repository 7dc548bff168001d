//! What other routers do, with numbers worked out by hand: their placements, and windows that shed. Blocks of 1; replicas `a`, `b` and
//! `c` of 1,000 tokens.
#![allow(clippy::float_cmp, reason = "whole numbers of tokens")]

use std::collections::BTreeSet;

use turnout_core::control::limits::Limits;
use turnout_core::control::view::Values;
use turnout_core::error::Error;
use turnout_core::router::Router;
use turnout_core::router::types::{Completion, Decision, Reason, ReplicaConfig, RouterConfig, Status, Submit, TurnInput, WorkloadConfig};

const SECOND: u64 = 1_000_000_000;

struct Fleet {
    router: Router,
    now: u64,
}

impl Fleet {
    fn new(placement: &str, args: &[(&str, f64)], seed: u64) -> Self {
        let replicas =
            ["a", "b", "c"].iter().map(|name| ReplicaConfig { prefill_tokens_per_s: 100.0, ..ReplicaConfig::new(name, 1_000.0) }).collect();
        let config = RouterConfig { replicas, block_tokens: 1, control_period_s: f64::INFINITY, seed, ..RouterConfig::default() };
        let mut fleet = Self { router: Router::new(config).unwrap(), now: 0 };
        fleet.limit(placement, args).unwrap();
        fleet
    }

    fn limit(&mut self, placement: &str, args: &[(&str, f64)]) -> Result<(), Error> {
        let placement_args = args.iter().map(|&(name, value)| (name.into(), value)).collect();
        self.set(Limits { placement: Some(placement.into()), placement_args, ..Limits::default() })
    }

    fn set(&mut self, limits: Limits) -> Result<(), Error> {
        let limits = Limits { replicas: self.router.replicas(), workloads: self.router.workloads(), ..limits };
        let step = self.router.view(self.now).step;
        self.router.set_limits(self.now, &limits, step).map(drop)
    }

    /// A turn with a prompt of `tokens` from `first`.
    fn submit(&mut self, session: &str, first: u32, tokens: u32) -> Decision {
        self.submit_to(session, first, tokens, None)
    }

    fn submit_to(&mut self, session: &str, first: u32, tokens: u32, only: Option<&str>) -> Decision {
        let prompt = self.router.hasher().prompt(&(first..first + tokens).collect::<Vec<u32>>());
        let only = only.map(|name| [name]);
        let submit = Submit { session: Some(session), candidates: only.as_ref().map(|names| &names[..]), ..Submit::new(TurnInput::Prompt(&prompt)) };
        let decision = self.router.submit(self.now, &submit).unwrap();
        assert_eq!(decision.status, Status::Placed);
        self.router.audit().unwrap();
        decision
    }

    fn complete(&mut self, decision: &Decision) {
        self.router.complete(self.now, &decision.turn, &Completion::default()).unwrap();
        self.router.audit().unwrap();
    }
}

/// Idle sessions on the first replica, by workload.
fn idle(router: &mut Router, now: u64) -> Vec<i64> {
    let workloads = router.workloads().len();
    let view = router.view(now);
    let Values::I64(values) = &view.column("sessions_idle").unwrap().values else { panic!("counts") };
    values[..workloads].to_vec()
}

fn on(decision: &Decision) -> &str {
    decision.replica.as_deref().unwrap()
}

#[test]
fn round_robin_goes_round_and_sessions_stay() {
    let mut fleet = Fleet::new("round_robin", &[], 0);
    let first: Vec<Decision> = (0..4).map(|at| fleet.submit(&format!("s{at}"), at * 100, 10)).collect();
    assert_eq!(first.iter().map(on).collect::<Vec<_>>(), ["a", "b", "c", "a"]);
    fleet.complete(&first[2]);
    let again = fleet.submit("s2", 200, 12);
    assert_eq!((on(&again), again.reason), ("c", Reason::Continuation), "a continuation is no step of the round");
    fleet.router.lose_replica(0, "b").unwrap();
    assert_eq!(on(&fleet.submit("s5", 500, 10)), "c");
    assert_eq!(on(&fleet.submit("s6", 600, 10)), "a");
}

#[test]
fn a_round_without_sticking_places_every_turn() {
    let mut fleet = Fleet::new("round_robin", &[("sticky", 0.0)], 0);
    let mut replicas = Vec::new();
    for at in 0..3 {
        let turn = fleet.submit("s", 0, 10 + at);
        replicas.push(on(&turn).to_owned());
        fleet.complete(&turn);
        assert_eq!(fleet.router.charge_tokens(), 0, "nothing stays charged between the turns");
    }
    assert_eq!(replicas, ["a", "b", "c"]);
}

#[test]
fn least_loaded_counts_turns_or_sessions() {
    let mut fleet = Fleet::new("least_loaded", &[], 0);
    let turns: Vec<Decision> = (0..3).map(|at| fleet.submit(&format!("s{at}"), at * 100, 10)).collect();
    assert_eq!(turns.iter().map(on).collect::<BTreeSet<_>>().len(), 3, "one each");
    fleet.complete(&turns[1]);
    assert_eq!(on(&fleet.submit("t", 900, 10)), on(&turns[1]), "the one turn less");
    // With sessions counted the idle one weighs as much as a running one: 1 + 1, 2 + 1, 1 + 1.
    fleet.limit("least_loaded", &[("sessions", 1.0)]).unwrap();
    fleet.complete(&turns[0]);
    assert_eq!(on(&fleet.submit("u", 950, 10)), on(&turns[0]), "0 turns + 1 session against 1 + 2 and 1 + 1");
    let ties: BTreeSet<String> = (0..20).map(|seed| on(&Fleet::new("least_loaded", &[], seed).submit("s", 0, 10)).to_owned()).collect();
    assert_eq!(ties.len(), 3, "ties are drawn by the seed");
}

#[test]
fn cache_aware_follows_the_match_until_out_of_balance() {
    let mut fleet = Fleet::new("cache_aware", &[("balance_abs", 2.0), ("balance_rel", 1.5)], 0);
    let first = fleet.submit_to("s0", 0, 100, Some("b"));
    assert_eq!(on(&first), "b");
    assert_eq!(on(&fleet.submit("s1", 0, 120)), "b", "100 of 120 are cached there: above 30 %");
    let miss = fleet.submit("s2", 5_000, 50);
    assert_ne!(on(&miss), "b", "nothing cached: the smallest cache");
    // 100 of 400 tokens are no match; b holds 120, the other one 50, the third nothing.
    let third = ["a", "c"].into_iter().find(|&name| name != on(&miss)).unwrap();
    let short: Vec<u32> = (0..100).chain(7_000..7_300).collect();
    let prompt = fleet.router.hasher().prompt(&short);
    let decision = fleet.router.submit(0, &Submit { session: Some("s3"), ..Submit::new(TurnInput::Prompt(&prompt)) }).unwrap();
    assert_eq!(on(&decision), third);
    // b runs 2, the others 1 each; one more match makes it 3 against 1, two more 4 against 1: 3 apart is above 2.
    assert_eq!(on(&fleet.submit("s4", 0, 110)), "b");
    assert_eq!(on(&fleet.submit("s5", 0, 110)), "b");
    assert_ne!(on(&fleet.submit("s6", 0, 110)), "b", "out of balance: the fewest turns");
}

/// b holds 100 tokens of the prompt and is charged with 300, a with 120, c with 150; the prompts have been computed (no queue).
#[test]
fn dynamo_weighs_prefill_against_blocks_held() {
    let scenario = |weight: f64| {
        let mut fleet = Fleet::new("dynamo", &[("overlap_weight", weight)], 0);
        for (session, first, tokens, replica) in [("x", 0, 300, "b"), ("y", 10_000, 120, "a"), ("z", 20_000, 150, "c")] {
            let turn = fleet.submit_to(session, first, tokens, Some(replica));
            fleet.router.progress(0, &turn.turn, 0, None).unwrap();
        }
        let tail: Vec<u32> = (0..100).chain(30_000..30_100).collect();
        let prompt = fleet.router.hasher().prompt(&tail);
        let decision = fleet.router.submit(0, &Submit { session: Some("n"), ..Submit::new(TurnInput::Prompt(&prompt)) }).unwrap();
        on(&decision).to_owned()
    };
    // a: 200 w + 320, b: 100 w + 400, c: 200 w + 350. They meet at w = 0.8.
    assert_eq!(scenario(0.7), "a");
    assert_eq!(scenario(0.9), "b");
    assert_eq!(scenario(0.0), "a");
}

#[test]
fn dynamo_counts_the_prefill_that_is_queued() {
    let mut fleet = Fleet::new("dynamo", &[("overlap_weight", 10.0)], 0);
    // 200 tokens at 100 a second: half of them are left after a second. a: 10 * (100 + 50) + 250; c holds 290 and nothing is queued.
    fleet.submit_to("x", 0, 200, Some("a"));
    let done = fleet.submit_to("z", 20_000, 290, Some("c"));
    fleet.router.progress(0, &done.turn, 0, None).unwrap();
    fleet.submit_to("y", 10_000, 900, Some("b"));
    fleet.now = SECOND;
    let decision = fleet.submit("n", 30_000, 50);
    assert_eq!(on(&decision), "c", "10 * 50 + 340");
}

#[test]
fn a_hash_keeps_sessions_where_they_are_when_others_go() {
    let names: Vec<String> = (0..60).map(|at| format!("session-{at}")).collect();
    let place = |lost: Option<&str>, seed: u64| -> Vec<String> {
        let mut fleet = Fleet::new("hash", &[], seed);
        if let Some(name) = lost {
            fleet.router.lose_replica(0, name).unwrap();
        }
        names.iter().zip(0..).map(|(name, at)| on(&fleet.submit(name, at * 10, 5)).to_owned()).collect()
    };
    let all = place(None, 0);
    assert_eq!(all, place(None, 99), "the seed has no part in it");
    for replica in ["a", "b", "c"] {
        assert!((10..=30).contains(&all.iter().filter(|&on| on == replica).count()), "{all:?}");
    }
    for (before, after) in all.iter().zip(place(Some("b"), 0)) {
        assert!(*before == after || before == "b", "only the sessions of b move");
    }
}

#[test]
fn bad_parameters_are_named_and_change_nothing() {
    let mut fleet = Fleet::new("round_robin", &[], 0);
    let mut refused = |placement: &str, args: &[(&str, f64)]| fleet.limit(placement, args).unwrap_err().to_string();
    for (placement, args, message) in [
        ("fifo", vec![], "limits.placement: got fifo, accepted is cost, round_robin, least_loaded, cache_aware, dynamo or hash"),
        ("cost", vec![("turns", 1.0)], "limits.placement_args[turns]: got 1, accepted is sticky"),
        ("cache_aware", vec![("cache_threshold", 1.5)], "limits.placement_args[cache_threshold]: got 1.5, accepted is a number from 0 to 1"),
        ("cache_aware", vec![("balance", 1.0)], "accepted is cache_threshold, balance_abs, balance_rel or sticky"),
        ("dynamo", vec![("temperature", f64::NAN)], "limits.placement_args[temperature]: got NaN, accepted is a finite number of at least 0"),
        ("dynamo", vec![("overlap_weight", f64::INFINITY)], "got inf, accepted is a finite number of at least 0"),
        ("least_loaded", vec![("turns", -1.0)], "limits.placement_args[turns]: got -1"),
        ("hash", vec![("sticky", 0.5)], "limits.placement_args[sticky]: got 0.5, accepted is 0 or 1"),
    ] {
        let told = refused(placement, &args);
        assert!(told.contains(message), "{told}");
    }
    assert_eq!(on(&fleet.submit("s0", 0, 10)), "a");
    assert_eq!(on(&fleet.submit("s1", 100, 10)), "b", "the old limits are in force");
}

/// One replica; three sessions of 10 tokens, two of them idle. The cap falls to 2: the one of these that came later goes. At a cap of 1
/// both others run and stay; the first of them to end its turn goes. Without `shed` all three stay.
#[test]
fn sessions_above_a_cap_are_shed_when_idle() {
    let scenario = |shed: bool| {
        let mut fleet = Fleet::new("cost", &[], 0);
        for name in ["b", "c"] {
            fleet.router.lose_replica(0, name).unwrap();
        }
        let limits = |cap: f64| Limits { session_cap: Some(vec![cap]), shed: Some(shed), lease_s: Some(vec![600.0]), ..Limits::default() };
        let turns: Vec<Decision> = (0..3).map(|at| fleet.submit(&format!("s{at}"), at * 1_000, 10)).collect();
        fleet.set(limits(3.0)).unwrap();
        fleet.complete(&turns[1]);
        fleet.complete(&turns[0]);
        let mut charges = vec![fleet.router.charge_tokens()];
        fleet.set(limits(2.0)).unwrap();
        charges.push(fleet.router.charge_tokens());
        let prompt = fleet.router.hasher().prompt(&(1_000..1_012).collect::<Vec<u32>>());
        let back = fleet.router.submit(0, &Submit { session: Some("s1"), ..Submit::new(TurnInput::Prompt(&prompt)) }).unwrap();
        assert_eq!(fleet.submit("s0", 0, 12).reason, Reason::Continuation);
        fleet.set(limits(1.0)).unwrap();
        charges.push(fleet.router.charge_tokens());
        fleet.complete(&turns[2]);
        charges.push(fleet.router.charge_tokens());
        (charges, back.status, back.reason)
    };
    assert_eq!(scenario(true), (vec![30, 20, 22, 12], Status::Held, Reason::SessionCap), "what runs is never cut");
    assert_eq!(scenario(false), (vec![30, 30, 34, 34], Status::Placed, Reason::Continuation));
}

/// Two workloads with two idle sessions each; a cap of 1 on the first sheds its later session and leaves the second workload alone.
#[test]
fn a_workload_sheds_its_own() {
    let workloads = ["v", "w"].iter().map(|name| WorkloadConfig::new(name)).collect();
    let replicas = vec![ReplicaConfig::new("a", 1_000.0)];
    let config = RouterConfig { replicas, workloads, block_tokens: 1, control_period_s: f64::INFINITY, ..RouterConfig::default() };
    let mut fleet = Fleet { router: Router::new(config).unwrap(), now: 0 };
    for (at, workload) in ["v", "w", "v", "w"].into_iter().enumerate() {
        let prompt = fleet.router.hasher().prompt(&[at as u32; 10]);
        let session = format!("s{at}");
        let submit = Submit { session: Some(&session), workload: Some(workload), ..Submit::new(TurnInput::Prompt(&prompt)) };
        let turn = fleet.router.submit(0, &submit).unwrap();
        fleet.complete(&turn);
    }
    assert_eq!(idle(&mut fleet.router, 0), [2, 2]);
    fleet.set(Limits { workload_cap: Some(vec![1.0, f64::INFINITY]), shed: Some(true), ..Limits::default() }).unwrap();
    assert_eq!(idle(&mut fleet.router, 0), [1, 2]);
    let prompt = fleet.router.hasher().prompt(&[0; 11]);
    let older = fleet.router.submit(0, &Submit { session: Some("s0"), ..Submit::new(TurnInput::Prompt(&prompt)) }).unwrap();
    assert_eq!(older.reason, Reason::Continuation, "the older one stayed");
}
