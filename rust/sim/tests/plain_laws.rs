//! The engine, which jumps and counts in runs, tells the story of one that looks at every block in every step.

mod plain;

use std::sync::Arc;

use proptest::prelude::*;
use turnout_sim::engine::model::EngineModel;
use turnout_sim::engine::{Engine, Event, Request};

/// A request: arrival in 0.1 ms, family, blocks shared with its family, prompt, output.
type Arrival = (u64, u64, u64, u64, u64);

/// Both engines take part in the same story.
trait Plays {
    fn due(&self) -> Option<u64>;
    fn arrive(&mut self, now: u64, request: Request);
    fn step(&mut self, now: u64, events: &mut Vec<Event>);
    fn numbers(&self) -> [u64; 4];
}

macro_rules! plays {
    ($engine:ty) => {
        impl Plays for $engine {
            fn due(&self) -> Option<u64> {
                self.due()
            }
            fn arrive(&mut self, now: u64, request: Request) {
                self.arrive(now, request);
            }
            fn step(&mut self, now: u64, events: &mut Vec<Event>) {
                self.step(now, events);
            }
            fn numbers(&self) -> [u64; 4] {
                [self.used_tokens(), self.preemptions, self.recomputed_tokens, self.output_tokens]
            }
        }
    };
}
plays!(Engine);
plays!(plain::Engine);

fn story(engine: &mut dyn Plays, mut arrivals: Vec<(u64, Request)>) -> Vec<(u64, [u64; 4], Vec<Event>)> {
    arrivals.sort_by_key(|(at, request)| (*at, request.id));
    let mut arrivals = arrivals.into_iter().peekable();
    let mut told = Vec::new();
    loop {
        match (arrivals.peek().map(|arrival| arrival.0), engine.due()) {
            (Some(at), due) if due.is_none_or(|due| at < due) => {
                let (at, request) = arrivals.next().unwrap();
                engine.arrive(at, request);
                told.push((at, engine.numbers(), Vec::new()));
            }
            (_, Some(due)) => {
                let mut events = Vec::new();
                engine.step(due, &mut events);
                told.push((due, engine.numbers(), events));
            }
            _ => return told,
        }
    }
}

/// Requests of a family share blocks up to where they part.
fn request(id: u64, &(_, family, shared, prompt, output): &Arrival) -> Request {
    let chain: Arc<[u64]> = (0..(prompt + output) / 4)
        .map(|depth| {
            let owner = if depth < shared { family } else { 100 + id };
            (owner * 1_000 + depth + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        })
        .collect();
    Request { id, prompt_tokens: prompt, output_tokens: output, chain }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn runs_and_jumps_equal_blocks_and_steps(
        capacity in 60u64..300,
        budget in 8u64..200,
        arrivals in proptest::collection::vec((0u64..30_000, 0u64..20, 0u64..60, 1u64..200, 1u64..500), 1..30),
    ) {
        let mut model = EngineModel::named("qwen3-8b-h200").unwrap();
        (model.max_batched_tokens, model.max_sequences) = (budget, 6.min(budget));
        let requests: Vec<(u64, Request)> = arrivals
            .iter()
            .enumerate()
            .filter(|(_, arrival)| (arrival.3 + arrival.4).div_ceil(4) <= capacity)
            .map(|(id, arrival)| (arrival.0 * 100_000, request(id as u64, arrival)))
            .collect();
        let fast = story(&mut Engine::new(model, capacity * 4, 4), requests.clone());
        let mut plain = plain::Engine::new(model, capacity * 4, 4);
        let slow = story(&mut plain, requests);
        // Which of two copies goes first, and whether the other is found then, is not the same in blocks and in runs.
        prop_assume!(plain.copies() == 0);
        for (one, two) in fast.iter().zip(&slow) {
            prop_assert_eq!(one, two);
        }
        prop_assert_eq!(fast.len(), slow.len());
    }
}
