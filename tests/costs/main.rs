//! What single parts cost, in time: measurements, which hold nothing, each with the command that runs it.

mod connect;
mod memory;
mod table;
