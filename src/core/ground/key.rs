//! Keys: the name of a rendezvous, as `source;incarnation;destination;edge;frame:iteration`.
//!
//! Knows nothing of tables, steps and shards' addresses: two keys are the same or not, and have a number that says
//! which shard of how many owns them.
//!
//! A key is made once and used for every step, so it is a handle: all of it but the frame and iteration lies in one
//! shared, immutable *route*. Cloning adds to a count, and the same key in another iteration of a loop ([`Key::at`])
//! allocates nothing.
//!
//! ```
//! # extern crate rendez_core as rendez;
//! use rendez::ground::{FrameIter, Key};
//!
//! let key = Key::between("a", "b", "x")?;
//! assert_eq!(
//!     key.text(),
//!     "/job:a/replica:0/task:0/device:CPU:0;0000000000000000;/job:b/replica:0/task:0/device:CPU:0;x;0:0"
//! );
//! assert_eq!(key, Key::parse(&key.text())?);
//! assert_ne!(key, key.at(FrameIter { frame: 0, iter: 1 }));
//! # Ok::<(), rendez::ground::key::KeyError>(())
//! ```
//!
//! # Text
//!
//! Parsing takes any spelling of the device names and of the hex number and keeps the canonical one, so that two
//! spellings of a key are one key. In one point it is stricter than the original, which takes any text that is not
//! empty as frame and iteration: here it must be two decimal 64-bit numbers. On the wire they are numbers, and a
//! text that could not travel would be a key that meets only itself. They may begin with zeros, which are dropped:
//! `00:01` is `0:1`. An edge name is text, and never a number: `x:01` and `x:1` are two edges, and so are `01` and `1`.
//!
//! # Hash
//!
//! [`Key::hash`] is part of the wire specification: both sides of a connection find a key's shard with it. It is
//! computed over the bytes `source ';' destination ';' edge`, where the device names are canonical texts, in two
//! steps:
//!
//! ```text
//! h = 0xcbf29ce484222325                            FNV-1a (Fowler, Noll, Vo), 64 bits
//! for byte in bytes:
//!     h = (h xor byte) × 0x00000100000001b3         all arithmetic modulo 2⁶⁴
//!
//! h = (h xor (h >> 30)) × 0xbf58476d1ce4e5b9        the finaliser of SplitMix64 (Steele, Lea, Flood):
//! h = (h xor (h >> 27)) × 0x94d049bb133111eb        FNV alone leaves the low bits of short names alike
//! h =  h xor (h >> 31)
//! ```
//!
//! Incarnation, frame and iteration are left out: a restart or a loop does not move a key to another shard.
//! The owner among `n` shards is `h mod n`. Test vectors:
//!
//! | source `/job:` | destination `/job:` | edge | hash |
//! |---|---|---|---|
//! | `a/replica:0/task:0/device:CPU:0` | `b/replica:0/task:0/device:CPU:0` | `x` | `bad994822302284e` |
//! | `mnist/replica:1/task:2/device:CPU:0` | `mnist/replica:1/task:2/device:GPU:0` | `var0` | `3080ac1e42024cbf` |
//! | `b/replica:0/task:0/device:CPU:0` | `a/replica:0/task:0/device:CPU:0` | `x` | `132561e70bb58cf6` |

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use super::device::{DeviceError, DeviceName, TaskName};
use super::hash::{FNV_BASIS, fnv1a_after, mix};
use super::limits::{EDGE_NAME_BYTES_MAX, KEY_TEXT_BYTES_MAX};
use super::{Incarnation, Status, catalogue, status};

#[cfg(test)]
mod tests;

/// The loop frame and iteration a value belongs to: `0:0` outside loops.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct FrameIter {
    /// The loop frame.
    pub frame: u64,
    /// The iteration within it.
    pub iter: u64,
}

/// So much of an edge name that cannot be one is shown.
const EDGE_SHOWN_BYTES: usize = 64;

/// The name of a rendezvous: a value's producer, its consumer, and what they call it.
///
/// A handle: cloning only adds to a count. Two keys are equal if all five fields are.
#[derive(Clone)]
pub struct Key {
    route: Arc<Route>,
    frame_iter: FrameIter,
}

/// All of a key but its frame and iteration.
struct Route {
    /// The key's text at `0:0`.
    text: Box<str>,
    source_end: u16,
    destination: (u16, u16),
    edge_end: u16,
    source: DeviceName,
    incarnation: Incarnation,
    destination_name: DeviceName,
    source_task: TaskName,
    destination_task: TaskName,
    hash: u64,
}

/// What is wrong with a text that should be a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyFault {
    /// Longer than [`KEY_TEXT_BYTES_MAX`].
    TooLong,
    /// More or fewer than five fields.
    Fields,
    /// The first field is not a full device name.
    Source,
    /// The second field is not a hex number of one to sixteen digits.
    Incarnation,
    /// The third field is not a full device name.
    Destination,
    /// The edge name is empty, too long, or has a semicolon in it.
    Edge,
    /// The fifth field is not two decimal 64-bit numbers with a colon between.
    FrameIter,
}

/// Why a key was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text is not a key. The two blanks are the original's, and programs match on them.
    #[error("Invalid  rendezvous key: {text}")]
    Malformed {
        /// The text, cut if it is absurdly long.
        text: Box<str>,
        /// What is wrong with it.
        fault: KeyFault,
    },
    /// The source is not a device.
    #[error("a key's source must be a device: {0}")]
    Source(#[source] DeviceError),
    /// The destination is not a device.
    #[error("a key's destination must be a device: {0}")]
    Destination(#[source] DeviceError),
    /// The edge name cannot stand in a key.
    #[error(
        "'{0}' cannot be an edge name: it must have 1 to {EDGE_NAME_BYTES_MAX} bytes and no semicolon"
    )]
    Edge(Box<str>),
}

impl Key {
    /// The key of the value `edge` that `source`, in its life `incarnation`, makes for `destination`.
    ///
    /// # Errors
    /// If a device name is partial, or the edge name is empty, too long or has a semicolon in it.
    pub fn new(
        source: &DeviceName,
        incarnation: Incarnation,
        destination: &DeviceName,
        edge: &str,
        frame_iter: FrameIter,
    ) -> Result<Self, KeyError> {
        if !is_edge(edge) {
            return Err(KeyError::Edge(status::cut(edge, EDGE_SHOWN_BYTES)));
        }
        let route = Route::new(source.clone(), incarnation, destination.clone(), edge)?;
        Ok(Self {
            route: Arc::new(route),
            frame_iter,
        })
    }

    /// A key without device syntax. A plain name is a job, and means the first CPU of its first task; a name that
    /// begins with a slash is a device name, where replica 0, task 0 and `CPU:0` may be left out.
    ///
    /// The incarnation is [`Incarnation::CURRENT`], and there is no loop.
    ///
    /// # Errors
    /// As [`Key::new`], or if a name is no name.
    pub fn between(source: &str, destination: &str, edge: &str) -> Result<Self, KeyError> {
        let source = endpoint(source).map_err(KeyError::Source)?;
        let destination = endpoint(destination).map_err(KeyError::Destination)?;
        Self::new(
            &source,
            Incarnation::CURRENT,
            &destination,
            edge,
            FrameIter::default(),
        )
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// [`KeyError::Malformed`], whose message is `Invalid  rendezvous key: <text>`.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        parse(text).map_err(|fault| KeyError::Malformed {
            text: status::cut(text, KEY_TEXT_BYTES_MAX),
            fault,
        })
    }

    /// The same key in another loop frame or iteration. Shares the rest; allocates nothing.
    #[inline]
    #[must_use]
    pub fn at(&self, frame_iter: FrameIter) -> Self {
        Self {
            route: Arc::clone(&self.route),
            frame_iter,
        }
    }

    /// The same key for another life of its source. Its [hash](Key::hash) is the same too.
    #[must_use]
    pub fn with_source_incarnation(&self, incarnation: Incarnation) -> Self {
        let Route {
            source,
            destination_name,
            source_task,
            destination_task,
            ..
        } = &*self.route;
        let route = Route::full(
            (source.clone(), source_task.clone()),
            incarnation,
            (destination_name.clone(), destination_task.clone()),
            self.edge(),
        );
        Self {
            route: Arc::new(route),
            frame_iter: self.frame_iter,
        }
    }

    /// The same key with a number behind its edge: the smallest below `numbers` that makes the first of `shards` shards
    /// its owner. `None` if no such number does, or if the edge is too long with it.
    ///
    /// A number costs a hash of its digits. Both ends of a key find the same number.
    #[must_use]
    pub fn owned_by_first(&self, shards: u32, numbers: u32) -> Option<Self> {
        let before = fnv1a_after(FNV_BASIS, self.route.hashed());
        let owned = |number: &u32| {
            let hash = mix(fnv1a_after(before, decimal_digits(*number)));
            hash.is_multiple_of(u64::from(shards.max(1)))
        };
        let number = (0..numbers).find(owned)?;
        let edge = format!("{}{number}", self.edge());
        let (source, destination) = (self.source(), self.destination());
        let incarnation = self.source_incarnation();
        Self::new(source, incarnation, destination, &edge, self.frame_iter).ok()
    }

    /// The canonical text. Borrowed outside loops; for people and configuration, not for the hot path.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        if self.frame_iter == FrameIter::default() {
            Cow::Borrowed(&self.route.text)
        } else {
            Cow::Owned(self.to_string())
        }
    }

    /// The device that makes the value; always a full name.
    #[inline]
    #[must_use]
    pub fn source(&self) -> &DeviceName {
        &self.route.source
    }

    /// The canonical text of the source.
    #[inline]
    #[must_use]
    pub fn source_text(&self) -> &str {
        &self.route.text[..usize::from(self.route.source_end)]
    }

    /// The task that makes the value.
    #[inline]
    #[must_use]
    pub fn source_task(&self) -> &TaskName {
        &self.route.source_task
    }

    /// The life of the source that makes the value.
    #[inline]
    #[must_use]
    pub fn source_incarnation(&self) -> Incarnation {
        self.route.incarnation
    }

    /// The device that needs the value; always a full name.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> &DeviceName {
        &self.route.destination_name
    }

    /// The canonical text of the destination.
    #[inline]
    #[must_use]
    pub fn destination_text(&self) -> &str {
        let (start, end) = self.route.destination;
        &self.route.text[usize::from(start)..usize::from(end)]
    }

    /// The task that needs the value.
    #[inline]
    #[must_use]
    pub fn destination_task(&self) -> &TaskName {
        &self.route.destination_task
    }

    /// What the two call the value.
    #[inline]
    #[must_use]
    pub fn edge(&self) -> &str {
        &self.route.text
            [usize::from(self.route.destination.1) + 1..usize::from(self.route.edge_end)]
    }

    /// The loop frame and iteration.
    #[inline]
    #[must_use]
    pub const fn frame_iter(&self) -> FrameIter {
        self.frame_iter
    }

    /// The route hash, over source, destination and edge; see the [module](self) for its specification.
    ///
    /// A hash is not a key: a look-up by hash compares the keys too.
    #[inline]
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.route.hash
    }

    /// True if both have the same source, destination and edge, whatever the life of the source, the loop frame and the
    /// iteration. One look if they are clones of one key.
    #[inline]
    #[must_use]
    pub fn is_of_route(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.route, &other.route)
            || (self.route.hash == other.route.hash && self.route.has_names_of(&other.route))
    }

    /// Which of `shards` shards owns this key: for tasks that want to run in the same shard. Zero shards count as one.
    #[inline]
    #[must_use]
    pub fn shard_of(&self, shards: u32) -> u32 {
        // The remainder is below a u32, so nothing is lost.
        (self.route.hash % u64::from(shards.max(1))) as u32
    }
}

impl Route {
    /// The texts are canonical, so names are equal if their texts are.
    fn has_names_of(&self, other: &Self) -> bool {
        let source = |route: &Self| usize::from(route.source_end);
        let names = |route: &Self| usize::from(route.destination.0)..usize::from(route.edge_end);
        self.text[..source(self)] == other.text[..source(other)]
            && self.text[names(self)] == other.text[names(other)]
    }

    fn new(
        source: DeviceName,
        incarnation: Incarnation,
        destination: DeviceName,
        edge: &str,
    ) -> Result<Self, KeyError> {
        let source = source.into_full().map_err(KeyError::Source)?;
        let destination = destination.into_full().map_err(KeyError::Destination)?;
        Ok(Self::full(source, incarnation, destination, edge))
    }

    fn full(
        (source, source_task): (DeviceName, TaskName),
        incarnation: Incarnation,
        (destination, destination_task): (DeviceName, TaskName),
        edge: &str,
    ) -> Self {
        let prefix = format!("{source};{incarnation};");
        let text = format!("{prefix}{destination};{edge};0:0");
        // Every part is bounded, and `limits` shows that their sum fits sixteen bits.
        let edge_end = (text.len() - ";0:0".len()) as u16;
        let source_end = (prefix.len() - ";0123456789abcdef;".len()) as u16;
        let destination_end = edge_end - edge.len() as u16 - 1;
        let mut route = Self {
            hash: 0,
            source_end,
            destination: (prefix.len() as u16, destination_end),
            edge_end,
            text: text.into(),
            source,
            incarnation,
            destination_name: destination,
            source_task,
            destination_task,
        };
        route.hash = mix(fnv1a_after(FNV_BASIS, route.hashed()));
        route
    }

    /// What the hash is taken of: all but the life.
    fn hashed(&self) -> impl Iterator<Item = u8> {
        let names = usize::from(self.destination.0)..usize::from(self.edge_end);
        let source = self.text[..usize::from(self.source_end)].bytes();
        source.chain([b';']).chain(self.text[names].bytes())
    }
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.frame_iter == other.frame_iter
            && (Arc::ptr_eq(&self.route, &other.route)
                || (self.route.hash == other.route.hash && self.route.text == other.route.text))
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.route.hash);
        state.write_u64(self.route.incarnation.0);
        state.write_u64(self.frame_iter.frame);
        state.write_u64(self.frame_iter.iter);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// The canonical text.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.route.text[..=usize::from(self.route.edge_end)])?;
        fmt::Display::fmt(&self.frame_iter, f)
    }
}

impl FromStr for Key {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

/// `0:0`
impl fmt::Display for FrameIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.frame, self.iter)
    }
}

impl From<KeyError> for Status {
    fn from(error: KeyError) -> Self {
        Self::of(catalogue::KEY_MALFORMED, error.to_string())
    }
}

fn parse(text: &str) -> Result<Key, KeyFault> {
    if text.len() > KEY_TEXT_BYTES_MAX {
        return Err(KeyFault::TooLong);
    }
    let mut fields = text.split(';');
    let mut next = || fields.next().ok_or(KeyFault::Fields);
    let (source, incarnation, destination, edge, frame_iter) =
        (next()?, next()?, next()?, next()?, next()?);
    if fields.next().is_some() {
        return Err(KeyFault::Fields);
    }
    let source = DeviceName::parse_full(source).map_err(|_| KeyFault::Source)?;
    let incarnation = hex(incarnation).ok_or(KeyFault::Incarnation)?;
    let destination = DeviceName::parse_full(destination).map_err(|_| KeyFault::Destination)?;
    let frame_iter = self::frame_iter(frame_iter).ok_or(KeyFault::FrameIter)?;
    Key::new(&source, incarnation, &destination, edge, frame_iter).map_err(|_| KeyFault::Edge)
}

fn hex(text: &str) -> Option<Incarnation> {
    let digits =
        (1..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok().map(Incarnation))?
}

fn frame_iter(text: &str) -> Option<FrameIter> {
    let (frame, iter) = text.split_once(':')?;
    Some(FrameIter {
        frame: decimal(frame)?,
        iter: decimal(iter)?,
    })
}

/// `parse` alone would also take a plus sign.
fn decimal(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

fn is_edge(edge: &str) -> bool {
    (1..=EDGE_NAME_BYTES_MAX).contains(&edge.len()) && !edge.contains(';')
}

fn endpoint(name: &str) -> Result<DeviceName, DeviceError> {
    if !name.starts_with('/') {
        return TaskName::new(name, 0, 0).map(|task| DeviceName::cpu(&task));
    }
    let mut device = DeviceName::parse(name)?;
    // The job has no default: a name without one stays partial, and is refused as such.
    if let Some(task) = device
        .job()
        .map(|job| TaskName::new(job, 0, 0))
        .transpose()?
    {
        device.fill(&DeviceName::cpu(&task));
    }
    Ok(device)
}

/// A number's decimal digits, the first of them first.
fn decimal_digits(number: u32) -> impl Iterator<Item = u8> {
    let last = number.checked_ilog10().unwrap_or(0);
    (0..=last)
        .rev()
        .map(move |place| b'0' + (number / 10u32.pow(place) % 10) as u8)
}
