//! The prefix index by itself. Replicas are row numbers, histories are handles: plain integers, so that a call costs little.

use std::sync::{Mutex, MutexGuard};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use turnout_core::error::{Error, Result as CoreResult};
use turnout_core::index::{Applied, Match};
use turnout_core::prefix_index::{HistoryId, PrefixIndex as Core, PrefixIndexConfig};
use turnout_core::prompt::{BlockHasher, HashKey};

use crate::arguments;
use crate::errors::{invalid, payload_error, to_py};
use crate::prompt::Prompt;
use crate::tokens;

/// Row of the batch answers where fewer replicas hold anything.
const NOBODY: i32 = -1;

/// The index behind one lock.
#[pyclass(frozen, subclass, module = "turnout._core")]
pub(crate) struct PrefixIndex {
    core: Mutex<State>,
    hasher: BlockHasher,
    key: HashKey,
}

struct State {
    core: Core,
    names: Vec<String>,
}

impl PrefixIndex {
    /// A panic under the lock leaves the state in doubt: every later call fails.
    fn lock(&self) -> PyResult<MutexGuard<'_, State>> {
        self.core.lock().map_err(|_| to_py(Error::Internal { problem: "an earlier call panicked; make a new index".into() }))
    }

    fn call<T>(&self, call: impl FnOnce(&mut Core) -> CoreResult<T>) -> PyResult<T> {
        let result = call(&mut self.lock()?.core);
        result.map_err(to_py)
    }

    fn tokens(&self, found: Match) -> (u32, u64) {
        (found.replica, u64::from(found.blocks) * u64::from(self.hasher.block_tokens()))
    }
}

impl State {
    fn add(&mut self, replica: &turnout_core::router::types::ReplicaConfig) -> CoreResult<u32> {
        if self.names.iter().any(|name| **name == *replica.name) {
            return Err(Error::InvalidArgument { argument: "replicas", value: format!("{:?} twice", replica.name), accepted: "unique names" });
        }
        let row = self.core.add_replica(replica.kv_tokens)?;
        self.names.push(replica.name.to_string());
        Ok(row)
    }
}

#[pymethods]
impl PrefixIndex {
    #[new]
    #[pyo3(signature = (replicas, *, hash_key, block_tokens = 16, index_bytes = 4_294_967_296, record = None))]
    fn new(
        replicas: &Bound<'_, PyAny>,
        hash_key: &[u8],
        #[pyo3(from_py_with = arguments::block_tokens)] block_tokens: u32,
        #[pyo3(from_py_with = arguments::index_bytes)] index_bytes: u64,
        record: Option<&[u8]>,
    ) -> PyResult<Self> {
        if let Some(record) = record {
            let (core, names) = Core::restore(record).map_err(to_py)?;
            let hasher = core.hasher().clone();
            return Ok(Self { key: *hasher.key(), hasher, core: Mutex::new(State { core, names }) });
        }
        let key = arguments::hash_key(hash_key)?;
        let fleet = arguments::fleet(replicas, PyTuple::empty(replicas.py()).as_any())?;
        let core = Core::new(&PrefixIndexConfig { hash_key: key, block_tokens, index_bytes }).map_err(to_py)?;
        let hasher = core.hasher().clone();
        let mut state = State { core, names: Vec::new() };
        for replica in &fleet.replicas {
            state.add(replica).map_err(to_py)?;
        }
        Ok(Self { core: Mutex::new(state), hasher, key })
    }

    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let state = self.lock()?;
        let bytes = state.core.snapshot(&state.names);
        drop(state);
        Ok(PyBytes::new(py, &bytes))
    }

    fn add_replica(&self, replica: &Bound<'_, PyAny>) -> PyResult<u32> {
        let replica = arguments::replica(replica)?;
        let added = self.lock()?.add(&replica);
        added.map_err(to_py)
    }

    fn lose_replica(&self, #[pyo3(from_py_with = arguments::replica_row)] replica: u32) -> PyResult<()> {
        self.call(|core| core.lose_replica(replica))
    }

    fn flush(&self, #[pyo3(from_py_with = arguments::replica_row)] replica: u32) -> PyResult<()> {
        self.call(|core| core.flush(replica))
    }

    /// Hashes a prompt with this index's key and block size.
    fn prompt(&self, tokens: &Bound<'_, PyAny>) -> PyResult<Prompt> {
        Ok(Prompt { core: tokens::with(tokens, "tokens", |tokens| self.hasher.prompt(tokens))?, key: self.key })
    }

    #[pyo3(signature = (tokens, *, namespace = "", most = 8))]
    fn lookup(&self, tokens: &Bound<'_, PyAny>, namespace: &str, #[pyo3(from_py_with = arguments::most)] most: usize) -> PyResult<Vec<(u32, u64)>> {
        let find = |fingerprints: &[u64]| {
            let mut state = self.lock()?;
            Ok(state.core.lookup(namespace, fingerprints, most).iter().map(|&found| self.tokens(found)).collect())
        };
        match tokens.cast::<Prompt>() {
            Ok(prompt) => find(prompt.get().under(&self.key, self.hasher.block_tokens(), "tokens")?.fingerprints()),
            Err(_) => tokens::fingerprints(tokens, "tokens", &self.hasher, find)?,
        }
    }

    /// Rows and tokens as bytes of two arrays (prompts, most), int32 and int64.
    #[pyo3(signature = (tokens, offsets, *, namespace = "", most = 8))]
    fn raw_lookup_batch<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        offsets: &Bound<'py, PyAny>,
        namespace: &str,
        #[pyo3(from_py_with = arguments::most)] most: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let offsets = whole_numbers(py, offsets, "offsets")?;
        let tokens = tokens::read(tokens, "tokens")?;
        let rising = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if offsets.first() != Some(&0) || offsets.last() != Some(&(tokens.len() as u64)) || !rising {
            let shown = format!("{} offsets from {:?} to {:?}", offsets.len(), offsets.first(), offsets.last());
            return Err(invalid("offsets", shown, "rising whole numbers from 0 to the number of tokens: one more than there are prompts"));
        }
        let answer = py.detach(|| {
            let mut answer = Answer::new(offsets.len() - 1, most);
            let mut fingerprints = Vec::new();
            for bounds in offsets.windows(2) {
                fingerprints.clear();
                self.hasher.hash_into(&tokens[bounds[0] as usize..bounds[1] as usize], &mut fingerprints);
                let mut state = self.lock()?;
                answer.push(state.core.lookup(namespace, &fingerprints, most), self);
            }
            Ok::<_, PyErr>(answer)
        })?;
        Ok(answer.to_py(py))
    }

    #[pyo3(signature = (tokens, *, replica = None, namespace = ""))]
    fn open(
        &self,
        tokens: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::optional_replica_row)] replica: Option<u32>,
        namespace: &str,
    ) -> PyResult<u64> {
        tokens::with(tokens, "tokens", |tokens| self.call(|core| core.open(namespace, tokens, replica)))?.map(|history| history.0)
    }

    #[pyo3(signature = (history, tokens, replica = None))]
    fn extend(
        &self,
        #[pyo3(from_py_with = arguments::history)] history: u64,
        tokens: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::optional_replica_row)] replica: Option<u32>,
    ) -> PyResult<u64> {
        tokens::with(tokens, "tokens", |tokens| self.call(|core| core.extend(HistoryId(history), tokens, replica)))?
    }

    fn place(
        &self,
        #[pyo3(from_py_with = arguments::history)] history: u64,
        #[pyo3(from_py_with = arguments::replica_row)] replica: u32,
    ) -> PyResult<()> {
        self.call(|core| core.place(HistoryId(history), replica))
    }

    #[pyo3(signature = (history, at_tokens = None))]
    fn fork(
        &self,
        #[pyo3(from_py_with = arguments::history)] history: u64,
        #[pyo3(from_py_with = arguments::at_tokens)] at_tokens: Option<u64>,
    ) -> PyResult<u64> {
        self.call(|core| core.fork(HistoryId(history), at_tokens)).map(|history| history.0)
    }

    fn close(&self, #[pyo3(from_py_with = arguments::history)] history: u64) -> PyResult<()> {
        self.call(|core| core.close(HistoryId(history)))
    }

    fn history_tokens(&self, #[pyo3(from_py_with = arguments::history)] history: u64) -> PyResult<u64> {
        self.call(|core| core.tokens(HistoryId(history)))
    }

    fn peek(&self, #[pyo3(from_py_with = arguments::history)] history: u64) -> PyResult<Option<(u32, u64)>> {
        let found = self.call(|core| core.peek(HistoryId(history)))?;
        Ok(found.map(|found| self.tokens(found)))
    }

    #[pyo3(signature = (history, most = 8))]
    fn holders(
        &self,
        #[pyo3(from_py_with = arguments::history)] history: u64,
        #[pyo3(from_py_with = arguments::most)] most: usize,
    ) -> PyResult<Vec<(u32, u64)>> {
        self.call(|core| core.holders(HistoryId(history), most).map(|found| found.iter().map(|&found| self.tokens(found)).collect()))
    }

    /// Rows and tokens as bytes of two arrays (histories, most), int32 and int64.
    #[pyo3(signature = (histories, most = 1))]
    fn raw_peek_batch<'py>(
        &self,
        py: Python<'py>,
        histories: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::most)] most: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let histories = whole_numbers(py, histories, "histories")?;
        let mut answer = Answer::new(histories.len(), most);
        let histories: Vec<HistoryId> = histories.into_iter().map(HistoryId).collect();
        self.call(|core| core.holders_of_each(&histories, most, |found| answer.push(found, self)))?;
        Ok(answer.to_py(py))
    }

    #[pyo3(signature = (replica, payload, *, sequence, rank = None))]
    fn kv_events(
        &self,
        #[pyo3(from_py_with = arguments::replica_row)] replica: u32,
        payload: &[u8],
        #[pyo3(from_py_with = arguments::sequence)] sequence: u64,
        rank: Option<i64>,
    ) -> PyResult<Option<u64>> {
        let batch = turnout_wire::decode_batch(payload).map_err(payload_error)?;
        let rank = rank.or(batch.rank).unwrap_or(0);
        let device = turnout_wire::DeviceEvents::from(batch);
        let applied = self.call(|core| core.apply(replica, rank, sequence, &device.events()))?;
        Ok(if let Applied::Gap { expected } = applied { Some(expected) } else { None })
    }

    fn drop_namespace(&self, namespace: &str) -> PyResult<bool> {
        self.call(|core| Ok(core.drop_namespace(namespace)))
    }

    /// Counters since the start, and sizes now.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.lock()?.core.stats();
        let dict = PyDict::new(py);
        for (name, value) in stats.entries() {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    fn audit(&self) -> PyResult<()> {
        self.call(|core| core.audit())
    }

    #[getter]
    fn replicas<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let names = self.lock()?.names.clone();
        PyTuple::new(py, names)
    }

    #[getter]
    fn block_tokens(&self) -> u32 {
        self.hasher.block_tokens()
    }

    #[getter]
    fn hash_key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.key.0)
    }
}

/// Two arrays of the same shape, padded where fewer replicas hold anything.
struct Answer {
    rows: Vec<u8>,
    tokens: Vec<u8>,
    most: usize,
}

impl Answer {
    fn new(len: usize, most: usize) -> Self {
        Self { rows: Vec::with_capacity(len * most * 4), tokens: Vec::with_capacity(len * most * 8), most }
    }

    fn push(&mut self, found: &[Match], index: &PrefixIndex) {
        for at in 0..self.most {
            let (row, tokens) = found.get(at).map_or((NOBODY, 0), |&found| {
                let (row, tokens) = index.tokens(found);
                (row.cast_signed(), tokens.cast_signed())
            });
            self.rows.extend_from_slice(&row.to_ne_bytes());
            self.tokens.extend_from_slice(&tokens.to_ne_bytes());
        }
    }

    fn to_py<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        (PyBytes::new(py, &self.rows), PyBytes::new(py, &self.tokens))
    }
}

/// Reads a one-dimensional buffer of 8-byte integers that are at least 0.
fn whole_numbers(py: Python<'_>, object: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Vec<u64>> {
    const ACCEPTED: &str = "a 1-D contiguous array of int64 or uint64, each at least 0";
    let refused = || invalid(argument, arguments::shown(object), ACCEPTED);
    if let Ok(buffer) = PyBuffer::<u64>::get(object).and_then(|buffer| if buffer.dimensions() == 1 { buffer.to_vec(py) } else { Err(refused()) }) {
        return Ok(buffer);
    }
    let signed = PyBuffer::<i64>::get(object).and_then(|buffer| if buffer.dimensions() == 1 { buffer.to_vec(py) } else { Err(refused()) });
    signed.map_err(|_| refused())?.into_iter().map(|value| u64::try_from(value).map_err(|_| refused())).collect()
}
