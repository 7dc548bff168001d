//! From an event to what the journal has of it, and back: doing it again.

use std::collections::BTreeMap;

use super::codec::Damaged;
use super::events::{Blocks, CacheChange, Event, Input, Request};
use super::journal::{answered, digest};
use super::recorder::Recorder;
use super::snapshot::refuse;
use crate::error::Result;
use crate::index::CacheEvent;
use crate::prompt::Prompt;
use crate::router::Router;
use crate::router::types::{Completion, Decision, Submit, TurnInput};
use crate::units::Nanos;

impl Recorder {
    /// Does a recorded event again; answers its digest and counts the decisions in it.
    pub(super) fn redo(&mut self, now: Nanos, event: &Event, decisions: &mut BTreeMap<&'static str, u64>) -> Result<u32> {
        let mut count = |decision: &Decision| *decisions.entry(decision.reason.as_str()).or_insert(0) += 1;
        let outcome = match event {
            Event::Submit { request } | Event::Choose { request } => {
                let answer = self.redo_submit(now, request, matches!(event, Event::Choose { .. }))?;
                let found = digest(&answer);
                answered(answer)?.as_ref().map(&mut count);
                return Ok(found);
            }
            Event::Drain {} => {
                let words = self.drain();
                words.iter().for_each(&mut count);
                return Ok(digest(&Ok(words)));
            }
            Event::View {} => return Ok(digest(&Ok(self.view(now).step))),
            Event::Complete { turn, end } | Event::Abort { turn, end } => {
                let block_tokens = self.router.hasher().block_tokens();
                let hashed = |lists: &Vec<Blocks>| lists.iter().map(|grown| grown.prompt(block_tokens, &[])).collect();
                let grown: Option<std::result::Result<Vec<Prompt>, Damaged>> = end.grown.as_ref().map(hashed);
                let grown = grown.transpose().or_else(|damaged| refuse(damaged.0))?;
                let completion = Completion {
                    output: None,
                    grown: grown.as_deref(),
                    output_tokens: end.output_tokens,
                    prompt_tokens: end.prompt_tokens,
                    cached_tokens: end.cached_tokens,
                    served_by: end.served_by.as_deref(),
                    keep: end.keep,
                    cause: end.cause,
                    retry: end.retry,
                };
                let call = if matches!(event, Event::Complete { .. }) { Router::complete } else { Router::abort };
                call(&mut self.router, now, turn, &completion)
            }
            Event::Progress { turn, output_tokens, served_by } => self.progress(now, turn, *output_tokens, served_by.as_deref()),
            Event::Fork { session, child } => self.fork(now, session, child),
            Event::EndSession { session, completed } => self.end_session(now, session, *completed),
            Event::Hint { session, hint } => self.hint(now, session, hint),
            Event::OwnerLost { owner } => self.owner_lost(now, owner),
            Event::AddReplica { replica } => self.add_replica(now, replica),
            Event::SetReplica { replica } => self.set_replica(now, replica),
            Event::DrainReplica { replica } => self.drain_replica(now, replica),
            Event::RemoveReplica { replica } => self.remove_replica(now, replica),
            Event::LoseReplica { replica } => self.lose_replica(now, replica),
            Event::WeightsUpdated { version, mode, replica } => self.weights_updated(now, *version, *mode, replica.as_deref()),
            Event::Observe { replica, metrics } => self.observe(now, replica, metrics),
            Event::CacheEvents { replica, rank, sequence, events } => {
                let events: Vec<CacheEvent<'_>> = events.iter().map(CacheChange::event).collect();
                self.cache_events(now, replica, *rank, *sequence, &events)
            }
            Event::ResetFeed { replica, rank, next } => self.reset_feed(now, replica, *rank, *next),
            Event::EndFeeds { replica } => self.end_feeds(now, replica),
            Event::SetLimits { limits, step } => self.set_limits(now, limits, *step),
            Event::Tick {} => self.tick(now),
            Event::Rescan {} => self.rescan(now),
            Event::ExpectCallers { after } => self.expect_callers(now, *after),
        };
        let found = digest(&outcome);
        answered(outcome)?;
        Ok(found)
    }

    fn redo_submit(&mut self, now: Nanos, request: &Request, choose: bool) -> Result<Result<Decision>> {
        let block_tokens = self.router.hasher().block_tokens();
        let prompt = match &request.input {
            Input::Prompt { known_blocks, rest } => {
                let history = request.session.as_deref().map(|name| self.router.history_fingerprints(name)).unwrap_or_default();
                let Some(known) = history.get(..*known_blocks as usize) else { return refuse("a prompt begins with a history that is not there") };
                Some(rest.prompt(block_tokens, known))
            }
            Input::Grown { suffix, .. } => Some(suffix.prompt(block_tokens, &[])),
            Input::Count { .. } => None,
        };
        let prompt = prompt.transpose().or_else(|damaged| refuse(damaged.0))?;
        let input = match (&request.input, &prompt) {
            (Input::Prompt { .. }, Some(prompt)) => TurnInput::Prompt(prompt),
            (Input::Grown { base_tokens, .. }, Some(suffix)) => TurnInput::Grown { base_tokens: *base_tokens, suffix },
            (Input::Count { prompt_tokens }, _) => TurnInput::Count { prompt_tokens: *prompt_tokens },
            _ => return refuse("a submit without what it asks"),
        };
        let candidates: Option<Vec<&str>> = request.candidates.as_ref().map(|names| names.iter().map(String::as_str).collect());
        let avoid: Vec<&str> = request.avoid.iter().map(String::as_str).collect();
        let bias: Vec<(&str, f64)> = request.bias.iter().map(|(name, seconds)| (name.as_str(), *seconds)).collect();
        let submit = Submit {
            turn: request.turn.as_deref(),
            attempt: request.attempt,
            session: request.session.as_deref(),
            parent: request.parent.as_deref(),
            workload: request.workload.as_deref(),
            namespace: request.namespace.as_deref(),
            input,
            max_new_tokens: request.max_new_tokens,
            samples: request.samples,
            group: request.group.as_deref(),
            group_size: request.group_size,
            expected_tokens: request.expected_tokens,
            priority: request.priority,
            candidates: candidates.as_deref(),
            avoid: &avoid,
            at: request.at.as_deref(),
            bias: &bias,
            owner: request.owner.as_deref(),
            hold: request.hold,
            deadline: request.deadline,
        };
        Ok(if choose { self.router.choose(now, &submit) } else { self.router.submit(now, &submit) })
    }
}

/// A request as the journal has it.
pub(super) fn request(router: &Router, submit: &Submit<'_>) -> Request {
    let input = match submit.input {
        TurnInput::Prompt(prompt) => {
            let history = submit.session.map(|name| router.history_fingerprints(name)).unwrap_or_default();
            let known = history.iter().zip(prompt.fingerprints()).take_while(|(one, other)| one == other).count();
            Input::Prompt { known_blocks: known as u32, rest: Blocks::of(prompt, known) }
        }
        TurnInput::Grown { base_tokens, suffix } => Input::Grown { base_tokens, suffix: Blocks::of(suffix, 0) },
        // Only one without new tokens is still here, and it is refused.
        TurnInput::Append { base_tokens, .. } => Input::Grown { base_tokens, suffix: Blocks { fingerprints: Vec::new(), tail: Vec::new() } },
        TurnInput::Count { prompt_tokens } => Input::Count { prompt_tokens },
    };
    let owned = |text: Option<&str>| text.map(Into::into);
    Request {
        turn: owned(submit.turn),
        attempt: submit.attempt,
        session: owned(submit.session),
        parent: owned(submit.parent),
        workload: owned(submit.workload),
        namespace: owned(submit.namespace),
        input,
        max_new_tokens: submit.max_new_tokens,
        samples: submit.samples,
        group: owned(submit.group),
        group_size: submit.group_size,
        expected_tokens: submit.expected_tokens,
        priority: submit.priority,
        candidates: submit.candidates.map(|names| names.iter().map(|&name| name.into()).collect()),
        avoid: submit.avoid.iter().map(|&name| name.into()).collect(),
        at: owned(submit.at),
        bias: submit.bias.iter().map(|&(name, seconds)| (name.into(), seconds)).collect(),
        owner: owned(submit.owner),
        hold: submit.hold,
        deadline: submit.deadline,
    }
}
