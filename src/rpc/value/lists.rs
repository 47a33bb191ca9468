//! Lists of plain values, all at once: the bytes are those that their elements have one by one.

use postcard::Serializer;
use postcard::ser_flavors::Flavor;

use super::{DEPTH_MAX, PLAIN_BYTES_MAX, Packer, Unpacker, Value, ValueError, depth};
use crate::payload::Plain;

/// Where serde's values are written: plain values, as far as there is room for them.
pub(super) struct Bounded<'a>(pub(super) &'a mut Plain);

impl Flavor for Bounded<'_> {
    type Output = ();

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        has_room(self.0, bytes.len())?;
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        has_room(self.0, 1)?;
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

fn has_room(plain: &Plain, count: usize) -> postcard::Result<()> {
    match count > PLAIN_BYTES_MAX.saturating_sub(plain.len()) {
        true => Err(postcard::Error::SerializeBufferFull),
        false => Ok(()),
    }
}

pub(super) fn unwritten(error: postcard::Error) -> ValueError {
    ValueError::new(match error {
        postcard::Error::SerializeBufferFull => format!(
            "plain values of more than {PLAIN_BYTES_MAX} bytes; large data belongs into tensors"
        ),
        error => format!("it cannot be serialized: {error}"),
    })
}

fn unread(error: postcard::Error) -> ValueError {
    ValueError::new(format!("it cannot be deserialized: {error}"))
}

impl Packer {
    /// Writes values of a type that serde knows, one behind the other.
    ///
    /// # Errors
    /// What its implementation of serde says; they are more than plain values may be.
    pub fn plain_list<T: serde::Serialize>(&mut self, list: &[T]) -> Result<(), ValueError> {
        let mut to = Serializer {
            output: Bounded(&mut self.plain),
        };
        let mut values = list.iter();
        values
            .try_for_each(|value| value.serialize(&mut to))
            .map_err(unwritten)
    }

    /// Makes room for so many bytes more.
    pub(super) fn reserve(&mut self, count: usize) -> Result<(), ValueError> {
        has_room(&self.plain, count).map_err(unwritten)?;
        self.plain.reserve(count);
        Ok(())
    }
}

impl Unpacker {
    /// Reads a value of a type that serde knows.
    ///
    /// # Errors
    /// The bytes are none of that type.
    pub fn plain<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, ValueError> {
        self.deserialize(|from| depth::read(from, DEPTH_MAX))
    }

    /// Reads so many of what [`Packer::plain_list`] wrote.
    ///
    /// # Errors
    /// The bytes are none of that type.
    pub fn plain_list<T: serde::de::DeserializeOwned>(
        &mut self,
        count: usize,
    ) -> Result<Vec<T>, ValueError> {
        self.deserialize(|from| {
            let read = |_| depth::read(&mut *from, DEPTH_MAX);
            (0..count).map(read).collect()
        })
    }

    fn deserialize<R>(
        &mut self,
        read: impl FnOnce(&mut Source<'_>) -> postcard::Result<R>,
    ) -> Result<R, ValueError> {
        let mut from = postcard::Deserializer::from_bytes(&self.plain[self.at..]);
        let value = read(&mut from).map_err(unread)?;
        let rest = from.finalize().map_err(unread)?;
        self.at = self.plain.len() - rest.len();
        Ok(value)
    }

    /// Reads bytes as they are.
    pub(super) fn raw(&mut self, count: usize) -> Result<&[u8], ValueError> {
        let bytes = self.plain[self.at..].get(..count);
        let bytes = bytes.ok_or_else(|| ValueError::new("bytes are missing"))?;
        self.at += count;
        Ok(bytes)
    }
}

type Source<'a> = postcard::Deserializer<'a, postcard::de_flavors::Slice<'a>>;

/// Numbers of a list that are made bytes at once, and copied.
const AT_ONCE: usize = 256;

/// Numbers that take as many bytes there as in memory.
macro_rules! numbers {
    ($($type:ident)+) => {$(
        impl Value for $type {
            fn name(to: &mut String) {
                to.push_str(stringify!($type));
            }

            fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
                to.plain(self)
            }

            fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
                from.plain()
            }

            fn put_list(list: &[Self], to: &mut Packer) -> Result<(), ValueError> {
                to.reserve(size_of_val(list))?;
                let mut bytes = [[0; size_of::<Self>()]; AT_ONCE];
                for numbers in list.chunks(AT_ONCE) {
                    for (place, number) in bytes.iter_mut().zip(numbers) {
                        *place = number.to_le_bytes();
                    }
                    let bytes = bytes[..numbers.len()].as_flattened();
                    to.plain.extend_from_slice(bytes);
                }
                Ok(())
            }

            fn take_list(count: usize, from: &mut Unpacker) -> Result<Vec<Self>, ValueError> {
                let bytes = from.raw(count.saturating_mul(size_of::<Self>()))?;
                let (numbers, _) = bytes.as_chunks();
                Ok(numbers.iter().map(|&bytes| Self::from_le_bytes(bytes)).collect())
            }
        }
    )+};
}

numbers!(i8 u8 f32 f64);
