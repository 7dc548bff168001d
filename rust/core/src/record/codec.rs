//! Values as bytes: whole numbers in 7-bit groups, everything else made of them. Every length is checked against the bytes
//! that are left before anything is allocated.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use crate::prompt::mix64;

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Damaged(pub(crate) &'static str);

pub(crate) type Taken<T> = std::result::Result<T, Damaged>;

/// Bytes being read.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len()
    }

    /// The next `n` bytes.
    pub(crate) fn bytes(&mut self, n: usize) -> Taken<&'a [u8]> {
        let (bytes, rest) = self.bytes.split_at_checked(n).ok_or(Damaged("it ends too early"))?;
        self.bytes = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Taken<[u8; N]> {
        self.bytes(N).map(|bytes| bytes.try_into().expect("N bytes"))
    }

    /// A number of elements, of which each takes at least a byte.
    fn length(&mut self) -> Taken<usize> {
        let length = u64::take(self)?;
        usize::try_from(length).ok().filter(|&length| length <= self.left()).ok_or(Damaged("a length is beyond the end"))
    }
}

/// What can be written as bytes and read back. Equal values give equal bytes.
pub(crate) trait Record: Sized {
    fn put(&self, to: &mut Vec<u8>);
    fn take(from: &mut Reader<'_>) -> Taken<Self>;
}

/// Implements [`Record`] for a struct by its fields. All of them must be listed: one that is forgotten does not compile.
macro_rules! record {
    ($type:ty { $($field:ident),* $(,)? }) => {
        impl crate::record::codec::Record for $type {
            fn put(&self, to: &mut Vec<u8>) {
                let Self { $($field),* } = self;
                $(crate::record::codec::Record::put($field, to);)*
            }

            fn take(from: &mut crate::record::codec::Reader<'_>) -> crate::record::codec::Taken<Self> {
                Ok(Self { $($field: crate::record::codec::Record::take(from)?),* })
            }
        }
    };
    (tuple $type:ty) => {
        impl crate::record::codec::Record for $type {
            fn put(&self, to: &mut Vec<u8>) {
                crate::record::codec::Record::put(&self.0, to);
            }

            fn take(from: &mut crate::record::codec::Reader<'_>) -> crate::record::codec::Taken<Self> {
                crate::record::codec::Record::take(from).map(Self)
            }
        }
    };
    ($type:ty as $tag:ident: $($variant:ident = $number:literal),* $(,)?) => {
        impl crate::record::codec::Record for $type {
            fn put(&self, to: &mut Vec<u8>) {
                to.push(match self { $(Self::$variant => $number),* });
            }

            fn take(from: &mut crate::record::codec::Reader<'_>) -> crate::record::codec::Taken<Self> {
                match from.bytes(1)?[0] {
                    $($number => Ok(Self::$variant),)*
                    _ => Err(crate::record::codec::Damaged(concat!("no such ", stringify!($tag)))),
                }
            }
        }
    };
}
pub(crate) use record;

/// Whole numbers: seven bits a byte, the lowest first, the top bit says that more follow.
macro_rules! whole {
    ($($type:ty),*) => {
        $(impl Record for $type {
            fn put(&self, to: &mut Vec<u8>) {
                let mut left = *self;
                while left >= 0x80 {
                    to.push(left as u8 | 0x80);
                    left >>= 7;
                }
                to.push(left as u8);
            }

            fn take(from: &mut Reader<'_>) -> Taken<Self> {
                let (mut value, mut shift): (Self, u32) = (0, 0);
                loop {
                    let byte = from.bytes(1)?[0];
                    let bits = Self::from(byte & 0x7F);
                    if shift >= Self::BITS || (bits << shift) >> shift != bits {
                        return Err(Damaged("a number is too large"));
                    }
                    value |= bits << shift;
                    if byte < 0x80 {
                        return Ok(value);
                    }
                    shift += 7;
                }
            }
        })*
    };
}
whole!(u8, u16, u32, u64, u128);

impl Record for usize {
    fn put(&self, to: &mut Vec<u8>) {
        (*self as u64).put(to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Self::try_from(u64::take(from)?).map_err(|_| Damaged("a number is too large"))
    }
}

impl Record for i32 {
    fn put(&self, to: &mut Vec<u8>) {
        i64::from(*self).put(to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Self::try_from(i64::take(from)?).map_err(|_| Damaged("a number is too large"))
    }
}

impl Record for i64 {
    fn put(&self, to: &mut Vec<u8>) {
        ((self << 1) ^ (self >> 63)).cast_unsigned().put(to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        let folded = u64::take(from)?;
        Ok((folded >> 1).cast_signed() ^ -(folded & 1).cast_signed())
    }
}

impl Record for f64 {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend(self.to_bits().to_le_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Ok(Self::from_bits(u64::from_le_bytes(from.array()?)))
    }
}

impl Record for bool {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        match from.bytes(1)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Damaged("a truth value is neither")),
        }
    }
}

impl Record for String {
    fn put(&self, to: &mut Vec<u8>) {
        self.len().put(to);
        to.extend(self.as_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        let length = from.length()?;
        Self::from_utf8(from.bytes(length)?.to_vec()).map_err(|_| Damaged("a name is not UTF-8"))
    }
}

impl Record for Arc<str> {
    fn put(&self, to: &mut Vec<u8>) {
        self.len().put(to);
        to.extend(self.as_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        String::take(from).map(Into::into)
    }
}

impl Record for Box<str> {
    fn put(&self, to: &mut Vec<u8>) {
        self.len().put(to);
        to.extend(self.as_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        String::take(from).map(Into::into)
    }
}

impl<T: Record> Record for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        if let Some(value) = self {
            value.put(to);
        }
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Ok(if bool::take(from)? { Some(T::take(from)?) } else { None })
    }
}

impl<T: Record> Record for Box<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.as_ref().put(to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        T::take(from).map(Self::new)
    }
}

fn put_all<'a, T: Record + 'a>(values: impl ExactSizeIterator<Item = &'a T>, to: &mut Vec<u8>) {
    values.len().put(to);
    for value in values {
        value.put(to);
    }
}

/// With the room that it has: limits on memory count that, so a copy with less would decide otherwise.
impl<T: Record> Record for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        put_all(self.iter(), to);
        (self.capacity() - self.len()).put(to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        let length = from.length()?;
        let mut values = Self::with_capacity(length);
        for _ in 0..length {
            values.push(T::take(from)?);
        }
        let room = usize::take(from)?;
        values.try_reserve_exact(room).map_err(|_| Damaged("a table has impossible room"))?;
        Ok(values)
    }
}

impl<T: Record> Record for VecDeque<T> {
    fn put(&self, to: &mut Vec<u8>) {
        put_all(self.iter(), to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        (0..from.length()?).map(|_| T::take(from)).collect()
    }
}

impl<T: Record> Record for Box<[T]> {
    fn put(&self, to: &mut Vec<u8>) {
        put_all(self.iter(), to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        (0..from.length()?).map(|_| T::take(from)).collect()
    }
}

impl<T: Record> Record for Arc<[T]> {
    fn put(&self, to: &mut Vec<u8>) {
        put_all(self.iter(), to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        (0..from.length()?).map(|_| T::take(from)).collect()
    }
}

impl<T: Record + Ord> Record for BTreeSet<T> {
    fn put(&self, to: &mut Vec<u8>) {
        put_all(self.iter(), to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        (0..from.length()?).map(|_| T::take(from)).collect()
    }
}

impl<K: Record + Ord, V: Record> Record for BTreeMap<K, V> {
    fn put(&self, to: &mut Vec<u8>) {
        self.len().put(to);
        for (key, value) in self {
            key.put(to);
            value.put(to);
        }
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        (0..from.length()?).map(|_| Ok((K::take(from)?, V::take(from)?))).collect()
    }
}

/// In the order of the keys, with the hasher that finds them and the room that the table has.
impl<K: Record + Ord + Hash, V: Record, S: Record + BuildHasher> Record for HashMap<K, V, S> {
    fn put(&self, to: &mut Vec<u8>) {
        self.hasher().put(to);
        self.capacity().put(to);
        let mut entries: Vec<(&K, &V)> = self.iter().collect();
        entries.sort_by_key(|entry| entry.0);
        entries.len().put(to);
        for (key, value) in entries {
            key.put(to);
            value.put(to);
        }
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        let hasher = S::take(from)?;
        let room = usize::take(from)?;
        let mut map = Self::with_hasher(hasher);
        map.try_reserve(room).map_err(|_| Damaged("a table has impossible room"))?;
        for _ in 0..from.length()? {
            map.insert(K::take(from)?, V::take(from)?);
        }
        Ok(map)
    }
}

impl<T: Record> Record for Reverse<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        T::take(from).map(Self)
    }
}

impl<T: Record, const N: usize> Record for [T; N] {
    fn put(&self, to: &mut Vec<u8>) {
        for value in self {
            value.put(to);
        }
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        let values: Vec<T> = (0..N).map(|_| T::take(from)).collect::<Taken<_>>()?;
        values.try_into().map_err(|_| Damaged("a row has another length"))
    }
}

macro_rules! tuples {
    ($(($($name:ident),*)),*) => {
        $(impl<$($name: Record),*> Record for ($($name,)*) {
            #[allow(non_snake_case, reason = "one name for a type and its value")]
            fn put(&self, to: &mut Vec<u8>) {
                let ($($name,)*) = self;
                $($name.put(to);)*
            }

            fn take(from: &mut Reader<'_>) -> Taken<Self> {
                Ok(($($name::take(from)?,)*))
            }
        })*
    };
}
tuples!((A, B), (A, B, C), (A, B, C, D), (A, B, C, D, E));

/// A checksum against damage, not against an attacker.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(mix64(bytes.len() as u64), |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix64(sum.rotate_left(23) ^ u64::from_le_bytes(word))
    })
}

#[cfg(test)]
mod tests {
    use super::{Damaged, Reader, Record};

    fn round<T: Record + PartialEq + std::fmt::Debug>(value: &T) {
        let mut bytes = Vec::new();
        value.put(&mut bytes);
        let mut from = Reader::new(&bytes);
        assert_eq!(&T::take(&mut from).unwrap(), value);
        assert_eq!(from.left(), 0);
        for end in 0..bytes.len() {
            assert!(T::take(&mut Reader::new(&bytes[..end])).is_err(), "{value:?} cut at {end}");
        }
    }

    #[test]
    fn values_come_back() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::MAX - 1, u64::MAX] {
            round(&value);
            round(&value.cast_signed());
            round(&u128::from(value).pow(2));
        }
        round(&(1.5f64, "name".to_owned(), vec![Some(7u32), None], [1u8, 2, 3]));
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(u32::take(&mut Reader::new(&[0xFF; 5])), Err(Damaged("a number is too large")));
        assert_eq!(u8::take(&mut Reader::new(&[0x80, 0x02])), Err(Damaged("a number is too large")));
        assert_eq!(bool::take(&mut Reader::new(&[2])), Err(Damaged("a truth value is neither")));
        assert_eq!(Vec::<u8>::take(&mut Reader::new(&[9, 1])), Err(Damaged("a length is beyond the end")));
        assert_eq!(String::take(&mut Reader::new(&[1, 0xFF])), Err(Damaged("a name is not UTF-8")));
    }
}
