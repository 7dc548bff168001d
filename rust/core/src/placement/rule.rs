//! The rules by name, and what is accepted of their parameters.

use std::sync::Arc;

use super::{CacheAware, Dynamo, LeastLoaded};
use crate::error::{Error, Result};
use crate::record::codec::{Damaged, Reader, Record, Taken};

/// How the replicas that may take a session are ranked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Placement {
    /// Seconds until the turn is served, see [`super::cost`].
    Cost,
    /// The next one in order of joining after the one that took a session last.
    RoundRobin,
    LeastLoaded(LeastLoaded),
    CacheAware(CacheAware),
    Dynamo(Dynamo),
    /// Rendezvous hashing of the session's name: who leaves or joins moves no other session.
    Hash,
}

/// A parameter of a rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) default: f64,
    pub(super) most: f64,
    pub(super) accepted: &'static str,
}

/// A parameter that may be any finite number of at least 0.
pub(super) const fn weight(name: &'static str, default: f64) -> Parameter {
    Parameter { name, default, most: f64::MAX, accepted: "a finite number of at least 0" }
}

/// A parameter from 0 to 1.
pub(super) const fn share(name: &'static str, default: f64) -> Parameter {
    Parameter { name, default, most: 1.0, accepted: "a number from 0 to 1" }
}

/// Every rule takes it: 0 = a session is reclaimed as soon as it is idle, so that each of its turns is placed anew, as by a router
/// that keeps no sessions.
const STICKY: Parameter = Parameter { name: "sticky", default: 1.0, most: 1.0, accepted: "0 or 1" };

impl Placement {
    /// The rule of a name with its parameters, and whether sessions stick to their replica.
    ///
    /// # Errors
    /// [`Error::Policy`] for an unknown rule, a parameter that it does not have, and a value out of range.
    pub(crate) fn compile(name: Option<&str>, given: &[(Arc<str>, f64)]) -> Result<(Self, bool)> {
        let read = |own: &[Parameter], names| read(own, names, given);
        let rule = match name.unwrap_or("cost") {
            "cost" => (Self::Cost, read(&[], "sticky")?),
            "round_robin" => (Self::RoundRobin, read(&[], "sticky")?),
            "hash" => (Self::Hash, read(&[], "sticky")?),
            "least_loaded" => {
                let values = read(&LeastLoaded::PARAMETERS, "turns, sessions or sticky")?;
                (Self::LeastLoaded(LeastLoaded { turns: values[0], sessions: values[1] }), values)
            }
            "cache_aware" => {
                let values = read(&CacheAware::PARAMETERS, "cache_threshold, balance_abs, balance_rel or sticky")?;
                let rule = CacheAware { cache_threshold: values[0], balance_abs: values[1], balance_rel: values[2] };
                (Self::CacheAware(rule), values)
            }
            "dynamo" => {
                let values = read(&Dynamo::PARAMETERS, "overlap_weight, temperature or sticky")?;
                (Self::Dynamo(Dynamo { overlap_weight: values[0], temperature: values[1] }), values)
            }
            other => {
                return Err(Error::Policy {
                    field: "placement",
                    index: String::new(),
                    value: other.into(),
                    accepted: "cost, round_robin, least_loaded, cache_aware, dynamo or hash",
                });
            }
        };
        // The last value is that of `sticky`.
        let sticky = rule.1[MOST_PARAMETERS] > 0.0;
        Ok((rule.0, sticky))
    }
}

/// Parameters of the rule that has most.
const MOST_PARAMETERS: usize = 3;

/// The values of a rule's own parameters in their order; the last place is that of `sticky`.
fn read(own: &[Parameter], names: &'static str, given: &[(Arc<str>, f64)]) -> Result<[f64; MOST_PARAMETERS + 1]> {
    let mut values = [0.0; MOST_PARAMETERS + 1];
    for (value, parameter) in values.iter_mut().zip(own) {
        *value = parameter.default;
    }
    values[MOST_PARAMETERS] = STICKY.default;
    for (name, value) in given {
        let known = own.iter().position(|parameter| parameter.name == &**name).map(|at| (at, &own[at]));
        let known = known.or((&**name == STICKY.name).then_some((MOST_PARAMETERS, &STICKY)));
        let refuse =
            |accepted: &'static str| Err(Error::Policy { field: "placement_args", index: name.to_string(), value: value.to_string(), accepted });
        let Some((at, parameter)) = known else { return refuse(names) };
        let whole = parameter.accepted != STICKY.accepted || value.fract() == 0.0;
        if !(*value >= 0.0 && *value <= parameter.most && whole) {
            return refuse(parameter.accepted);
        }
        values[at] = *value;
    }
    Ok(values)
}

impl Record for Placement {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Cost => to.push(0),
            Self::RoundRobin => to.push(1),
            Self::Hash => to.push(2),
            Self::LeastLoaded(rule) => {
                to.push(3);
                rule.put(to);
            }
            Self::CacheAware(rule) => {
                to.push(4);
                rule.put(to);
            }
            Self::Dynamo(rule) => {
                to.push(5);
                rule.put(to);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Ok(match from.bytes(1)?[0] {
            0 => Self::Cost,
            1 => Self::RoundRobin,
            2 => Self::Hash,
            3 => Self::LeastLoaded(Record::take(from)?),
            4 => Self::CacheAware(Record::take(from)?),
            5 => Self::Dynamo(Record::take(from)?),
            _ => return Err(Damaged("no such placement")),
        })
    }
}
