//! Stamps of values of a stream: as many low bytes of the ticks as a value has room for, and made whole again.
//!
//! Knows ticks and the rate of the stream; not what else a value holds.

use std::time::Duration;

use super::super::stopwatch::Stopwatch;

/// The low bytes of a stamp, as many as a value of this size carries.
pub(super) fn put(bytes: &mut [u8], ticks: u64) {
    let len = bytes.len().min(8);
    bytes[..len].copy_from_slice(&ticks.to_le_bytes()[..len]);
}

/// Reads the stamps of a stream, value by value.
///
/// One of 4 bytes comes round every 2³² ticks, within two seconds, and an open loop that cannot keep up is later than
/// that. But then values are due at an even pace, so each stamp is the one nearest to a pace after the last. In a
/// closed loop a value counts from when it was sent, and few are on their way: its stamp is the latest that it can be.
#[derive(Clone, Copy, Debug)]
pub(super) struct StampReader {
    /// Ticks from one value to the next, in an open loop.
    pace: Option<u64>,
    last: Option<u64>,
}

impl StampReader {
    pub(super) fn new(rate: Option<f64>, stopwatch: &Stopwatch) -> Self {
        let pace = |rate| stopwatch.ticks(Duration::from_nanos((1e9 / rate) as u64));
        Self {
            pace: rate.map(pace),
            last: None,
        }
    }

    /// The ticks from the stamp in `bytes` to `now`; `None` where the value is too small to carry one.
    pub(super) fn since(&mut self, bytes: &[u8], now: u64) -> Option<u64> {
        if let Some(whole) = bytes.first_chunk() {
            return Some(now.saturating_sub(u64::from_le_bytes(*whole)));
        }
        let low = u32::from_le_bytes(*bytes.first_chunk()?);
        let latest = now.wrapping_sub(u64::from((now as u32).wrapping_sub(low)));
        let (Some(pace), Some(last)) = (self.pace, self.last) else {
            self.last = Some(latest);
            return Some(now.saturating_sub(latest));
        };
        let due = last.wrapping_add(pace);
        let off = low.wrapping_sub(due as u32).cast_signed();
        let nearest = due.wrapping_add_signed(off.into());
        // None is sent before it is due: the first was later than a stamp can say, and taken for a younger one.
        let is_early = nearest.wrapping_sub(now).cast_signed() > 1 << 31;
        let stamp = if is_early { latest } else { nearest };
        self.last = Some(stamp);
        Some(now.saturating_sub(stamp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader makes of values of so many bytes, each due at one time and received at another.
    fn read<const N: usize>(pace: Option<u64>, values: &[(u64, u64)]) -> Vec<Option<u64>> {
        let mut reader = StampReader { pace, last: None };
        let one = |(due, now): &(u64, u64)| {
            let mut bytes = [0; N];
            put(&mut bytes, *due);
            reader.since(&bytes, *now)
        };
        values.iter().map(one).collect()
    }

    const ROUND: u64 = 1 << 32;

    #[test]
    fn an_open_loop_that_falls_behind_is_late_by_all_of_it() {
        // Each value is due a tenth of a round after the last, and comes a whole one after it.
        let values: Vec<(u64, u64)> = (0..40)
            .map(|at| (ROUND / 10 * at + 7, ROUND * at + 100))
            .collect();
        let latencies: Vec<_> = values.iter().map(|(due, now)| Some(now - due)).collect();
        assert_eq!(read::<4>(Some(ROUND / 10 - 3), &values), latencies);
        assert_eq!(read::<7>(Some(ROUND / 10 + 3), &values), latencies);
        assert_eq!(read::<8>(None, &values), latencies);
        assert_eq!(read::<3>(None, &values), vec![None; 40]);
    }

    #[test]
    fn a_slow_open_loop_is_late_by_what_it_took() {
        let values: Vec<(u64, u64)> = (0..9)
            .map(|at| (5 * ROUND * at, 5 * ROUND * at + 9))
            .collect();
        assert_eq!(read::<4>(Some(5 * ROUND), &values), [Some(9); 9]);
    }

    #[test]
    fn a_first_value_that_came_late_spoils_no_other() {
        // The connection took 3 rounds to come, and the rest is there in no time.
        let values: Vec<(u64, u64)> = (0..60)
            .map(|at| (ROUND / 10 * at, (3 * ROUND).max(ROUND / 10 * at) + 9))
            .collect();
        let found = read::<4>(Some(ROUND / 10), &values);
        assert_eq!(found[31..], [Some(9); 29]);
    }

    #[test]
    fn a_closed_loop_may_stop_for_longer_than_a_round() {
        let values = [(100, 109), (100 + 3 * ROUND, 109 + 3 * ROUND)];
        assert_eq!(read::<4>(None, &values), [Some(9); 2]);
    }
}
