//! The view event: measured state copied into arrays for a policy.

use super::{Knowledge, Router, placed};
use crate::control::view::{Column, FleetView, Shape, Values};
use crate::estimate::{Estimates, Live};
use crate::sessions::TurnState;
use crate::units::{UNBOUNDED_BLOCKS, seconds};

impl Router {
    /// Copies the state of the fleet at `now`. Its step goes back with the limits computed from it.
    pub fn view(&mut self, now: u64) -> FleetView {
        self.begin(now);
        self.pump(None);
        self.view_step += 1;
        FleetView {
            step: self.view_step,
            now_s: seconds(self.now),
            elapsed_s: seconds(self.now - self.applied_at),
            replicas: self.replicas(),
            workloads: self.workloads(),
            columns: [self.replica_columns(), self.matrix_columns(), self.workload_columns()].concat(),
        }
    }

    fn replica_columns(&self) -> Vec<Column> {
        let tokens = |read: &dyn Fn(u32) -> u64| {
            let blocks = self.live().map(read);
            Values::F64(blocks.map(|blocks| if blocks >= UNBOUNDED_BLOCKS { f64::INFINITY } else { (blocks * self.block_tokens) as f64 }).collect())
        };
        let state = |slot: u32| &self.replicas[slot as usize];
        let idle = |slot: u32, expired: bool| {
            let over = |session: &u32| !expired || self.lease_end(&self.limits, *session, slot) <= self.now;
            let sessions = state(slot).idle.iter().flatten().map(|&(_, session)| session).filter(over);
            sessions.map(|session| self.sessions[session].meter.added_blocks).sum::<u64>().min(self.ledger.charge(slot))
        };
        let mut prefilling = vec![0u64; self.replicas.len()];
        for (_, turn) in self.turns.iter() {
            if let Some(placement) = placed(turn).filter(|placement| !placement.started) {
                prefilling[placement.replica as usize] += turn.prompt_tokens - turn.verdict.cached_tokens;
            }
        }
        let stalled = |slot: u32| self.ledger.charge(slot) == 0 && self.line.len() > 0;
        let column = |name, values| Column { name, shape: Shape::Replicas, values };
        let reals = |read: &dyn Fn(&super::Replica) -> f64| Values::F64(self.live().map(|slot| read(state(slot))).collect());
        vec![
            column("kv_tokens", Values::F64(self.live().map(|slot| state(slot).config.kv_tokens).collect())),
            column("block_tokens", Values::I64(self.live().map(|slot| self.engine_block(slot) as i64).collect())),
            column("accepting", Values::Bool(self.live().map(|slot| state(slot).accepts()).collect())),
            column("exact", Values::Bool(self.live().map(|slot| self.index.residency.knowledge(slot) == Knowledge::Whole).collect())),
            column("weight_version", Values::I64(self.live().map(|slot| state(slot).weight_version).collect())),
            column("charge_tokens", tokens(&|slot| self.ledger.charge(slot))),
            column("commit_tokens", tokens(&|slot| self.ledger.commit(slot))),
            column("idle_tokens", tokens(&|slot| idle(slot, false))),
            column("expired_tokens", tokens(&|slot| idle(slot, true))),
            column("lost_tokens", tokens(&|slot| state(slot).lost_blocks)),
            column("resident_tokens", tokens(&|slot| self.index.residency.resident_blocks(slot))),
            column("backlog_tokens", Values::F64(self.live().map(|slot| prefilling[slot as usize] as f64).collect())),
            column("running_turns", Values::I64(self.live().map(|slot| self.ledger.replica(slot).turns.cast_signed()).collect())),
            column("reported_turns", Values::I64(self.live().map(|slot| state(slot).shortfall[0].cast_signed()).collect())),
            column("forecast_tokens", Values::F64(self.live().map(|slot| state(slot).shortfall[1] as f64).collect())),
            column("missing_tokens", Values::F64(self.live().map(|slot| state(slot).shortfall[2] as f64).collect())),
            column("stalled", Values::Bool(self.live().map(stalled).collect())),
            column("hit_fraction", reals(&|replica| replica.hits[1] / replica.hits[0])),
            column("engine_kv_fraction", reals(&|replica| replica.observed.kv_fraction.unwrap_or(f64::NAN))),
            column("engine_running", reals(&|replica| replica.observed.running.map_or(f64::NAN, |turns| turns as f64))),
            column("engine_waiting", reals(&|replica| replica.observed.waiting.map_or(f64::NAN, |turns| turns as f64))),
            column("preemptions_per_s", reals(&|replica| replica.observed.preemptions_per_s(self.now))),
            column("metrics_age_s", reals(&|replica| replica.observed.at.map_or(f64::INFINITY, |at| seconds(self.now - at)))),
            column("decode_tokens_per_s", reals(&|replica| replica.decoded.read(self.now))),
            column("dead_tokens_per_s", reals(&|replica| replica.dead.read(self.now))),
            column("prefill_tokens_per_s", Values::F64(self.live().map(|slot| state(slot).config.prefill_tokens_per_s).collect())),
        ]
    }

    fn matrix_columns(&self) -> Vec<Column> {
        let workloads = self.workloads.len() as u32;
        let cells = || self.live().flat_map(move |slot| (0..workloads).map(move |workload| (slot, workload)));
        let column = |name, values| Column { name, shape: Shape::Matrix, values };
        let tokens = |blocks: u64| (blocks * self.block_tokens) as f64;
        vec![
            column(
                "sessions_running",
                Values::I64(cells().map(|(slot, workload)| self.ledger.workload(slot, workload).running.cast_signed()).collect()),
            ),
            column("sessions_idle", Values::I64(cells().map(|(slot, workload)| self.ledger.workload(slot, workload).idle.cast_signed()).collect())),
            column("workload_tokens", Values::F64(cells().map(|(slot, workload)| tokens(self.ledger.workload_charge(slot, workload))).collect())),
            column("reserved_tokens", Values::F64(cells().map(|(slot, workload)| tokens(self.ledger.workload(slot, workload).output)).collect())),
        ]
    }

    fn workload_columns(&self) -> Vec<Column> {
        let count = self.workloads.len();
        let (mut held_new, mut held_paused, mut paused) = (vec![0i64; count], vec![0i64; count], vec![0i64; count]);
        let (mut held_tokens, mut oldest) = (vec![0.0; count], vec![0.0f64; count]);
        for (_, session) in self.sessions.iter() {
            let w = session.workload as usize;
            paused[w] += i64::from(session.is_paused());
            if session.home.is_none() && !session.open.is_empty() {
                *(if session.is_paused() { &mut held_paused[w] } else { &mut held_new[w] }) += 1;
            }
        }
        for (_, turn) in self.turns.iter().filter(|(_, turn)| matches!(turn.state, TurnState::Held { .. })) {
            let w = turn.workload as usize;
            held_tokens[w] += turn.prompt_tokens as f64;
            oldest[w] = oldest[w].max(seconds(self.now - turn.submitted_at));
        }
        let tokens = |blocks: u64| (blocks * self.block_tokens) as f64;
        let estimates = self.estimates();
        let column = |name, values| Column { name, shape: Shape::Workloads, values };
        let counts = |read: &dyn Fn(&super::Workload) -> i64| Values::I64(self.workloads.iter().map(read).collect());
        let reals = |read: &dyn Fn(&super::Workload) -> f64| Values::F64(self.workloads.iter().map(read).collect());
        let learned = |read: &dyn Fn(&Estimates) -> f64| Values::F64(estimates.iter().map(read).collect());
        vec![
            column("target", reals(&|workload| workload.config.target)),
            column("committed_tokens", Values::F64((0..count).map(|w| tokens(self.ledger.total(w as u32))).collect())),
            column("guaranteed_tokens", Values::F64((0..count).map(|w| tokens(self.limits.workloads[w].guarantee)).collect())),
            column("held_new", Values::I64(held_new)),
            column("held_paused", Values::I64(held_paused)),
            column("paused", Values::I64(paused)),
            column("held_tokens", Values::F64(held_tokens)),
            column("oldest_hold_s", Values::F64(oldest)),
            column("arrivals_per_s", reals(&|workload| workload.arrivals.read(self.now))),
            column("finishes_per_s", reals(&|workload| workload.finishes.read(self.now))),
            column("finished", counts(&|workload| workload.finished)),
            column("pauses", counts(&|workload| workload.pauses)),
            column("moves", counts(&|workload| workload.moves)),
            column("forced", counts(&|workload| workload.forced)),
            column("context_tokens", learned(&|estimates| estimates.context_tokens)),
            column("growth_tokens", learned(&|estimates| estimates.growth_tokens)),
            column("final_tokens", learned(&|estimates| estimates.final_tokens)),
            column("output_tokens", learned(&|estimates| estimates.output_tokens)),
            column("residency_s", learned(&|estimates| estimates.residency_s)),
            column("token_seconds", learned(&|estimates| estimates.token_seconds)),
            column("active_s", learned(&|estimates| estimates.active_s)),
            column("gap_s", learned(&|estimates| estimates.gap_s)),
            column("gap_p95_s", learned(&|estimates| estimates.gap_p95_s)),
            column("continue_fraction", learned(&|estimates| estimates.continue_fraction)),
            column("samples", counts(&|workload| workload.estimator.samples.cast_signed())),
            column("virtual_time", Values::F64((0..count).map(|w| self.line.virtual_time(w as u32)).collect())),
        ]
    }

    /// What is learned of each workload, in one walk over the sessions.
    fn estimates(&self) -> Vec<Estimates> {
        let mut live: Vec<Vec<Live>> = self.workloads.iter().map(|_| Vec::new()).collect();
        for (slot, session) in self.sessions.iter().filter(|(_, session)| session.admitted.is_some()) {
            let elapsed = if session.home.is_some() { self.now.saturating_sub(session.meter.at) } else { 0 };
            let block_ns = session.meter.block_ns + u128::from(session.meter.added_blocks) * u128::from(elapsed);
            live[session.workload as usize].push(Live {
                residency_s: seconds(session.meter.charged_ns + elapsed),
                block_seconds: block_ns as f64 / 1e9,
                growth_tokens: self.grown_tokens(slot) as f64,
                active_s: seconds(session.meter.active_ns + if session.running > 0 { elapsed } else { 0 }),
                gap: (session.open.is_empty() && session.turns_completed > 0).then(|| self.now - session.last_activity),
            });
        }
        self.workloads.iter().zip(&live).map(|(workload, live)| workload.estimator.read(self.hasher.block_tokens(), live)).collect()
    }
}
