//! Sessions over several tasks: real engines and servers in this process, real processes where one must die.

mod failures;
mod garbage;
mod hostile;
mod refused;
mod steps;
mod support;
