//! How deep values of serde's may lie within each other: who reads a value recurs with it, and a worker that is
//! lied to must not run out of stack.
//!
//! A [`Limited`] stands around whatever serde hands on: a deserializer, a visitor, a seed, or an access to the parts of
//! a value. It passes everything through, and counts each value that has others in it.

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// Reads a value in which at most `left` values lie within each other.
pub(super) fn read<'de, T, D>(from: D, left: usize) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(Limited { inner: from, left })
}

struct Limited<I> {
    inner: I,
    left: usize,
}

impl<I> Limited<I> {
    const fn around<J>(&self, inner: J) -> Limited<J> {
        Limited {
            inner,
            left: self.left,
        }
    }

    /// Around something of a value within this one.
    fn below<J, E: Error>(&self, inner: J) -> Result<Limited<J>, E> {
        let left = self.left.checked_sub(1);
        let left = left.ok_or_else(|| E::custom("values lie too deep within each other"))?;
        Ok(Limited { inner, left })
    }
}

macro_rules! deserialize {
    ($($method:ident($($name:ident: $type:ty),*);)+) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            let visitor = self.around(visitor);
            self.inner.$method($($name,)* visitor)
        }
    )+};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Limited<D> {
    type Error = D::Error;

    deserialize! {
        deserialize_any(); deserialize_bool();
        deserialize_i8(); deserialize_i16(); deserialize_i32(); deserialize_i64(); deserialize_i128();
        deserialize_u8(); deserialize_u16(); deserialize_u32(); deserialize_u64(); deserialize_u128();
        deserialize_f32(); deserialize_f64(); deserialize_char();
        deserialize_str(); deserialize_string(); deserialize_bytes(); deserialize_byte_buf();
        deserialize_option(); deserialize_unit(); deserialize_seq(); deserialize_map();
        deserialize_identifier(); deserialize_ignored_any();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident($type:ty);)+) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )+};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Limited<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.expecting(f)
    }

    visit! {
        visit_bool(bool); visit_i8(i8); visit_i16(i16); visit_i32(i32); visit_i64(i64); visit_i128(i128);
        visit_u8(u8); visit_u16(u16); visit_u32(u32); visit_u64(u64); visit_u128(u128);
        visit_f32(f32); visit_f64(f64); visit_char(char);
        visit_str(&str); visit_borrowed_str(&'de str); visit_string(String);
        visit_bytes(&[u8]); visit_borrowed_bytes(&'de [u8]); visit_byte_buf(Vec<u8>);
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        let from = self.below(from)?;
        self.inner.visit_some(from)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        let from = self.below(from)?;
        self.inner.visit_newtype_struct(from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<V::Value, A::Error> {
        let parts = self.below(parts)?;
        self.inner.visit_seq(parts)
    }

    fn visit_map<A: MapAccess<'de>>(self, parts: A) -> Result<V::Value, A::Error> {
        let parts = self.below(parts)?;
        self.inner.visit_map(parts)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, parts: A) -> Result<V::Value, A::Error> {
        let parts = self.below(parts)?;
        self.inner.visit_enum(parts)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Limited<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        let from = self.around(from);
        self.inner.deserialize(from)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Limited<A> {
    type Error = A::Error;

    fn next_element_seed<S>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error>
    where
        S: DeserializeSeed<'de>,
    {
        let seed = self.around(seed);
        self.inner.next_element_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Limited<A> {
    type Error = A::Error;

    fn next_key_seed<S>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error>
    where
        S: DeserializeSeed<'de>,
    {
        let seed = self.around(seed);
        self.inner.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.around(seed);
        self.inner.next_value_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Limited<A> {
    type Error = A::Error;
    type Variant = Limited<A::Variant>;

    fn variant_seed<S>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error>
    where
        S: DeserializeSeed<'de>,
    {
        let (seed, left) = (self.around(seed), self.left);
        let (value, inner) = self.inner.variant_seed(seed)?;
        Ok((value, Limited { inner, left }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Limited<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.around(seed);
        self.inner.newtype_variant_seed(seed)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let visitor = self.around(visitor);
        self.inner.tuple_variant(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = self.around(visitor);
        self.inner.struct_variant(fields, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use crate::payload::Plain;
    use crate::value::{DEPTH_MAX, Packer, Unpacker, Value};

    /// One of each shape that serde has.
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct All {
        numbers: (i8, i16, i32, i64, i128, u8, u16, u32, u64, u128),
        floats: (f32, f64),
        texts: (char, String),
        none: Option<u8>,
        some: Option<Box<Self>>,
        unit: (),
        list: Vec<Kind>,
        map: BTreeMap<String, Vec<bool>>,
    }

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Wrapped(u32);

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Pair(u8, Wrapped);

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    enum Kind {
        Unit,
        New(Wrapped),
        Tuple(u8, Pair),
        Fields { one: u8, two: String },
        Deeper(Box<Self>),
    }

    fn all(some: Option<Box<All>>) -> All {
        All {
            numbers: (-1, -2, -3, -4, -5, 1, 2, 3, 4, 5),
            floats: (1.5, -2.5),
            texts: ('ß', "text".into()),
            none: None,
            some,
            unit: (),
            list: vec![
                Kind::Unit,
                Kind::New(Wrapped(7)),
                Kind::Tuple(1, Pair(2, Wrapped(3))),
                Kind::Fields {
                    one: 4,
                    two: "5".into(),
                },
                Kind::Deeper(Box::new(Kind::Unit)),
            ],
            map: BTreeMap::from([("a".into(), vec![true, false])]),
        }
    }

    fn unpacker(plain: impl Into<Plain>) -> Unpacker {
        Unpacker::new(plain.into(), Vec::new(), Vec::new())
    }

    #[test]
    fn every_shape_of_value_comes_through_unchanged() {
        let value = all(Some(Box::new(all(None))));
        let mut packer = Packer::default();
        packer.plain(&value).expect("it is written");
        let mut from = unpacker(packer.plain);
        assert_eq!(from.plain::<All>().expect("it is read"), value);
        from.end().expect("nothing is left");
    }

    #[test]
    fn a_value_too_deep_is_refused_however_deep_it_says_it_is() {
        let mut deep = Kind::Unit;
        for _ in 0..DEPTH_MAX - 1 {
            deep = Kind::Deeper(Box::new(deep));
        }
        let mut packer = Packer::default();
        packer.plain(&deep).expect("it is written");
        assert_eq!(
            unpacker(packer.plain)
                .plain::<Kind>()
                .expect("just so deep"),
            deep
        );
        // A million times "deeper": it would take more stack than any thread has.
        let error = unpacker(vec![4; 1 << 20]).plain::<Kind>().unwrap_err();
        assert!(
            error.to_string().contains("cannot be deserialized"),
            "{error}"
        );
    }

    /// A tree of values of ours.
    #[derive(Debug)]
    struct Tree {
        below: Vec<Self>,
    }

    crate::fields!(Tree { below });

    #[test]
    fn values_of_ours_are_limited_as_well() {
        // Each list has one tree in it.
        let error = Tree::take(&mut unpacker(vec![1; 1 << 20])).unwrap_err();
        assert!(error.to_string().contains("within values"), "{error}");
        let flat = [vec![100], vec![0; 100]].concat();
        assert_eq!(
            Tree::take(&mut unpacker(flat)).expect("a tree").below.len(),
            100
        );
    }
}
