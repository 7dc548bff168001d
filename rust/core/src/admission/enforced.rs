//! Limits as the core enforces them: rows by slot, whole blocks, every value checked.

use std::sync::Arc;

use crate::admission::line::Order;
use crate::control::limits::Limits;
use crate::error::{Error, Result};
use crate::placement::Placement;
use crate::record::codec::record;
use crate::units::{MAX_SEQUENCE_TOKENS, Nanos, UNBOUNDED_BLOCKS, capacity_blocks, nanos};

/// No lease is longer: a stuck line moves after this time at the latest.
pub(crate) const MAX_LEASE_S: f64 = 600.0;

/// Limits of one replica.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReplicaLimits {
    pub(crate) session_cap: u64,
    pub(crate) turn_cap: u64,
    pub(crate) ceiling: u64,
    pub(crate) overflow: u64,
    pub(crate) cost_prefill: f64,
    pub(crate) cost_backlog: f64,
    pub(crate) cost_decode: f64,
    pub(crate) cost_spread: f64,
    /// By workload.
    pub(crate) workload_cap: Vec<u64>,
    /// By workload.
    pub(crate) lease: Vec<Nanos>,
}

/// Limits of one workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WorkloadLimits {
    pub(crate) growth_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) order: Order,
    /// What one first admission adds to the virtual time: price / weight.
    pub(crate) toll: f64,
    pub(crate) share: f64,
    /// Blocks of commit on all replicas, as the policy asked.
    pub(crate) asked: u64,
    /// The same as it is in force: scaled down where the ceilings do not suffice for all.
    pub(crate) guarantee: u64,
    /// Blocks of commit on all replicas.
    pub(crate) limit: u64,
}

impl WorkloadLimits {
    const UNLIMITED: Self =
        Self { growth_tokens: 0, output_tokens: 0, order: Order::Fifo, toll: 1.0, share: 1.0, asked: 0, guarantee: 0, limit: UNBOUNDED_BLOCKS };
}

/// Limits in force.
#[derive(Debug, Clone)]
pub(crate) struct Enforced {
    pub(crate) step: i64,
    /// By replica slot; rows of lost replicas are stale.
    pub(crate) replicas: Vec<ReplicaLimits>,
    pub(crate) workloads: Vec<WorkloadLimits>,
    pub(crate) bypass: f64,
    pub(crate) lookahead: usize,
    pub(crate) placement: Placement,
    /// Whether an idle session stays charged, so that its next turn is a continuation.
    pub(crate) sticky: bool,
    pub(crate) shed: bool,
}

impl ReplicaLimits {
    /// What holds for a replica of `blocks` capacity that no limits name.
    pub(crate) fn unlimited(blocks: u64, workloads: usize) -> Self {
        Self {
            session_cap: u64::MAX,
            turn_cap: u64::MAX,
            ceiling: blocks,
            overflow: blocks,
            cost_prefill: 2.0,
            cost_backlog: 1.0,
            cost_decode: 1.0,
            cost_spread: 0.0,
            workload_cap: vec![u64::MAX; workloads],
            lease: vec![0; workloads],
        }
    }
}

impl Enforced {
    pub(crate) fn new(workloads: usize) -> Self {
        Self {
            step: -1,
            replicas: Vec::new(),
            workloads: vec![WorkloadLimits::UNLIMITED; workloads],
            bypass: 4.0,
            lookahead: 8,
            placement: Placement::Cost,
            sticky: true,
            shed: false,
        }
    }

    /// Ceiling and overflow of a capacity that no policy has seen.
    fn unseen(&self, blocks: u64) -> (u64, u64) {
        if self.step >= 0 && blocks < UNBOUNDED_BLOCKS { (blocks * 95 / 100, blocks * 98 / 100) } else { (blocks, blocks) }
    }

    /// Notes that a replica has another capacity now: its caps and leases stay.
    pub(crate) fn resize_replica(&mut self, slot: u32, blocks: u64) {
        let (ceiling, overflow) = self.unseen(blocks);
        let row = &mut self.replicas[slot as usize];
        (row.ceiling, row.overflow) = (ceiling, overflow);
    }

    /// Scales the guarantees down where they add up to more than `room` blocks, those of all ceilings. Answers whether one shrank.
    pub(crate) fn scale_guarantees(&mut self, room: u128) -> bool {
        let asked: u128 = self.workloads.iter().map(|row| u128::from(row.asked)).sum();
        let mut shrank = false;
        for row in &mut self.workloads {
            let scaled = if asked <= room { row.asked } else { (u128::from(row.asked) * room / asked) as u64 };
            shrank |= scaled < std::mem::replace(&mut row.guarantee, scaled);
        }
        shrank
    }

    /// Adds the row of a new replica. Before the first step its limits are its capacity; afterwards it starts with 0.95
    /// and 0.98 of it and with the median of every cap, until the policy has seen it.
    pub(crate) fn add_replica(&mut self, slot: u32, blocks: u64, others: &[u32], workloads: usize) {
        let mut row = ReplicaLimits::unlimited(blocks, workloads);
        (row.ceiling, row.overflow) = self.unseen(blocks);
        let median = |read: &dyn Fn(&ReplicaLimits) -> u64| {
            let mut values: Vec<u64> = others.iter().map(|&slot| read(&self.replicas[slot as usize])).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(u64::MAX)
        };
        row.session_cap = median(&|row| row.session_cap);
        row.turn_cap = median(&|row| row.turn_cap);
        for workload in 0..workloads {
            row.workload_cap[workload] = median(&|row| row.workload_cap[workload]);
            row.lease[workload] = if others.is_empty() { 0 } else { median(&|row| row.lease[workload]) };
        }
        if slot as usize == self.replicas.len() {
            self.replicas.push(row);
        } else {
            self.replicas[slot as usize] = row;
        }
    }
}

/// What `compile` has to know of a live replica.
pub(crate) struct Row {
    pub(crate) slot: u32,
    pub(crate) name: Arc<str>,
    pub(crate) blocks: u64,
}

/// Checks limits and turns them into rows by slot. Rows that name no live replica are ignored; live replicas that are not named get defaults.
pub(crate) fn compile(limits: &Limits, step: i64, rows: &[Row], workloads: &[Arc<str>], block_tokens: u32, slots: usize) -> Result<Enforced> {
    let table = Table { limits, columns: limits.workloads.len() };
    table.check(workloads)?;
    let mut enforced = Enforced::new(workloads.len());
    enforced.step = step;
    enforced.replicas = vec![ReplicaLimits::unlimited(0, workloads.len()); slots];
    enforced.bypass = limits.bypass.unwrap_or(enforced.bypass);
    enforced.lookahead = limits.lookahead.map_or(enforced.lookahead, |turns| turns as usize);
    (enforced.placement, enforced.sticky) = Placement::compile(limits.placement.as_deref(), &limits.placement_args)?;
    enforced.shed = limits.shed.unwrap_or(false);
    for (w, name) in workloads.iter().enumerate() {
        let Some(column) = limits.workloads.iter().position(|other| other == name) else { continue };
        let row = &mut enforced.workloads[w];
        let read = |values: &Option<Vec<f64>>, default: f64| values.as_ref().map_or(default, |values| values[column]);
        row.growth_tokens = (read(&limits.growth_tokens, 0.0).round() as u64).min(MAX_SEQUENCE_TOKENS);
        row.output_tokens = (read(&limits.output_tokens, 0.0).round() as u64).min(MAX_SEQUENCE_TOKENS);
        row.order = limits.order.as_ref().map_or(Ok(Order::Fifo), |names| order(&names[column], name))?;
        let weight = read(&limits.weight, 1.0);
        row.toll = read(&limits.price, 1.0) / weight;
        row.share = read(&limits.share, weight);
        row.asked = capacity_blocks(read(&limits.guarantee_tokens, 0.0), block_tokens);
        row.limit = capacity_blocks(read(&limits.limit_tokens, f64::INFINITY), block_tokens);
        if row.asked > row.limit {
            return Err(Error::Policy {
                field: "guarantee_tokens",
                index: name.to_string(),
                value: (row.asked * u64::from(block_tokens)).to_string(),
                accepted: "at most limit_tokens",
            });
        }
    }
    for row in rows {
        let mut compiled = ReplicaLimits::unlimited(row.blocks, workloads.len());
        if let Some(at) = limits.replicas.iter().position(|name| *name == row.name) {
            let read = |values: &Option<Vec<f64>>| values.as_ref().map(|values| values[at]);
            let cap = |values: &Option<Vec<f64>>| read(values).map_or(u64::MAX, |value| value as u64);
            compiled.session_cap = cap(&limits.session_cap);
            compiled.turn_cap = cap(&limits.turn_cap);
            compiled.ceiling = read(&limits.ceiling_tokens).map_or(row.blocks, |tokens| capacity_blocks(tokens, block_tokens));
            compiled.overflow =
                read(&limits.overflow_tokens).map_or_else(|| row.blocks.max(compiled.ceiling), |tokens| capacity_blocks(tokens, block_tokens));
            if compiled.overflow < compiled.ceiling {
                return Err(Error::Policy {
                    field: "overflow_tokens",
                    index: row.name.to_string(),
                    value: (compiled.overflow * u64::from(block_tokens)).to_string(),
                    accepted: "at least ceiling_tokens",
                });
            }
            compiled.cost_prefill = read(&limits.cost_prefill).unwrap_or(compiled.cost_prefill);
            compiled.cost_backlog = read(&limits.cost_backlog).unwrap_or(compiled.cost_backlog);
            compiled.cost_decode = read(&limits.cost_decode).unwrap_or(compiled.cost_decode);
            compiled.cost_spread = read(&limits.cost_spread).unwrap_or(compiled.cost_spread);
            for (w, name) in workloads.iter().enumerate() {
                let Some(column) = limits.workloads.iter().position(|other| other == name) else { continue };
                let cell = |values: &Option<Vec<f64>>| values.as_ref().map(|values| values[at * table.columns + column]);
                compiled.workload_cap[w] = cell(&limits.workload_cap).map_or(u64::MAX, |value| value as u64);
                compiled.lease[w] = nanos(cell(&limits.lease_s).unwrap_or(0.0).min(MAX_LEASE_S));
            }
        }
        enforced.replicas[row.slot as usize] = compiled;
    }
    Ok(enforced)
}

struct Table<'a> {
    limits: &'a Limits,
    columns: usize,
}

impl Table<'_> {
    fn check(&self, workloads: &[Arc<str>]) -> Result<()> {
        const POSITIVE: &str = "finite numbers above 0";
        const FINITE: &str = "finite numbers of at least 0";
        const UNBOUNDED: &str = "numbers of at least 0, infinity allowed";
        if let Some(name) = self.limits.workloads.iter().find(|name| !workloads.contains(name)) {
            return Err(Error::Policy {
                field: "workloads",
                index: String::new(),
                value: name.to_string(),
                accepted: "names of the router's workloads",
            });
        }
        let l = self.limits;
        let (r, w) = (&l.replicas[..], &l.workloads[..]);
        if let Some(names) = l.order.as_ref().filter(|names| names.len() != w.len()) {
            let value = format!("{} values", names.len());
            return Err(Error::Policy { field: "order", index: String::new(), value, accepted: "one value per row of its shape" });
        }
        let none: &[Arc<str>] = &[];
        let unbounded = |value: f64| value >= 0.0;
        let finite = |value: f64| value >= 0.0 && value.is_finite();
        let positive = |value: f64| value > 0.0 && value.is_finite();
        column("session_cap", l.session_cap.as_deref(), r, None, unbounded, UNBOUNDED)?;
        column("workload_cap", l.workload_cap.as_deref(), r, Some(w), unbounded, UNBOUNDED)?;
        column("turn_cap", l.turn_cap.as_deref(), r, None, unbounded, UNBOUNDED)?;
        column("ceiling_tokens", l.ceiling_tokens.as_deref(), r, None, unbounded, UNBOUNDED)?;
        column("overflow_tokens", l.overflow_tokens.as_deref(), r, None, unbounded, UNBOUNDED)?;
        column("growth_tokens", l.growth_tokens.as_deref(), w, None, finite, FINITE)?;
        column("output_tokens", l.output_tokens.as_deref(), w, None, finite, FINITE)?;
        column("weight", l.weight.as_deref(), w, None, positive, POSITIVE)?;
        column("price", l.price.as_deref(), w, None, finite, FINITE)?;
        column("share", l.share.as_deref(), w, None, positive, POSITIVE)?;
        column("guarantee_tokens", l.guarantee_tokens.as_deref(), w, None, finite, FINITE)?;
        column("limit_tokens", l.limit_tokens.as_deref(), w, None, unbounded, UNBOUNDED)?;
        column("lease_s", l.lease_s.as_deref(), r, Some(w), finite, FINITE)?;
        column("cost_prefill", l.cost_prefill.as_deref(), r, None, finite, FINITE)?;
        column("cost_backlog", l.cost_backlog.as_deref(), r, None, finite, FINITE)?;
        column("cost_decode", l.cost_decode.as_deref(), r, None, finite, FINITE)?;
        column("cost_spread", l.cost_spread.as_deref(), r, None, finite, FINITE)?;
        column("bypass", l.bypass.as_ref().map(std::slice::from_ref), none, None, unbounded, UNBOUNDED)?;
        column(
            "lookahead",
            l.lookahead.as_ref().map(std::slice::from_ref),
            none,
            None,
            |value| value >= 1.0 && value.is_finite(),
            "a whole number of at least 1",
        )
    }
}

fn order(name: &str, workload: &Arc<str>) -> Result<Order> {
    Order::NAMES.iter().find(|known| known.0 == name).map(|known| known.1).ok_or_else(|| Error::Policy {
        field: "order",
        index: workload.to_string(),
        value: format!("{name:?}"),
        accepted: "fifo, longest_first or shortest_first",
    })
}

/// Checks the shape and every value of one field. No rows = a scalar.
fn column(
    field: &'static str,
    values: Option<&[f64]>,
    rows: &[Arc<str>],
    columns: Option<&[Arc<str>]>,
    accept: impl Fn(f64) -> bool,
    accepted: &'static str,
) -> Result<()> {
    let Some(values) = values else { return Ok(()) };
    let scalar = rows.is_empty() && values.len() == 1;
    let width = columns.map_or(1, <[_]>::len);
    if !scalar && values.len() != rows.len() * width {
        return Err(Error::Policy {
            field,
            index: String::new(),
            value: format!("{} values", values.len()),
            accepted: "one value per row of its shape",
        });
    }
    let Some(at) = values.iter().position(|&value| !accept(value)) else { return Ok(()) };
    let index = match columns {
        _ if scalar => String::new(),
        Some(columns) => format!("{}, {}", rows[at / width], columns[at % width]),
        None => rows[at].to_string(),
    };
    Err(Error::Policy { field, index, value: values[at].to_string(), accepted })
}

record!(ReplicaLimits { session_cap, turn_cap, ceiling, overflow, cost_prefill, cost_backlog, cost_decode, cost_spread, workload_cap, lease });
record!(WorkloadLimits { growth_tokens, output_tokens, order, toll, share, asked, guarantee, limit });
record!(Enforced { step, replicas, workloads, bypass, lookahead, placement, sticky, shed });
