//! Whole simulations on small random scenarios: nothing is lost, everything ends, the same input gives the same story.

use std::sync::Arc;

use proptest::prelude::*;
use turnout_core::control::limits::Limits;
use turnout_core::router::types::{ReplicaConfig, RouterConfig, WorkloadConfig};
use turnout_sim::config::{Outage, SimulationConfig};
use turnout_sim::engine::model::EngineModel;
use turnout_sim::feed::Feed;
use turnout_sim::fleet::Simulation;
use turnout_sim::metrics::Sample;
use turnout_sim::scenario::Scenario;

/// Tokens per block of ids.
const BLOCK: i64 = 8;

/// One session: workload, whether it starts with the shared blocks, then (growth in blocks, extra tokens, output, gap in 10 ms).
type Session = (i64, bool, Vec<(i64, i64, i64, u32)>);

fn session() -> impl Strategy<Value = Session> {
    let turn = (0i64..4, 0i64..BLOCK, 1i64..40, 0u32..300);
    (0i64..2, any::<bool>(), proptest::collection::vec(turn, 1..5))
}

fn scenario(sessions: &[Session]) -> Scenario {
    let mut all = Scenario { block_tokens: BLOCK as u64, session_first_turn: vec![0], turn_first_run: vec![0], ..Scenario::default() };
    for (number, (workload, shares, turns)) in sessions.iter().enumerate() {
        all.session_workload.push(*workload);
        all.session_parent.push(-1);
        all.session_after_turn.push(-1);
        let mut own = 0;
        for (growth, extra, output, gap) in turns {
            own += growth;
            if *shares {
                all.run_first_id.push(0);
                all.run_blocks.push(3);
                all.run_shared.push(true);
            }
            if own > 0 {
                all.run_first_id.push(1_000 * (number as i64 + 1));
                all.run_blocks.push(own);
                all.run_shared.push(false);
            }
            let blocks = own + if *shares { 3 } else { 0 };
            all.turn_prompt_tokens.push((blocks * BLOCK + extra).max(1));
            all.turn_output_tokens.push(*output);
            all.turn_gap_s.push(f64::from(*gap) / 100.0);
            all.turn_first_run.push(all.run_first_id.len() as i64);
        }
        all.session_first_turn.push(all.turn_prompt_tokens.len() as i64);
    }
    all
}

fn play(sessions: &[Session], kv_tokens: f64, cap: f64) -> Simulation {
    play_through(sessions, kv_tokens, cap, None, Vec::new(), None)
}

fn play_through(
    sessions: &[Session],
    kv_tokens: f64,
    cap: f64,
    flush_every_sessions: Option<u64>,
    outages: Vec<Outage>,
    feed: Option<Feed>,
) -> Simulation {
    let router = RouterConfig {
        replicas: vec![ReplicaConfig::new("r0", kv_tokens), ReplicaConfig::new("r1", kv_tokens)],
        workloads: vec![WorkloadConfig::new("a"), WorkloadConfig::new("b")],
        block_tokens: 4,
        turn_ttl_s: f64::INFINITY,
        session_ttl_s: f64::INFINITY,
        ..RouterConfig::default()
    };
    let mut engine = EngineModel::named("qwen3-8b-h200").unwrap();
    (engine.max_batched_tokens, engine.max_sequences) = (64, 6);
    let scenario = Arc::new(scenario(sessions));
    let config = SimulationConfig {
        router,
        engine,
        scenario,
        concurrency: 4,
        sessions: None,
        repeat: false,
        duration_s: f64::INFINITY,
        sample_period_s: 0.1,
        flush_every_sessions,
        outages,
        feed,
    };
    let mut simulation = Simulation::new(config).unwrap();
    while simulation.advance().unwrap() {
        let view = simulation.view();
        let limits = Limits {
            session_cap: Some(vec![cap; view.replicas.len()]),
            ceiling_tokens: Some(vec![f64::INFINITY; view.replicas.len()]),
            overflow_tokens: Some(vec![f64::INFINITY; view.replicas.len()]),
            replicas: view.replicas,
            workloads: view.workloads,
            ..Limits::default()
        };
        simulation.set_limits(&limits, view.step).unwrap();
    }
    simulation
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_session_ends_and_every_turn_is_accounted_for(sessions in proptest::collection::vec(session(), 1..14), kv_blocks in 30u32..120, cap in 1u32..4) {
        let simulation = play(&sessions, f64::from(kv_blocks) * 4.0, f64::from(cap));
        simulation.audit().unwrap();
        prop_assert!(!simulation.is_stuck());
        let counts = simulation.counts();
        let (finished, failed): (u64, u64) = counts.iter().fold((0, 0), |sum, one| (sum.0 + one.finished_sessions, sum.1 + one.failed_sessions));
        prop_assert_eq!(finished + failed, sessions.len() as u64);
        let tokens = f64::from(kv_blocks) * 4.0;
        let scenario = scenario(&sessions);
        let largest = scenario.turn_prompt_tokens.iter().zip(&scenario.turn_output_tokens).map(|(prompt, output)| prompt + output).max().unwrap();
        if largest as f64 <= tokens {
            prop_assert_eq!(failed, 0, "whatever fits is served");
            prop_assert_eq!(counts.iter().map(|one| one.turns).sum::<u64>(), scenario.turn_prompt_tokens.len() as u64);
            prop_assert_eq!(counts.iter().map(|one| one.output_tokens).sum::<u64>(), scenario.turn_output_tokens.iter().sum::<i64>() as u64);
        }
        prop_assert!(counts.iter().all(|one| one.cached_tokens <= one.prompt_tokens));
        let stats = simulation.router().stats();
        prop_assert_eq!((stats.open_turns, stats.held_turns, stats.live_sessions), (0, 0, 0));
    }

    #[test]
    fn the_same_input_gives_the_same_story(sessions in proptest::collection::vec(session(), 1..14), kv_blocks in 30u32..120) {
        let (one, two) = (play(&sessions, f64::from(kv_blocks) * 4.0, 3.0), play(&sessions, f64::from(kv_blocks) * 4.0, 3.0));
        prop_assert_eq!(one.counts(), two.counts());
        prop_assert_eq!(one.series().iter().map(Sample::entries).collect::<Vec<_>>(), two.series().iter().map(Sample::entries).collect::<Vec<_>>());
    }

    /// Replicas die with all they run, join late and come back empty, weights change: every session still finishes, and lost turns
    /// are served again.
    #[test]
    fn outages_and_new_weights_lose_no_session(
        sessions in proptest::collection::vec(session(), 1..14),
        kv_blocks in 120u32..200,
        flush_every in proptest::option::of(1u64..4),
        outages in proptest::collection::vec((0usize..2, 0u32..400, 1u32..300), 0..4),
        feed in proptest::option::of((0u32..30, 0u32..3)),
    ) {
        let feed = feed.map(|(lag, loss)| Feed { lag_s: f64::from(lag) / 100.0, loss: f64::from(loss) / 10.0 });
        let outages: Vec<Outage> =
            outages.iter().map(|&(replica, at, away)| Outage { replica, at_s: f64::from(at) / 100.0, away_s: f64::from(away) / 100.0 }).collect();
        let simulation = play_through(&sessions, f64::from(kv_blocks) * 4.0, 3.0, flush_every, outages.clone(), feed);
        simulation.audit().unwrap();
        prop_assert!(!simulation.is_stuck());
        let counts = simulation.counts();
        prop_assert_eq!(counts.iter().map(|one| one.finished_sessions).sum::<u64>(), sessions.len() as u64);
        prop_assert_eq!(counts.iter().map(|one| one.turns).sum::<u64>(), sessions.iter().map(|session| session.2.len() as u64).sum::<u64>());
        let told = simulation.router().feed_stats();
        let arrives = feed.is_some_and(|feed| feed.lag_s == 0.0) && outages.is_empty();
        prop_assert!(!arrives || told.stored_blocks > 0 || simulation.counts().iter().all(|one| one.prompt_tokens < 4));
        prop_assert_eq!(told.unknown_removed, 0);
        // A request that runs on through a flush stores blocks whose parents are gone.
        prop_assert!(flush_every.is_some() || told.unknown_parents == 0);
        if outages.is_empty() {
            prop_assert_eq!(counts.iter().map(|one| one.lost_turns).sum::<u64>(), 0);
        }
    }

    /// With new weights after every session nothing that another session computed is ever found.
    #[test]
    fn new_weights_empty_the_caches(gap in 0u32..3) {
        let turns = vec![(2, 0, 8, gap)];
        let sessions: Vec<Session> = (0..6).map(|_| (0, true, turns.clone())).collect();
        let cached = |simulation: &Simulation| simulation.counts().iter().map(|one| one.cached_tokens).sum::<u64>();
        let (kept, flushed) = (play_through(&sessions, 4_000.0, 1.0, None, Vec::new(), None), play_through(&sessions, 4_000.0, 1.0, Some(1), Vec::new(), None));
        prop_assert!(cached(&kept) > cached(&flushed));
    }
}
