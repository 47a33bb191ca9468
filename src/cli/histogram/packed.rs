//! Histograms as files and other processes hand them over: unpacked within bounds.
//!
//! Knows the head of the format, version 2; the rest of it is the crate's, which takes as much memory as a head claims.

use std::io::Read;

use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;

/// What the compressed form begins with; the length of what is compressed follows.
const COMPRESSED: [u8; 4] = 0x1c84_9314_u32.to_be_bytes();

/// Bytes of a head: its mark, the length of the counters, and what they mean.
const HEAD: usize = 40;

/// Bytes of counters at most. The widest range at the highest precision has 6.3 million of them, each of up to nine
/// bytes.
const COUNTERS_MAX: u32 = 64 << 20;

/// The least of all numbers, as a counter: nine bytes, and no other has so many of these in a row.
const LEAST: [u8; 9] = [0xff; 9];

/// Values at most, so that no sum of counters overflows. At a billion a second they take 36 years.
const VALUES_MAX: u64 = 1 << 60;

/// The histogram that the bytes are, compressed or not; or what is wrong with them.
pub(crate) fn histogram_of(bytes: &[u8]) -> Result<Histogram<u64>, String> {
    let unreadable = |error: std::io::Error| format!("it cannot be unpacked: {error}");
    let mut plain: Box<dyn Read + '_> = match bytes.strip_prefix(&COMPRESSED) {
        Some(rest) => {
            let (length, rest) = rest.split_first_chunk().ok_or("it is cut off")?;
            let length = u32::from_be_bytes(*length);
            Box::new(ZlibDecoder::new(rest.take(length.into())))
        }
        None => Box::new(bytes),
    };
    let mut head = [0; HEAD];
    plain.read_exact(&mut head).map_err(unreadable)?;
    let [_, _, _, _, a, b, c, d, ..] = head;
    let claimed = u32::from_be_bytes([a, b, c, d]);
    if claimed > COUNTERS_MAX {
        return Err(format!(
            "it claims {claimed} bytes of counters; no histogram has more than {COUNTERS_MAX}"
        ));
    }
    let mut unpacked = Vec::from(head);
    plain
        .take(claimed.into())
        .read_to_end(&mut unpacked)
        .map_err(unreadable)?;
    // The crate negates it, and there is no such number.
    if unpacked[HEAD..]
        .windows(LEAST.len())
        .any(|run| *run == LEAST)
    {
        return Err("it has a run of 2^63 counters".into());
    }
    let histogram = Deserializer::new()
        .deserialize(&mut unpacked.as_slice())
        .map_err(|error| error.to_string())?;
    check_count(&histogram)?;
    Ok(histogram)
}

/// Refuses more values than can be.
pub(crate) fn check_count(histogram: &Histogram<u64>) -> Result<(), String> {
    match histogram.len() {
        0..=VALUES_MAX => Ok(()),
        count => Err(format!(
            "it counts {count} values; none was recorded so long"
        )),
    }
}
