//! Values that travel with calls: plain ones as bytes, tensors beside them, references by their names.
//!
//! A [`Value`] is written into a [`Packer`] and read from an [`Unpacker`]. Tensors never pass a serializer: the packer
//! keeps their handles, and they travel as values of their own, by the shortest way that the engine has.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

use rendez::ground::{Status, catalogue};
use rendez::memory::Tensor;

use crate::agent::rref::{Handle, RRef};
use crate::codec::REFERENCES_MAX;
use crate::payload::Plain;

mod args;
mod depth;
mod lists;

pub use args::{Args, Function};
use lists::Bounded;

/// More bytes than the plain values of one call, or of its result, may take.
pub const PLAIN_BYTES_MAX: usize = 64 << 20;
/// More tensors than one call, or its result, may carry.
pub const TENSORS_MAX: usize = 4096;

/// Values within values, as lists of lists, may be so deep: a deeper one would take the stack of who reads it.
pub const DEPTH_MAX: usize = 128;

/// Why a value cannot be read or written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ValueError {
    message: String,
    reason: &'static str,
}

impl ValueError {
    /// An error that says so.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            reason: catalogue::RPC_ARGUMENTS,
        }
    }

    /// An error that has its reason from elsewhere: a call that fails with it says so.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        Self {
            message: status.message().to_owned(),
            reason: status.reason(),
        }
    }

    /// The stable reason: `RPC_ARGUMENTS`, unless it has another.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.reason
    }
}

/// A value that can be an argument or a result.
///
/// Numbers, texts, options, tuples, lists and maps of values are; so are [`Tensor`] and [`RRef`]. A type of yours that
/// serde knows becomes one by [`plain!`](crate::plain), and one with tensors or references in its fields by
/// [`fields!`](crate::fields).
pub trait Value: Sized + Send + 'static {
    /// Writes the name of the type, as signatures of functions show it: both sides must have the same.
    fn name(to: &mut String);

    /// Writes the value.
    ///
    /// # Errors
    /// What cannot travel.
    fn put(&self, to: &mut Packer) -> Result<(), ValueError>;

    /// Reads what [`Value::put`] wrote.
    ///
    /// # Errors
    /// What is wrong with the bytes, which come from another worker.
    fn take(from: &mut Unpacker) -> Result<Self, ValueError>;

    /// Writes the values of a list, as [`Value::put`] one by one.
    ///
    /// # Errors
    /// As [`Value::put`].
    fn put_list(list: &[Self], to: &mut Packer) -> Result<(), ValueError> {
        list.iter().try_for_each(|value| value.put(to))
    }

    /// Reads so many values of a list, as [`Value::take`] one by one.
    ///
    /// # Errors
    /// As [`Value::take`].
    fn take_list(count: usize, from: &mut Unpacker) -> Result<Vec<Self>, ValueError> {
        (0..count).map(|_| Self::take(from)).collect()
    }
}

/// What values are written into.
#[derive(Debug, Default)]
pub struct Packer {
    pub(crate) plain: Plain,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) handles: Vec<Handle>,
    /// Values in lists that take no memory.
    empty: usize,
}

impl Packer {
    /// Writes a value of a type that serde knows.
    ///
    /// # Errors
    /// What its implementation of serde says.
    pub fn plain<T: serde::Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ValueError> {
        let to = Bounded(&mut self.plain);
        postcard::serialize_with_flavor(value, to).map_err(lists::unwritten)
    }

    /// Writes how many values follow of a type that takes so many bytes of memory.
    fn count(&mut self, count: usize, size: usize) -> Result<(), ValueError> {
        let empty = if size == 0 { count } else { 0 };
        self.empty = self.empty.saturating_add(empty);
        if self.empty > EMPTY_MAX {
            return Err(too_many_empty());
        }
        // Each takes at least a byte, a tensor or a reference.
        if size > 0 && count > PLAIN_BYTES_MAX {
            return Err(lists::unwritten(postcard::Error::SerializeBufferFull));
        }
        self.plain(&(count as u64))
    }

    /// Writes bytes as they are, for [`Unpacker::bytes`].
    ///
    /// # Errors
    /// They are more than plain values may be.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), ValueError> {
        self.plain(&(bytes.len() as u64))?;
        self.reserve(bytes.len())?;
        self.plain.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes a tensor: its handle is kept, its bytes are not touched. Returns its place among the tensors.
    ///
    /// # Errors
    /// There are [`TENSORS_MAX`] already.
    pub fn tensor(&mut self, tensor: Tensor) -> Result<usize, ValueError> {
        if self.tensors.len() >= TENSORS_MAX {
            return Err(ValueError::new(format!("more than {TENSORS_MAX} tensors")));
        }
        self.tensors.push(tensor);
        Ok(self.tensors.len() - 1)
    }

    /// Writes what another has been written: its tensors and references too.
    pub(crate) fn append(&mut self, other: &Self) -> Result<(), ValueError> {
        for tensor in &other.tensors {
            self.tensor(tensor.clone())?;
        }
        self.plain.extend_from_slice(&other.plain);
        self.empty = self.empty.saturating_add(other.empty);
        let mut handles = other.handles.iter().cloned();
        handles.try_for_each(|handle| self.handle(handle))
    }

    /// The tensors so far.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    pub(crate) fn handle(&mut self, handle: Handle) -> Result<(), ValueError> {
        if self.handles.len() >= REFERENCES_MAX {
            let message = format!("more than {REFERENCES_MAX} references");
            return Err(ValueError::new(message));
        }
        self.handles.push(handle);
        Ok(())
    }
}

/// Values in the lists of a message that take no memory, and no byte there, at most: a short count may stand for many.
const EMPTY_MAX: usize = 1 << 20;

/// What values are read from.
#[derive(Debug)]
pub struct Unpacker {
    plain: Plain,
    at: usize,
    depth: usize,
    tensors: std::vec::IntoIter<Tensor>,
    handles: std::vec::IntoIter<Handle>,
    /// Values in lists so far that take no memory.
    empty: usize,
}

impl From<Packer> for Unpacker {
    fn from(packer: Packer) -> Self {
        Self::new(packer.plain, packer.tensors, packer.handles)
    }
}

impl Unpacker {
    pub(crate) fn new(plain: Plain, tensors: Vec<Tensor>, handles: Vec<Handle>) -> Self {
        Self {
            plain,
            at: 0,
            depth: 0,
            tensors: tensors.into_iter(),
            handles: handles.into_iter(),
            empty: 0,
        }
    }

    /// Reads what [`Packer::bytes`] wrote.
    ///
    /// # Errors
    /// There are fewer bytes.
    pub fn bytes(&mut self) -> Result<&[u8], ValueError> {
        let count: u64 = self.plain()?;
        self.raw(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// There is none left.
    pub fn tensor(&mut self) -> Result<Tensor, ValueError> {
        self.tensors
            .next()
            .ok_or_else(|| ValueError::new("a tensor is missing"))
    }

    pub(crate) fn handle(&mut self) -> Result<Handle, ValueError> {
        self.handles
            .next()
            .ok_or_else(|| ValueError::new("a reference is missing"))
    }

    /// That nothing is left.
    ///
    /// # Errors
    /// Something is.
    pub fn end(self) -> Result<(), ValueError> {
        let is_empty =
            self.at == self.plain.len() && self.tensors.len() == 0 && self.handles.len() == 0;
        is_empty
            .then_some(())
            .ok_or_else(|| ValueError::new("there is more than was asked for"))
    }

    /// Reads a value that has values in it, which may have values in them: not deeper than [`DEPTH_MAX`].
    fn within<R>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<R, ValueError>,
    ) -> Result<R, ValueError> {
        if self.depth >= DEPTH_MAX {
            let message = format!("values within values, more than {DEPTH_MAX} deep");
            return Err(ValueError::new(message));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// A count of values that follow. Each takes at least a byte, a tensor or a reference, so a larger count is a lie.
    ///
    /// # Errors
    /// It is one.
    pub fn count(&mut self) -> Result<usize, ValueError> {
        let count: u64 = self.plain()?;
        let most = self.plain.len() - self.at + self.tensors.len() + self.handles.len();
        usize::try_from(count)
            .ok()
            .filter(|&count| count <= most)
            .ok_or_else(|| ValueError::new("a count that is larger than what follows"))
    }

    /// The same of values that take so many bytes of memory: those that take none may have none here.
    fn count_of(&mut self, size: usize) -> Result<usize, ValueError> {
        if size > 0 {
            return self.count();
        }
        let count: u64 = self.plain()?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.empty = self.empty.saturating_add(count);
        match self.empty > EMPTY_MAX {
            true => Err(too_many_empty()),
            false => Ok(count),
        }
    }
}

fn too_many_empty() -> ValueError {
    ValueError::new(format!(
        "lists of more than {EMPTY_MAX} values that are nothing: send how many there are as a number"
    ))
}

/// Makes values of types that serde knows: `plain!(Settings);` for a type of yours that is `Serialize` and
/// `DeserializeOwned`.
#[macro_export]
macro_rules! plain {
    ($($type:ty),+ $(,)?) => {$(
        impl $crate::Value for $type {
            fn name(to: &mut String) {
                to.push_str(stringify!($type));
            }

            fn put(&self, to: &mut $crate::Packer) -> Result<(), $crate::ValueError> {
                to.plain(self)
            }

            fn take(from: &mut $crate::Unpacker) -> Result<Self, $crate::ValueError> {
                from.plain()
            }

            fn put_list(list: &[Self], to: &mut $crate::Packer) -> Result<(), $crate::ValueError> {
                to.plain_list(list)
            }

            fn take_list(
                count: usize,
                from: &mut $crate::Unpacker,
            ) -> Result<Vec<Self>, $crate::ValueError> {
                from.plain_list(count)
            }
        }
    )+};
}

/// Makes a value of a struct whose fields are values: `fields!(Batch { images, labels });`.
#[macro_export]
macro_rules! fields {
    ($type:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::Value for $type {
            fn name(to: &mut String) {
                to.push_str(concat!(stringify!($type), "{", $(stringify!($field), ","),+, "}"));
            }

            fn put(&self, to: &mut $crate::Packer) -> Result<(), $crate::ValueError> {
                $($crate::Value::put(&self.$field, to)?;)+
                Ok(())
            }

            fn take(from: &mut $crate::Unpacker) -> Result<Self, $crate::ValueError> {
                Ok(Self { $($field: $crate::Value::take(from)?),+ })
            }
        }
    };
}

crate::plain!(
    bool, char, i16, i32, i64, i128, isize, u16, u32, u64, u128, usize, String
);

impl Value for () {
    fn name(to: &mut String) {
        to.push_str("()");
    }

    fn put(&self, _: &mut Packer) -> Result<(), ValueError> {
        Ok(())
    }

    fn take(_: &mut Unpacker) -> Result<Self, ValueError> {
        Ok(())
    }
}

impl Value for Tensor {
    fn name(to: &mut String) {
        to.push_str("Tensor");
    }

    fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
        to.tensor(self.clone()).map(drop)
    }

    fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
        from.tensor()
    }
}

impl<T: Any + Send + Sync> Value for RRef<T> {
    fn name(to: &mut String) {
        to.push_str("RRef");
    }

    fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
        to.handle(self.handle().clone())
    }

    fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
        from.handle().map(Self::of)
    }
}

impl<T: Value> Value for Option<T> {
    fn name(to: &mut String) {
        wrapped::<T>("Option", to);
    }

    fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
        to.plain(&self.is_some())?;
        self.iter().try_for_each(|value| value.put(to))
    }

    fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
        match from.plain::<bool>()? {
            true => from.within(T::take).map(Some),
            false => Ok(None),
        }
    }
}

impl<T: Value> Value for Vec<T> {
    fn name(to: &mut String) {
        wrapped::<T>("Vec", to);
    }

    fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
        to.count(self.len(), size_of::<T>())?;
        T::put_list(self, to)
    }

    fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
        let count = from.count_of(size_of::<T>())?;
        from.within(|from| T::take_list(count, from))
    }
}

macro_rules! maps {
    ($($map:ident <$key:ident, $value:ident $(, $hasher:ident)?> where {$($bound:tt)+})+) => {$(
        impl<$key: Value, $value: Value $(, $hasher)?> Value for $map<$key, $value $(, $hasher)?>
        where
            $($bound)+
        {
            fn name(to: &mut String) {
                to.push_str("Map<");
                $key::name(to);
                to.push(',');
                $value::name(to);
                to.push('>');
            }

            fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
                to.count(self.len(), size_of::<($key, $value)>())?;
                for (key, value) in self {
                    key.put(to)?;
                    value.put(to)?;
                }
                Ok(())
            }

            fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
                let count = from.count_of(size_of::<($key, $value)>())?;
                from.within(|from| {
                    (0..count).map(|_| Ok(($key::take(from)?, $value::take(from)?))).collect()
                })
            }
        }
    )+};
}

maps! {
    BTreeMap<K, V> where {K: Ord}
    HashMap<K, V, S> where {K: Eq + Hash, S: BuildHasher + Default + Send + 'static}
}

fn wrapped<T: Value>(outer: &str, to: &mut String) {
    to.push_str(outer);
    to.push('<');
    T::name(to);
    to.push('>');
}

/// The name of a type, as signatures show it.
#[must_use]
pub fn name_of<T: Value>() -> String {
    let mut name = String::new();
    T::name(&mut name);
    name
}

#[cfg(test)]
mod tests;
