//! How turns end: where they really ran, how long they really were, how they come back; numbers worked out by hand.
#![allow(clippy::float_cmp, reason = "tokens of whole blocks, and seconds that are set, are exact")]

#[path = "common/fleet.rs"]
mod fleet;

use fleet::{Fleet, held, placed};
use turnout_core::error::Error;
use turnout_core::router::types::{Cause, Completion, Effect, Reason, Status, Submit, TurnInput};

/// A turn of a session that is named, with the whole prompt.
fn named<'a>(turn: &'a str, session: Option<&'a str>, attempt: u32, prompt: &'a turnout_core::prompt::Prompt) -> Submit<'a> {
    Submit { turn: Some(turn), session, attempt, ..Submit::new(TurnInput::Prompt(prompt)) }
}

/// The charge follows the turn to where it was served; so does the next turn. Block 16.
#[test]
fn the_charge_moves_to_the_replica_that_served() {
    let mut fleet = Fleet::new(16, &[("r1", 1e6), ("r2", 1e6)], &["w"]);
    let prompt = fleet.prompt(&[(0, 160)]);
    let submit = Submit { candidates: Some(&["r1"]), ..named("t", Some("a"), 0, &prompt) };
    placed(&fleet.router.submit(0, &submit).unwrap());
    assert_eq!(fleet.column(0, "charge_tokens"), [160.0, 0.0]);
    fleet.router.progress(1, "t", 16, Some("r2")).unwrap();
    assert_eq!(fleet.column(1, "charge_tokens"), [0.0, 176.0]);
    let again = fleet.router.submit(2, &submit).unwrap();
    assert_eq!((again.status, again.reason, again.replica.as_deref()), (Status::Placed, Reason::Elsewhere, Some("r2")));
    // And back again, with what it had generated.
    fleet.router.complete(3, "t", &Completion { output_tokens: Some(32), served_by: Some("r1"), ..Completion::default() }).unwrap();
    assert_eq!(fleet.column(3, "charge_tokens"), [192.0, 0.0]);
    assert_eq!(fleet.router.stats().served_elsewhere, 2);
    let next = fleet.submit(4, "a", "w", &[(0, 160), (900, 64)]);
    assert_eq!((next.reason, next.replica.as_deref()), (Reason::Continuation, Some("r1")));
    fleet.end(5, "a");
    assert_eq!(fleet.column(5, "charge_tokens"), [0.0, 0.0]);
}

/// A replica that has gone since: the turn ends, its session is charged nowhere and goes on elsewhere. An unknown one in a report is
/// refused, because the turn still runs.
#[test]
fn a_server_that_is_gone_pauses_the_session() {
    let mut fleet = Fleet::new(16, &[("r1", 1e6)], &["w"]);
    let turn = fleet.submit(0, "a", "w", &[(0, 160)]);
    assert!(matches!(fleet.router.progress(1, &turn.turn, 1, Some("gone")), Err(Error::UnknownReplica { .. })));
    let end = Completion { output_tokens: Some(16), served_by: Some("gone"), ..Completion::default() };
    assert_eq!(fleet.router.complete(1, &turn.turn, &end).unwrap().effect, Effect::Done);
    assert_eq!((fleet.column(1, "charge_tokens")[0], fleet.column(1, "paused")[0]), (0.0, 1.0));
    assert_eq!(fleet.submit(2, "a", "w", &[(0, 160), (900, 64)]).reason, Reason::Resumed);
}

/// A held turn that was served all the same is history, and whoever waits for it hears of it. Ceiling 100, block 1.
#[test]
fn a_held_turn_that_was_served_is_history() {
    let mut fleet = Fleet::new(1, &[("r1", 1e6)], &["w"]);
    fleet.limit(0, |limits| limits.ceiling_tokens = Some(vec![100.0]));
    placed(&fleet.submit(0, "a", "w", &[(0, 90)]));
    let (one, two) = (fleet.submit(1, "b", "w", &[(1_000, 50)]), fleet.submit(1, "c", "w", &[(2_000, 50)]));
    held(&one, Reason::Ceiling);
    held(&two, Reason::Ceiling);
    fleet.router.complete(2, &one.turn, &Completion { output: Some(&[&[7; 10]]), served_by: Some("r1"), ..Completion::default() }).unwrap();
    assert_eq!(fleet.column(2, "charge_tokens")[0], 90.0 + 60.0);
    fleet.router.progress(3, &two.turn, 5, Some("r1")).unwrap();
    assert_eq!(fleet.column(3, "charge_tokens")[0], 90.0 + 60.0 + 55.0);
    let told: Vec<_> = fleet.drain().into_iter().map(|word| (word.turn, word.status)).collect();
    assert_eq!(told, [(two.turn, Status::Placed)]);
    // Without a server, a held turn that is completed has only left the line.
    let three = fleet.submit(4, "d", "w", &[(3_000, 50)]);
    held(&three, Reason::Ceiling);
    fleet.router.complete(5, &three.turn, &Completion::default()).unwrap();
    assert_eq!(fleet.column(5, "charge_tokens")[0], 205.0);
}

/// The engine's own count of a prompt is the length of the history, longer or shorter than what was submitted. Block 16.
#[test]
fn the_true_count_of_a_prompt_is_charged() {
    for (counted, charge) in [(160, 176.0), (256, 272.0), (100, 128.0)] {
        let mut fleet = Fleet::new(16, &[("r1", 1e6)], &["w"]);
        let turn = fleet.submit(0, "a", "w", &[(0, 160)]);
        let end = Completion { output: Some(&[&[7; 16]]), prompt_tokens: Some(counted), ..Completion::default() };
        fleet.router.complete(1, &turn.turn, &end).unwrap();
        assert_eq!(fleet.column(1, "charge_tokens")[0], charge, "{counted} tokens and 16 more, in blocks of 16");
        fleet.router.audit().unwrap();
    }
    let mut fleet = Fleet::new(16, &[("r1", 1e6)], &["w"]);
    let turn = fleet.submit(0, "a", "w", &[(0, 160)]);
    let nothing = Completion { prompt_tokens: Some(0), ..Completion::default() };
    assert!(matches!(fleet.router.complete(1, &turn.turn, &nothing), Err(Error::InvalidArgument { argument: "prompt_tokens", .. })));
}

/// Who comes back waits where it did, before others that came meanwhile; without `retry` it goes to the end. Ceiling 100, block 1.
#[test]
fn an_aborted_turn_that_comes_back_keeps_its_place() {
    for (retry, first) in [(true, "t"), (false, "u")] {
        let mut fleet = Fleet::new(1, &[("r1", 1e6)], &["w"]);
        fleet.limit(0, |limits| limits.ceiling_tokens = Some(vec![100.0]));
        placed(&fleet.submit(0, "a", "w", &[(0, 90)]));
        let (prompt, other) = (fleet.prompt(&[(1_000, 60)]), fleet.prompt(&[(2_000, 60)]));
        // A session of this turn alone, which an abort would end.
        held(&fleet.router.submit(1, &named("t", None, 0, &prompt)).unwrap(), Reason::Ceiling);
        held(&fleet.router.submit(2, &named("u", None, 0, &other)).unwrap(), Reason::Ceiling);
        fleet.router.abort(3, "t", &Completion { retry, ..Completion::default() }).unwrap();
        held(&fleet.router.submit(4, &named("t", None, 1, &prompt)).unwrap(), Reason::Ceiling);
        let told: Vec<_> = fleet.end(5, "a").into_iter().map(|word| word.turn.to_string()).collect();
        assert_eq!(told, [first]);
        assert_eq!(fleet.router.stats().retries, u64::from(retry));
        assert_eq!(fleet.router.stats().live_sessions, 2, "the place is taken once, and no session is left over");
    }
}

/// After a failure the next attempt avoids the replica, after a change of mind it goes back to its cache.
#[test]
fn a_retry_avoids_the_replica_that_failed_it() {
    for (cause, expected) in [(Cause::Error, "r2"), (Cause::Timeout, "r2"), (Cause::Cancelled, "r1"), (Cause::Stale, "r1")] {
        let mut fleet = Fleet::new(16, &[("r1", 1e6), ("r2", 1e6)], &["w"]);
        let prompt = fleet.prompt(&[(0, 1_600)]);
        let first = Submit { candidates: Some(&["r1"]), ..named("t", Some("a"), 0, &prompt) };
        placed(&fleet.router.submit(0, &first).unwrap());
        fleet.router.progress(1, "t", 1, None).unwrap();
        fleet.router.abort(2, "t", &Completion { cause, retry: true, ..Completion::default() }).unwrap();
        let next = fleet.router.submit(3, &named("t", Some("a"), 1, &prompt)).unwrap();
        assert_eq!((next.status, next.replica.as_deref()), (Status::Placed, Some(expected)), "{cause:?}");
    }
}

/// What a caller avoids serves only where nobody else may; a running session is joined all the same.
#[test]
fn avoided_replicas_are_the_last_resort() {
    let mut fleet = Fleet::new(16, &[("r1", 1e6), ("r2", 1e6)], &["w"]);
    let prompt = fleet.prompt(&[(0, 1_600)]);
    let avoid = |names: &'static [&'static str], session| Submit { avoid: names, session: Some(session), ..Submit::new(TurnInput::Prompt(&prompt)) };
    assert_eq!(fleet.router.submit(0, &avoid(&["r1", "gone"], "a")).unwrap().replica.as_deref(), Some("r2"));
    // Its siblings' prefix does not draw it there.
    assert_eq!(fleet.router.submit(0, &avoid(&["r2"], "b")).unwrap().replica.as_deref(), Some("r1"));
    placed(&fleet.router.submit(0, &avoid(&["r1", "r2"], "c")).unwrap());
    let joined = fleet.router.submit(0, &avoid(&["r2"], "a")).unwrap();
    assert_eq!((joined.reason, joined.replica.as_deref()), (Reason::Continuation, Some("r2")));
}

/// A turn of four samples reserves the prompt once and four outputs; afterwards only what is kept is charged. Block 16.
#[test]
fn samples_are_reserved_for_and_not_kept() {
    for (keep, charge) in [(None, 160.0), (Some(2), 192.0)] {
        let mut fleet = Fleet::new(16, &[("r1", 1e6)], &["w"]);
        fleet.limit(0, |limits| limits.output_tokens = Some(vec![100.0]));
        let prompt = fleet.prompt(&[(0, 160)]);
        let submit = Submit { samples: 4, max_new_tokens: Some(50), ..named("t", Some("a"), 0, &prompt) };
        placed(&fleet.router.submit(0, &submit).unwrap());
        // Four times 50 tokens, each in 4 blocks of its own.
        assert_eq!(fleet.column(0, "charge_tokens")[0], 160.0 + 4.0 * 64.0);
        fleet.router.progress(1, "t", 4 * 16, None).unwrap();
        assert_eq!(fleet.column(1, "charge_tokens")[0], 160.0 + 4.0 * 16.0);
        let lists: Vec<Vec<u32>> = (0..4).map(|sample| vec![1_000 + sample; 32]).collect();
        let lists: Vec<&[u32]> = lists.iter().map(Vec::as_slice).collect();
        let three = Completion { output: Some(&lists[..3]), ..Completion::default() };
        assert!(matches!(fleet.router.complete(2, "t", &three), Err(Error::InvalidArgument { argument: "output", .. })));
        fleet.router.complete(2, "t", &Completion { output: Some(&lists), keep, ..Completion::default() }).unwrap();
        assert_eq!(fleet.column(2, "charge_tokens")[0], charge);
        // Every sample is in the cache: 10 blocks of the prompt and 2 of each output, whose last token has no KV.
        assert_eq!(fleet.column(2, "resident_tokens")[0], 160.0 + 4.0 * 16.0);
        let follow = [(0..160).collect::<Vec<u32>>(), vec![1_001; 32], vec![5; 16]].concat();
        let follow = fleet.router.hasher().prompt(&follow);
        assert_eq!(fleet.router.submit(3, &named("u", Some("b"), 0, &follow)).unwrap().cached_tokens, 176);
    }
}

/// Siblings join each other for their prefix, until what they take from each other weighs more. Two replicas, block 16.
#[test]
fn siblings_join_until_spread_pays() {
    for (spread, on_first) in [(0.0, 8), (1.0, 4)] {
        let mut fleet = Fleet::new(16, &[("r1", 1e6), ("r2", 1e6)], &["w"]);
        fleet.limit(0, |limits| {
            limits.cost_spread = Some(vec![spread; 2]);
            limits.output_tokens = Some(vec![8_192.0]);
            limits.cost_decode = Some(vec![0.0; 2]);
            limits.cost_backlog = Some(vec![0.0; 2]);
        });
        // 8,192 output tokens beside a sibling of 16,000 tokens of context: 5.24 s; to compute them again, twice weighed: 3.2 s.
        let prompt = fleet.prompt(&[(0, 16_000)]);
        let mut on = [0, 0];
        for at in 0..8 {
            let (turn, session) = (format!("t{at}"), format!("s{at}"));
            let submit = Submit { group: Some("g"), group_size: Some(8), ..named(&turn, Some(&session), 0, &prompt) };
            let decision = fleet.router.submit(at, &submit).unwrap();
            on[usize::from(decision.replica.as_deref() == Some("r2"))] += 1;
        }
        fleet.router.audit().unwrap();
        assert_eq!(on[0].max(on[1]), on_first, "{on:?} with spread {spread}");
    }
}

/// The last of a group queues where its first one did, before a group that began later. Ceiling 100, block 1.
#[test]
fn a_group_queues_where_it_began() {
    for (size, order) in [(Some(3), ["g1", "g2", "h1"]), (None, ["g1", "h1", "g2"])] {
        let mut fleet = Fleet::new(1, &[("r1", 1e6)], &["w"]);
        fleet.limit(0, |limits| limits.session_cap = Some(vec![1.0]));
        let submit = |fleet: &mut Fleet, now, turn: &'static str, group: &'static str, size| {
            let prompt = fleet.prompt(&[(now as u32 * 1_000, 10)]);
            fleet.router.submit(now, &Submit { group: Some(group), group_size: size, ..named(turn, Some(turn), 0, &prompt) }).unwrap()
        };
        placed(&submit(&mut fleet, 1, "g0", "g", size));
        fleet.router.end_session(2, "g0", true).unwrap();
        placed(&fleet.submit(3, "a", "w", &[(0, 90)]));
        fleet.drain();
        if size.is_none() {
            // Nobody of the first is open: without a size it has ended, and begins anew with its next turn.
            held(&submit(&mut fleet, 4, "g1", "g", size), Reason::SessionCap);
            held(&submit(&mut fleet, 5, "h1", "h", None), Reason::SessionCap);
            fleet.router.abort(6, "g1", &Completion { retry: true, ..Completion::default() }).unwrap();
            let prompt = fleet.prompt(&[(0, 10)]);
            held(&fleet.router.submit(7, &named("g1", Some("g1"), 1, &prompt)).unwrap(), Reason::SessionCap);
            held(&submit(&mut fleet, 8, "g2", "g", size), Reason::SessionCap);
        } else {
            held(&submit(&mut fleet, 4, "h1", "h", None), Reason::SessionCap);
            held(&submit(&mut fleet, 5, "g1", "g", size), Reason::SessionCap);
            held(&submit(&mut fleet, 6, "g2", "g", size), Reason::SessionCap);
        }
        let mut told = Vec::new();
        let mut running = "a".to_owned();
        for now in 10..13 {
            let next = fleet.end(now, &running);
            assert_eq!(next.len(), 1);
            running = next[0].turn.to_string();
            told.push(running.clone());
        }
        assert_eq!(told, order, "with a size of {size:?}");
    }
}

/// A turn's id comes back in another session: the place is where its last attempt was, and the session before keeps none.
#[test]
fn a_place_follows_the_last_attempt() {
    let mut fleet = Fleet::new(16, &[("r1", 1e6)], &["w"]);
    let prompt = fleet.prompt(&[(0, 160)]);
    for (attempt, session) in [(0, "a"), (1, "b")] {
        placed(&fleet.router.submit(0, &named("t", Some(session), attempt, &prompt)).unwrap());
        fleet.router.abort(1, "t", &Completion { retry: true, ..Completion::default() }).unwrap();
        fleet.drain();
    }
    placed(&fleet.router.submit(2, &named("t", None, 2, &prompt)).unwrap());
    assert_eq!(fleet.router.peek_session("b").map(|_| ()), Ok(()));
    fleet.end(3, "b");
    assert_eq!(fleet.column(3, "charge_tokens")[0], 0.0, "it was a turn of b");
}
