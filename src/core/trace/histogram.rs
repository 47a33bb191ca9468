//! A histogram of times that any thread records into: the recorder's buckets, in memory of its own.
//!
//! For libraries above the shards, whose stages have no cell in a recorder.

use std::sync::atomic::{AtomicU64, Ordering};

use super::recorder::{BUCKETS, bucket_of, time_of};

/// See the module. Sixteen kilobytes.
#[derive(Debug)]
pub struct Histogram {
    sum_ns: AtomicU64,
    buckets: Box<[AtomicU64]>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            sum_ns: AtomicU64::new(0),
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Histogram {
    /// Records a time.
    #[inline]
    pub fn record(&self, nanos: u64) {
        self.sum_ns.fetch_add(nanos, Ordering::Relaxed);
        if let Some(bucket) = self.buckets.get(bucket_of(nanos)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records a time where no other thread records into this one: nothing is locked. Times that two threads record so
    /// at once may be lost, and nothing worse.
    #[inline]
    pub fn record_alone(&self, nanos: u64) {
        let add = |to: &AtomicU64, more: u64| {
            to.store(
                to.load(Ordering::Relaxed).wrapping_add(more),
                Ordering::Relaxed,
            );
        };
        add(&self.sum_ns, nanos);
        if let Some(bucket) = self.buckets.get(bucket_of(nanos)) {
            add(bucket, 1);
        }
    }

    /// The sum of what was recorded, in nanoseconds, and the times, each within one part in 128, with how often each
    /// was recorded; in order.
    #[must_use]
    pub fn times(&self) -> (u64, Vec<(u64, u64)>) {
        let counts = self.buckets.iter().enumerate();
        let found = counts.filter_map(|(bucket, count)| {
            let count = count.load(Ordering::Relaxed);
            (count > 0).then(|| (time_of(bucket), count))
        });
        (self.sum_ns.load(Ordering::Relaxed), found.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Histogram;

    #[test]
    fn times_come_back_within_a_bucket_in_order_with_their_counts() {
        let histogram = Histogram::default();
        for nanos in [1_000_000, 40] {
            histogram.record(nanos);
        }
        for nanos in [40, u64::MAX] {
            histogram.record_alone(nanos);
        }
        let (sum_ns, times) = histogram.times();
        assert_eq!(sum_ns, 1_000_080_u64.wrapping_add(u64::MAX));
        let counts: Vec<u64> = times.iter().map(|(_, count)| *count).collect();
        assert_eq!((counts, times[0].0), (vec![2, 1, 1], 40));
        assert!(times[1].0.abs_diff(1_000_000) <= 1_000_000 / 128);
        assert!(
            times[2].0 > 60_000_000_000,
            "the largest bucket takes what is out of range"
        );
    }
}
