//! A tensor: immutable bytes with a type and a shape, in a handle that is cheap to clone and to drop.
//!
//! Knows where its bytes lie and what keeps them, and nothing of where they came from or will go.
//! ```text
//!   ┌──────────── meta 48 ───────────┬ data 8 ┬ len 8 ┬────── kept by 24 ──────┐   88 bytes
//!   │ dtype, shape                   │ ───┐   │       │ inline: the bytes      │
//!   └────────────────────────────────┴────│───┴───────┤ block: its header      │
//!                                         ▼           │ foreign: Arc<dyn …>    │
//!                          block, heap or peer memory │ leased: table entry    │
//!                                                     └────────────────────────┘
//! ```
//!
//! `data` and `len` stand outside the four kinds, so that reading is two comparisons and no table of kinds. A device's
//! memory is foreign or leased, and its `data` null: no code here can read it by mistake.
#![allow(unsafe_code)]

use std::ptr;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;

use super::block::Block;
use super::element::{self, Element};
use super::foreign::{Foreign, Lent, OnDevice, VectorBytes};
use super::home::Handle;
use super::inline::{INLINE_MAX, Inline};
use super::lease::Lease;
use super::strings::{self, Strings};
use super::{DeviceMemory, DevicePtr, House, Readiness, TensorBytes, TensorError};
use crate::ground::{DType, Region, Shape, TensorMeta};

/// An immutable tensor. Clones share its bytes; the last one dropped, on any thread, sends them home.
///
/// A *leased* tensor reads a peer's memory where it lies. A peer that breaks the protocol can change it while it is
/// read; whatever is read is still a valid value of its type (see
/// [`MappedSegment::slice`](super::MappedSegment::slice)).
#[derive(Clone)]
pub struct Tensor {
    meta: TensorMeta,
    data: *const u8,
    len: usize,
    kept: Kept,
}

const _: () = assert!(
    size_of::<Tensor>() <= 88,
    "a tensor is at most 88 bytes: it is moved through every queue"
);
const _: () = assert!(
    usize::BITS == 64,
    "lengths and offsets are 64 bits and are kept as usize"
);

/// What keeps the bytes alive: the handle alone, which is moved, copied and dropped without more, or what it holds.
#[derive(Clone)]
enum Kept {
    Inline(Inline),
    Held(Held),
}

/// What a handle holds.
#[derive(Clone)]
enum Held {
    Block(Handle<Block>),
    Foreign(Arc<dyn Foreign>),
    Leased(Handle<Lease>),
}

impl Tensor {
    /// A tensor of one value, without dimensions.
    #[must_use]
    pub fn scalar<T: Element>(value: T) -> Self {
        Self::of_inline(
            TensorMeta {
                dtype: T::DTYPE,
                shape: Shape::SCALAR,
            },
            element::bytes_of(&[value]),
        )
    }

    /// A tensor of `values`, whose memory is kept and not copied.
    ///
    /// # Errors
    /// [`TensorError::Elements`] unless there is one value for each element of `shape`.
    pub fn from_vec<T: Element>(values: Vec<T>, shape: Shape) -> Result<Self, TensorError> {
        strings::check_count(shape, values.len())?;
        Self::from_bytes(
            TensorMeta {
                dtype: T::DTYPE,
                shape,
            },
            Bytes::from_owner(VectorBytes(values)),
        )
    }

    /// A tensor of a copy of `values`: in the handle if they are at most [`INLINE_MAX`] bytes, else on the heap. Peers
    /// read it as a copy; what they read in place lies in an engine's memory.
    ///
    /// ```
    /// # extern crate rendez_core as rendez;
    /// use rendez::ground::Shape;
    /// use rendez::memory::Tensor;
    ///
    /// let tensor = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], Shape::from([2, 2]))?;
    /// assert_eq!(tensor.as_slice::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), rendez::memory::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// [`TensorError::Elements`] unless there is one value for each element of `shape`.
    pub fn from_slice<T: Element>(values: &[T], shape: Shape) -> Result<Self, TensorError> {
        let bytes = element::bytes_of(values);
        if bytes.len() > INLINE_MAX {
            return Self::from_vec(values.to_vec(), shape);
        }
        strings::check_count(shape, values.len())?;
        let dtype = T::DTYPE;
        Ok(Self::of_inline(TensorMeta { dtype, shape }, bytes))
    }

    /// A tensor over foreign memory, which is kept and not copied. Memory that is not aligned for the elements still
    /// gives its [`bytes`](Self::bytes), but no slice.
    ///
    /// # Errors
    /// [`TensorError::Size`] if `bytes` are not as many as `meta` takes; [`TensorError::Bool`] if they are to be truth
    /// values and some are not; every one is checked.
    pub fn from_bytes(meta: TensorMeta, bytes: Bytes) -> Result<Self, TensorError> {
        check_len(meta, bytes.len())?;
        check_bools(meta, &bytes)?;
        if bytes.len() <= INLINE_MAX {
            return Ok(Self::of_inline(meta, &bytes));
        }
        Ok(Self::keeping(meta, bytes))
    }

    pub(super) fn keeping(meta: TensorMeta, bytes: Bytes) -> Self {
        let (data, len) = (bytes.as_ptr(), bytes.len());
        Self {
            meta,
            data,
            len,
            kept: Kept::Held(Held::Foreign(Arc::new(bytes))),
        }
    }

    /// A tensor over memory of `owner`, which is kept and not copied until neither side reads it any more: then
    /// `release` gets it back, once. That is when the last clone of the tensor is gone here, its transfers are over,
    /// and no peer can ask for it again, be it because its peer died; or at once, if this fails or the bytes are so few
    /// that they lie in the handle. A peer of this machine that reads in place is given a copy in the engine's arena
    /// (`rendez_copied`), after which the memory is released; a socket and a device read it where it lies.
    ///
    /// `release` runs on the thread that drops it last, which may be a shard's: it must not block, nor panic.
    ///
    /// ```
    /// # extern crate rendez_core as rendez;
    /// use std::sync::mpsc;
    ///
    /// use rendez::ground::{DType, Shape, TensorMeta};
    /// use rendez::memory::Tensor;
    ///
    /// let (give, given) = mpsc::channel();
    /// let meta = TensorMeta::new(DType::U8, Shape::from([4096]))?;
    /// let tensor = Tensor::from_foreign(meta, vec![7; 4096], move |bytes| give.send(bytes).unwrap())?;
    /// assert_eq!(tensor.host()?[0], 7);
    /// assert!(given.try_recv().is_err());
    /// drop(tensor);
    /// assert_eq!(given.try_recv()?, vec![7; 4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::from_bytes`].
    pub fn from_foreign<O: AsRef<[u8]> + Send + 'static>(
        meta: TensorMeta,
        owner: O,
        release: impl FnOnce(O) + Send + 'static,
    ) -> Result<Self, TensorError> {
        Self::from_bytes(meta, Bytes::from_owner(Lent::new(owner, release)))
    }

    /// A tensor in a device's memory, which is kept and neither copied nor read. It passes within this process by its
    /// handle; where its bytes would have to be read or sent, it is refused (`TENSOR_DEVICE`).
    ///
    /// ```
    /// # extern crate rendez_core as rendez;
    /// use rendez::ground::{DType, MemoryKind, Shape, TensorMeta};
    /// use rendez::memory::{DeviceMemory, DevicePtr, Tensor, TensorBytes};
    ///
    /// /// Memory that another library has allocated; its `Drop` would free it.
    /// #[derive(Debug)]
    /// struct Allocated(DevicePtr);
    ///
    /// impl DeviceMemory for Allocated {
    ///     fn place(&self) -> DevicePtr {
    ///         self.0
    ///     }
    /// }
    ///
    /// let place = DevicePtr { kind: MemoryKind::Cuda, device: 0, address: 0x7000_0000, size: 1024 };
    /// let meta = TensorMeta::new(DType::F32, Shape::from([16, 16]))?;
    /// let tensor = Tensor::from_device(meta, Allocated(place))?;
    /// assert_eq!(tensor.bytes(), TensorBytes::Device(place));
    /// assert!(tensor.host().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TensorError::Size`] if the memory is not as long as `meta` takes; [`TensorError::Strings`] for strings, whose
    /// encoding only the host reads.
    pub fn from_device(
        meta: TensorMeta,
        memory: impl DeviceMemory + 'static,
    ) -> Result<Self, TensorError> {
        let expected = byte_len(meta)?.ok_or(TensorError::Strings)?;
        let actual = memory.place().size;
        if expected != actual {
            return Err(TensorError::Size { expected, actual });
        }
        Ok(Self {
            meta,
            data: ptr::null(),
            len: actual as usize,
            kept: Kept::Held(Held::Foreign(Arc::new(OnDevice(memory)))),
        })
    }

    /// A tensor of at most [`INLINE_MAX`] bytes, in the handle: it needs no pool and no heap.
    ///
    /// # Errors
    /// [`TensorError::Size`] if `bytes` are more than that, or not as many as `meta` takes; [`TensorError::Bool`] as
    /// with [`Tensor::from_bytes`].
    pub fn from_inline(meta: TensorMeta, bytes: &[u8]) -> Result<Self, TensorError> {
        check_len(meta, bytes.len())?;
        check_bools(meta, bytes)?;
        if bytes.len() > INLINE_MAX {
            return Err(TensorError::Size {
                expected: INLINE_MAX as u64,
                actual: bytes.len() as u64,
            });
        }
        Ok(Self::of_inline(meta, bytes))
    }

    /// A tensor of byte strings, encoded into heap memory.
    ///
    /// # Errors
    /// [`TensorError::Elements`] unless there is one string for each element of `shape`.
    pub fn from_strings<S: AsRef<[u8]>>(items: &[S], shape: Shape) -> Result<Self, TensorError> {
        strings::check_count(shape, items.len())?;
        let mut bytes = vec![0; strings::encoded_len(items)];
        strings::encode(items, &mut bytes);
        Self::from_bytes(
            TensorMeta {
                dtype: DType::String,
                shape,
            },
            bytes.into(),
        )
    }

    /// Its type and shape.
    #[inline]
    #[must_use]
    pub const fn meta(&self) -> TensorMeta {
        self.meta
    }

    /// Its data type.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.meta.dtype
    }

    /// Its shape.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.meta.shape
    }

    /// How many bytes it is long, wherever they lie.
    #[inline]
    #[must_use]
    pub const fn size(&self) -> usize {
        self.len
    }

    /// Where its bytes lie, in row-major order of the elements: readable here, or in a device's memory.
    #[must_use]
    pub fn bytes(&self) -> TensorBytes<'_> {
        match self.device() {
            Some(place) => TensorBytes::Device(place),
            None => TensorBytes::Host(self.host().unwrap_or_default()),
        }
    }

    /// When its bytes are there: at once in the host's memory; in a device's when its owner says so.
    #[must_use]
    pub fn readiness(&self) -> Readiness<'_> {
        match &self.kept {
            Kept::Held(Held::Foreign(memory)) => memory.readiness(),
            Kept::Held(Held::Leased(lease)) if self.data.is_null() => {
                Readiness::After(lease.node())
            }
            _ => Readiness::Ready,
        }
    }

    /// Its bytes, in row-major order of the elements.
    ///
    /// # Errors
    /// [`TensorError::Device`] if they lie in a device's memory.
    #[inline]
    pub fn host(&self) -> Result<&[u8], TensorError> {
        let data = match &self.kept {
            Kept::Inline(inline) => inline.0.as_ptr(),
            _ if self.data.is_null() => return Err(self.unreadable()),
            _ => self.data,
        };
        // SAFETY: inline: `of_array` checked that `len` is at most the array's 16, and the array lies in `self`.
        // Otherwise, a device's memory being refused above, `data` and `len` were taken from what `kept` keeps: a block
        // held by its handle, `Bytes` whose content does not move, or a lease whose entry holds the mapping. All of it
        // is initialised, and no code in this process writes to it as long as `kept` lives.
        Ok(unsafe { slice::from_raw_parts(data, self.len) })
    }

    /// Its elements.
    ///
    /// # Errors
    /// [`TensorError::Dtype`] if they are not `T`; [`TensorError::Misaligned`] in foreign memory that does not start
    /// where a `T` may; [`TensorError::Device`] as with [`Tensor::host`].
    #[inline]
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        check_dtype::<T>(self.meta)?;
        element::elements_of(self.host()?)
    }

    /// A copy of its elements.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        self.as_slice().map(<[T]>::to_vec)
    }

    /// Its one element, whatever its rank.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`]; [`TensorError::Elements`] unless it has exactly one.
    #[inline]
    pub fn item<T: Element>(&self) -> Result<T, TensorError> {
        match self.as_slice()? {
            [element] => Ok(*element),
            elements => Err(TensorError::Elements {
                expected: 1,
                actual: elements.len() as u64,
            }),
        }
    }

    /// Its strings.
    ///
    /// # Errors
    /// [`TensorError::Dtype`] if it has none; [`TensorError::Encoding`] if the bytes are no encoding of them.
    pub fn strings(&self) -> Result<Strings<'_>, TensorError> {
        if self.meta.dtype != DType::String {
            return Err(TensorError::Dtype {
                expected: DType::String,
                actual: self.meta.dtype,
            });
        }
        Strings::decode(self.host()?, self.meta.shape.elements())
    }

    /// The same bytes under another shape, not copied.
    ///
    /// # Errors
    /// [`TensorError::Elements`] if `shape` has not as many elements.
    pub fn reshaped(&self, shape: Shape) -> Result<Self, TensorError> {
        strings::check_count(shape, self.shape().elements() as usize)?;
        let mut reshaped = self.clone();
        reshaped.meta.shape = shape;
        Ok(reshaped)
    }

    /// The same bytes under another type and shape, not copied.
    ///
    /// # Errors
    /// [`TensorError::Size`] if those take another number of bytes; [`TensorError::Bool`] as with
    /// [`Tensor::from_bytes`], and for truth values also [`TensorError::Device`] as with [`Tensor::host`].
    pub fn recast(&self, meta: TensorMeta) -> Result<Self, TensorError> {
        check_len(meta, self.len)?;
        if meta.dtype == DType::Bool && self.meta.dtype != DType::Bool {
            check_bools(meta, self.host()?)?;
        }
        let mut recast = self.clone();
        recast.meta = meta;
        Ok(recast)
    }

    /// What others call its memory; `Some` only if it lies in an arena of this process, the host's or a device's.
    #[must_use]
    pub fn region(&self) -> Option<Region> {
        match &self.kept {
            Kept::Held(Held::Block(block)) => Some(block.node().region(self.len)),
            Kept::Held(Held::Foreign(memory)) => memory.region(),
            _ => None,
        }
    }

    /// Of which engine's arenas that is one: only that engine's peers know the arena by the region's number.
    #[must_use]
    pub fn house(&self) -> Option<House> {
        match &self.kept {
            Kept::Held(Held::Block(block)) => Some(block.node().house()),
            Kept::Held(Held::Foreign(memory)) => memory.house(),
            _ => None,
        }
    }

    /// Its entry among the leases, if it reads a peer's memory.
    pub(super) fn lease(&self) -> Option<&Lease> {
        let Kept::Held(Held::Leased(lease)) = &self.kept else {
            return None;
        };
        Some(lease.node())
    }

    /// Its header, if it lies in an arena of this process.
    pub(super) fn block(&self) -> Option<&Block> {
        let Kept::Held(Held::Block(block)) = &self.kept else {
            return None;
        };
        Some(block.node())
    }

    /// True if it reads a peer's memory. To be sent on it must be copied, except to that peer.
    #[must_use]
    pub const fn is_leased(&self) -> bool {
        matches!(self.kept, Kept::Held(Held::Leased(_)))
    }

    /// True if its bytes lie in a device's memory, where the host cannot read them.
    #[inline]
    #[must_use]
    pub const fn is_device(&self) -> bool {
        self.data.is_null() && !self.is_inline()
    }

    fn device(&self) -> Option<DevicePtr> {
        match &self.kept {
            Kept::Held(Held::Foreign(memory)) => memory.device(),
            Kept::Held(Held::Leased(lease)) if self.data.is_null() => lease.node().place(self.len),
            _ => None,
        }
    }

    #[cold]
    fn unreadable(&self) -> TensorError {
        let DevicePtr { kind, device, .. } = self.device().unwrap_or_default();
        TensorError::Device { kind, device }
    }

    /// True if its bytes lie in the handle.
    #[inline]
    #[must_use]
    pub const fn is_inline(&self) -> bool {
        matches!(self.kept, Kept::Inline(_))
    }

    /// A tensor in the handle. The caller has checked that `bytes` are as many as `meta` takes, and at most 16.
    #[inline(always)]
    pub(crate) fn of_inline(meta: TensorMeta, bytes: &[u8]) -> Self {
        Self::of_array(meta, Inline::of(bytes), bytes.len())
    }

    /// As `of_inline`, with the bytes already in place: the first `len` of `inline`.
    #[inline]
    pub(crate) const fn of_array(meta: TensorMeta, inline: Inline, len: usize) -> Self {
        assert!(len <= INLINE_MAX, "what is inline fits the handle");
        Self {
            meta,
            data: ptr::null(),
            len,
            kept: Kept::Inline(inline),
        }
    }

    /// A tensor over `len` bytes at `data`, which lie in `block`.
    #[inline]
    pub(crate) const fn of_block(
        meta: TensorMeta,
        data: *const u8,
        len: usize,
        block: Handle<Block>,
    ) -> Self {
        Self {
            meta,
            data,
            len,
            kept: Kept::Held(Held::Block(block)),
        }
    }

    /// A tensor over `bytes`, which lie in the mapping that `lease` keeps.
    pub(crate) const fn of_lease(meta: TensorMeta, bytes: &[u8], lease: Handle<Lease>) -> Self {
        Self {
            meta,
            data: bytes.as_ptr(),
            len: bytes.len(),
            kept: Kept::Held(Held::Leased(lease)),
        }
    }

    /// A tensor over `len` bytes of a peer's device, which lie in the mapping that `lease` keeps.
    pub(crate) const fn of_device_lease(meta: TensorMeta, len: usize, of: Handle<Lease>) -> Self {
        Self {
            meta,
            data: ptr::null(),
            len,
            kept: Kept::Held(Held::Leased(of)),
        }
    }
}

// SAFETY: not automatic because of `data`, which points into what `kept` keeps and is only read through; every kind of
// `kept` is `Send`.
unsafe impl Send for Tensor {}

// SAFETY: as above; a shared tensor gives shared slices, and every kind of `kept` is `Sync`.
unsafe impl Sync for Tensor {}

/// Type, shape and where the bytes lie; not the bytes.
impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kept = match self.kept {
            Kept::Inline(_) => "inline",
            Kept::Held(Held::Block(_)) => "block",
            Kept::Held(Held::Foreign(_)) if self.is_device() => "device",
            Kept::Held(Held::Foreign(_)) => "foreign",
            Kept::Held(Held::Leased(_)) if self.is_device() => "leased device",
            Kept::Held(Held::Leased(_)) => "leased",
        };
        write!(f, "Tensor({}{}, {kept})", self.meta.dtype, self.meta.shape)
    }
}

/// Bytes that a tensor of `meta` takes; `None` for strings.
///
/// Metadata comes from peers too, and its fields are public: the product is checked again here, and of strings the
/// number of elements.
#[inline]
pub(crate) fn byte_len(meta: TensorMeta) -> Result<Option<u64>, TensorError> {
    let size = meta.dtype.size();
    match meta.shape.elements().checked_mul(size.unwrap_or(1) as u64) {
        Some(len) if len < 1 << 63 => Ok(size.map(|_| len)),
        _ => Err(TensorError::Huge),
    }
}

/// Refuses `len` bytes that are not as many as `meta` takes.
#[inline]
pub(crate) fn check_len(meta: TensorMeta, len: usize) -> Result<(), TensorError> {
    match byte_len(meta)? {
        Some(expected) if expected != len as u64 => Err(TensorError::Size {
            expected,
            actual: len as u64,
        }),
        _ => Ok(()),
    }
}

/// Truth values are 0 or 1, wherever they come from.
fn check_bools(meta: TensorMeta, bytes: &[u8]) -> Result<(), TensorError> {
    let wrong = (meta.dtype == DType::Bool)
        .then(|| element::not_bool(bytes))
        .flatten();
    wrong.map_or(Ok(()), |at| {
        Err(TensorError::Bool {
            byte: bytes[at],
            at: at as u64,
        })
    })
}

/// Refuses to read elements as another type.
#[inline]
pub(crate) fn check_dtype<T: Element>(meta: TensorMeta) -> Result<(), TensorError> {
    if meta.dtype == T::DTYPE {
        return Ok(());
    }
    Err(TensorError::Dtype {
        expected: T::DTYPE,
        actual: meta.dtype,
    })
}

#[cfg(test)]
mod tests;
