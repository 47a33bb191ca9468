//! How an agent of Python's is set up: the list of workers, or where they meet.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::prelude::*;
use rendez::Address;
use rendez::ground::Locked;
use rendez_rpc::store::Server;
use rendez_rpc::{Options, Worker};

use crate::ending;
use crate::errors::{Failure, Outcome, argument};

/// What the package makes of `world`, `store` and `size`: see `rendez/rpc/_setup.py`.
#[derive(FromPyObject)]
pub(crate) enum Meeting {
    World(Vec<(String, String, Option<String>)>),
    Store(String, PathBuf, Option<usize>),
}

impl Meeting {
    pub(crate) fn options(self) -> Outcome<Options> {
        match self {
            Self::World(all) => {
                let workers = all.into_iter().map(worker).collect::<Outcome<Vec<_>>>()?;
                Ok(Options::of_workers(workers))
            }
            Self::Store(kind, path, size) if kind == "file" => {
                Ok(Options::through_file(&path, size))
            }
            Self::Store(_, address, size) => {
                let address = address.to_string_lossy().into_owned();
                Ok(Options::through_store(address, size))
            }
        }
    }
}

fn worker((name, task, address): (String, String, Option<String>)) -> Outcome<Worker> {
    let worker = Worker::new(name, task);
    let Some(address) = address else {
        return Ok(worker);
    };
    let parsed: Result<Address, _> = address.parse();
    let at = parsed.map_err(|error| argument(format!("address `{address}`: {error}")))?;
    Ok(worker.at(at))
}

/// A store of keys that workers meet through, in this process.
#[pyclass(frozen, module = "rendez.rpc")]
pub(crate) struct Store {
    server: Mutex<Option<Server>>,
    address: SocketAddr,
}

#[pymethods]
impl Store {
    /// Listens at `address`, as `"10.0.0.1:29500"`; with port 0 at one that is free.
    #[new]
    #[pyo3(signature = (address = "127.0.0.1:0"))]
    fn new(py: Python<'_>, address: &str) -> Outcome<Self> {
        let start = || -> Outcome<Server> {
            let all = address
                .to_socket_addrs()
                .map_err(|error| argument(format!("address `{address}`: {error}")))?;
            let all: Vec<SocketAddr> = all.collect();
            Server::start(&all[..]).map_err(|error| Failure(error.status().clone()))
        };
        let server = ending::detach(py, start)?;
        Ok(Self {
            address: server.address(),
            server: Mutex::new(Some(server)),
        })
    }

    /// Where it listens: what `store=` takes.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Ends it; what it held is gone.
    fn close(&self, py: Python<'_>) {
        let server = self.server.locked().take();
        ending::detach(py, || drop(server));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<rendez.rpc.Store {}>", self.address)
    }
}
