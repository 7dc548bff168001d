//! The events that may come in any order, and how often each does.

use proptest::option;
use proptest::prelude::*;

use super::PLACEMENTS;

#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// Whole prompt: a prefix of a family's token stream, then private tokens.
    Submit {
        session: usize,
        workload: usize,
        family: u32,
        shared: usize,
        private: usize,
        max_new: Option<u64>,
        hold: bool,
        deadline: Option<u64>,
        candidate: Option<usize>,
        parent: Option<usize>,
        owner: Option<usize>,
        at: Option<usize>,
        bias: i8,
        samples: u32,
        group: Option<usize>,
        expected: Option<u64>,
        avoid: Option<usize>,
    },
    /// A turn that nobody reports on.
    Choose {
        session: usize,
        family: u32,
        shared: usize,
    },
    OwnerLost {
        owner: usize,
    },
    Observe {
        replica: usize,
        preemptions: u64,
        tokens: Option<u64>,
    },
    /// Continues with the exact history and some more.
    Continue {
        session: usize,
        more: usize,
        by: By,
    },
    Progress {
        turn: usize,
        tokens: u64,
        server: Option<usize>,
    },
    Complete {
        turn: usize,
        ids: bool,
        tokens: usize,
        /// By how much the engine's count of the prompt differs from what was submitted.
        miscount: Option<i8>,
        server: Option<usize>,
        keep: Option<u32>,
    },
    Abort {
        turn: usize,
        tokens: usize,
        cause: usize,
        retry: bool,
        server: Option<usize>,
    },
    /// The next attempt of a turn that was aborted.
    ComeBack {
        turn: usize,
    },
    Retry {
        turn: usize,
    },
    Repeat {
        turn: usize,
    },
    End {
        session: usize,
        completed: bool,
    },
    Hint {
        session: usize,
        idle: Option<u64>,
        expected: Option<u64>,
        priority: Option<i32>,
    },
    Fork {
        session: usize,
        child: usize,
    },
    Lose {
        replica: usize,
    },
    Add {
        replica: usize,
        tokens: u64,
    },
    Weights {
        version: i64,
        mode: usize,
        replica: Option<usize>,
    },
    Limit {
        caps: [u8; 4],
        ceiling: u8,
        growth: u16,
        output: u16,
        lease: u16,
        bypass: u8,
        guarantee: [u8; 2],
        limit: [u8; 2],
        shed: bool,
        placement: usize,
        sticky: bool,
    },
    Drain {
        replica: usize,
    },
    Remove {
        replica: usize,
    },
    Set {
        replica: usize,
        tokens: u64,
    },
    Wait {
        millis: u64,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum By {
    Prompt,
    Append,
    Count,
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    let by = prop_oneof![Just(By::Prompt), Just(By::Append), Just(By::Count)];
    prop_oneof![
        6 => submit(),
        1 => (0..6usize, 0..3u32, 1..40usize).prop_map(|(session, family, shared)| Event::Choose { session, family, shared }),
        1 => (0..2usize).prop_map(|owner| Event::OwnerLost { owner }),
        1 => (0..3usize, 0..9u64, option::weighted(0.3, 40..400u64)).prop_map(|(replica, preemptions, tokens)| Event::Observe { replica, preemptions, tokens }),
        6 => (0..6usize, 1..20usize, by).prop_map(|(session, more, by)| Event::Continue { session, more, by }),
        3 => (any::<usize>(), 0..60u64, option::weighted(0.1, 0..3usize)).prop_map(|(turn, tokens, server)| Event::Progress { turn, tokens, server }),
        8 => (any::<usize>(), any::<bool>(), 0..30usize, option::weighted(0.1, any::<i8>()), option::weighted(0.1, 0..4usize), option::of(0..3u32))
            .prop_map(|(turn, ids, tokens, miscount, server, keep)| Event::Complete { turn, ids, tokens, miscount, server, keep }),
        2 => (any::<usize>(), 0..10usize, 0..4usize, any::<bool>(), option::weighted(0.1, 0..4usize))
            .prop_map(|(turn, tokens, cause, retry, server)| Event::Abort { turn, tokens, cause, retry, server }),
        1 => any::<usize>().prop_map(|turn| Event::ComeBack { turn }),
        1 => any::<usize>().prop_map(|turn| Event::Retry { turn }),
        1 => any::<usize>().prop_map(|turn| Event::Repeat { turn }),
        2 => (0..6usize, any::<bool>()).prop_map(|(session, completed)| Event::End { session, completed }),
        2 => (0..6usize, option::of(0..9_000u64), option::of(0..60u64), option::weighted(0.3, -2..3i32)).prop_map(|(session, idle, expected, priority)| Event::Hint { session, idle, expected, priority }),
        1 => (0..6usize, 0..6usize).prop_map(|(session, child)| Event::Fork { session, child }),
        1 => (0..3usize).prop_map(|replica| Event::Lose { replica }),
        2 => (0..3usize, 40..400u64).prop_map(|(replica, tokens)| Event::Add { replica, tokens }),
        1 => (0..4i64, 0..3usize, option::of(0..3usize)).prop_map(|(version, mode, replica)| Event::Weights { version, mode, replica }),
        2 => (any::<[u8; 4]>(), 0..250u8, 0..200u16, 0..60u16, 0..9u16, 0..6u8, any::<[u8; 2]>(), any::<[u8; 2]>(), (any::<bool>(), 0..PLACEMENTS.len(), proptest::bool::weighted(0.8)))
            .prop_map(|(caps, ceiling, growth, output, lease, bypass, guarantee, limit, (shed, placement, sticky))| Event::Limit { caps, ceiling, growth, output, lease, bypass, guarantee, limit, shed, placement, sticky }),
        1 => (0..3usize).prop_map(|replica| Event::Drain { replica }),
        1 => (0..3usize).prop_map(|replica| Event::Remove { replica }),
        1 => (0..3usize, 40..400u64).prop_map(|(replica, tokens)| Event::Set { replica, tokens }),
        3 => (0..4_000u64).prop_map(|millis| Event::Wait { millis }),
    ]
}

fn submit() -> impl Strategy<Value = Event> {
    let what = (0..6usize, 0..2usize, 0..3u32, 0..40usize, 0..20usize, option::of(0..40u64));
    let wait = (proptest::bool::weighted(0.9), option::weighted(0.2, 1..5_000u64));
    let whence = (option::weighted(0.2, 0..6usize), option::weighted(0.2, 0..2usize));
    let whither = (option::weighted(0.1, 0..3usize), option::weighted(0.05, 0..3usize), any::<i8>(), option::weighted(0.1, 0..3usize));
    let together = (prop_oneof![4 => Just(1u32), 1 => 2..4u32], option::weighted(0.3, 0..2usize), option::weighted(0.2, 0..60u64));
    (what, wait, whence, whither, together).prop_map(|(what, wait, whence, whither, together)| {
        let (session, workload, family, shared, private, max_new) = what;
        let ((hold, deadline), (parent, owner)) = (wait, whence);
        let ((candidate, at, bias, avoid), (samples, group, expected)) = (whither, together);
        Event::Submit {
            session,
            workload,
            family,
            shared,
            private,
            max_new,
            hold,
            deadline,
            candidate,
            parent,
            owner,
            at,
            bias,
            samples,
            group,
            expected,
            avoid,
        }
    })
}
