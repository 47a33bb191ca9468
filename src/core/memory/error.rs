//! What can go wrong with memory: small `Copy` values; only the edge turns one into a [`Status`] with text.
//!
//! Knows no caller and no log: the code that meets the error first logs it.

use rustix::io::Errno;

use super::DriverFault;
use crate::ground::faults::more_descriptors;
use crate::ground::{Code, DType, MemoryKind, Status, catalogue};

/// Why memory was not given, mapped or leased.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The arena has no room for this now; it may have later.
    #[error(
        "{asked} bytes asked of an arena of at most {limit} bytes (arena_bytes; of a device: device_bytes): {in_use} \
         are in use, and the longest free stretch is of {longest}"
    )]
    Full {
        /// Bytes asked for.
        asked: u64,
        /// Bytes given out.
        in_use: u64,
        /// Bytes of the longest stretch that is free, or may be mapped.
        longest: u64,
        /// The arena's `bytes_max`.
        limit: u64,
    },
    /// The arena can never hold this, however empty.
    #[error(
        "{asked} bytes asked of an arena of at most {limit} bytes (arena_bytes; of a device: device_bytes)"
    )]
    Unfit {
        /// Bytes asked for.
        asked: u64,
        /// The most the arena could ever hold in one piece.
        limit: u64,
    },
    /// The arena would need more segments than a region can number.
    #[error(
        "the arena has all of its {limit} segments; larger segments (arena_segment_bytes) give it more room"
    )]
    Segments {
        /// The most segments of an arena.
        limit: u32,
    },
    /// A descriptor a peer sent is not sealed as it must be.
    #[error(
        "the descriptor lacks seals: it has {seals:#x}, and needs SHRINK and one of WRITE and FUTURE_WRITE"
    )]
    Unsealed {
        /// The seals it has (`F_SEAL_*`).
        seals: u32,
    },
    /// A descriptor a peer sent is of memory that cannot be imported here.
    #[error("the descriptor is of {kind} memory, which is not imported here")]
    Kind {
        /// What kind it is of, by the peer's word.
        kind: MemoryKind,
    },
    /// A descriptor a peer sent is smaller than the peer claims.
    #[error("the descriptor holds {size} bytes where {claimed} are claimed")]
    Short {
        /// The segment's length by the peer's word, in bytes.
        claimed: u64,
        /// The file's length, in bytes.
        size: u64,
    },
    /// A region that does not lie within its segment.
    #[error("{len} bytes at {offset} lie outside a segment of {segment_len} bytes")]
    Outside {
        /// Where the region starts.
        offset: u64,
        /// Its length.
        len: u64,
        /// The segment's length.
        segment_len: u64,
    },
    /// A tensor's bytes share their pages with others, or lie where they cannot be mapped.
    #[error("the tensor's bytes do not own whole pages: it was not made to, or came as a copy")]
    Unpaged,
    /// Every entry of the lease table is taken.
    #[error("all {capacity} leases are out")]
    LeasesOut {
        /// The table's capacity.
        capacity: u32,
    },
    /// Huge pages are required, and the machine has none to give.
    #[error(
        "huge pages are required (huge_pages) and the system has none to give (errno {errno} from {call}): reserve \
         enough for all arenas (sysctl vm.nr_hugepages), or set huge_pages = \"auto\""
    )]
    HugePages {
        /// The call that refused.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
    /// The kernel lacks a seal without which memory cannot be shared safely.
    #[error(
        "this kernel cannot seal shared memory against later writers (F_SEAL_FUTURE_WRITE, Linux 5.1)"
    )]
    Kernel,
    /// The system refused a call.
    #[error("{call}: errno {errno}{}", what_to_do(call, *errno))]
    System {
        /// The call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
    /// The system refused to map memory.
    #[error("mmap of {len} bytes for {what}: errno {errno}{}", what_limits(*errno))]
    Map {
        /// What it was for.
        what: &'static str,
        /// How many bytes.
        len: u64,
        /// The call's error number.
        errno: i32,
    },
    /// A device's driver refused a call.
    #[error("the {kind} driver: {call}: {code} ({name})")]
    Driver {
        /// The kind of device.
        kind: MemoryKind,
        /// The call.
        call: &'static str,
        /// What it returned.
        code: u32,
        /// What that is called.
        name: &'static str,
        /// What it means.
        fault: DriverFault,
    },
    /// There is no device of this number.
    #[error("there is no {kind} device {device}: this process sees {count}")]
    Ordinal {
        /// The kind of device.
        kind: MemoryKind,
        /// Its number.
        device: u32,
        /// How many there are.
        count: u32,
    },
    /// A stream or a pointer is of a context that is not the primary one of any device.
    #[error(
        "the stream or memory belongs to a {kind} context that is not the primary one of any device"
    )]
    Context {
        /// The kind of device.
        kind: MemoryKind,
    },
    /// An address is no memory of a device, or no more.
    #[error("{address:#x} is not memory of a {kind} device, or no longer is")]
    Pointer {
        /// The kind of device.
        kind: MemoryKind,
        /// The address.
        address: u64,
    },
    /// Memory, a stream or a descriptor is of another device than it must be.
    #[error("it does not belong to {kind} device {device}, as it must here")]
    OtherDevice {
        /// The kind of device.
        kind: MemoryKind,
        /// The device that it must be of.
        device: u32,
    },
    /// A peer's memory is of a device that this process does not see.
    #[error("it belongs to a {kind} device that this process does not see")]
    Unseen {
        /// The kind of device.
        kind: MemoryKind,
    },
    /// A device's memory cannot be shown to other processes.
    #[error(
        "memory of {kind} device {device} cannot be exported as descriptors: its driver or the device cannot"
    )]
    Unexportable {
        /// The kind of device.
        kind: MemoryKind,
        /// The device.
        device: u32,
    },
    /// The device that was to make the bytes has failed, or its process is gone.
    #[error(
        "the bytes will never be written: the device that was to write them has failed, or its process is gone"
    )]
    Lost,
    /// A peer's memory is to be there after an event that was never recorded.
    #[error("the bytes become valid after an event that was never recorded")]
    Unrecorded,
    /// The driver failed with copies under way, and this copier is used no more.
    #[error("the {kind} driver failed while copies were under way")]
    Broken {
        /// The kind of device.
        kind: MemoryKind,
    },
    /// What was asked does not make a tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Why bytes are not the tensor, or the elements, that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The metadata's bytes and the bytes that are there differ.
    #[error("the shape needs {expected} bytes, but there are {actual}")]
    Size {
        /// Bytes the metadata takes.
        expected: u64,
        /// Bytes that are there.
        actual: u64,
    },
    /// The metadata has 2⁶³ elements or bytes, or more.
    #[error("the shape has 2^63 elements or bytes, or more")]
    Huge,
    /// There are not as many elements as the shape, or the question, asks for.
    #[error("the number of elements is {actual}, and should be {expected}")]
    Elements {
        /// As many as there should be.
        expected: u64,
        /// As many as there are.
        actual: u64,
    },
    /// The elements are of another type.
    #[error("the elements are {actual}, not {expected}")]
    Dtype {
        /// What was asked for.
        expected: DType,
        /// What the tensor holds.
        actual: DType,
    },
    /// A byte of truth values is neither 0 nor 1.
    #[error("byte {at} is {byte}, but a boolean is 0 or 1")]
    Bool {
        /// The byte.
        byte: u8,
        /// Where it lies.
        at: u64,
    },
    /// Foreign memory that does not start where such elements may.
    #[error("the memory is not aligned to {align} bytes")]
    Misaligned {
        /// What the element type needs.
        align: usize,
    },
    /// The bytes lie in a device's memory, which the host does not read.
    #[error("the bytes lie in the memory of {kind} device {device}, which the host does not read")]
    Device {
        /// The kind of memory.
        kind: MemoryKind,
        /// The device, by its number among those of its kind.
        device: u32,
    },
    /// Strings have no size of their own; they are made from their bytes.
    #[error("strings have no size before their bytes are known")]
    Strings,
    /// The bytes are not an encoding of so many strings.
    #[error("the bytes are not an encoding of {count} strings")]
    Encoding {
        /// How many strings the shape asks for.
        count: u64,
    },
}

impl MemoryError {
    /// True if a device has no room: less may fit. The system's memory is given out when it is touched.
    pub(super) const fn is_of_room(&self) -> bool {
        matches!(
            self,
            Self::Driver {
                fault: DriverFault::Memory,
                ..
            }
        )
    }

    /// True if a device has failed: nothing that is queued there will be done.
    #[must_use]
    pub const fn is_of_lost_device(&self) -> bool {
        matches!(
            self,
            Self::Driver {
                fault: DriverFault::Lost,
                ..
            }
        )
    }

    /// The system's call that refused, and its error number.
    pub(super) const fn refused(&self) -> Option<(&'static str, i32)> {
        match *self {
            Self::System { call, errno } => Some((call, errno)),
            Self::Map { errno, .. } => Some(("mmap", errno)),
            _ => None,
        }
    }

    /// A refused system call.
    pub(crate) const fn system(call: &'static str, errno: Errno) -> Self {
        Self::System {
            call,
            errno: errno.raw_os_error(),
        }
    }
}

/// What to look at when the system maps no more.
fn what_limits(errno: i32) -> &'static str {
    match Errno::from_raw_os_error(errno) {
        Errno::NOMEM => {
            ": the process may have no more address space (ulimit -v) or mappings (vm.max_map_count), or, for pages of \
             its own, memory (ulimit -d, vm.overcommit_memory) or huge pages (vm.nr_hugepages)"
        }
        _ => "",
    }
}

/// What to do where the system refuses a call. That it forbids a file in memory comes from a filter: the kernel alone
/// forbids none to any user.
fn what_to_do(call: &str, errno: i32) -> &'static str {
    match (call, Errno::from_raw_os_error(errno)) {
        ("memfd_create", Errno::PERM) => {
            ": a seccomp filter forbids it: allow memfd_create in the profile of the container or service"
        }
        _ => more_descriptors(errno),
    }
}

impl From<super::files::Refused> for MemoryError {
    fn from((call, errno): super::files::Refused) -> Self {
        Self::system(call, errno)
    }
}

impl From<MemoryError> for Status {
    fn from(error: MemoryError) -> Self {
        let (code, reason) = match error {
            MemoryError::Full { .. } | MemoryError::Segments { .. } => {
                (Code::ResourceExhausted, "ARENA_FULL")
            }
            MemoryError::Unfit { .. } => (Code::ResourceExhausted, "ARENA_UNFIT"),
            MemoryError::Unsealed { .. } => (Code::PermissionDenied, "DESCRIPTOR_UNSEALED"),
            MemoryError::Kind { .. } => (Code::FailedPrecondition, catalogue::DESCRIPTOR_KIND),
            MemoryError::Short { .. } => (Code::InvalidArgument, "DESCRIPTOR_SHORT"),
            MemoryError::Outside { .. } => (Code::OutOfRange, "REGION_OUTSIDE"),
            MemoryError::Unpaged => (Code::FailedPrecondition, catalogue::TENSOR_PAGES),
            MemoryError::LeasesOut { .. } => (Code::ResourceExhausted, "LEASES_OUT"),
            MemoryError::HugePages { .. } => (Code::FailedPrecondition, "HUGE_PAGES_NONE"),
            MemoryError::Kernel => (Code::FailedPrecondition, "KERNEL_UNSEALING"),
            MemoryError::System { errno, .. } | MemoryError::Map { errno, .. } => {
                match Errno::from_raw_os_error(errno) {
                    Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::FBIG => {
                        (Code::ResourceExhausted, "SYSTEM_LIMIT")
                    }
                    _ => (Code::Internal, "SYSTEM_CALL"),
                }
            }
            MemoryError::Driver { fault, .. } => match fault {
                DriverFault::Memory => (Code::ResourceExhausted, catalogue::DEVICE_FULL),
                DriverFault::Lost => (Code::Unavailable, catalogue::DEVICE_LOST),
                DriverFault::Unsupported => {
                    (Code::FailedPrecondition, catalogue::DEVICE_UNSUPPORTED)
                }
                DriverFault::Argument => (Code::InvalidArgument, catalogue::DEVICE_ARGUMENT),
                DriverFault::Other => (Code::Internal, catalogue::DEVICE_CALL),
            },
            MemoryError::Ordinal { .. } => (Code::InvalidArgument, catalogue::DEVICE_ORDINAL),
            MemoryError::Context { .. } => (Code::InvalidArgument, catalogue::DEVICE_CONTEXT),
            MemoryError::Pointer { .. } => (Code::InvalidArgument, catalogue::DEVICE_POINTER),
            MemoryError::OtherDevice { .. } => (Code::InvalidArgument, catalogue::DEVICE_OTHER),
            MemoryError::Unseen { .. } => (Code::FailedPrecondition, catalogue::DEVICE_UNSEEN),
            MemoryError::Unexportable { .. } => {
                (Code::FailedPrecondition, catalogue::DEVICE_UNSUPPORTED)
            }
            MemoryError::Unrecorded => (Code::InvalidArgument, catalogue::DEVICE_EVENT),
            MemoryError::Lost | MemoryError::Broken { .. } => {
                (Code::Unavailable, catalogue::DEVICE_LOST)
            }
            MemoryError::Tensor(error) => return error.into(),
        };
        Self::new(code, reason, error.to_string())
    }
}

impl From<TensorError> for Status {
    fn from(error: TensorError) -> Self {
        let reason = match error {
            TensorError::Dtype { .. } | TensorError::Bool { .. } | TensorError::Strings => {
                "TENSOR_DTYPE"
            }
            TensorError::Misaligned { .. } => "TENSOR_ALIGNMENT",
            TensorError::Device { .. } => {
                return Self::of(catalogue::TENSOR_DEVICE, error.to_string());
            }
            TensorError::Encoding { .. } => "TENSOR_STRINGS",
            TensorError::Size { .. } | TensorError::Huge | TensorError::Elements { .. } => {
                "TENSOR_SHAPE"
            }
        };
        Self::new(Code::InvalidArgument, reason, error.to_string())
    }
}

#[cfg(test)]
mod tests;
