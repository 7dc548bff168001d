//! Progress and the ends of turns.

use super::types::{Completion, Decision, Effect, Outcome, Reason, Status};
use super::{Router, placed};
use crate::error::{Error, Result};
use crate::estimate::FADE;
use crate::index::Cursor;
use crate::sessions::{Ending, Placement, Session, TurnState};
use crate::units::MAX_SEQUENCE_TOKENS;

impl Router {
    /// Reports that a placed turn has produced `output_tokens` so far, all samples together. The first report means that its prefill
    /// is done. Where another replica serves it, `served_by` says which: the charge moves there, that of a held turn as well.
    ///
    /// # Errors
    /// [`Error::UnknownTurn`] for a turn that was never seen; [`Error::UnknownReplica`] for `served_by`; [`Error::InvalidArgument`]
    /// beyond 2^40 tokens. A turn that has ended answers [`Effect::Late`].
    pub fn progress(&mut self, now: u64, turn: &str, output_tokens: u64, served_by: Option<&str>) -> Result<Outcome> {
        if output_tokens > MAX_SEQUENCE_TOKENS {
            return Err(Error::InvalidArgument { argument: "output_tokens", value: output_tokens.to_string(), accepted: "0 to 2^40" });
        }
        if !self.turn_slots.contains_key(turn) && self.closed.get(turn).is_none() {
            return Err(Error::UnknownTurn { turn: turn.into() });
        }
        if let Some(name) = served_by {
            self.replica_slot(name)?;
        }
        let seq = self.begin(now);
        let Some(&slot) = self.turn_slots.get(turn) else {
            self.stats.late += 1;
            self.pump(None);
            return Ok(Outcome { seq, effect: Effect::Late });
        };
        let server = served_by.and_then(|name| self.replica_slots.get(name)).copied();
        let moved = server.is_some_and(|server| placed(&self.turns[slot]).is_none_or(|placement| placement.replica != server));
        if let Some(server) = server {
            let waited = placed(&self.turns[slot]).is_none();
            self.served_at(slot, server);
            if waited {
                // Somebody else may be waiting for it.
                self.announce(slot, None);
            }
        }
        let Some(placement) = placed(&self.turns[slot]).copied() else {
            self.pump(None);
            return Ok(Outcome { seq, effect: Effect::Late });
        };
        self.heard(slot);
        self.started(slot);
        let news = moved || !placement.reported || output_tokens > placement.output_tokens;
        if news {
            self.report_output(slot, output_tokens);
            self.enforce_residency(placement.replica);
            self.relieve(placement.replica);
        }
        self.pump(None);
        Ok(Outcome { seq, effect: if news { Effect::Done } else { Effect::Duplicate } })
    }

    /// Ends a placed turn. Its prompt and output become the session's history. Never fails for an unknown turn, because it
    /// stands where exceptions are cleaned up: the answer is [`Effect::Unknown`]. A held turn that another router served is history
    /// where `served_by` says by whom; else it only leaves the line.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a `prompt_tokens` beyond 2^40 and, of an open turn, a number of outputs that is not that of its
    /// samples and a `keep` that names none of them.
    pub fn complete(&mut self, now: u64, turn: &str, completion: &Completion<'_>) -> Result<Outcome> {
        self.end_turn(now, turn, Ending::Completed, completion)
    }

    /// Ends a held or placed turn. What it generated stays history where anything was reported; else it never was. With `retry`, the
    /// next turn of its id or of its session waits where this one did.
    ///
    /// # Errors
    /// As [`Self::complete`].
    pub fn abort(&mut self, now: u64, turn: &str, completion: &Completion<'_>) -> Result<Outcome> {
        self.end_turn(now, turn, Ending::Aborted, completion)
    }

    fn end_turn(&mut self, now: u64, turn: &str, ending: Ending, completion: &Completion<'_>) -> Result<Outcome> {
        self.check_completion(turn, completion)?;
        let seq = self.begin(now);
        let effect = if let Some(&slot) = self.turn_slots.get(turn) {
            let session = self.turns[slot].session;
            let homeless = self.note_server(slot, completion);
            // A turn that never ran cannot complete: whoever served it elsewhere only takes it out of the line.
            let ending = if placed(&self.turns[slot]).is_some() { ending } else { Ending::Aborted };
            if ending == Ending::Aborted {
                self.note_abort(slot, completion);
            }
            // What the other one found in its cache says nothing about this one.
            let cached_tokens = completion.cached_tokens.filter(|_| !homeless);
            self.close(slot, ending, &Completion { cached_tokens, ..*completion });
            if homeless && self.sessions.get(session).is_some_and(Session::is_idle) {
                self.pause(session);
            }
            Effect::Done
        } else {
            match self.closed.get(turn) {
                Some((_, ended)) if ended == ending => Effect::Duplicate,
                Some(_) => {
                    self.stats.late += 1;
                    Effect::Late
                }
                None => {
                    self.stats.unknown += 1;
                    Effect::Unknown
                }
            }
        };
        self.pump(None);
        Ok(Outcome { seq, effect })
    }

    fn check_completion(&self, turn: &str, completion: &Completion<'_>) -> Result<()> {
        let refuse = |argument, value: String, accepted| Err(Error::InvalidArgument { argument, value, accepted });
        if let Some(tokens) = completion.prompt_tokens.filter(|&tokens| tokens == 0 || tokens > MAX_SEQUENCE_TOKENS) {
            return refuse("prompt_tokens", tokens.to_string(), "1 to 2^40");
        }
        let Some(&slot) = self.turn_slots.get(turn) else { return Ok(()) };
        let samples = self.turns[slot].samples;
        let lists = completion.output.map(<[_]>::len).or(completion.grown.map(<[_]>::len));
        if let Some(lists) = lists.filter(|&lists| lists != samples as usize) {
            return refuse("output", format!("{lists} outputs of a turn with {samples} samples"), "one output per sample");
        }
        match completion.keep {
            Some(keep) if keep >= samples => refuse("keep", keep.to_string(), "the number of a sample of the turn, from 0"),
            _ => Ok(()),
        }
    }

    /// Ends an open turn in whatever way.
    pub(super) fn close(&mut self, turn: u32, ending: Ending, completion: &Completion<'_>) {
        let state = &self.turns[turn];
        let (session, id, attempt) = (state.session, state.id.clone(), state.attempt);
        match state.state {
            TurnState::Held { .. } => self.leave_line(turn),
            TurnState::Placed(placement) => self.close_placed(turn, session, ending, &placement, completion),
        }
        match ending {
            Ending::Completed => self.stats.completed += 1,
            Ending::Aborted | Ending::Replaced => self.stats.aborted += 1,
            Ending::Expired => self.stats.expired += 1,
            Ending::Lost => self.stats.lost += 1,
        }
        self.closed.insert(self.now, id, attempt, ending);
        let comes_back = ending == Ending::Replaced || (ending == Ending::Aborted && completion.retry);
        self.groups.leave(self.turns[turn].group.take(), self.now, comes_back);
        self.forget_turn(turn);
        let state = &self.sessions[session];
        let stays = self.infer_sessions && (state.history_tokens > 0 || !state.open.is_empty() || ending == Ending::Replaced);
        let over = state.single_turn && !stays && !comes_back;
        if over || (ending == Ending::Completed && self.ends_with_its_turn(session)) {
            self.finish_session(session, ending == Ending::Completed);
        }
    }

    fn close_placed(&mut self, turn: u32, session: u32, ending: Ending, placement: &Placement, completion: &Completion<'_>) {
        let home = placement.replica;
        let produced = self.produced(turn, completion).unwrap_or(0);
        let keeps = match ending {
            Ending::Completed => true,
            Ending::Aborted => produced > 0 || placement.reported,
            Ending::Replaced | Ending::Expired | Ending::Lost => false,
        };
        if keeps {
            self.started(turn);
        }
        let confirmed = placed(&self.turns[turn]).is_some_and(|placement| placement.started);
        if !confirmed {
            self.prefill_done(home);
        }
        self.metered(session, home, |router| {
            if keeps {
                router.extend_history(turn, session, home, completion);
            } else if router.sessions[session].running == 1
                && router.sessions[session].history_tokens > 0
                && router.sessions[session].claimed.is_none()
            {
                // The turn stood for the session; without it the session is what it was.
                router.claim_trunk(session);
            }
            let placement = *placed(&router.turns[turn]).expect("the turn is placed");
            let (cursor, epoch) = (router.turns[turn].cursor, placement.residency_epoch);
            if let Some(epoch) = epoch {
                router.index.residency.release(&mut router.index.tree, home, epoch, cursor, confirmed);
            }
            router.uncharge_turn(turn, &placement);
        });
        self.sessions[session].open.retain(|&other| other != turn);
        if self.sessions[session].running == 0 && self.sessions[session].history_tokens == 0 {
            self.uncharge_session(session);
        }
        self.refresh_headroom(session);
        if ending == Ending::Completed {
            let meter = &mut self.sessions[session].meter;
            (meter.block_ns_completed, meter.charged_ns_completed) = (meter.block_ns, meter.charged_ns);
            meter.active_ns_completed = meter.active_ns;
            self.sessions[session].turns_completed += 1;
            self.sessions[session].weights_epoch = self.replicas[home as usize].weights_epoch;
            let output = if produced > 0 {
                produced
            } else if placement.reported {
                placement.output_tokens
            } else {
                0
            };
            let now = self.now;
            self.replicas[home as usize].decoded.add(now, output as f64);
            self.note_cached(turn, home, completion.cached_tokens);
            let samples = u64::from(self.turns[turn].samples);
            self.workloads[self.turns[turn].workload as usize].estimator.turn(output.div_ceil(samples));
        }
        self.enforce_residency(home);
        self.relieve(home);
    }

    /// Compares what the turn found in the cache with what was forecast. Only continuations of charged sessions say how full the
    /// replica is: others may miss for reasons of their own.
    fn note_cached(&mut self, turn: u32, home: u32, cached_tokens: Option<u64>) {
        let Some(cached) = cached_tokens else { return };
        let verdict = &self.turns[turn].verdict;
        let missing = verdict.cached_tokens.saturating_sub(cached);
        self.stats.surprises += u64::from(missing > 2 * self.block_tokens);
        let flushed = placed(&self.turns[turn]).is_some_and(|placement| placement.residency_epoch != Some(self.index.residency.epoch(home)));
        if verdict.reason == Reason::Continuation && !flushed {
            let forecast_tokens = verdict.cached_tokens;
            let replica = &mut self.replicas[home as usize];
            let [turns, forecast, short] = &mut replica.shortfall;
            (*turns, *forecast, *short) = (*turns + 1, *forecast + forecast_tokens, *short + missing);
            let [expected, found] = &mut replica.hits;
            *expected = *expected * FADE + forecast_tokens as f64;
            *found = *found * FADE + (forecast_tokens - missing) as f64;
        }
    }

    /// Tokens that the caller says were generated, if it says so; ids speak before counts.
    fn produced(&self, turn: u32, completion: &Completion<'_>) -> Option<u64> {
        let tail = self.turns[turn].tail.len() as u64;
        let ids = completion.output.map(|lists| lists.iter().map(|ids| ids.len() as u64).sum());
        let grown = completion.grown.map(|lists| lists.iter().map(|grown| grown.tokens().saturating_sub(tail)).sum());
        ids.or(grown).or(completion.output_tokens)
    }

    /// Makes prompt and output of a turn the session's history, unless a turn submitted later already did. Of several samples the
    /// one that is kept is history; the others are in the cache of the replica, and charged to nobody.
    fn extend_history(&mut self, turn: u32, session: u32, home: u32, completion: &Completion<'_>) {
        let placement = *placed(&self.turns[turn]).expect("the turn is placed");
        let state = &self.turns[turn];
        let (samples, seq, cursor, tail) = (state.samples, state.seq, state.cursor, state.tail.clone());
        let (asked, known) = (state.prompt_tokens, state.known_tokens);
        let kept = if samples == 1 { Some(0) } else { completion.keep };
        let lists = completion.output.map(<[_]>::len).or(completion.grown.map(<[_]>::len)).filter(|_| known == asked);
        let mut history = (cursor, tail.clone(), known);
        let mut output_tokens = 0;
        for sample in 0..lists.unwrap_or(0) {
            let (end, end_tail, end_known) = match (completion.output, completion.grown) {
                (Some(output), _) => self.append(cursor, &tail, output[sample]),
                (None, Some(grown)) => self.index_path(cursor, grown[sample].fingerprints(), grown[sample].tail().to_vec()),
                (None, None) => continue,
            };
            self.index.tree.anchor(end);
            self.hold_path(home, &placement, end, end_known.saturating_sub(1).max(asked));
            if kept == Some(sample as u32) {
                history = (end, end_tail, end_known);
                output_tokens = match (completion.output, completion.grown) {
                    (Some(output), _) => output[sample].len() as u64,
                    (None, Some(grown)) => grown[sample].tokens().saturating_sub(tail.len() as u64),
                    (None, None) => 0,
                };
            } else {
                self.index.unanchor(end);
            }
        }
        if lists.is_none() {
            self.stats.counted_outputs += 1;
            self.hold_path(home, &placement, cursor, asked);
            let reported = if placement.reported { placement.output_tokens } else { 0 };
            let all = self.produced(turn, completion).unwrap_or(reported).min(MAX_SEQUENCE_TOKENS);
            output_tokens = if kept.is_some() { all.div_ceil(u64::from(samples)) } else { 0 };
        }
        let (mut end, mut end_tail, mut known_tokens) = history;
        if lists.is_none() || kept.is_none() {
            self.index.tree.anchor(end);
        }
        let prompt_tokens = completion.prompt_tokens.unwrap_or(asked);
        let history_tokens = prompt_tokens + output_tokens;
        if known_tokens > history_tokens {
            // The engine counts fewer tokens than were submitted: what is beyond its count is no history.
            let depth = (history_tokens / self.block_tokens) as u32;
            let shorter = self.index.tree.ancestor(end, depth);
            self.index.tree.anchor(shorter);
            self.index.unanchor(std::mem::replace(&mut end, shorter));
            (end_tail, known_tokens) = (Vec::new(), u64::from(self.index.tree.depth(shorter)) * self.block_tokens);
        }
        if seq < self.sessions[session].trunk_seq {
            self.index.unanchor(end);
            return;
        }
        let base = &mut self.sessions[session].base_tokens;
        *base = (*base).min(prompt_tokens);
        self.replace_trunk(session, |state| {
            state.trunk = end;
            state.tail = end_tail;
            state.history_tokens = history_tokens;
            state.known_tokens = known_tokens;
            state.trunk_seq = seq;
        });
    }

    /// Notes that a replica holds a path up to a number of tokens, unless it has dropped its cache since the turn began. The last token
    /// has no KV yet, and unknown tokens no place in the index.
    fn hold_path(&mut self, home: u32, placement: &Placement, end: Cursor, tokens: u64) {
        if placement.residency_epoch.is_none_or(|epoch| epoch == self.index.residency.epoch(home)) {
            let held = self.index.tree.ancestor(end, (tokens / self.block_tokens) as u32);
            self.index.hold(home, held);
        }
    }

    /// Removes a turn from the tables. It must be off the books.
    pub(super) fn forget_turn(&mut self, turn: u32) {
        let state = self.turns.remove(turn);
        self.groups.leave(state.group, self.now, false);
        self.unconfirmed.remove(&turn);
        self.turn_slots.remove(&state.id);
        self.index.unanchor(state.cursor);
        let session = &mut self.sessions[state.session];
        session.open.retain(|&other| other != turn);
        if session.open.is_empty() {
            session.last_activity = self.now;
            self.paused_paths |= session.home.is_none();
            self.fall_quiet(state.session);
        }
    }

    /// Notes the first token of a placed turn: its prompt is in the cache.
    pub(super) fn started(&mut self, turn: u32) {
        let state = &mut self.turns[turn];
        let cursor = state.cursor;
        let TurnState::Placed(placement) = &mut state.state else { return };
        if std::mem::replace(&mut placement.started, true) {
            return;
        }
        let (home, epoch) = (placement.replica, placement.residency_epoch);
        if let Some(epoch) = epoch {
            self.index.residency.confirm(&mut self.index.tree, home, epoch, cursor);
        }
        self.prefill_done(home);
    }

    /// One prefill fewer; with none left, nothing is queued, whatever the rate says.
    pub(super) fn prefill_done(&mut self, replica: u32) {
        let replica = &mut self.replicas[replica as usize];
        replica.prefilling -= 1;
        if replica.prefilling == 0 {
            replica.prefill_until = self.now;
        }
    }

    fn heard(&mut self, turn: u32) {
        self.unconfirmed.remove(&turn);
        let state = &mut self.turns[turn];
        self.silence.remove(&(state.last_event, turn));
        state.last_event = self.now;
        self.silence.insert((self.now, turn));
    }

    /// Ends a turn that its caller does not know has ended: it leaves by the outbox.
    pub(super) fn drop_turn(&mut self, turn: u32, ending: Ending, status: Status, reason: Reason) {
        let mut verdict = self.turns[turn].verdict;
        (verdict.status, verdict.reason) = (status, reason);
        let decision: Decision = self.decision(&self.turns[turn], &verdict);
        self.outbox.push_back(decision);
        self.close(turn, ending, &Completion::default());
    }
}
