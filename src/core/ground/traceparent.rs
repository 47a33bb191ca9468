//! Traceparents: which trace of its caller's a step belongs to, as W3C Trace Context, level 1, writes it.
//!
//! It knows the text and nothing of tracers.

use std::fmt;
use std::str::FromStr;

use super::{Status, catalogue};

/// Characters of version 00: two for the version, 32, 16 and 2, and three dashes.
const LEN: usize = 55;
/// The flags that level 1 knows: the caller records the trace. Others are not passed on.
const SAMPLED: u8 = 1;

/// A trace of a caller's, and where in it we were called.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Traceparent {
    trace_id: u128,
    parent_id: u64,
    flags: u8,
}

/// Why a text is no traceparent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoTraceparent {
    /// It is not laid out as one.
    #[error("a traceparent is 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, in lower case")]
    Layout,
    /// Version ff, which is none.
    #[error("a traceparent cannot have version ff")]
    Version,
    /// All zero, which stands for no trace or no parent.
    #[error("neither the trace nor the parent of a traceparent may be all zeros")]
    Zero,
}

impl Traceparent {
    /// Of its parts; `None` if the trace or the parent is zero. Flags that level 1 does not know are left out.
    #[must_use]
    pub const fn new(trace_id: u128, parent_id: u64, flags: u8) -> Option<Self> {
        if trace_id == 0 || parent_id == 0 {
            return None;
        }
        Some(Self {
            trace_id,
            parent_id,
            flags: flags & SAMPLED,
        })
    }

    /// The trace.
    #[must_use]
    pub const fn trace_id(&self) -> u128 {
        self.trace_id
    }

    /// The caller's place in it.
    #[must_use]
    pub const fn parent_id(&self) -> u64 {
        self.parent_id
    }

    /// The caller's flags: 1 if it records the trace.
    #[must_use]
    pub const fn flags(&self) -> u8 {
        self.flags
    }
}

impl FromStr for Traceparent {
    type Err = NoTraceparent;

    fn from_str(text: &str) -> Result<Self, NoTraceparent> {
        let bytes = text.as_bytes();
        let field = |from: usize, to: usize| bytes.get(from..to).and_then(number);
        let dashes = [2, 35, 52].map(|at| bytes.get(at));
        if dashes != [Some(&b'-'); 3] {
            return Err(NoTraceparent::Layout);
        }
        let version = field(0, 2).ok_or(NoTraceparent::Layout)?;
        let (trace_id, parent_id) = (field(3, 35), field(36, 52));
        let flags = field(53, LEN).ok_or(NoTraceparent::Layout)?;
        if version == 0xff {
            return Err(NoTraceparent::Version);
        }
        // Of a later version whatever follows a fourth dash is its own affair.
        let is_whole = match bytes.get(LEN) {
            None => true,
            Some(dash) => version > 0 && *dash == b'-',
        };
        let (Some(trace_id), Some(parent_id), true) = (trace_id, parent_id, is_whole) else {
            return Err(NoTraceparent::Layout);
        };
        // Eight and two digits are no more than their types hold.
        Self::new(trace_id, parent_id as u64, flags as u8).ok_or(NoTraceparent::Zero)
    }
}

impl From<NoTraceparent> for Status {
    fn from(error: NoTraceparent) -> Self {
        Self::of(catalogue::TRACEPARENT_MALFORMED, error.to_string())
    }
}

/// The number that these hex digits in lower case are.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trace_id,
            parent_id,
            flags,
        } = self;
        write!(f, "00-{trace_id:032x}-{parent_id:016x}-{flags:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written_alike() {
        let trace: Traceparent = GOOD.parse().expect("it is one");
        assert_eq!(trace.to_string(), GOOD);
        assert_eq!(trace.trace_id(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(
            (trace.parent_id(), trace.flags()),
            (0x00f0_67aa_0ba9_02b7, 1)
        );
        let unsampled = GOOD.replace("-01", "-fe");
        let unsampled: Traceparent = unsampled.parse().expect("unknown flags are no error");
        assert_eq!(unsampled.flags(), 0, "and are not passed on");
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        for text in [
            GOOD.replacen("00", "01", 1),
            GOOD.replacen("00", "cc", 1) + "-",
            GOOD.replacen("00", "fe", 1) + "-what-will-be",
        ] {
            let trace: Traceparent = text.parse().expect(&text);
            assert_eq!(trace.to_string(), GOOD);
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        use NoTraceparent::{Layout, Version, Zero};
        let cases = [
            (String::new(), Layout),
            ("00".into(), Layout),
            (GOOD.to_uppercase(), Layout),
            (GOOD[..54].into(), Layout),
            (GOOD.to_owned() + "-", Layout),
            (GOOD.to_owned() + "0", Layout),
            (GOOD.replacen("00", "01", 1) + "0", Layout),
            (GOOD.replace('-', "_"), Layout),
            (GOOD.replace("4bf9", "4bg9"), Layout),
            (GOOD.replace("00f0", "+0f0"), Layout),
            (GOOD.replacen("00", " 0", 1), Layout),
            (GOOD.replace("4b", "ä"), Layout),
            (GOOD.replacen("00", "ff", 1), Version),
            (
                GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
                Zero,
            ),
            (GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)), Zero),
        ];
        for (text, why) in cases {
            assert_eq!(text.parse::<Traceparent>(), Err(why), "{text}");
            assert_eq!(Status::from(why).reason(), catalogue::TRACEPARENT_MALFORMED);
        }
    }
}
