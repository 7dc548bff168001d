//! One place where an error of the core becomes a Python exception of `turnout.errors`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;
use turnout_core::error::Error;

static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Name of the class, and what its attributes `argument`, `value` and `accepted` say.
fn describe(error: &Error) -> (&'static str, String, String, String) {
    match error {
        Error::InvalidArgument { argument, value, accepted } => ("InvalidArgument", (*argument).into(), value.clone(), (*accepted).into()),
        Error::InvalidTokens { argument, problem } => {
            ("InvalidTokens", (*argument).into(), problem.clone(), "1-D integers from 0 to 4294967295".into())
        }
        Error::UnknownReplica { name, known } => ("UnknownReplica", "replica".into(), name.clone(), known.clone()),
        Error::UnknownWorkload { name, known } => ("UnknownWorkload", "workload".into(), name.clone(), known.clone()),
        Error::UnknownSession { session } => ("UnknownSession", "session".into(), session.clone(), "a session with a submitted turn".into()),
        Error::UnknownTurn { turn } => ("UnknownTurn", "turn".into(), turn.clone(), "a turn that was submitted".into()),
        Error::HistoryMismatch { base_tokens, history_tokens, .. } => (
            "HistoryMismatch",
            "base_tokens".into(),
            base_tokens.map_or_else(|| "append".into(), |tokens| tokens.to_string()),
            format!("{history_tokens} with every id known, or the whole prompt"),
        ),
        Error::TurnConflict { turn, .. } => ("TurnConflict", "turn".into(), turn.clone(), "a new turn id, or a higher attempt".into()),
        Error::Policy { field, index, value, accepted } => {
            let argument = if index.is_empty() { (*field).to_owned() } else { format!("{field}[{index}]") };
            ("PolicyError", argument, value.clone(), (*accepted).into())
        }
        Error::Record { problem } => ("RecordError", "record".into(), problem.clone(), "a whole snapshot or journal of this format version".into()),
        Error::Differs { event, .. } => ("AnswerDiffers", "record".into(), (*event).into(), "a journal of the same version of Turnout".into()),
        other => ("InternalError", String::new(), other.to_string(), String::new()),
    }
}

/// Makes the Python exception of a core error.
#[allow(clippy::needless_pass_by_value, reason = "the signature that map_err wants")]
pub(crate) fn to_py(error: Error) -> PyErr {
    let (class, argument, value, accepted) = describe(&error);
    raise(class, error.to_string(), argument, value, accepted)
}

/// An argument of the binding itself is wrong.
pub(crate) fn invalid(argument: &'static str, value: impl Into<String>, accepted: &'static str) -> PyErr {
    to_py(Error::InvalidArgument { argument, value: value.into(), accepted })
}

/// A message of an engine cannot be read.
#[allow(clippy::needless_pass_by_value, reason = "the signature that map_err wants")]
pub(crate) fn payload_error(error: turnout_wire::WireError) -> PyErr {
    let text = error.to_string();
    raise("InvalidArgument", format!("payload: {text}"), "payload".into(), text, "a batch of cache events of vLLM or SGLang, in msgpack".into())
}

/// A load report cannot be read.
#[allow(clippy::needless_pass_by_value, reason = "the signature that map_err wants")]
pub(crate) fn load_error(error: turnout_wire::WireError) -> PyErr {
    let text = error.to_string();
    raise("InvalidArgument", format!("payload: {text}"), "payload".into(), text, "a load report of SGLang, in msgpack".into())
}

/// Tokens cannot be read.
pub(crate) fn invalid_tokens(argument: &'static str, problem: impl Into<String>) -> PyErr {
    to_py(Error::InvalidTokens { argument, problem: problem.into() })
}

fn raise(class: &str, message: String, argument: String, value: String, accepted: String) -> PyErr {
    Python::attach(|py| {
        let make = || {
            let module = MODULE.get_or_try_init(py, || PyModule::import(py, "turnout.errors").map(Bound::unbind))?;
            let exception = module.bind(py).getattr(class)?.call1((message, argument, value, accepted))?;
            Ok(PyErr::from_value(exception))
        };
        make().unwrap_or_else(|error| error)
    })
}
