//! The exact semantics of blocks, tails, cursors and marks, point by point. Blocks of 16 tokens where nothing else is said.

use proptest::prelude::*;
use turnout_core::control::limits::Limits;
use turnout_core::control::view::Values;
use turnout_core::error::Error;
use turnout_core::index::{Cursor, Depths, Index, LEAST_BYTES};
use turnout_core::prefix_index::{HistoryId, PrefixIndex, PrefixIndexConfig};
use turnout_core::router::Router;
use turnout_core::router::types::{Completion, Decision, ReplicaConfig, RouterConfig, Stats, Status, Submit, TurnInput};

fn router(kv_tokens: f64, replicas: &[&str]) -> Router {
    let replicas = replicas.iter().map(|name| ReplicaConfig::new(name, kv_tokens)).collect();
    Router::new(RouterConfig { replicas, ..RouterConfig::default() }).unwrap()
}

fn submit(router: &mut Router, session: &str, tokens: &[u32]) -> Decision {
    let prompt = router.hasher().prompt(tokens);
    router.submit(0, &Submit { session: Some(session), ..Submit::new(TurnInput::Prompt(&prompt)) }).unwrap()
}

fn append(router: &mut Router, session: &str, base_tokens: u64, tokens: &[u32]) -> Result<Decision, Error> {
    router.submit(0, &Submit { session: Some(session), ..Submit::new(TurnInput::Append { base_tokens, tokens }) })
}

fn complete(router: &mut Router, turn: &Decision, output: &[u32]) {
    router.complete(0, &turn.turn, &Completion { output: Some(&[output]), ..Completion::default() }).unwrap();
}

fn index(replicas: usize) -> PrefixIndex {
    let mut index = PrefixIndex::new(&PrefixIndexConfig::default()).unwrap();
    for _ in 0..replicas {
        index.add_replica(1e9).unwrap();
    }
    index
}

fn tokens(first: u32, n: usize) -> Vec<u32> {
    (first..first + n as u32).collect()
}

/// Points 1 and 2: whatever the cut, a history that grows by pieces is the history that was sent whole.
#[test]
fn partial_blocks_at_every_cut() {
    let all = tokens(0, 80);
    for first in [0, 1, 15, 16, 17, 31, 32, 47, 48] {
        for second in [0, 1, 15, 16, 17] {
            let mut index = index(1);
            let history = index.open("", &all[..first], Some(0)).unwrap();
            assert_eq!(index.extend(history, &all[first..first + second], Some(0)).unwrap(), (first + second) as u64);
            index.extend(history, &all[first + second..], Some(0)).unwrap();
            let fingerprints = index.hasher().prompt(&all).fingerprints().to_vec();
            assert_eq!(index.lookup("", &fingerprints, 1)[0].blocks, 5, "cut at {first} and {second} more");
            index.audit().unwrap();
        }
    }
}

/// Point 2: an append declares the history's length, and needs every id of it.
#[test]
fn an_append_fits_the_history_or_changes_nothing() {
    let mut router = router(1e6, &["r"]);
    let turn = submit(&mut router, "s", &tokens(0, 40));
    assert!(matches!(append(&mut router, "s", 0, &[1]), Err(Error::HistoryMismatch { base_tokens: None, .. })), "a turn is open");
    complete(&mut router, &turn, &[7; 10]);
    let before = router.stats();
    for base in [0, 49, 51] {
        assert!(matches!(
            append(&mut router, "s", base, &[1]),
            Err(Error::HistoryMismatch { history_tokens: 50, known_tokens: 50, base_tokens: Some(_), .. })
        ));
    }
    let after = router.stats();
    assert_eq!(after.mismatches, before.mismatches + 3);
    assert_eq!(Stats { mismatches: 0, ..after }, Stats { mismatches: 0, ..before }, "a refused append changes nothing else");
    let turn = append(&mut router, "s", 50, &[8; 20]).unwrap();
    assert_eq!((turn.status, turn.receipt.prompt_tokens, turn.cached_tokens), (Status::Placed, 70, 48));
}

/// Point 3: generated tokens that are known by count only take their ids from the next whole prompt.
#[test]
fn unknown_output_is_resident_and_gets_its_ids_later() {
    let mut router = router(1e6, &["r"]);
    let turn = submit(&mut router, "s", &tokens(0, 40));
    router.complete(0, &turn.turn, &Completion { output_tokens: Some(60), ..Completion::default() }).unwrap();
    assert!(matches!(append(&mut router, "s", 100, &[1]), Err(Error::HistoryMismatch { history_tokens: 100, known_tokens: 40, .. })));
    let next = submit(&mut router, "s", &tokens(0, 120));
    // (100 - 1) / 16 blocks have their KV: the last sampled token has none.
    assert_eq!((next.cached_tokens, router.stats().edited), (96, 0));
    complete(&mut router, &next, &[]);
    assert!(append(&mut router, "s", 120, &[1]).is_ok(), "now every id is known");
    assert_eq!((router.stats().counted_outputs, router.stats().mismatches), (1, 1));
}

/// Point 3: what does not continue the history replaces it, and is counted by its reason.
#[test]
fn rewrites_are_counted_by_reason() {
    let mut router = router(1e6, &["r"]);
    let run = |router: &mut Router, tokens: &[u32]| {
        let turn = submit(router, "s", tokens);
        complete(router, &turn, &[]);
        router.audit().unwrap();
        turn.cached_tokens
    };
    let history = tokens(0, 160);
    run(&mut router, &history);
    let mut edited = history.clone();
    edited[40] += 1_000;
    assert_eq!(run(&mut router, &edited), 32, "everything before the edited block is still there");
    assert_eq!(router.charge_tokens(), 160, "the old path is no longer charged");
    run(&mut router, &edited[..100]);
    let stats = router.stats();
    assert_eq!((stats.edited, stats.shortened, stats.other_namespace), (1, 1, 0));
    let prompt = router.hasher().prompt(&edited);
    router.submit(0, &Submit { session: Some("s"), namespace: Some("adapter"), ..Submit::new(TurnInput::Prompt(&prompt)) }).unwrap();
    assert_eq!(router.stats().other_namespace, 1);
}

/// Point 4: a completion that found much less in the cache than was forecast is counted.
#[test]
fn surprises_are_counted() {
    let mut router = router(1e6, &["r"]);
    let turn = submit(&mut router, "s", &tokens(0, 320));
    complete(&mut router, &turn, &[]);
    for (cached, surprises) in [(320, 0), (320 - 32, 0), (0, 1)] {
        let history_tokens = 320 + router.stats().completed - 1;
        let turn = append(&mut router, "s", history_tokens, &[1]).unwrap();
        assert!(turn.cached_tokens >= 304);
        router.complete(0, &turn.turn, &Completion { cached_tokens: Some(cached), output: Some(&[&[]]), ..Completion::default() }).unwrap();
        assert_eq!(router.stats().surprises, surprises);
    }
    // A policy sees the sums: three continuations, 320 tokens forecast for each, 0, 32 and 320 of them missing.
    let view = router.view(0);
    let column = |name: &str| view.column(name).expect("there").values.clone();
    assert_eq!(column("reported_turns"), Values::I64(vec![3]));
    assert_eq!((column("forecast_tokens"), column("missing_tokens")), (Values::F64(vec![960.0]), Values::F64(vec![352.0])));
}

/// Point 5, with the pages that a real engine kept: 240 + 16 tokens leave 15 of 16, 300 + 250 leave 34, and a prompt never hits whole.
#[test]
fn the_last_token_has_no_kv() {
    for (prompt, output, pages) in [(240, 16, 15), (300, 250, 34), (16, 1, 1), (15, 1, 0), (15, 2, 1)] {
        let mut router = router(1e6, &["r"]);
        let turn = submit(&mut router, "s", &tokens(0, prompt));
        complete(&mut router, &turn, &tokens(10_000, output));
        let whole: Vec<u32> = [tokens(0, prompt), tokens(10_000, output), tokens(20_000, 40)].concat();
        let held = router.peek("", &router.hasher().prompt(&whole)).first().map_or(0, |holder| holder.1);
        assert_eq!(held, pages * 16, "{prompt} + {output}");
        assert_eq!(router.charge_tokens(), ((prompt + output).div_ceil(16) * 16) as u64, "the charge counts all of them, rounded up");
    }
    let mut router = router(1e6, &["r"]);
    let turn = submit(&mut router, "s", &tokens(0, 64));
    complete(&mut router, &turn, &[]);
    let hit = |n: usize| router.peek("", &router.hasher().prompt(&tokens(0, n))).first().map_or(0, |holder| holder.1);
    assert_eq!([hit(64), hit(65), hit(48), hit(17), hit(16)], [48, 64, 32, 16, 0]);
}

/// Point 12: blocks that collide under a hash without a key do not collide here: the key is secret.
#[test]
fn permuted_blocks_do_not_collide() {
    let hasher = index(0).hasher().clone();
    let unkeyed = |block: &[u32]| block.chunks(2).map(|pair| u64::from(pair[0]) * u64::from(pair[1])).sum::<u64>();
    let mut block: Vec<u32> = (0..16).collect();
    let sum = unkeyed(&block);
    let mut blocks = std::collections::HashSet::new();
    let mut state = 1u64;
    for _ in 0..50_000 {
        // Pairs stay together and change places: without a key the sum of products would be the same each time.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (a, b) = ((state >> 33) as usize % 8, (state >> 40) as usize % 8);
        block.swap(2 * a, 2 * b);
        block.swap(2 * a + 1, 2 * b + 1);
        assert_eq!(unkeyed(&block), sum);
        blocks.insert(block.clone());
    }
    let distinct: std::collections::HashSet<u64> = blocks.iter().map(|block| hasher.fingerprint(block)).collect();
    assert!(blocks.len() > 10_000);
    assert_eq!(distinct.len(), blocks.len());
}

/// Point 6: a run that was trimmed never grows again, so an old cursor into it is stale for ever.
#[test]
fn trim_then_regrow_does_not_revive_a_stale_cursor() {
    let mut index = Index::new(3);
    index.residency.add_replica(0);
    let root = index.tree.root("");
    let short = index.insert(root, &[1, 2]);
    index.tree.anchor(short);
    let long = index.insert(short, &[3, 4, 5]);
    index.tree.anchor(long);
    index.unanchor(long);
    assert!(index.tree.is_current(short) && !index.tree.is_current(long));
    let regrown = index.insert(short, &[3, 4, 5]);
    index.tree.anchor(regrown);
    assert!(!index.tree.is_current(long), "even where the same blocks came back");
    assert_eq!(index.tree.fingerprints(regrown), [1, 2, 3, 4, 5]);
    let far: Cursor = index.insert(short, &[9]);
    index.tree.anchor(far);
    index.unanchor(far);
    let reused = index.insert(short, &[8]);
    index.tree.anchor(reused);
    assert!(far == reused || !index.tree.is_current(far), "a run's number is used again under another generation");
}

/// Point 7: a cursor that a second replica gets marks everything before it too, over more than 64 forks.
#[test]
fn a_deep_path_on_a_second_replica() {
    let mut index = index(2);
    let mut history = index.open("", &tokens(0, 16), Some(0)).unwrap();
    let mut branches: Vec<HistoryId> = Vec::new();
    for fork in 0..100u32 {
        let next = index.fork(history, None).unwrap();
        index.extend(history, &tokens(1_000_000 + fork * 100, 16), Some(0)).unwrap();
        index.extend(next, &tokens(2_000_000 + fork * 100, 16), Some(0)).unwrap();
        branches.push(history);
        history = next;
    }
    index.place(history, 1).unwrap();
    let found: Vec<_> = index.holders(history, 8).unwrap().iter().map(|found| (found.replica, found.blocks)).collect();
    assert_eq!(found, [(0, 101), (1, 101)]);
    let branch: Vec<_> = index.holders(branches[50], 8).unwrap().iter().map(|found| (found.replica, found.blocks)).collect();
    assert_eq!(branch, [(0, 52), (1, 51)], "of a branch, what it shares");
    index.audit().unwrap();
}

/// Point 8: expected at placement, confirmed at the first token, taken back by an abort where nobody else expects or confirmed it.
#[test]
fn expected_confirmed_taken_back() {
    let mut router = router(1e6, &["r"]);
    let held = |router: &Router, n: usize| router.peek("", &router.hasher().prompt(&tokens(0, n))).first().map_or(0, |holder| holder.1);
    let first = submit(&mut router, "a", &tokens(0, 65));
    assert_eq!(held(&router, 100), 64, "a burst of siblings sees it");
    let second = submit(&mut router, "b", &tokens(0, 97));
    router.abort(0, &second.turn, &Completion::default()).unwrap();
    assert_eq!(held(&router, 100), 64, "what the other turn expects stays");
    router.progress(0, &first.turn, 1, None).unwrap();
    router.abort(0, &first.turn, &Completion::default()).unwrap();
    assert_eq!(held(&router, 100), 64, "it was confirmed");
    let third = submit(&mut router, "c", &tokens(5_000, 65));
    router.abort(0, &third.turn, &Completion::default()).unwrap();
    assert_eq!(router.peek("", &router.hasher().prompt(&tokens(5_000, 65))), []);
}

/// Point 10: what running turns use is never evicted, and open output takes room that the index does not see.
#[test]
fn running_turns_are_never_evicted() {
    let mut router = router(1_600.0, &["r"]);
    let limits = Limits { replicas: router.replicas(), ceiling_tokens: Some(vec![1e9]), overflow_tokens: Some(vec![1e9]), ..Limits::default() };
    let step = router.view(0).step;
    router.set_limits(0, &limits, step).unwrap();
    let idle = submit(&mut router, "idle", &tokens(0, 480));
    complete(&mut router, &idle, &[]);
    let running = submit(&mut router, "running", &tokens(10_000, 800));
    // 480 + 800 fit beside 320 tokens of output; the next 160 evict the idle session's tail.
    router.progress(0, &running.turn, 320, None).unwrap();
    let held = |router: &Router, session: &str| router.peek_session(session).unwrap().first().map_or(0, |holder| holder.1);
    assert_eq!(held(&router, "idle"), 480);
    router.progress(0, &running.turn, 480, None).unwrap();
    assert_eq!((held(&router, "idle"), router.stats().lost_tokens), (320, 160));
    let more = submit(&mut router, "more", &tokens(20_000, 800));
    assert_eq!((held(&router, "idle"), router.stats().lost_tokens), (0, 480));
    let both = router.peek("", &router.hasher().prompt(&tokens(10_000, 801)));
    assert_eq!(both[0].1, 800, "the running prompt is there although both do not fit");
    complete(&mut router, &running, &[]);
    complete(&mut router, &more, &[]);
    router.audit().unwrap();
}

/// An evicted run under a cursor: the history stays, nobody holds it.
#[test]
fn a_history_outlives_its_eviction() {
    let mut index = PrefixIndex::new(&PrefixIndexConfig::default()).unwrap();
    index.add_replica(320.0).unwrap();
    let old = index.open("", &tokens(0, 320), Some(0)).unwrap();
    let new = index.open("", &tokens(5_000, 160), Some(0)).unwrap();
    assert_eq!((index.peek(old).unwrap().unwrap().blocks, index.peek(new).unwrap().unwrap().blocks), (10, 10));
    index.flush(0).unwrap();
    assert_eq!(index.peek(old).unwrap(), None);
    assert_eq!(index.extend(old, &tokens(320, 16), Some(0)).unwrap(), 336, "its tokens need not be sent again");
    assert_eq!(index.peek(old).unwrap().unwrap().blocks, 21 - 1, "the replica is full: the tail leaves first");
    index.close(old).unwrap();
    assert!(matches!(index.peek(old), Err(Error::InvalidArgument { argument: "history", .. })), "a closed handle is told from a new one");
    let reused = index.open("", &[1], None).unwrap();
    assert!(reused != old && index.peek(old).is_err());
    assert_eq!(index.stats().stale, 2);
}

fn pieces() -> impl Strategy<Value = Vec<(usize, Vec<u32>, u32)>> {
    proptest::collection::vec((any::<usize>(), proptest::collection::vec(0u32..3, 0..9), 0u32..3), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Point 4: asking by handle is asking with the whole history, for every replica, whatever was forked and closed.
    #[test]
    fn a_cursor_answers_like_a_full_lookup(pieces in pieces(), block_tokens in 1u32..4) {
        let mut index = PrefixIndex::new(&PrefixIndexConfig { block_tokens, ..PrefixIndexConfig::default() }).unwrap();
        for _ in 0..3 {
            index.add_replica(30.0).unwrap();
        }
        let mut live: Vec<(HistoryId, Vec<u32>)> = Vec::new();
        for (nth, tokens, action) in pieces {
            let replica = Some(nth as u32 % 3);
            match action {
                _ if live.is_empty() => live.push((index.open("", &tokens, replica).unwrap(), tokens)),
                0 => {
                    let at = nth % live.len();
                    prop_assert_eq!(index.extend(live[at].0, &tokens, replica).unwrap(), (live[at].1.len() + tokens.len()) as u64);
                    live[at].1.extend(tokens);
                }
                1 => {
                    let (parent, mut path) = live[nth % live.len()].clone();
                    let cut = nth % (path.len() + 1);
                    let whole = path.len() / block_tokens as usize * block_tokens as usize;
                    let allowed = cut >= whole || cut.is_multiple_of(block_tokens as usize);
                    let fork = index.fork(parent, Some(cut as u64));
                    prop_assert_eq!(fork.is_ok(), allowed);
                    if let Ok(fork) = fork {
                        path.truncate(cut);
                        live.push((fork, path));
                    }
                }
                _ => {
                    let (gone, _) = live.swap_remove(nth % live.len());
                    index.close(gone).unwrap();
                }
            }
            index.audit().unwrap();
            for (history, path) in &live {
                let fingerprints = index.hasher().prompt(path).fingerprints().to_vec();
                let full = index.lookup("", &fingerprints, 3).to_vec();
                prop_assert_eq!(index.holders(*history, 3).unwrap(), &full[..]);
                let all = index.lookup_all("", &fingerprints).to_vec();
                for found in &full {
                    prop_assert_eq!(all[found.replica as usize], found.blocks);
                }
                prop_assert_eq!(all.iter().filter(|&&blocks| blocks > 0).count(), full.len());
            }
        }
    }

    #[test]
    fn disjoint_sessions_may_come_in_any_order(order in Just((0..12u32).collect::<Vec<_>>()).prop_shuffle()) {
        let build = |order: &[u32]| {
            let mut index = Index::new(1);
            index.residency.add_replica(0);
            for &session in order {
                let root = index.tree.root("");
                let cursor = index.insert(root, &[u64::from(session), 1, 2]);
                index.hold(0, cursor);
                let again = index.insert(root, &[u64::from(session), 1, 2]);
                assert_eq!(cursor, again, "to insert again is to find");
            }
            let mut answers = Vec::new();
            let mut depths = Depths::default();
            for session in 0..13u64 {
                let (cursor, found) = index.tree.locate(index.tree.existing_root("").unwrap(), &[session, 1, 2, 3]);
                index.residency.matches(&index.tree, cursor, &mut depths);
                answers.push((found, depths.blocks.clone()));
            }
            (answers, index.tree.blocks(), index.tree.run_count())
        };
        prop_assert_eq!(build(&order), build(&(0..12).collect::<Vec<_>>()));
    }
}

/// Point 11: the limit on memory in the router.
mod limit {
    use super::*;

    /// Prompts larger than the memory of the index are charged by count, and nothing is over- or undercharged. Block 16.
    #[test]
    fn a_full_index_charges_by_count() {
        let replicas = vec![ReplicaConfig::new("r", 1e9)];
        let mut router = Router::new(RouterConfig { replicas, index_bytes: LEAST_BYTES, ..RouterConfig::default() }).unwrap();
        let prompt = |router: &Router, first: u32| router.hasher().prompt(&(first..first + 1_200_000).collect::<Vec<u32>>());
        let first = prompt(&router, 0);
        let turn = router.submit(0, &Submit { session: Some("a"), ..Submit::new(TurnInput::Prompt(&first)) }).unwrap();
        assert!(turn.receipt.indexed);
        router.complete(1, &turn.turn, &Completion::default()).unwrap();
        let second = prompt(&router, 2_000_000);
        let other = router.submit(2, &Submit { session: Some("b"), ..Submit::new(TurnInput::Prompt(&second)) }).unwrap();
        assert!(!other.receipt.indexed, "a's charged history leaves no room");
        assert_eq!((router.charge_tokens(), router.stats().index_full), (2_400_000, 1));
        assert!(router.stats().index_bytes <= 1 << 20);
        router.complete(3, &other.turn, &Completion::default()).unwrap();
        router.audit().unwrap();
        // A charged history is kept; a paused one is let go for somebody else's prompt, and its next append asks for the whole prompt.
        router.end_session(4, "b", true).unwrap();
        let limits = Limits { replicas: router.replicas(), session_cap: Some(vec![1.0]), ..Limits::default() };
        let step = router.view(5).step;
        router.set_limits(5, &limits, step).unwrap();
        let third = router.submit(6, &Submit { session: Some("c"), ..Submit::new(TurnInput::Prompt(&second)) }).unwrap();
        assert_eq!((third.status, third.receipt.indexed), (Status::Placed, false), "a is paused by this very turn, too late for its prompt");
        router.complete(7, &third.turn, &Completion::default()).unwrap();
        let fourth = router.submit(8, &Submit { session: Some("c"), ..Submit::new(TurnInput::Prompt(&second)) }).unwrap();
        assert!(fourth.receipt.indexed);
        assert_eq!(router.stats().paths_dropped, 1);
        let append = Submit { session: Some("a"), ..Submit::new(TurnInput::Append { base_tokens: 1_200_000, tokens: &[1] }) };
        let error = router.submit(9, &append).unwrap_err();
        assert!(matches!(error, turnout_core::error::Error::HistoryMismatch { known_tokens: 0, history_tokens: 1_200_000, .. }), "{error}");
        router.audit().unwrap();
    }

    /// Hits come in whole blocks of the engine. Index block 16.
    #[test]
    fn replicas_with_other_block_sizes() {
        let replica = |name: &str, block: u32| ReplicaConfig { block_tokens: Some(block), ..ReplicaConfig::new(name, 1e6) };
        let replicas = vec![replica("page 1", 1), replica("page 32", 32), replica("page 24", 24)];
        let mut router = Router::new(RouterConfig { replicas, ..RouterConfig::default() }).unwrap();
        let tokens: Vec<u32> = (0..1_000).collect();
        for name in ["page 1", "page 32", "page 24"] {
            let prompt = router.hasher().prompt(&tokens);
            let submit = Submit { candidates: Some(&[name]), ..Submit::new(TurnInput::Prompt(&prompt)) };
            let turn = router.submit(0, &submit).unwrap();
            router.complete(1, &turn.turn, &Completion::default()).unwrap();
        }
        // 992 tokens are whole index blocks; the last token is always computed: of 993 to 1,000 tokens 992 hit at most.
        let held = |router: &Router, n: usize| {
            let mut held = router.peek("", &router.hasher().prompt(&tokens[..n]));
            held.sort();
            held.iter().map(|(name, tokens)| format!("{name}: {tokens}")).collect::<Vec<_>>()
        };
        assert_eq!(held(&router, 1_000), ["page 1: 992", "page 24: 984", "page 32: 992"]);
        assert_eq!(held(&router, 992), ["page 1: 991", "page 24: 984", "page 32: 960"]);
        assert_eq!(held(&router, 32), ["page 1: 31", "page 24: 24"]);
    }
}
