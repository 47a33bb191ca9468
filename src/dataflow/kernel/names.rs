//! Names of tensors in the header of a safetensors file: each stands there once.
//!
//! Knows nothing of places, types and shapes, which the format's own reader looks at.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

/// That a header names each tensor once: of two of one name the format's own reader takes the last.
#[derive(Clone, Copy, Debug)]
pub struct NamesOnce;

impl<'de> Deserialize<'de> for NamesOnce {
    fn deserialize<D: Deserializer<'de>>(header: D) -> Result<Self, D::Error> {
        header.deserialize_map(Self)
    }
}

impl<'de> Visitor<'de> for NamesOnce {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self, A::Error> {
        let mut names = BTreeSet::new();
        while let Some((name, IgnoredAny)) = entries.next_entry::<String, _>()? {
            if let Some(name) = names.replace(name) {
                let shown = &name[..name.floor_char_boundary(200)];
                return Err(A::Error::custom(format_args!(
                    "'{shown}' stands there twice"
                )));
            }
        }
        Ok(self)
    }
}
