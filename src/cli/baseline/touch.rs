//! Writing every byte of a buffer and reading every byte of it, as fast as one core does it plainly.
//!
//! Knows nothing of where the bytes lie. The raw reference and rendez's own measurement touch their bytes through these
//! two functions, so that their ratio compares hand-overs and not loops.

/// Writes all of `bytes`: the low byte of `round`, so that each round writes something else.
pub fn write(bytes: &mut [u8], round: u64) {
    bytes.fill(round as u8);
}

/// Reads all of `bytes`: their sum as 64-bit words, and of the tail as bytes.
#[must_use]
pub fn read(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8);
    let tail: u64 = words.remainder().iter().map(|byte| u64::from(*byte)).sum();
    // The chunks are eight bytes long, so the conversion never falls back; without a panic in it the loop vectorises.
    words.fold(tail, |sum, word| {
        sum.wrapping_add(word.try_into().map_or(0, u64::from_ne_bytes))
    })
}

/// What [`read`] finds in `len` bytes of [`write()`]'s `round`.
#[must_use]
pub const fn expected(len: usize, round: u64) -> u64 {
    let byte = round & 0xff;
    let word = byte * 0x0101_0101_0101_0101;
    word.wrapping_mul((len / 8) as u64)
        .wrapping_add(byte * (len % 8) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for len in [0, 1, 7, 8, 9, 64, 1000] {
            for round in [0, 1, 255, 256, 0xabcd] {
                let mut bytes = vec![7; len];
                write(&mut bytes, round);
                assert_eq!(
                    read(&bytes),
                    expected(len, round),
                    "{len} bytes, round {round}"
                );
            }
        }
    }

    #[test]
    fn one_stale_byte_shows() {
        let mut bytes = vec![0; 100];
        write(&mut bytes, 5);
        for index in 0..bytes.len() {
            bytes[index] = 4;
            assert_ne!(read(&bytes), expected(100, 5), "byte {index}");
            bytes[index] = 5;
        }
    }
}
