//! Where the tests of `mailbox` are looked for by `tests/loom_shard.rs`, which takes that file in as a root.
