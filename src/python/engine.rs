//! The engine as Python holds it: started, told of peers, asked, and ended, by `with`, by hand or at the interpreter's
//! exit.

use std::sync::Mutex;
use std::time::Duration;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyInt, PyList};
use rendez::ground::{Locked, catalogue, faults};
use rendez::mail::forks;
use rendez::{
    Address, DType, Engine as Inner, PendingWhat, Shape, ShardStats, TaskName, TensorMeta,
    WeakEngine,
};

use super::convert::Taking;
use super::device_id::DeviceId;
use super::device_room::DeviceRoom;
use super::dtypes::dtype_of;
use super::ending;
use super::errors::{Failure, Outcome};
use super::operation::Recv;
use super::patience::patiently;
use super::services::Table;
use super::settings::config_of;
use super::step::Step;
use super::writable::{Room, TensorMut};
use super::{arguments, capsule, errands, errors};

/// The engines of this process that may have to be ended at the interpreter's exit.
static RUNNING: Mutex<Vec<WeakEngine>> = Mutex::new(Vec::new());

/// One task of a cluster.
#[pyclass(frozen, weakref, module = "rendez")]
pub(crate) struct Engine {
    inner: Mutex<Option<Inner>>,
    task: String,
    address: Option<String>,
    tcp_address: Option<String>,
    drain: Duration,
    shares_secret: bool,
    services: Table,
}

impl Engine {
    /// The engine, if it was not closed.
    pub(crate) fn running(&self) -> Outcome<Inner> {
        if forks::is_child() {
            return Err(Failure(faults::forked()));
        }
        if ending::is_over() {
            return Err(Failure(faults::shutdown()));
        }
        let inner = self.inner.locked();
        inner.clone().ok_or_else(|| Failure(faults::shutdown()))
    }

    /// Whether it was given the cluster's secret: who is no process of this user's here has it too, then.
    pub(crate) const fn shares_secret(&self) -> bool {
        self.shares_secret
    }

    /// The step that values are sent in which belong to none.
    fn common(&self) -> Outcome<Step> {
        Step::begin(self.running()?, 0, None)
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (task = None, *, config = None, **settings))]
    fn new(
        py: Python<'_>,
        task: Option<String>,
        config: Option<&Bound<'_, PyAny>>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        errands::run(py);
        errors::prepare(py)?;
        if !forks::is_child() {
            py.import("rendez._waits")?.getattr("begin")?.call0()?;
        }
        let config = config_of(py, task, config, settings)?;
        let drain = config.drain_timeout;
        let shares_secret =
            config.cluster_secret_file.is_some() || config.cluster_secret_fd.is_some();
        let services = Table::default();
        let offered = services.services();
        let started = ending::detach(py, || Inner::start_with(config, offered));
        let inner = started.map_err(Failure::from)?;
        let mut running = RUNNING.locked();
        running.retain(|engine| engine.upgrade().is_some());
        running.push(inner.downgrade());
        drop(running);
        let named = |address: Option<&Address>| address.map(ToString::to_string);
        Ok(Self {
            task: inner.task().to_string(),
            address: named(inner.address()),
            tcp_address: named(inner.tcp_address()),
            inner: Mutex::new(Some(inner)),
            drain,
            shares_secret,
            services,
        })
    }

    /// Its name, as `/job:worker/replica:0/task:0`.
    #[getter]
    fn task(&self) -> &str {
        &self.task
    }

    /// Where tasks of this machine reach it.
    #[getter]
    fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Where tasks of other machines reach it.
    #[getter]
    fn tcp_address(&self) -> Option<&str> {
        self.tcp_address.as_deref()
    }

    #[getter]
    fn shards(&self) -> Outcome<usize> {
        Ok(self.running()?.shards())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.inner.locked().is_none()
    }

    /// Says where a task is found. It is dialled when a key first names it.
    fn add_peer(&self, py: Python<'_>, task: &str, address: &str) -> Outcome<()> {
        let engine = self.running()?;
        let task = TaskName::parse(task)?;
        let address: Address = (address.parse())
            .map_err(|error| errors::argument(format!("address `{address}`: {error}")))?;
        ending::detach(py, || engine.add_peer(task, address));
        Ok(())
    }

    /// Connects to a peer, and waits until it is connected: the way to it.
    #[pyo3(signature = (task, *, timeout = 10.0))]
    fn connect(&self, py: Python<'_>, task: &str, timeout: f64) -> PyResult<String> {
        let engine = self.running()?;
        let task = TaskName::parse(task).map_err(Failure::from)?;
        let patience = arguments::bound(timeout, "timeout")?;
        let reached = patiently(py, move || engine.reach(&task, patience), || {})?;
        Ok(reached.map_err(Failure::from)?.path.name().to_owned())
    }

    /// The way to a peer, why, and why no better one; or why it cannot be reached.
    #[pyo3(signature = (peer, *, timeout = 2.0))]
    fn explain(&self, py: Python<'_>, peer: &str, timeout: f64) -> PyResult<String> {
        let engine = self.running()?;
        let task = TaskName::parse(peer).map_err(Failure::from)?;
        let patience = arguments::bound(timeout, "timeout")?;
        let sought = task.clone();
        let reach = move || engine.reach(&sought, patience);
        Ok(match patiently(py, reach, || {})? {
            Ok(way) => {
                let place = if way.read_domain {
                    "large values are read in place"
                } else {
                    "values are copied"
                };
                format!(
                    "{} by {}: {}; {place}; {}",
                    way.task,
                    way.path.name(),
                    way.why,
                    way.protection
                )
            }
            Err(status) if status.reason() == catalogue::ENGINE_FORKED => {
                return Err(Failure(status).into());
            }
            Err(status) => format!("{task} is not connected: {status}"),
        })
    }

    /// The step of that number; with a deadline it ends with `DeadlineExceeded` unless it has ended by then.
    #[pyo3(signature = (id, *, deadline = None))]
    fn step(&self, py: Python<'_>, id: u64, deadline: Option<f64>) -> PyResult<Step> {
        let patience = arguments::patience(deadline, "deadline")?;
        let engine = self.running()?;
        Ok(ending::detach(py, || Step::begin(engine, id, patience))?)
    }

    /// Memory of the engine's, or of one of its devices, to be written and sent: peers of this machine read it where it
    /// lies.
    #[pyo3(signature = (shape, dtype = None, *, paged = false, device = "cpu"))]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        paged: bool,
        device: &str,
    ) -> PyResult<TensorMut> {
        let dims = match shape.extract::<u64>() {
            Ok(only) => vec![only],
            Err(_) if shape.is_instance_of::<PyInt>() => {
                let message = format!("{shape} is no number of elements");
                return Err(errors::argument(message).into());
            }
            Err(_) => shape.extract::<Vec<u64>>().map_err(|error| {
                match error.is_instance_of::<PyOverflowError>(py) {
                    true => errors::argument(format!("{shape} is no shape")).into(),
                    false => error,
                }
            })?,
        };
        let dtype = dtype.map_or(Ok(DType::F32), dtype_of)?;
        let engine = self.running()?;
        if device != "cpu" {
            let device = DeviceId::parse(device)?;
            if paged {
                return Err(errors::argument("memory of a device has no pages").into());
            }
            let shape = Shape::new(&dims).map_err(|error| errors::argument(error.to_string()))?;
            let meta = TensorMeta { dtype, shape };
            let devices = engine.devices().map_err(Failure::from)?;
            let number = device.number_in(&devices)?;
            let room = DeviceRoom::new(devices, number, meta).map_err(Failure::from)?;
            return Ok(TensorMut::new(Room::Device(room)));
        }
        let built = match paged {
            false => engine.tensor(dtype, &dims),
            true => engine.paged_tensor(dtype, &dims),
        };
        Ok(TensorMut::new(Room::Builder(built.map_err(Failure::from)?)))
    }

    /// The devices of the machine that it uses, and what it has of their memory.
    fn devices<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let devices = self.running()?.devices().map_err(Failure::from)?;
        let used = ending::detach(py, || devices.stats());
        let kind = devices.accelerator().map_err(Failure::from)?.kind();
        let list = PyList::empty(py);
        for device in devices.list() {
            let dict = PyDict::new(py);
            let number = device.number;
            dict.set_item("device", DeviceId { kind, number }.to_string())?;
            dict.set_item("name", &device.name)?;
            dict.set_item("uuid", device.uuid.to_string())?;
            dict.set_item("bytes", device.bytes)?;
            let used = used.iter().find(|used| used.device == device.number);
            dict.set_item(
                "bytes_in_use",
                used.map_or(0, |used| used.arena.in_use_bytes),
            )?;
            dict.set_item(
                "bytes_mapped",
                used.map_or(0, |used| used.arena.mapped_bytes),
            )?;
            dict.set_item("bytes_pinned", used.map_or(0, |used| used.pinned_bytes))?;
            list.append(dict)?;
        }
        Ok(list)
    }

    /// A value in the memory of `device`: `cpu`, or `cuda:0`. A tensor that lies there is given as it is; any other is
    /// copied, and the copy may be under way when this returns.
    fn to(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        device: &str,
    ) -> PyResult<super::tensor::Tensor> {
        errands::run(py);
        let engine = self.running()?;
        super::device::moved(&engine, value, device)
    }

    /// As `Step.send`, in step 0.
    #[pyo3(signature = (key, value, *, copy = None, on_release = None))]
    fn send(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        copy: Option<bool>,
        on_release: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        // The hook is called also if the engine is closed.
        let taking = Taking::new(copy, on_release)?;
        self.common()?.send_taking(py, key, value, &taking)
    }

    /// As `Step.send_dead`, in step 0.
    fn send_dead(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        self.common()?.send_dead(py, key, None)
    }

    /// As `Step.recv`, in step 0.
    #[pyo3(signature = (key, *, timeout = None))]
    fn recv(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Py<Recv>> {
        self.common()?.recv(py, key, timeout)
    }

    /// As `Step.recv_into`, in step 0.
    #[pyo3(signature = (key, out, *, timeout = None))]
    fn recv_into(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Py<Recv>> {
        self.common()?.recv_into(py, key, out, timeout)
    }

    /// All that waits or is parked here, the oldest first.
    fn pending<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let engine = self.running()?;
        let items = ending::detach(py, || engine.try_pending()).map_err(Failure::from)?;
        let class = py.import("rendez._types")?.getattr("Pending")?;
        let list = PyList::empty(py);
        for item in items {
            let what = match item.what {
                PendingWhat::Receive => "receive",
                PendingWhat::Value => "value",
                PendingWhat::Send => "send",
            };
            let age = Duration::from_nanos(item.age_ns).as_secs_f64();
            let key = Py::new(py, super::key::Key(item.key))?;
            list.append(class.call1((item.step.0, key, what, age, item.bytes, item.count))?)?;
        }
        Ok(list)
    }

    /// What each shard has counted, and holds now.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let engine = self.running()?;
        let all = ending::detach(py, || engine.try_stats()).map_err(Failure::from)?;
        let list = PyList::empty(py);
        for stats in &all {
            list.append(stats_of(py, stats)?)?;
        }
        Ok(list)
    }

    /// The metrics, as Prometheus reads them.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        let engine = self.running()?;
        Ok(ending::detach(py, || engine.metrics_text()).map_err(Failure::from)?)
    }

    /// Ends the task: what is under way has so many seconds to arrive, and what waits then fails.
    #[pyo3(signature = (timeout = None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let patience = match timeout {
            None => self.drain,
            Some(_) => arguments::patience(timeout, "timeout")?.unwrap_or(Duration::MAX),
        };
        let inner = self.inner.locked().take();
        // A signal ends the wait; the engine's end goes on by itself.
        let closed = inner.map(|inner| patiently(py, move || inner.shutdown(patience), || {}));
        self.services.clear();
        errands::run(py);
        closed.unwrap_or(Ok(()))
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
    ) -> PyResult<()> {
        self.close(py, None)
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("rendez._waits")?
            .getattr("at_once")?
            .call1((slf,))
    }

    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        _type: &Bound<'py, PyAny>,
        _value: &Bound<'py, PyAny>,
        _trace: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let waits = slf.py().import("rendez._waits")?;
        waits.getattr("in_thread")?.call1((slf.getattr("close")?,))
    }

    /// Whether it was given the cluster's secret.
    #[getter]
    fn _shares_secret(&self) -> bool {
        self.shares_secret
    }

    /// Has `function` answer other tasks' calls of `method`: it gets the caller's task and bytes, and gives bytes.
    fn _serve(&self, method: u32, function: Option<Py<PyAny>>) -> Outcome<()> {
        self.services.set(method, function)
    }

    /// Calls a service of another task, and waits for its answer.
    #[pyo3(signature = (task, method, payload, *, timeout = 10.0))]
    fn _call<'py>(
        &self,
        py: Python<'py>,
        task: &str,
        method: u32,
        payload: Vec<u8>,
        timeout: f64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let engine = self.running()?;
        let task = TaskName::parse(task).map_err(Failure::from)?;
        let patience = arguments::bound(timeout, "timeout")?;
        let call = move || {
            // A call waits for a connection, and makes none.
            engine.reach(&task, patience)?;
            let answer = engine.call(&task, method, &payload, patience);
            answer.map_err(|status| engine.with_cause(&task, status))
        };
        let answer = patiently(py, call, || {})?;
        Ok(PyBytes::new(py, &answer.map_err(Failure::from)?))
    }

    /// The C library's handle of this engine, for other extensions: a capsule `rendez.engine`.
    fn _c_engine<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsule::engine(py, self.running()?)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed" } else { "running" };
        format!("<rendez.Engine {} {state}>", self.task)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let inner = self.inner.locked().take();
        if let Some(inner) = inner {
            let patience = self.drain;
            // Threads of Python go on while its last values leave.
            let ended = Python::try_attach(|py| ending::detach(py, || inner.shutdown(patience)));
            if ended.is_none() {
                // The interpreter has ended, and `at_exit` has ended the engine before.
                std::mem::forget(inner);
            }
        }
    }
}

/// Ends all engines, before the interpreter does.
#[pyfunction]
#[pyo3(name = "_at_exit")]
pub(crate) fn at_exit(py: Python<'_>) {
    let running = std::mem::take(&mut *RUNNING.locked());
    ending::detach(py, || {
        for engine in running.iter().filter_map(WeakEngine::upgrade) {
            engine.shutdown(Duration::from_secs(1));
        }
    });
    errands::end(py);
}

macro_rules! counted {
    ($dict:ident, $stats:ident: $($name:ident),* $(,)?) => { $( $dict.set_item(stringify!($name), $stats.$name)?; )* };
}

fn stats_of<'py>(py: Python<'py>, stats: &ShardStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    counted!(dict, stats:
        index, turns, idle_turns, sleeps, driven, delivered, returned, dropped, parked, parked_bytes, offered_bytes,
        waiting_sends, waiting, leases, landing_bytes, arena_in_use, arena_mapped, arena_is_huge, peers_up, owed, stale,
        violations, copied_foreign, copied_leased, sent_back, recalls, missed_here, missed_unconnected, missed_unsent,
        missed_fetching, busy_ns, idle_ns, slept_ns, longest_turn_ns, frames_sent, frames_received, no_credit,
        credit_lines,
    );
    Ok(dict)
}
