//! Laws of the router under random events: nothing is lost, charges equal recomputation, repetition changes nothing.

#[path = "common/histories.rs"]
mod histories;

use histories::{Caller, REPLICAS, SESSIONS, cases, event};
use proptest::prelude::*;

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
}
