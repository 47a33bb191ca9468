//! The executor: random graphs against the oracle, and real engines.
