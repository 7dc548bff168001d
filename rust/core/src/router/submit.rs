//! The submit event: from a request to a decision.

use std::sync::Arc;

use super::paths::{Path, Rewrite};
use super::types::{Completion, Decision, Reason, Receipt, Status, Submit, TurnInput};
use super::{Router, some_names};
use crate::error::{Error, Result};
use crate::sessions::{Ending, Session, Tried, Turn, TurnState, Verdict};
use crate::units::MAX_SEQUENCE_TOKENS;

/// How the names of sessions begin that their callers did not name.
const UNNAMED: &str = "\u{0}anonymous-";

/// Samples of a turn, and turns of a group.
const MOST_SIBLINGS: u32 = 1 << 16;

/// A request whose names have been looked up. Nothing has changed yet.
pub(super) struct Named {
    workload: Option<u32>,
    candidates: Option<Vec<u32>>,
    avoid: Vec<u32>,
    bias: Vec<(u32, f64)>,
}

impl Router {
    /// Decides about a turn: placed, held or rejected.
    ///
    /// The same turn and attempt again gets the decision of the moment: a held turn keeps its place, so polling works. A
    /// higher attempt aborts the earlier one and avoids its replica.
    ///
    /// # Errors
    /// [`Error::InvalidTokens`] for an empty prompt or append, [`Error::UnknownWorkload`], [`Error::UnknownReplica`] for a
    /// candidate, [`Error::UnknownSession`] and [`Error::HistoryMismatch`] for an append, [`Error::TurnConflict`] for an id
    /// that names other content or has ended, [`Error::InvalidArgument`] for the rest.
    pub fn submit(&mut self, now: u64, submit: &Submit<'_>) -> Result<Decision> {
        let named = self.look_up(submit)?;
        if let Some(id) = submit.turn
            && let Some(decision) = self.repeated(now, id, submit, &named)?
        {
            return Ok(decision);
        }
        if let Err(error) = self.check_append(submit) {
            self.stats.mismatches += u64::from(matches!(error, Error::HistoryMismatch { .. }));
            return Err(error);
        }
        self.check_parent(submit)?;
        self.begin(now);
        // A timer may have ended the session.
        if let Err(error) = self.check_append(submit) {
            self.pump(None);
            return Err(error);
        }
        let (mut named, mut since, mut again) = (named, None, false);
        if let Some(&earlier) = submit.turn.and_then(|id| self.turn_slots.get(id)) {
            let failed = self.turns[earlier].verdict.replica.filter(|_| matches!(self.turns[earlier].state, TurnState::Placed(_)));
            named.avoid.extend(failed);
            again = true;
            self.close(earlier, Ending::Replaced, &Completion::default());
        }
        self.stats.submitted += 1;
        let session = self.session_for(submit, &named);
        if let Some(kept) = self.take_kept(session) {
            named.avoid.extend(kept.avoid);
            since = Some(kept.since);
            again = true;
        }
        if !again {
            self.note_gap(session);
        }
        self.adopt(session, submit.parent);
        let path = self.path_for(session, submit);
        self.own(session, submit.owner);
        let turn = self.new_turn(submit, session, path, named, since);
        self.join_group(turn, submit.group, submit.group_size);
        // What was expected has come.
        self.expect_gap(session, None);
        self.sessions[session].expected_tokens = None;
        let workload = self.turns[turn].workload;
        self.workloads[workload as usize].arrivals.count(self.now);
        Ok(self.decide(turn, submit.hold && submit.at.is_none()))
    }

    /// Places, queues or rejects a new turn.
    fn decide(&mut self, turn: u32, hold: bool) -> Decision {
        let session = self.turns[turn].session;
        let blocks = self.prompt_blocks(turn);
        let home = self.sessions[session].home;
        // While turns of its session run on a replica that is being drained, or avoided, this one may join them.
        let joins = |home: u32| self.replicas[home as usize].closing.is_some() || self.turns[turn].avoid.contains(&home);
        let stays = |home: u32| self.is_candidate(turn, home) || (joins(home) && self.may_join(turn, home));
        if let Some(home) = home.filter(|&home| blocks <= self.replicas[home as usize].blocks && stays(home)) {
            self.continuation(turn, session, home);
            let decision = self.decision(&self.turns[turn], &self.turns[turn].verdict);
            self.pump(None);
            return decision;
        }
        let candidates = self.candidates(turn);
        // Who cannot wait is measured against what the engines can hold, not against the ceilings.
        let limit = self.limits.workloads[self.turns[turn].workload as usize].limit;
        let fits =
            |slot: u32| blocks <= if hold { self.limits.replicas[slot as usize].ceiling.min(limit) } else { self.replicas[slot as usize].blocks };
        if !candidates.is_empty() && !candidates.iter().any(|&slot| fits(slot)) {
            return self.reject(turn, Reason::TooLarge);
        }
        if home.is_some() && self.sessions[session].running > 0 {
            // Its session runs where this turn may not go, and a running turn is never cut.
            return self.reject(turn, Reason::NoReplica);
        }
        if home.is_some() {
            self.pause(session);
        }
        if self.line.len() >= self.max_held && hold {
            return self.reject(turn, Reason::LineFull);
        }
        let place = self.place_of(turn);
        let workload = self.turns[turn].workload;
        self.turns[turn].state = TurnState::Held { place, bypassed: 0, tried: Tried::default() };
        self.line.insert(workload, place, blocks);
        if let Some(deadline) = self.turns[turn].deadline {
            self.deadlines.insert((deadline, turn));
        }
        self.pump(Some(turn));
        if matches!(self.turns[turn].state, TurnState::Held { .. }) && !hold {
            if !self.force(turn) {
                self.leave_line(turn);
                return self.reject(turn, Reason::NoReplica);
            }
            // Whom it pushed out may have made room for more than it took.
            self.pump(None);
        }
        if matches!(self.turns[turn].state, TurnState::Held { .. }) {
            self.stats.held += 1;
            self.explain(turn);
        }
        let decision = self.decision(&self.turns[turn], &self.turns[turn].verdict);
        if !self.removing.is_empty() {
            self.pump(None);
        }
        decision
    }

    /// A continuation of a charged session passes, on its replica; after a flush it may move where that is cheaper and there is room.
    fn continuation(&mut self, turn: u32, session: u32, home: u32) {
        let flushed = self.sessions[session].weights_epoch != self.replicas[home as usize].weights_epoch;
        if flushed
            && self.sessions[session].is_idle()
            && let Some(target) = self.better_home(turn, home)
        {
            self.uncharge_session(session);
            self.charge_session(session, target);
            self.stats.moves += 1;
            self.workloads[self.sessions[session].workload as usize].moves += 1;
            self.continue_at_home(turn, Reason::Moved);
            return;
        }
        self.continue_at_home(turn, Reason::Continuation);
    }

    /// A replica that is cheaper than the session's own and has room without reclaim.
    fn better_home(&mut self, turn: u32, home: u32) -> Option<u32> {
        self.find_depths(turn);
        let mut ranked: Vec<(f64, u32)> = self
            .candidates(turn)
            .into_iter()
            .filter(|&slot| slot == home || self.fit(turn, slot).blocked.is_none())
            .map(|slot| (self.cost_of(turn, slot, 0), slot))
            .collect();
        let own = ranked.iter().find(|candidate| candidate.1 == home)?.0;
        ranked.retain(|candidate| candidate.1 == home || candidate.0 < own);
        self.ties.rank(&mut ranked);
        ranked.first().map(|best| best.1).filter(|&best| best != home)
    }

    fn reject(&mut self, turn: u32, reason: Reason) -> Decision {
        let blocks = self.prompt_blocks(turn);
        let receipt = self.receipt(turn, None, blocks, f64::INFINITY);
        let verdict = Verdict { status: Status::Rejected, replica: None, cached_tokens: 0, alternatives: [None; 3], reason, receipt };
        let decision = self.decision(&self.turns[turn], &verdict);
        self.stats.rejected += 1;
        let session = self.turns[turn].session;
        self.forget_turn(turn);
        let state = &self.sessions[session];
        if state.open.is_empty() && state.history_tokens == 0 && state.admitted.is_none() {
            self.forget_session(session);
        }
        // What this submit replaced or paused may have made room for others.
        self.pump(None);
        decision
    }

    pub(super) fn look_up(&self, submit: &Submit<'_>) -> Result<Named> {
        let workload = match submit.workload {
            None => None,
            Some(name) => Some(self.workloads.iter().position(|workload| &*workload.config.name == name).ok_or_else(|| Error::UnknownWorkload {
                name: name.into(),
                known: some_names(self.workloads.iter().map(|workload| &workload.config.name)),
            })? as u32),
        };
        if submit.candidates.is_some_and(<[_]>::is_empty) {
            return Err(Error::InvalidArgument {
                argument: "candidates",
                value: "[]".into(),
                accepted: "at least one replica name, or nothing for all",
            });
        }
        let slots = |names: &[&str]| names.iter().map(|name| self.replica_slot(name)).collect::<Result<Vec<u32>>>();
        let mut candidates = submit.candidates.map(slots).transpose()?;
        if let Some(at) = submit.at {
            let chosen = self.replica_slot(at)?;
            if candidates.is_some_and(|candidates| !candidates.contains(&chosen)) {
                return Err(Error::InvalidArgument { argument: "at", value: format!("{at:?}"), accepted: "one of the candidates" });
            }
            candidates = Some(vec![chosen]);
        }
        let mut bias = Vec::with_capacity(submit.bias.len());
        for &(name, seconds) in submit.bias {
            if !seconds.is_finite() {
                let value = format!("{seconds} for {name:?}");
                return Err(Error::InvalidArgument { argument: "bias", value, accepted: "finite seconds by replica" });
            }
            bias.push((self.replica_slot(name)?, seconds));
        }
        let avoid = submit.avoid.iter().filter_map(|&name| self.replica_slots.get(name).copied()).collect();
        let within = |argument, value: Option<u32>| match value {
            Some(number) if number == 0 || number > MOST_SIBLINGS => {
                Err(Error::InvalidArgument { argument, value: number.to_string(), accepted: "1 to 65536" })
            }
            _ => Ok(()),
        };
        within("samples", Some(submit.samples))?;
        within("group_size", submit.group_size)?;
        if submit.group_size.is_some() && submit.group.is_none() {
            return Err(Error::InvalidArgument { argument: "group_size", value: "no group".into(), accepted: "group_size together with group" });
        }
        match submit.input {
            TurnInput::Prompt(prompt) if prompt.tokens() == 0 => {
                Err(Error::InvalidTokens { argument: "prompt", problem: "no tokens, at least one is needed".into() })
            }
            TurnInput::Prompt(prompt) if prompt.block_tokens() != self.hasher.block_tokens() => Err(Error::InvalidTokens {
                argument: "prompt",
                problem: format!("made with blocks of {} tokens, this router has blocks of {}", prompt.block_tokens(), self.block_tokens),
            }),
            TurnInput::Append { tokens: [], .. } => {
                Err(Error::InvalidTokens { argument: "append", problem: "no tokens, at least one is needed".into() })
            }
            TurnInput::Count { prompt_tokens } if prompt_tokens == 0 || prompt_tokens > MAX_SEQUENCE_TOKENS => {
                Err(Error::InvalidArgument { argument: "prompt_tokens", value: prompt_tokens.to_string(), accepted: "1 to 2^40" })
            }
            _ => Ok(Named { workload, candidates, avoid, bias }),
        }
    }

    pub(super) fn replica_slot(&self, name: &str) -> Result<u32> {
        self.replica_slots.get(name).copied().ok_or_else(|| {
            let known = some_names(self.live().collect::<Vec<_>>().iter().map(|&slot| &self.replicas[slot as usize].config.name));
            Error::UnknownReplica { name: name.into(), known }
        })
    }

    /// The decision about a turn that was submitted before in this attempt.
    fn repeated(&mut self, now: u64, id: &str, submit: &Submit<'_>, named: &Named) -> Result<Option<Decision>> {
        let conflict = |difference: String| Err(Error::TurnConflict { turn: id.into(), difference });
        if let Some(&slot) = self.turn_slots.get(id) {
            let turn = &self.turns[slot];
            if submit.attempt > turn.attempt {
                return Ok(None);
            }
            if submit.attempt < turn.attempt {
                return conflict(format!("attempt {} is open, got {}", turn.attempt, submit.attempt));
            }
            let session = &self.sessions[turn.session];
            if submit.session.is_some_and(|name| name != &*session.id) {
                return conflict(format!("session {:?}, now {:?}", session.id, submit.session.unwrap_or_default()));
            }
            if named.workload.is_some_and(|workload| workload != turn.workload) {
                return conflict(format!("workload {:?}", self.workloads[turn.workload as usize].config.name));
            }
            let prompt_tokens = match submit.input {
                TurnInput::Prompt(prompt) => prompt.tokens(),
                TurnInput::Append { base_tokens, tokens } => base_tokens.saturating_add(tokens.len() as u64),
                TurnInput::Grown { base_tokens, suffix } => (base_tokens - base_tokens % self.block_tokens).saturating_add(suffix.tokens()),
                TurnInput::Count { prompt_tokens } => prompt_tokens,
            };
            if prompt_tokens != turn.prompt_tokens {
                return conflict(format!("{} prompt tokens, now {prompt_tokens}", turn.prompt_tokens));
            }
            self.begin(now);
            if let Some(&slot) = self.turn_slots.get(id) {
                self.unconfirmed.remove(&slot);
            }
            self.pump(None);
            // A timer of this very event may have ended it.
            return match self.turn_slots.get(id) {
                Some(&slot) => {
                    self.explain(slot);
                    Ok(Some(self.decision(&self.turns[slot], &self.turns[slot].verdict)))
                }
                None => conflict("it has just ended".into()),
            };
        }
        match self.closed.get(id) {
            Some((attempt, _)) if submit.attempt <= attempt => conflict(format!("attempt {attempt} has ended")),
            _ => Ok(None),
        }
    }

    pub(super) fn check_append(&self, submit: &Submit<'_>) -> Result<()> {
        let (TurnInput::Append { base_tokens, .. } | TurnInput::Grown { base_tokens, .. }) = submit.input else { return Ok(()) };
        let Some(name) = submit.session else {
            return Err(Error::InvalidArgument {
                argument: "append",
                value: "no session".into(),
                accepted: "append together with the session it continues",
            });
        };
        let slot = self.session_slots.get(name).ok_or_else(|| Error::UnknownSession { session: name.into() })?;
        let session = &self.sessions[*slot];
        let mismatch = |base_tokens| Error::HistoryMismatch {
            session: name.into(),
            history_tokens: session.history_tokens,
            known_tokens: session.known_tokens,
            base_tokens,
        };
        if base_tokens != session.history_tokens {
            return Err(mismatch(Some(base_tokens)));
        }
        // The turn that this one replaces by a higher attempt does not count as open.
        let replaced = submit.turn.and_then(|id| self.turn_slots.get(id));
        let open = session.open.iter().filter(|turn| Some(*turn) != replaced).count();
        let other_root = submit.namespace.is_some_and(|namespace| namespace != &*session.namespace);
        if session.known_tokens != session.history_tokens || open > 0 || other_root {
            return Err(mismatch(None));
        }
        match submit.input {
            TurnInput::Grown { suffix, .. }
                if suffix.block_tokens() != self.hasher.block_tokens() || suffix.tokens() <= session.tail.len() as u64 =>
            {
                Err(Error::InvalidTokens { argument: "append", problem: "hashed otherwise than after this history, or without a new token".into() })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn session_for(&mut self, submit: &Submit<'_>, named: &Named) -> u32 {
        if let Some(&slot) = submit.session.and_then(|name| self.session_slots.get(name)) {
            return slot;
        }
        if submit.session.is_none()
            && let Some(&slot) = submit.turn.and_then(|id| self.retries.get(id))
        {
            return slot;
        }
        self.generated += 1;
        let id: Arc<str> = submit.session.map_or_else(|| format!("{UNNAMED}{}", self.generated).into(), Into::into);
        let namespace: Arc<str> = submit.namespace.unwrap_or_default().into();
        // One that was inferred and that a timer of this very event has ended begins anew.
        let unnamed = submit.session.is_none_or(|name| self.infer_sessions && name.starts_with(UNNAMED));
        self.add_session(id, named.workload.unwrap_or(0), namespace, unnamed)
    }

    /// A session without history, its empty trunk anchored.
    pub(super) fn add_session(&mut self, id: Arc<str>, workload: u32, namespace: Arc<str>, single_turn: bool) -> u32 {
        let root = self.root_name(&namespace);
        let trunk = self.index.tree.root(&root);
        self.index.tree.anchor(trunk);
        let session = Session {
            id: id.clone(),
            workload,
            namespace,
            root,
            single_turn,
            parent: None,
            member: false,
            owner: None,
            home: None,
            trunk,
            tail: Vec::new(),
            history_tokens: 0,
            known_tokens: 0,
            trunk_seq: 0,
            claimed: None,
            beside: (0, 0),
            admitted: None,
            base_tokens: 0,
            growth_limit: 0,
            headroom: 0,
            open: Vec::new(),
            running: 0,
            idle_since: self.now,
            last_activity: self.now,
            weights_epoch: 0,
            meter: crate::sessions::Meter { at: self.now, ..Default::default() },
            turns_completed: 0,
            gap: None,
            expected_tokens: None,
            priority: 0,
            kept: None,
        };
        let slot = self.sessions.insert(session);
        self.session_slots.insert(id, slot);
        self.fall_quiet(slot);
        slot
    }

    pub(super) fn new_turn(&mut self, submit: &Submit<'_>, session: u32, path: Path, named: Named, since: Option<u64>) -> u32 {
        let id: Arc<str> = match submit.turn {
            Some(id) => id.into(),
            None => loop {
                self.generated += 1;
                let id = format!("turn-{}", self.generated);
                if !self.turn_slots.contains_key(id.as_str()) {
                    break id.into();
                }
            },
        };
        match path.rewrite {
            Some(Rewrite::Edited) => self.stats.edited += 1,
            Some(Rewrite::Shortened) => self.stats.shortened += 1,
            Some(Rewrite::OtherNamespace) => self.stats.other_namespace += 1,
            None => {}
        }
        let receipt = Receipt {
            prompt_tokens: path.prompt_tokens,
            matched_tokens: 0,
            indexed: path.known_tokens == path.prompt_tokens,
            need_tokens: 0,
            charge_tokens: 0,
            commit_tokens: 0,
            limit: f64::INFINITY,
            reclaimable_tokens: 0,
            cost_s: f64::NAN,
            runner_up_cost_s: f64::NAN,
            limits_step: self.limits.step,
        };
        self.sessions[session].root = path.root;
        let expected = self.sessions[session].expected_tokens;
        let turn = Turn {
            id: id.clone(),
            attempt: submit.attempt,
            seq: self.seq,
            since: since.unwrap_or(self.seq),
            session,
            workload: self.sessions[session].workload,
            cursor: path.cursor,
            tail: path.tail,
            prompt_tokens: path.prompt_tokens,
            known_tokens: path.known_tokens,
            max_new_tokens: submit.max_new_tokens,
            samples: submit.samples,
            expected_tokens: submit.expected_tokens.or(expected),
            priority: if submit.priority == 0 { self.sessions[session].priority } else { submit.priority },
            group: None,
            candidates: named.candidates,
            bias: named.bias,
            avoid: named.avoid,
            deadline: submit.deadline.map(|after| self.now.saturating_add(after)),
            submitted_at: self.now,
            last_event: self.now,
            state: TurnState::Held { place: (true, 0, 0, 0, 0), bypassed: 0, tried: Tried::default() },
            verdict: Verdict { status: Status::Held, replica: None, cached_tokens: 0, alternatives: [None; 3], reason: Reason::Behind, receipt },
        };
        let slot = self.turns.insert(turn);
        self.turn_slots.insert(id, slot);
        if self.sessions[session].open.is_empty() {
            self.wake_up(session);
        }
        let state = &mut self.sessions[session];
        state.open.push(slot);
        state.last_activity = self.now;
        slot
    }
}
