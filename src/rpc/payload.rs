//! The payload of calls and replies: what of it travels in the head, and the tensors that travel beside it.

use std::any::TypeId;
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

use rendez::ground::Status;
use rendez::memory::Tensor;
use smallvec::SmallVec;

use crate::agent::rref::Handle;
use crate::codec::{Malformed, OnWire, Reader, Writer};
use crate::header::Header;
use crate::spans::Trace;
use crate::value::{PLAIN_BYTES_MAX, TENSORS_MAX, Unpacker};

/// Plain values as bytes: those of most calls are few, and need no memory of their own.
pub type Plain = SmallVec<[u8; 24]>;

/// Arguments, or a result. It stands behind a pointer: a message passes from hand to hand several times.
#[derive(Clone, Debug, Default)]
pub struct Payload(Box<Parts>);

/// What a [`Payload`] consists of.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// A digest of the names of their types.
    pub types: u32,
    /// Bytes of an observer's, that ride along.
    pub header: Option<Header>,
    /// What the call carries of its caller's recording.
    pub(crate) trace: Option<Box<Trace>>,
    /// Plain values.
    pub plain: Plain,
    /// Tensors.
    pub tensors: Vec<Tensor>,
    /// How many tensors follow, where a head was read and they have not come yet; of each, whether it is large.
    pub(crate) awaited: Vec<bool>,
    /// Why one of its tensors could not come, and lies here as nothing: no value is to be read of it.
    pub(crate) lacking: Option<Status>,
}

impl From<Parts> for Payload {
    fn from(parts: Parts) -> Self {
        Self(Box::new(parts))
    }
}

impl Payload {
    /// Takes its values, to be read, with the references among them.
    pub(crate) fn unpacker(&mut self, handles: Vec<Handle>) -> Unpacker {
        let Parts { plain, tensors, .. } = &mut *self.0;
        Unpacker::new(std::mem::take(plain), std::mem::take(tensors), handles)
    }
}

impl Deref for Payload {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl DerefMut for Payload {
    fn deref_mut(&mut self) -> &mut Parts {
        &mut self.0
    }
}

/// What is said of a message whose tensor of a device could not come.
pub(crate) const OUT_OF_REACH: &str =
    "a tensor of it in a device's memory could not go in its turn, or cannot be read here";

/// What is said of a message whose tensor its sender had no more time to send.
pub(crate) const LEFT_FIRST: &str = "its worker has left before all that it had sent could go";
/// What is said of a tensor whose call was given up while it waited for room.
pub(crate) const GIVEN_UP_FIRST: &str =
    "its caller gave it up before all that it had sent could go";

/// Tensors of at least so many bytes go their own way, so that small ones need not wait behind them.
pub(crate) const LARGE: usize = 64 << 10;

impl OnWire for Payload {
    fn write(&self, writer: &mut Writer) {
        let flags = u64::from(self.header.is_some()) | u64::from(self.trace.is_some()) << 1;
        writer.word(u64::from(self.types) | flags << 32);
        if let Some(header) = &self.header {
            writer.block(header);
        }
        if let Some(trace) = &self.trace {
            trace.write(writer);
        }
        writer.block(&self.plain);
        writer.number(self.tensors.len() as u64);
        for tensor in &self.tensors {
            writer.byte(u8::from(tensor.size() >= LARGE));
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let word = reader.word()?;
        let flags = word >> 32;
        if flags >> 2 != 0 {
            return Err(Malformed("flags that there are not"));
        }
        let header = match flags & 1 {
            0 => None,
            _ => Some(reader.block()?.to_vec().into()),
        };
        let trace = match flags & 2 {
            0 => None,
            _ => Some(Box::new(Trace::read(reader)?)),
        };
        let plain = reader.block()?;
        if plain.len() > PLAIN_BYTES_MAX {
            return Err(Malformed("plain values that are too long"));
        }
        let plain = Plain::from_slice(plain);
        let count = reader.count(TENSORS_MAX)?;
        let mut awaited = Vec::new();
        for _ in 0..count {
            awaited.push(reader.byte()? != 0);
        }
        Ok(Self::from(Parts {
            types: word as u32,
            header,
            trace,
            plain,
            awaited,
            ..Parts::default()
        }))
    }
}

/// Types whose digests a thread knows.
const KNOWN: usize = 64;

std::thread_local! {
    /// Types and their digests, each where its number says: of two with one place the later.
    static DIGESTS: [Cell<Option<(TypeId, u32)>>; KNOWN] = const { [const { Cell::new(None) }; KNOWN] };
}

/// The number of a type, which its [`TypeId`] gives a hasher.
#[derive(Default)]
struct Number(u64);

impl Hasher for Number {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let add = |number: u64, &byte: &u8| number.rotate_left(8) ^ u64::from(byte);
        self.0 = bytes.iter().fold(self.0, add);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// The digest of the names that `write` writes, which are the same for one `T` each time: they are written once.
pub(crate) fn digest_of<T: 'static>(write: impl FnOnce(&mut String)) -> u32 {
    let id = TypeId::of::<T>();
    let mut number = Number::default();
    id.hash(&mut number);
    let place = number.0 as usize % KNOWN;
    DIGESTS.with(|digests| match digests[place].get() {
        Some((of, digest)) if of == id => digest,
        _ => {
            let mut names = String::new();
            write(&mut names);
            let digest = digest(&names);
            digests[place].set(Some((id, digest)));
            digest
        }
    })
}

/// A digest of the names of types: FNV-1a, 32 bits.
#[must_use]
pub fn digest(names: &str) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    names.bytes().fold(0x811c_9dc5, step)
}

#[cfg(test)]
mod tests {
    use super::{Cell, digest, digest_of};

    /// As many types as there are numbers.
    struct Kind<const NUMBER: usize>;

    #[test]
    fn each_type_has_its_own_digest_wherever_it_is_kept() {
        fn kind<const NUMBER: usize>(written: &Cell<u32>) {
            let name = format!("kind {NUMBER}");
            let write = |names: &mut String| {
                written.set(written.get() + 1);
                names.push_str(&name);
            };
            assert_eq!(digest_of::<Kind<NUMBER>>(write), digest(&name));
        }
        macro_rules! kinds {
            ($written:expr; $($a:literal)*) => {$(
                kind::<{ $a }>($written);
                kind::<{ $a + 1 }>($written);
                kind::<{ $a + 2 }>($written);
                kind::<{ $a + 3 }>($written);
            )*};
        }
        let written = Cell::new(0);
        for _ in 0..3 {
            // More than are kept.
            kinds!(&written; 0 4 8 12 16 20 24 28 32 36 40 44 48 52 56 60 64 68 72 76);
        }
        assert!(
            written.get() < 3 * 80,
            "none was kept: {} of {}",
            written.get(),
            3 * 80
        );
    }
}
