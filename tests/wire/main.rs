//! The bytes that peers exchange, held against golden files: single frames, and a stream of them.

mod frames;
mod stream;
