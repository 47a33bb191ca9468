//! What travels with a call or its answer: bytes, tensors beside them, and references.

use std::fmt;
use std::ops::Deref;
use std::vec::IntoIter;

use rendez::{DType, Engine, Tensor};
use rendez_rpc::value::{PLAIN_BYTES_MAX, TENSORS_MAX};
use rendez_rpc::{Packer, RRef, Unpacker, Value, ValueError};
use serde::de::{Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use super::reference::Object;

/// Bytes up to this many lie among the others; more are a tensor of their own.
pub(crate) const INLINE: usize = 2048;
/// Beside them one may have the bytes themselves.
const BLOBS_MAX: usize = TENSORS_MAX - 1;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    tensors: Vec<Tensor>,
    references: Vec<RRef<Object>>,
}

/// A body that is read.
#[derive(Debug)]
pub(crate) struct Reader {
    bytes: Blob,
    at: usize,
    tensors: IntoIter<Tensor>,
    references: IntoIter<RRef<Object>>,
}

/// Bytes that came: among others, or as a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Blob {
    Short(Vec<u8>),
    Long(Tensor),
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            // `Reader::blob` has read it.
            Self::Long(tensor) => tensor.host().unwrap_or_default(),
        }
    }
}

impl Body {
    /// What another worker may send: any bytes.
    pub(crate) const fn of_bytes(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            tensors: Vec::new(),
            references: Vec::new(),
        }
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// A count, or another number that is small as a rule.
    pub(crate) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.fixed(text.as_bytes());
    }

    /// Bytes of any length: long ones are copied to the engine's memory once.
    pub(crate) fn blob(&mut self, engine: &Engine, bytes: &[u8]) -> Result<(), ValueError> {
        if bytes.len() <= INLINE || self.is_full() {
            self.number((bytes.len() as u64) << 1);
            self.fixed(bytes);
            return Ok(());
        }
        self.long(copied(engine, bytes)?)
    }

    /// Bytes that are a tensor already.
    pub(crate) fn long(&mut self, tensor: Tensor) -> Result<(), ValueError> {
        self.number(1);
        self.tensor(tensor)
    }

    /// Whether it takes no more tensors: bytes go among the others then.
    pub(crate) const fn is_full(&self) -> bool {
        self.tensors.len() >= BLOBS_MAX
    }

    pub(crate) fn tensor(&mut self, tensor: Tensor) -> Result<(), ValueError> {
        if self.is_full() {
            let message = format!("more than {BLOBS_MAX} arrays and tensors in one call");
            return Err(ValueError::new(message));
        }
        self.tensors.push(tensor);
        Ok(())
    }

    pub(crate) fn reference(&mut self, reference: RRef<Object>) {
        self.references.push(reference);
    }

    /// Where it is now, to go back to by [`Body::undo`].
    pub(crate) fn mark(&self) -> [usize; 3] {
        [self.bytes.len(), self.tensors.len(), self.references.len()]
    }

    /// Takes back what was written since.
    pub(crate) fn undo(&mut self, [bytes, tensors, references]: [usize; 3]) {
        self.bytes.truncate(bytes);
        self.tensors.truncate(tensors);
        self.references.truncate(references);
    }

    /// Ready to travel: bytes that are many are a tensor too, the first.
    pub(crate) fn sealed(mut self, engine: &Engine) -> Result<Self, ValueError> {
        if self.bytes.len() > INLINE {
            let tensor = copied(engine, &self.bytes)?;
            self.tensors.insert(0, tensor);
            self.bytes.clear();
        }
        Ok(self)
    }

    pub(crate) fn read(self) -> Reader {
        Reader {
            bytes: Blob::Short(self.bytes),
            at: 0,
            tensors: self.tensors.into_iter(),
            references: self.references.into_iter(),
        }
        .opened()
    }
}

/// Bytes in the engine's memory.
fn copied(engine: &Engine, bytes: &[u8]) -> Result<Tensor, ValueError> {
    let builder = engine.tensor(DType::U8, &[bytes.len() as u64]);
    let mut builder = builder.map_err(|status| ValueError::of(&status))?;
    builder.bytes_mut().copy_from_slice(bytes);
    Ok(builder.finish())
}

fn wrong(what: &str) -> ValueError {
    ValueError::new(format!("what came is no message of Python's: {what}"))
}

impl Reader {
    /// The bytes themselves may be a tensor: then it is the first.
    fn opened(mut self) -> Self {
        if self.bytes.is_empty()
            && let Some(tensor) = self.tensors.next()
        {
            self.bytes = Blob::Long(tensor);
        }
        self
    }

    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], ValueError> {
        let (at, end) = (self.at, self.at.saturating_add(N));
        let bytes = self.bytes.get(at..end).and_then(|it| it.try_into().ok());
        self.at = end;
        bytes.ok_or_else(|| wrong("it ends too early"))
    }

    pub(crate) fn byte(&mut self) -> Result<u8, ValueError> {
        self.fixed::<1>().map(|[byte]| byte)
    }

    pub(crate) fn number(&mut self) -> Result<u64, ValueError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(wrong("a number that is too long"))
    }

    /// A count of values that follow, each of which takes a byte at least: a larger one is a lie.
    pub(crate) fn count(&mut self) -> Result<usize, ValueError> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        match count <= self.bytes.len().saturating_sub(self.at) {
            true => Ok(count),
            false => Err(wrong("a count that is larger than what follows")),
        }
    }

    fn slice(&mut self, len: u64) -> Result<&[u8], ValueError> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let (at, end) = (self.at, self.at.saturating_add(len));
        self.at = end;
        self.bytes
            .get(at..end)
            .ok_or_else(|| wrong("it ends too early"))
    }

    pub(crate) fn text(&mut self) -> Result<String, ValueError> {
        let len = self.number()?;
        let bytes = self.slice(len)?.to_vec();
        String::from_utf8(bytes).map_err(|_| wrong("a text that is none"))
    }

    pub(crate) fn blob(&mut self) -> Result<Blob, ValueError> {
        let word = self.number()?;
        if word & 1 == 0 {
            return self
                .slice(word >> 1)
                .map(|bytes| Blob::Short(bytes.to_vec()));
        }
        let tensor = self.tensor()?;
        if tensor.dtype() != DType::U8 {
            return Err(wrong("bytes of another type"));
        }
        tensor
            .host()
            .map_err(|error| ValueError::new(error.to_string()))?;
        Ok(Blob::Long(tensor))
    }

    pub(crate) fn tensor(&mut self) -> Result<Tensor, ValueError> {
        self.tensors
            .next()
            .ok_or_else(|| wrong("a tensor is missing"))
    }

    pub(crate) fn reference(&mut self) -> Result<RRef<Object>, ValueError> {
        self.references
            .next()
            .ok_or_else(|| wrong("a reference is missing"))
    }

    /// That nothing is left.
    pub(crate) fn end(self) -> Result<(), ValueError> {
        let is_empty =
            self.at == self.bytes.len() && self.tensors.len() == 0 && self.references.len() == 0;
        match is_empty {
            true => Ok(()),
            false => Err(wrong("there is more than was asked for")),
        }
    }
}

/// Bytes as serde has them in one piece.
struct Raw<B>(B);

impl Serialize for Raw<&[u8]> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.0)
    }
}

impl<'de> Deserialize<'de> for Raw<Vec<u8>> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        from.deserialize_bytes(Bytes).map(Raw)
    }
}

impl Value for Body {
    fn name(to: &mut String) {
        to.push_str("python");
    }

    fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
        to.plain(&(self.tensors.len() as u64, self.references.len() as u64))?;
        to.plain(&Raw(&self.bytes[..]))?;
        for tensor in &self.tensors {
            to.tensor(tensor.clone())?;
        }
        self.references.iter().try_for_each(|one| one.put(to))
    }

    fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
        let (tensors, references): (u64, u64) = from.plain()?;
        let Raw(bytes) = from.plain::<Raw<Vec<u8>>>()?;
        if bytes.len() > PLAIN_BYTES_MAX || tensors > TENSORS_MAX as u64 {
            return Err(wrong("it is too long"));
        }
        let tensors = (0..tensors)
            .map(|_| from.tensor())
            .collect::<Result<_, _>>()?;
        let mut all = Vec::new();
        for _ in 0..references {
            all.push(RRef::take(from)?);
        }
        Ok(Self {
            bytes,
            tensors,
            references: all,
        })
    }
}
