//! The engine as programs use it: what they may ask of it and what it refuses, by all that can go wrong around it.

mod bad_input;
mod descriptors;
mod device_memory;
mod drive;
mod foreign_memory;
#[path = "../ports/mod.rs"]
mod ports;
mod private_memory;
mod settings;
mod support;
mod tls;
mod unread;
