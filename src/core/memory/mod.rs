//! Memory: arenas that peers can map, blocks that come home from anywhere, and the tensors that lie in them.
//!
//! Knows the ground and the operating system. It does not know keys, frames, queue pairs or devices: registration
//! with a network card is the fabric's business, and `lkey` and `rkey` live there.
//!
//! ```text
//!   Pool ── buffer() ──▶ Buffer ── into_tensor() ─▶ Tensor ── clone, send, read ─▶ last drop, on any thread
//!    ▲                                                                               │
//!    └────────────────────────── return list ◀───────────────────────────────────────┘
//! ```
//!
//! * An [`Arena`] says where the memory comes from and how peers and devices reach it; the host's is [`Memfd`].
//! * One owner: a [`Pool`] belongs to one shard, which alone gives blocks out and takes them home.
//! * Written in place, read in place: a [`TensorBuilder`] writes into shared pages, a same-machine peer maps them
//!   read-only ([`MappedSegment`]) and holds a leased [`Tensor`] over them ([`Leases`]).
//! * A tensor that owns whole pages ([`Pool::paged_builder`]) can be mapped by its receivers to themselves, and written
//!   there ([`Tensor::map_private`]).
//! * A [`Tensor`] may lie in a device's memory ([`DeviceMemory`]): it is kept and passed on, and never read here. An
//!   [`Accelerator`] allocates such memory, peers import it, [`Times`] tell when its bytes are there, and a [`Keeper`]
//!   holds it until the streams that use it are past it.
//! * Nothing that is relied upon lies in shared memory.
//! * After warm-up neither giving out nor taking home touches the heap.

pub mod accelerator;
mod account;
pub mod arena;
mod block;
mod buffer;
mod builder;
mod classes;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod device_arena;
mod device_block;
mod device_lease;
mod device_loan;
mod device_value;
mod element;
mod error;
pub mod files;
mod foreign;
pub mod groups;
mod home;
mod inline;
mod keeper;
mod lanes;
mod lease;
#[cfg(test)]
#[path = "lease/tests.rs"]
mod lease_tests; // Not within `lease.rs`, which a loom test includes by path.
mod mapped;
mod mapping;
mod memfd;
mod pages;
mod pinned;
mod pool;
mod private;
mod returns;
mod spans;
mod staging;
mod stream;
pub mod strings;
mod tensor;
mod times;
mod view;
mod words;

pub use accelerator::{Accelerator, DeviceInfo, DeviceRange, DeviceUuid, DriverFault, HostMemory};
pub use account::PoolStats;
pub use arena::{Arena, ArenaId, ArenaSegment, Export, House};
pub use buffer::{Buffer, Misfit};
pub use builder::TensorBuilder;
pub use device::{DeviceEvent, DeviceMemory, DevicePtr, Readiness, TensorBytes};
pub use device_arena::{DeviceArena, DeviceSegment, PeerDeviceMemory};
pub use device_block::DeviceBlock;
pub use device_loan::lend_after;
pub use device_value::{DeviceBuffer, Ordered, await_bytes, order_after, release_after};
pub use element::{Bool8, Element};
pub use error::{MemoryError, TensorError};
pub use inline::INLINE_MAX;
pub use keeper::{Keeper, Watch};
pub use lanes::{Lane, Lanes};
pub use lease::{LeaseToken, Leases};
pub use mapped::MappedSegment;
pub use memfd::{ArenaConfig, HugePages, HugePagesReport, Memfd, Segment};
pub use pinned::Pinned;
pub use pool::{Pool, SEGMENTS_MAX};
pub use private::PrivateTensor;
pub use staging::Staging;
pub use stream::Stream;
pub use tensor::Tensor;
pub use times::{Mark, Times};
pub use words::Words;
