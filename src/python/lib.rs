//! rendez for Python: the extension module `rendez._rendez`, which the package `rendez` gives names to.
//!
//! A thread of Python never waits for the interpreter's lock while it turns a shard, and a shard never does: what
//! has to be done with the lock (memory of Python's that comes back, what is called then, lines for `logging`) is left
//! in [`errands`]. Calls that wait for the engine let the lock go first.
//!
//! Nothing here keeps state of an interpreter between calls but [`errands`], and every class is immutable outside its
//! locks: the module declares that it needs no global lock.

mod arguments;
mod buffer;
mod calls;
mod capsule;
mod convert;
mod cuda_array;
mod device;
mod device_id;
mod device_room;
mod dlpack;
mod dtypes;
mod ending;
mod engine;
mod errands;
mod errors;
mod key;
mod linger;
mod logs;
mod operation;
mod patience;
mod room;
mod services;
mod settings;
mod source;
mod step;
mod tensor;
mod wakes;
mod writable;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _rendez {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::calls::agent::Agent;
    #[pymodule_export]
    use super::calls::call::Call;
    #[pymodule_export]
    use super::calls::exit::{end_calls, end_services, is_called};
    #[pymodule_export]
    use super::calls::promise::Promise;
    #[pymodule_export]
    use super::calls::reference::RRef;
    #[pymodule_export]
    use super::calls::serve::Served;
    #[pymodule_export]
    use super::calls::setup::Store;
    #[pymodule_export]
    use super::ending::end_threads;
    #[pymodule_export]
    use super::engine::{Engine, at_exit};
    #[pymodule_export]
    use super::errands::{listen, next_told, run_errands};
    #[pymodule_export]
    use super::key::Key;
    #[pymodule_export]
    use super::logs::log_from;
    #[pymodule_export]
    use super::operation::{Operation, Recv, Sending};
    #[pymodule_export]
    use super::step::Step;
    #[pymodule_export]
    use super::tensor::Tensor;
    #[pymodule_export]
    use super::wakes::Wakes;
    #[pymodule_export]
    use super::writable::TensorMut;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        super::capsule::add_table(module)?;
        super::logs::begin();
        Ok(())
    }
}
