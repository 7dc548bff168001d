//! Laws of snapshots and journals: what is restored goes on as the original, what is done again answers the same, and what is
//! damaged is refused.

#[path = "common/histories.rs"]
mod histories;

use histories::{Caller, cases, event};
use proptest::prelude::*;
use turnout_core::error::Error;
use turnout_core::record::journal::replay;
use turnout_core::record::recorder::Recorder;
use turnout_core::router::Router;

/// Everything that a caller can see of two routers.
fn equal(one: &mut Caller, two: &mut Caller) -> Result<(), TestCaseError> {
    prop_assert_eq!(one.drain()?, two.drain()?);
    prop_assert_eq!(one.router.stats(), two.router.stats());
    prop_assert_eq!(one.router.wake_at(), two.router.wake_at());
    prop_assert_eq!(format!("{:?}", one.router.view(one.now)), format!("{:?}", two.router.view(two.now)));
    Ok(())
}

#[allow(clippy::needless_pass_by_value, reason = "what a call answers")]
fn refused<T>(answer: Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Record { .. }))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_restored_router_goes_on_as_the_original(
        before in proptest::collection::vec(event(), 0..60),
        after in proptest::collection::vec(event(), 1..40),
        seed in any::<u64>(),
    ) {
        let (mut one, mut two) = (Caller::new(seed), Caller::new(seed));
        for event in &before {
            one.apply(event)?;
            two.apply(event)?;
            equal(&mut one, &mut two)?;
        }
        let snapshot = two.router.snapshot();
        two.router = Recorder::restore(&snapshot, two.now).map_err(|error| TestCaseError::fail(format!("{error}")))?;
        prop_assert_eq!(&two.router.snapshot(), &snapshot, "what was restored is the same again");
        for event in &after {
            one.apply(event)?;
            two.apply(event)?;
            equal(&mut one, &mut two)?;
        }
    }

    #[test]
    fn a_journal_done_again_ends_in_the_same_state(
        before in proptest::collection::vec(event(), 0..20),
        events in proptest::collection::vec(event(), 1..60),
        seed in any::<u64>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut caller = Caller::new(seed);
        for event in &before {
            caller.apply(event)?;
            caller.check()?;
        }
        caller.router.start_journal();
        let mut journal = caller.router.take_journal();
        let mut states = vec![(journal.len(), caller.router.snapshot())];
        for event in &events {
            caller.apply(event)?;
            caller.check()?;
            journal.extend(caller.router.take_journal());
            states.push((journal.len(), caller.router.snapshot()));
        }
        let done = replay(&journal).map_err(|error| TestCaseError::fail(format!("{error}")))?;
        prop_assert_eq!(&done.router.snapshot(), &states[states.len() - 1].1);
        prop_assert_eq!(done.torn_bytes, 0);
        // Cut by a crash between two events, or anywhere inside one.
        let (whole, state) = &states[cut.index(states.len())];
        let done = replay(&journal[..*whole]).map_err(|error| TestCaseError::fail(format!("{error}")))?;
        prop_assert_eq!(&done.router.snapshot(), state, "as far as it goes");
        let torn = states[0].0 + cut.index(journal.len() - states[0].0 + 1);
        let done = replay(&journal[..torn]).map_err(|error| TestCaseError::fail(format!("{error}")))?;
        prop_assert!(done.router.audit().is_ok());
        prop_assert_eq!(states[0].0 as u64 + done.record_bytes + done.torn_bytes, torn as u64, "nothing is left out unsaid");
    }

    #[test]
    fn damage_is_refused(
        events in proptest::collection::vec(event(), 1..30),
        seed in any::<u64>(),
        at in any::<prop::sample::Index>(),
        flip in 1..=255u8,
    ) {
        let mut caller = Caller::new(seed);
        caller.router.start_journal();
        for event in &events {
            caller.apply(event)?;
            caller.check()?;
        }
        let (snapshot, journal) = (caller.router.snapshot(), caller.router.take_journal());
        let mut damaged = snapshot.clone();
        damaged[at.index(snapshot.len())] ^= flip;
        prop_assert!(refused(Router::restore(&damaged)), "byte {} changed", at.index(snapshot.len()));
        prop_assert!(refused(Router::restore(&snapshot[..at.index(snapshot.len())])), "cut");
        let mut damaged = journal.clone();
        let place = at.index(journal.len());
        damaged[place] ^= flip;
        match replay(&damaged) {
            Err(Error::Record { .. }) => {}
            // Damage in a length looks like a torn end: what is left out is said.
            Ok(done) => prop_assert!(done.torn_bytes > 0, "byte {place} of {} made no difference", journal.len()),
            Err(error) => return Err(TestCaseError::fail(format!("{error}"))),
        }
    }
}

/// Bytes that were never a snapshot: whatever they are, an error and no panic.
#[test]
fn nonsense_is_no_snapshot() {
    for length in 0..200 {
        let bytes: Vec<u8> = (0..length).map(|at: usize| (at * 37) as u8).collect();
        assert!(refused(Router::restore(&bytes)) && refused(replay(&bytes)));
    }
    let router = Caller::new(1).router.snapshot();
    let mut future = router.clone();
    future[8] = 99;
    assert_eq!(Router::restore(&future).unwrap_err().to_string(), "record: snapshot of a router of format version 99, accepted is 3");
    assert!(replay(&router).unwrap_err().to_string().contains("no journal"));
}
