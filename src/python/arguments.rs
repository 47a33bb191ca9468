//! Times as Python gives them: seconds, as a float.

use std::time::Duration;

use super::errors::{Outcome, argument};

/// The longest that is waited: others are no bound.
const LONGEST: f64 = 1e9;

/// A time in seconds; `None` for no bound, as infinity is.
pub(crate) fn patience(seconds: Option<f64>, name: &str) -> Outcome<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(argument(format!(
            "{name}={seconds}: it should be seconds, at least 0, or math.inf for no bound"
        )));
    }
    Ok((seconds < LONGEST).then(|| Duration::from_secs_f64(seconds)))
}

/// The same where it is always bounded: by the longest, for no bound.
pub(crate) fn bound(seconds: f64, name: &str) -> Outcome<Duration> {
    let patience = patience(Some(seconds), name)?;
    Ok(patience.unwrap_or(Duration::from_secs(LONGEST as u64)))
}
