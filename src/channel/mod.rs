//! Room channel.
