//! Whatever is encoded in either form is decoded to the same event. `PROPTEST_CASES` sets how often.

mod common;

use common::{Value, by_name, by_position};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use turnout_wire::{Batch, Event, Medium, decode_batch};

/// An event as the test knows it.
#[derive(Debug, Clone)]
enum Model {
    Stored(Store),
    Removed { hashes: Vec<u64>, medium: Option<String>, group: Option<u32> },
    Cleared,
    Unknown,
}

#[derive(Debug, Clone)]
struct Store {
    /// Of each block its hash and its extra keys.
    blocks: Vec<(u64, Option<String>)>,
    parent: Option<u64>,
    /// As many as the blocks need, and more.
    tokens: Vec<u32>,
    block_tokens: u32,
    bigrams: bool,
    lora_id: Option<i64>,
    medium: Option<String>,
    lora_name: Option<String>,
    has_extra_keys: bool,
    group: Option<u32>,
    spec_kind: Option<String>,
    window: Option<u32>,
}

/// How hashes are written.
#[derive(Debug, Clone, Copy)]
enum Hashes {
    Unsigned,
    Signed,
    Bytes,
}

impl Hashes {
    fn value(self, hash: u64) -> Value {
        match self {
            Self::Unsigned => Value::Uint(hash),
            Self::Signed => Value::Int(hash as i64),
            Self::Bytes => Value::Bin([&[0xab; 24][..], &hash.to_be_bytes()].concat()),
        }
    }

    fn all(self, hashes: impl IntoIterator<Item = u64>) -> Value {
        Value::Array(hashes.into_iter().map(|hash| self.value(hash)).collect())
    }
}

fn or_null<T>(value: Option<T>, make: impl FnOnce(T) -> Value) -> Value {
    value.map_or(Value::Null, make)
}

impl Model {
    /// Tag and fields in the order of the positional form, with the number of fields that are always sent.
    fn fields(&self, hashes: Hashes) -> (&'static str, usize, Vec<(&'static str, Value)>) {
        match self {
            Self::Stored(store) => ("BlockStored", 5, store.fields(hashes)),
            Self::Removed { hashes: removed, medium, group } => {
                let medium = or_null(medium.clone(), Value::Str);
                let group = or_null(*group, |group| Value::Uint(group.into()));
                ("BlockRemoved", 1, vec![("block_hashes", hashes.all(removed.iter().copied())), ("medium", medium), ("group_idx", group)])
            }
            Self::Cleared => ("AllBlocksCleared", 0, vec![]),
            Self::Unknown => ("BlockMoved", 0, vec![("extra_keys", Value::Map(vec![(Value::Null, Value::Bin(vec![1; 300]))]))]),
        }
    }

    fn by_position(&self, hashes: Hashes) -> Value {
        let (tag, required, mut fields) = self.fields(hashes);
        while fields.len() > required && matches!(fields.last(), Some((_, Value::Null))) {
            fields.pop();
        }
        by_position(tag, &fields.into_iter().map(|field| field.1).collect::<Vec<_>>())
    }

    fn by_name(&self, hashes: Hashes) -> Value {
        let (tag, required, mut fields) = self.fields(hashes);
        let mut at = 0;
        fields.retain(|field| {
            at += 1;
            at <= required || !matches!(field.1, Value::Null)
        });
        fields.insert(fields.len() / 2, ("session_id", Value::str("unknown here")));
        by_name(tag, &fields)
    }
}

impl Store {
    fn fields(&self, hashes: Hashes) -> Vec<(&'static str, Value)> {
        let token = |&token: &u32| if self.bigrams { Value::uints([token.into(), 5]) } else { Value::Uint(token.into()) };
        let key = |key: &Option<String>| or_null(key.clone(), |key| Value::Array(vec![Value::Str(key)]));
        let extra_keys = if self.has_extra_keys { Value::Array(self.blocks.iter().map(|block| key(&block.1)).collect()) } else { Value::Null };
        vec![
            ("block_hashes", hashes.all(self.blocks.iter().map(|block| block.0))),
            ("parent_block_hash", or_null(self.parent, |parent| hashes.value(parent))),
            ("token_ids", Value::Array(self.tokens().iter().map(token).collect())),
            ("block_size", Value::Uint(self.block_tokens.into())),
            ("lora_id", or_null(self.lora_id, Value::Int)),
            ("medium", or_null(self.medium.clone(), Value::Str)),
            ("lora_name", or_null(self.lora_name.clone(), Value::Str)),
            ("extra_keys", extra_keys),
            ("group_idx", or_null(self.group, |group| Value::Uint(group.into()))),
            ("kv_cache_spec_kind", or_null(self.spec_kind.clone(), Value::Str)),
            ("kv_cache_spec_sliding_window", or_null(self.window, |window| Value::Uint(window.into()))),
        ]
    }

    fn tokens(&self) -> &[u32] {
        &self.tokens[..self.blocks.len() * self.block_tokens as usize]
    }
}

fn medium_is(medium: &Medium, expected: Option<&str>) -> bool {
    match medium {
        Medium::Device => expected.is_none_or(|name| name == "GPU"),
        Medium::Other(name) => expected == Some(name) && name != "GPU",
    }
}

/// Compares what was decoded with what was encoded.
fn check(event: &Event, model: &Model) {
    match (event, model) {
        (Event::Cleared, Model::Cleared) => {}
        (Event::Removed(event), Model::Removed { hashes, medium, group }) => {
            assert_eq!((&event.hashes, event.group), (hashes, *group));
            assert!(medium_is(&event.medium, medium.as_deref()));
        }
        (Event::Stored(event), Model::Stored(store)) => {
            assert!(medium_is(&event.medium, store.medium.as_deref()));
            assert_eq!((event.block_tokens, event.group, event.sliding_window_tokens), (store.block_tokens, store.group, store.window));
            assert_eq!((&event.lora_name, event.lora_id, &event.spec_kind), (&store.lora_name, store.lora_id, &store.spec_kind));
            assert_eq!(event.tokens, store.tokens());
            assert_eq!(event.bigrams, store.bigrams && !store.tokens().is_empty());
            let blocks: Vec<_> = event.blocks().expect("tokens are told").collect();
            assert_eq!(blocks.len(), store.blocks.len());
            let mut parent = store.parent;
            for (block, (hash, key)) in blocks.iter().zip(&store.blocks) {
                assert_eq!((block.hash, block.parent), (*hash, parent));
                let key = key.as_ref().filter(|_| store.has_extra_keys).map(|key| Value::Array(vec![Value::str(key)]).bytes());
                assert_eq!(block.extra_key, key.as_deref());
                parent = Some(*hash);
            }
        }
        other => panic!("{other:?}"),
    }
}

fn medium() -> impl Strategy<Value = Option<String>> {
    option::of(prop_oneof![Just("GPU".to_owned()), Just("CPU_PINNED".to_owned()), ".{0,40}"])
}

fn store() -> impl Strategy<Value = Model> {
    let blocks = vec((any::<u64>(), option::of(".{0,40}")), 0..20);
    let sizes = (blocks, 1u32..20, vec(any::<u32>(), 400), option::of(any::<u64>()), any::<bool>());
    let adapter = (option::of(any::<i64>()), option::of(".{0,40}"), any::<bool>());
    let group = (option::of(any::<u32>()), option::of("[a-z_]{0,20}"), option::of(any::<u32>()));
    (sizes, medium(), adapter, group).prop_map(|(sizes, medium, (lora_id, lora_name, has_extra_keys), (group, spec_kind, window))| {
        let (blocks, block_tokens, tokens, parent, bigrams) = sizes;
        Model::Stored(Store { blocks, parent, tokens, block_tokens, bigrams, lora_id, medium, lora_name, has_extra_keys, group, spec_kind, window })
    })
}

fn model() -> impl Strategy<Value = Model> {
    let removed = (vec(any::<u64>(), 0..40), medium(), option::of(any::<u32>()));
    let removed = removed.prop_map(|(hashes, medium, group)| Model::Removed { hashes, medium, group });
    prop_oneof![4 => store(), 4 => removed, 1 => Just(Model::Cleared), 1 => Just(Model::Unknown)]
}

fn decode(timestamp_s: f64, rank: Option<i64>, events: Vec<Value>) -> Batch {
    let mut values = vec![Value::Float(timestamp_s), Value::Array(events)];
    values.extend(rank.map(Value::Int));
    decode_batch(&Value::Array(values).bytes()).expect("well formed")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_forms_decode_to_what_was_encoded(
        models in vec(model(), 0..12),
        hashes in prop_oneof![Just(Hashes::Unsigned), Just(Hashes::Signed), Just(Hashes::Bytes)],
        timestamp_s in -1e12f64..1e12,
        rank in option::of(any::<i64>()),
    ) {
        let by_position = decode(timestamp_s, rank, models.iter().map(|model| model.by_position(hashes)).collect());
        let by_name = decode(timestamp_s, rank, models.iter().map(|model| model.by_name(hashes)).collect());
        prop_assert_eq!(&by_position, &by_name);
        prop_assert_eq!((by_name.timestamp_s.to_bits(), by_name.rank), (timestamp_s.to_bits(), rank));
        let known: Vec<_> = models.iter().filter(|model| !matches!(model, Model::Unknown)).collect();
        prop_assert_eq!(by_name.events.len(), known.len());
        prop_assert_eq!(by_name.ignored as usize, models.len() - known.len());
        for (event, model) in by_name.events.iter().zip(known) {
            check(event, model);
        }
    }
}
