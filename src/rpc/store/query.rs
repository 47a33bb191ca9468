//! The queries of a `TCPStore`, as bytes: what a client writes and a server reads. Pure.
//!
//! A query is its number in a byte, and its arguments. Numbers have their little-endian bytes; a text or a value has
//! its length in eight bytes before it, a list its count. Nothing frames a query, so one that cannot be read ends the
//! connection. The numbers are those of `QueryType` in PyTorch's `TCPStoreBackend.hpp`.

/// What a client says first: `queryMagicNumber`.
pub(super) const MAGIC: u32 = 0x3c85_f7ce;
/// More bytes than a key has.
pub(super) const KEY_MAX: usize = 8 << 10;
/// More bytes than a value has.
pub(super) const VALUE_MAX: usize = 8 << 20;
/// More keys than one query names.
pub(super) const KEYS_MAX: usize = 128 << 10;
/// More bytes than a query has.
pub(super) const QUERY_MAX: usize = 32 << 20;

/// Bytes of the length of a text, of a value or of a list.
const LENGTH: usize = 8;

/// To [`Query::Check`]: all of them are there. To [`Query::Wait`]: the same, now.
pub(super) const READY: u8 = 0;
/// To [`Query::Check`]: one of them is not there. To [`Query::CancelWait`]: no answer follows to the wait.
pub(super) const NOT_READY: u8 = 1;

/// Why bytes are no query.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct MalformedQuery(pub &'static str);

/// What a client asks for. Parts are borrowed from the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Query<'a> {
    /// "I speak this protocol": has no answer.
    Validate,
    /// A key has that value now: no answer.
    Set(&'a [u8], &'a [u8]),
    /// The key gets the third if it has the second, or is absent and the second is empty; answered by what it has then.
    CompareSet(&'a [u8], &'a [u8], &'a [u8]),
    /// A key's value.
    Get(&'a [u8]),
    /// A key's value is a decimal number, zero if it is absent, and grows by so much; answered by the sum.
    Add(&'a [u8], i64),
    /// Are all of these there?
    Check(Vec<&'a [u8]>),
    /// Answered when all of these are there.
    Wait(Vec<&'a [u8]>),
    /// How many keys are there?
    Count,
    /// A key goes; answered by how many went.
    Delete(&'a [u8]),
    /// A key's value has this at its end: no answer.
    Append(&'a [u8], &'a [u8]),
    /// The values of these.
    MultiGet(Vec<&'a [u8]>),
    /// These keys have these values: no answer.
    MultiSet(Vec<(&'a [u8], &'a [u8])>),
    /// The wait of this connection ends.
    CancelWait,
    /// Answered by the same number.
    Ping(u32),
    /// A value joins the end of a key's queue: no answer.
    QueuePush(&'a [u8], &'a [u8]),
    /// The first of a key's queue.
    QueuePop(&'a [u8]),
    /// How long a key's queue is.
    QueueLen(&'a [u8]),
    /// All keys.
    List,
    /// Answered when so many have asked for the same.
    Barrier(&'a [u8], i64),
}

impl Query<'_> {
    const fn number(&self) -> u8 {
        match self {
            Self::Validate => 0,
            Self::Set(..) => 1,
            Self::CompareSet(..) => 2,
            Self::Get(_) => 3,
            Self::Add(..) => 4,
            Self::Check(_) => 5,
            Self::Wait(_) => 6,
            Self::Count => 7,
            Self::Delete(_) => 8,
            Self::Append(..) => 9,
            Self::MultiGet(_) => 10,
            Self::MultiSet(_) => 11,
            Self::CancelWait => 12,
            Self::Ping(_) => 13,
            Self::QueuePush(..) => 14,
            Self::QueuePop(_) => 15,
            Self::QueueLen(_) => 16,
            Self::List => 17,
            Self::Barrier(..) => 18,
        }
    }

    /// Appends its bytes.
    pub fn write(&self, to: &mut Vec<u8>) {
        to.push(self.number());
        match self {
            Self::Validate => to.extend(MAGIC.to_le_bytes()),
            Self::Ping(nonce) => to.extend(nonce.to_le_bytes()),
            Self::Count | Self::CancelWait | Self::List => {}
            Self::Get(key) | Self::Delete(key) | Self::QueuePop(key) | Self::QueueLen(key) => {
                block(key, to);
            }
            Self::Set(key, value) | Self::Append(key, value) | Self::QueuePush(key, value) => {
                block(key, to);
                block(value, to);
            }
            Self::CompareSet(key, expected, desired) => {
                [key, expected, desired]
                    .into_iter()
                    .for_each(|one| block(one, to));
            }
            Self::Add(key, by) | Self::Barrier(key, by) => {
                block(key, to);
                to.extend(by.to_le_bytes());
            }
            Self::Check(keys) | Self::Wait(keys) | Self::MultiGet(keys) => {
                to.extend((keys.len() as u64).to_le_bytes());
                keys.iter().for_each(|key| block(key, to));
            }
            Self::MultiSet(pairs) => {
                to.extend((pairs.len() as u64).to_le_bytes());
                for (key, value) in pairs {
                    block(key, to);
                    block(value, to);
                }
            }
        }
    }
}

/// Appends a text or a value.
pub(super) fn block(bytes: &[u8], to: &mut Vec<u8>) {
    to.extend((bytes.len() as u64).to_le_bytes());
    to.extend_from_slice(bytes);
}

/// Why reading stopped.
enum Stop {
    /// The rest has not come yet: there are so many bytes at least.
    Short(usize),
    Malformed(MalformedQuery),
}

impl<'a> Query<'a> {
    /// Reads the first query of `bytes`, and says how many of them it has; `None` if it has not all come.
    ///
    /// # Errors
    /// What is wrong with it: nothing that follows can be read then.
    pub fn read(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, MalformedQuery> {
        Ok(Self::read_or_least(bytes)?.ok())
    }

    /// The same, and where it has not all come, how many bytes it has at least: before they are there it is read in
    /// vain.
    pub(super) fn read_or_least(
        bytes: &'a [u8],
    ) -> Result<Result<(Self, usize), usize>, MalformedQuery> {
        let mut reader = Reader { bytes, at: 0 };
        match reader.query() {
            Ok(query) => Ok(Ok((query, reader.at))),
            Err(Stop::Malformed(malformed)) => Err(malformed),
            Err(Stop::Short(_)) if bytes.len() >= QUERY_MAX => {
                Err(MalformedQuery("a query that is too long"))
            }
            Err(Stop::Short(least)) => Ok(Err(least)),
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Stop> {
        let end = self.at.saturating_add(count);
        let taken = self.bytes.get(self.at..end).ok_or(Stop::Short(end))?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let end = self.at.saturating_add(N);
        self.take(N)?.try_into().map_err(|_| Stop::Short(end))
    }

    fn size(&mut self, most: usize, what: &'static str) -> Result<usize, Stop> {
        let size = u64::from_le_bytes(self.array()?);
        let size = usize::try_from(size).ok().filter(|&size| size <= most);
        size.ok_or(Stop::Malformed(MalformedQuery(what)))
    }

    fn key(&mut self) -> Result<&'a [u8], Stop> {
        let size = self.size(KEY_MAX, "a key that is too long")?;
        self.take(size)
    }

    fn value(&mut self) -> Result<&'a [u8], Stop> {
        let size = self.size(VALUE_MAX, "a value that is too long")?;
        self.take(size)
    }

    fn list<T>(&mut self, each: impl Fn(&mut Self) -> Result<T, Stop>) -> Result<Vec<T>, Stop> {
        let count = self.size(KEYS_MAX, "too many keys")?;
        // Room grows with what is there, not with what is announced.
        let each = |at| {
            each(self).map_err(|stop| match stop {
                // Each that follows has its length at least.
                Stop::Short(least) => Stop::Short(least + (count - 1 - at) * LENGTH),
                malformed => malformed,
            })
        };
        (0..count).map(each).collect()
    }

    fn query(&mut self) -> Result<Query<'a>, Stop> {
        let [number] = self.array()?;
        Ok(match number {
            0 => {
                if u32::from_le_bytes(self.array()?) != MAGIC {
                    return Err(Stop::Malformed(MalformedQuery(
                        "another magic number than TCPStore's",
                    )));
                }
                Query::Validate
            }
            1 => Query::Set(self.key()?, self.value()?),
            2 => Query::CompareSet(self.key()?, self.value()?, self.value()?),
            3 => Query::Get(self.key()?),
            4 => Query::Add(self.key()?, i64::from_le_bytes(self.array()?)),
            5 => Query::Check(self.list(Self::key)?),
            6 => Query::Wait(self.list(Self::key)?),
            7 => Query::Count,
            8 => Query::Delete(self.key()?),
            9 => Query::Append(self.key()?, self.value()?),
            10 => Query::MultiGet(self.list(Self::key)?),
            11 => Query::MultiSet(self.list(|reader| Ok((reader.key()?, reader.value()?)))?),
            12 => Query::CancelWait,
            13 => Query::Ping(u32::from_le_bytes(self.array()?)),
            14 => Query::QueuePush(self.key()?, self.value()?),
            15 => Query::QueuePop(self.key()?),
            16 => Query::QueueLen(self.key()?),
            17 => Query::List,
            18 => Query::Barrier(self.key()?, i64::from_le_bytes(self.array()?)),
            _ => return Err(Stop::Malformed(MalformedQuery("a query that there is not"))),
        })
    }
}
