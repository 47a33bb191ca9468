//! Regressions: seeds that once failed, by what was wrong.
