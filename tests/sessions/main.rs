//! Sessions over several tasks: real engines and servers in this process, real processes where one must die.

mod failures;
mod hostile;
mod steps;
mod support;
