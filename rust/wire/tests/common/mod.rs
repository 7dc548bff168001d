//! What the tests share: captured messages and an encoder of both forms.
#![allow(dead_code)] // Every test file uses its part.

use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rmp::encode;

pub(crate) const VLLM_INT: &str = "vllm-0.33.0.sha256.int-hashes.jsonl";
pub(crate) const VLLM_BYTES: &str = "vllm-0.33.0.sha256_cbor.bytes-hashes.jsonl";
pub(crate) const VLLM_DUPLICATES: &str = "vllm-0.33.0.duplicate-blocks.jsonl";
pub(crate) const VLLM_ARRAY: &str = "vllm-le0.23.array-form.REENCODED.jsonl";
pub(crate) const SGLANG: &str = "sglang-0.5.23.kv+load.jsonl";
pub(crate) const FILES: [&str; 5] = [VLLM_INT, VLLM_BYTES, VLLM_DUPLICATES, VLLM_ARRAY, SGLANG];

/// Payloads of one captured file from one kind of socket, `kv` or `load`.
pub(crate) fn payloads(file: &str, sock: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/wire").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("one JSON per line"));
    lines
        .filter(|line| line.get("sock").map_or("kv", |sock| sock.as_str().expect("a string")) == sock)
        .map(|line| BASE64_STANDARD.decode(line["payload_b64"].as_str().expect("a string")).expect("base64"))
        .collect()
}

/// A value to encode.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Uint(u64),
    Int(i64),
    Float(f64),
    Str(String),
    Bin(Vec<u8>),
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

impl Value {
    pub(crate) fn str(text: &str) -> Self {
        Self::Str(text.to_owned())
    }

    pub(crate) fn uints(values: impl IntoIterator<Item = u64>) -> Self {
        Self::Array(values.into_iter().map(Self::Uint).collect())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }

    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Null => encode::write_nil(to).expect("memory"),
            Self::Uint(value) => drop(encode::write_uint(to, *value).expect("memory")),
            Self::Int(value) => drop(encode::write_sint(to, *value).expect("memory")),
            Self::Float(value) => encode::write_f64(to, *value).expect("memory"),
            Self::Str(value) => encode::write_str(to, value).expect("memory"),
            Self::Bin(value) => encode::write_bin(to, value).expect("memory"),
            Self::Array(values) => {
                encode::write_array_len(to, values.len() as u32).expect("memory");
                for value in values {
                    value.write(to);
                }
            }
            Self::Map(pairs) => {
                encode::write_map_len(to, pairs.len() as u32).expect("memory");
                for (key, value) in pairs {
                    key.write(to);
                    value.write(to);
                }
            }
        }
    }
}

/// An event by name.
pub(crate) fn by_name(tag: &str, fields: &[(&str, Value)]) -> Value {
    let tag = (Value::str("type"), Value::str(tag));
    Value::Map(std::iter::once(tag).chain(fields.iter().map(|(name, value)| (Value::str(name), value.clone()))).collect())
}

/// An event by position.
pub(crate) fn by_position(tag: &str, fields: &[Value]) -> Value {
    Value::Array(std::iter::once(Value::str(tag)).chain(fields.iter().cloned()).collect())
}

/// A batch of rank 0.
pub(crate) fn batch(events: Vec<Value>) -> Vec<u8> {
    Value::Array(vec![Value::Float(1.5), Value::Array(events), Value::Uint(0)]).bytes()
}
