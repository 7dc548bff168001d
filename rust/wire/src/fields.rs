//! Tagged structs in both forms they are sent in: `["Tag", value, ...]` by position and `{"type": "Tag", "name": value, ...}` by name.

use rmp::Marker;

use crate::error::Result;
use crate::reader::Reader;

/// What is left of one tagged struct.
pub(crate) enum Fields {
    /// Values by position: the next position and the number of positions, both without the tag.
    Array { next: usize, count: usize },
    /// Pairs that are left.
    Map { left: usize },
}

/// Reads up to the tag.
pub(crate) fn open<'a>(reader: &mut Reader<'a>) -> Result<(&'a str, Fields)> {
    match reader.peek()? {
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
            let count = reader.array()?;
            if count == 0 {
                return Err(reader.missing("type"));
            }
            reader.field = "type";
            Ok((reader.str()?, Fields::Array { next: 0, count: count - 1 }))
        }
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
            let left = reader.map()?;
            // The engines send the tag first, so this seldom looks further; the map itself is read again from its start.
            let mut ahead = *reader;
            ahead.field = "type";
            for _ in 0..left {
                if key(&mut ahead)? == Some("type") {
                    return Ok((ahead.str()?, Fields::Map { left }));
                }
                ahead.skip()?;
            }
            Err(ahead.missing("type"))
        }
        marker => Err(reader.wrong_type(marker, "a tagged array or map")),
    }
}

impl Fields {
    /// Name of the next known field, whose value is to be read; `None` at the end. Fields that `names` lacks are skipped, positions
    /// by their order in it. `positions` is how many of the names have a position.
    pub(crate) fn next(&mut self, reader: &mut Reader<'_>, names: &[&'static str], positions: usize) -> Result<Option<&'static str>> {
        loop {
            let name = match self {
                Self::Array { next, count } => {
                    if next == count {
                        return Ok(None);
                    }
                    *next += 1;
                    names[..positions].get(*next - 1).copied()
                }
                Self::Map { left: 0 } => return Ok(None),
                Self::Map { left } => {
                    *left -= 1;
                    reader.field = "key";
                    key(reader)?.and_then(|key| names.iter().find(|&&name| name == key).copied())
                }
            };
            if let Some(name) = name {
                reader.field = name;
                return Ok(Some(name));
            }
            reader.field = "unknown field";
            reader.skip()?;
        }
    }

    /// Skips all fields that are left.
    pub(crate) fn skip_all(mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.next(reader, &[], 0).map(drop)
    }
}

/// A key; `None` for one that is no string and so belongs to no field.
fn key<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a str>> {
    match reader.peek()? {
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => reader.str().map(Some),
        _ => reader.skip().map(|_| None),
    }
}
