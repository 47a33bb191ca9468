//! Identities: workers, calls, references and their forks.

use std::fmt;

/// A worker's number within its group: 0 to 65 535. Unsigned everywhere, so that no part of the library refuses a
/// number that another part gave out.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct WorkerId(pub u16);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of a call or a control message, counted up by its sender for each receiver: never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct CallId(pub u64);

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An identity that one worker makes and all others understand: the maker, and a counter of 48 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GlobalId {
    /// The worker that made it.
    pub on: WorkerId,
    /// Its counter at that time, below [`GlobalId::LOCAL_END`].
    pub local: u64,
}

impl GlobalId {
    /// One more than the largest counter.
    pub const LOCAL_END: u64 = 1 << 48;

    /// The worker in the upper 16 bits, the counter in the lower 48.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.on.0 as u64) << 48 | self.local & (Self::LOCAL_END - 1)
    }

    /// Reads what [`GlobalId::to_bits`] gave.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            on: WorkerId((bits >> 48) as u16),
            local: bits & (Self::LOCAL_END - 1),
        }
    }
}

impl fmt::Display for GlobalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GloballyUniqueId(created_on={}, local_id={})",
            self.on, self.local
        )
    }
}

/// The identity of a remote reference: the worker that asked for the value.
pub type RRefId = GlobalId;

/// The identity of one user's share of a reference: the worker that handed it out.
pub type ForkId = GlobalId;

/// Why a text is not a worker's name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It is empty.
    #[error("Worker name must be non-empty.")]
    Empty,
    /// It has 128 bytes or more.
    #[error("Worker name must be shorter than 128 characters, and this has {0}.")]
    Long(usize),
    /// It has a character that a name may not have.
    #[error("Worker name must match ^[A-Za-z0-9-_:]*$, but got {0}")]
    Character(String),
}

/// Whether `name` can be a worker's: 1 to 127 of the characters `A-Z a-z 0-9 - _ :`.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':');
    if name.is_empty() {
        Err(NameError::Empty)
    } else if name.len() > 127 {
        Err(NameError::Long(name.len()))
    } else if !name.bytes().all(fits) {
        Err(NameError::Character(name.to_owned()))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_of_any_16_bits_survives_in_an_identity() {
        for on in [0, 1, i16::MAX as u16, i16::MAX as u16 + 1, u16::MAX] {
            let id = GlobalId {
                on: WorkerId(on),
                local: GlobalId::LOCAL_END - 1,
            };
            assert_eq!(GlobalId::from_bits(id.to_bits()), id);
        }
    }

    #[test]
    fn names_have_1_to_127_characters_of_the_allowed_ones() {
        assert!(check_name("trainer-0_a:b").is_ok());
        assert!(check_name(&"x".repeat(127)).is_ok());
        assert_eq!(check_name(""), Err(NameError::Empty));
        assert_eq!(check_name(&"x".repeat(128)), Err(NameError::Long(128)));
        assert!(matches!(check_name("a b"), Err(NameError::Character(_))));
        assert!(matches!(check_name("ä"), Err(NameError::Character(_))));
    }
}
