//! Laws of the router under random events: nothing is lost, charges equal recomputation, repetition changes nothing.

#[path = "common/histories.rs"]
mod histories;

use histories::{Caller, REPLICAS, SESSIONS, cases, event};
use proptest::prelude::*;
use turnout_core::control::limits::Limits;
use turnout_core::router::Router;
use turnout_core::router::types::{Completion, Status, Submit, TurnInput};

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn books_balance_after_every_event(events in proptest::collection::vec(event(), 1..80), seed in any::<u64>()) {
        let mut caller = Caller::new(seed);
        for event in &events {
            caller.apply(event)?;
            caller.check()?;
        }
        for session in SESSIONS {
            caller.router.end_session(caller.now, session, true).expect("never fails");
        }
        caller.open.clear();
        caller.waiting.clear();
        caller.check()?;
        let view = caller.router.view(caller.now);
        for name in ["charge_tokens", "commit_tokens"] {
            let turnout_core::control::view::Values::F64(values) = &view.column(name).expect("there").values else { panic!("real") };
            prop_assert!(values.iter().all(|&tokens| tokens == 0.0), "{name} after the end: {values:?}");
        }
        for name in REPLICAS {
            drop(caller.router.lose_replica(caller.now, name));
        }
        prop_assert_eq!(caller.router.stats().index_blocks, 0, "with nobody left, the index is empty");
        prop_assert_eq!(caller.router.stats().index_runs, 0);
        prop_assert!(caller.router.stats().index_bytes <= 64 * REPLICAS.len() as u64, "the memory goes back, but for a fixed part per replica");
    }

    #[test]
    fn same_events_same_decisions(events in proptest::collection::vec(event(), 1..60), seed in any::<u64>()) {
        let (mut one, mut two) = (Caller::new(seed), Caller::new(seed));
        for event in &events {
            one.apply(event)?;
            two.apply(event)?;
            prop_assert_eq!(one.router.stats(), two.router.stats());
            prop_assert_eq!(one.router.wake_at(), two.router.wake_at());
            prop_assert_eq!(format!("{:?}", one.router.view(one.now)), format!("{:?}", two.router.view(two.now)));
            prop_assert_eq!(one.drain()?, two.drain()?);
        }
    }

    /// One decision, not a schedule: what is placed is placed too where there is more room, or where it needs less.
    #[test]
    fn more_room_or_less_need_holds_nobody(
        events in proptest::collection::vec(event(), 1..60),
        seed in any::<u64>(),
        (ceiling, more, cap, length, shorter) in (0u64..400, 0u64..200, 1u64..8, 1usize..200, 0usize..200),
    ) {
        let mut caller = Caller::new(seed);
        for event in &events {
            caller.apply(event)?;
            caller.drain()?;
        }
        // Those who wait would take what is there first.
        for turn in caller.waiting.clone() {
            drop(caller.router.abort(caller.now, &turn, &Completion::default()));
        }
        let snapshot = caller.router.snapshot();
        let tokens: Vec<u32> = (0..length as u32).collect();
        let place = |room: u64, sessions: u64, length: usize| {
            let mut router = Router::restore(&snapshot).expect("its own snapshot");
            let replicas = router.replicas();
            let limits = Limits {
                ceiling_tokens: Some(vec![room as f64; replicas.len()]),
                overflow_tokens: Some(vec![f64::INFINITY; replicas.len()]),
                session_cap: Some(vec![sessions as f64; replicas.len()]),
                replicas,
                workloads: router.workloads(),
                ..Limits::default()
            };
            let step = router.view(caller.now).step;
            router.set_limits(caller.now, &limits, step).expect("limits in range");
            let prompt = router.hasher().prompt(&tokens[..length]);
            let submit = Submit { session: Some("newcomer"), ..Submit::new(TurnInput::Prompt(&prompt)) };
            router.submit(caller.now, &submit).expect("a good request").status == Status::Placed
        };
        if place(ceiling, cap, length) {
            prop_assert!(place(ceiling + more, cap, length), "more room");
            prop_assert!(place(ceiling, cap + 1, length), "a larger cap");
            prop_assert!(place(ceiling, cap, shorter.clamp(1, length)), "less need");
        }
    }
}
