//! The half round trip of a loaned sample of iceoryx2 between two processes: what leases are compared with.
//!
//! Each process has a core of its own and spins. The bytes of a sample are neither written nor read; a sample that is
//! shorter than the others ends the run.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use core_affinity::CoreId;
use hdrhistogram::Histogram;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::sample_mut::SampleMut;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use rustix::process::{Signal, set_parent_process_death_signal};

/// Bytes of the sample that ends the run.
const STOP_BYTES: usize = 1;
/// Empty looks between two questions whether the other process lives.
const LOOKS: u64 = 1 << 24;

type Outcome<T> = Result<T, Box<dyn Error>>;
type Loan = SampleMut<ipc::Service, [u8], ()>;

/// One process's two ports.
struct Ports {
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscriber: Subscriber<ipc::Service, [u8], ()>,
}

impl Ports {
    fn open(
        to: &PortFactory<ipc::Service, [u8], ()>,
        from: &PortFactory<ipc::Service, [u8], ()>,
        bytes: usize,
    ) -> Outcome<Self> {
        Ok(Self {
            publisher: to
                .publisher_builder()
                .initial_max_slice_len(bytes)
                .create()?,
            subscriber: from.subscriber_builder().create()?,
        })
    }

    fn loan(&self, bytes: usize) -> Outcome<Loan> {
        let sample = self.publisher.loan_slice_uninit(bytes)?;
        // SAFETY: the bytes lie in a mapping of shared memory, which the kernel filled with zeros: they have values,
        // whatever was written there since, and every value is a valid `u8`.
        Ok(unsafe { sample.assume_init() })
    }

    /// Bytes of the next sample, which is given back at once; `None` if there is none yet.
    #[inline]
    fn receive(&self) -> Outcome<Option<usize>> {
        Ok(self
            .subscriber
            .receive()?
            .map(|sample| sample.payload().len()))
    }
}

fn service(node: &Node<ipc::Service>, name: &str) -> Outcome<PortFactory<ipc::Service, [u8], ()>> {
    let builder = node
        .service_builder(&ServiceName::new(name)?)
        .publish_subscribe::<[u8]>()
        .max_publishers(1)
        .max_subscribers(1)
        .history_size(0)
        .subscriber_max_buffer_size(1)
        .subscriber_max_borrowed_samples(1)
        .enable_safe_overflow(true);
    Ok(builder.open_or_create()?)
}

fn pin(core: usize) -> Outcome<()> {
    match core_affinity::set_for_current(CoreId { id: core }) {
        true => Ok(()),
        false => Err(format!("cannot pin to core {core}").into()),
    }
}

/// The other process. It ends with this one.
struct Peer(Child);

impl Peer {
    /// Starts it, and returns when its ports are open.
    fn start(name: &str, core: usize, bytes: usize) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("peer")
            .arg(name)
            .arg(core.to_string())
            .arg(bytes.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child
            .stdout
            .take()
            .ok_or("the other process has no output")?;
        let peer = Self(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        match line.trim() {
            "ready" => Ok(peer),
            _ => Err("the other process did not become ready".into()),
        }
    }

    fn check(&mut self) -> Outcome<()> {
        match self.0.try_wait()? {
            Some(status) => Err(format!("the other process ended: {status}").into()),
            None => Ok(()),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has ended where all went well; neither call changes anything then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers until a sample comes that is not of `bytes`.
fn answer(name: &str, core: usize, bytes: usize) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    pin(core)?;
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let (there, back) = (
        service(&node, &format!("{name}/there"))?,
        service(&node, &format!("{name}/back"))?,
    );
    let ports = Ports::open(&back, &there, bytes)?;
    println!("ready");
    std::io::stdout().flush()?;
    let mut sample = ports.loan(bytes)?;
    loop {
        let Some(received) = ports.receive()? else {
            continue;
        };
        if received != bytes {
            return Ok(());
        }
        sample.send()?;
        sample = ports.loan(bytes)?;
    }
}

/// Whole round trips in nanoseconds, as long as `duration`.
fn measure(bytes: usize, duration: Duration) -> Outcome<Histogram<u64>> {
    let mut cores: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|core| core.id)
        .collect();
    cores.sort_unstable();
    let &[near, far, ..] = cores.as_slice() else {
        return Err("two cores are needed in the affinity mask".into());
    };
    let name = format!("rendez-bench/{}", std::process::id());
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let (there, back) = (
        service(&node, &format!("{name}/there"))?,
        service(&node, &format!("{name}/back"))?,
    );
    let ports = Ports::open(&there, &back, bytes)?;
    // Before this process is pinned: the other one would be born with its mask.
    let mut peer = Peer::start(&name, far, bytes)?;
    pin(near)?;
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    let clock = quanta::Clock::new();
    let begin = clock.raw();
    let mut last = begin;
    ports.loan(bytes)?.send()?;
    let mut sample = ports.loan(bytes)?;
    let (warm, end) = (duration / 10, duration + duration / 10);
    let mut looks = 0_u64;
    loop {
        let Some(received) = ports.receive()? else {
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                peer.check()?;
            }
            continue;
        };
        if received != bytes {
            return Err(format!("{received} bytes came back instead of {bytes}").into());
        }
        // The next one leaves first; what follows is hidden in its flight.
        sample.send()?;
        let now = clock.raw();
        sample = ports.loan(bytes)?;
        let passed = Duration::from_nanos(clock.delta_as_nanos(begin, now));
        if passed >= warm {
            histogram.saturating_record(clock.delta_as_nanos(last, now));
        }
        last = now;
        if passed >= end {
            break;
        }
    }
    // The last sample under way comes back first, so that the one that ends the run does not take its place.
    while ports.receive()?.is_none() {
        peer.check()?;
    }
    drop(sample);
    ports.loan(STOP_BYTES)?.send()?;
    let status = peer.0.wait()?;
    match status.success() {
        true => Ok(histogram),
        false => Err(format!("the other process failed: {status}").into()),
    }
}

fn run(arguments: &[String]) -> Outcome<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["peer", name, core, bytes] => answer(name, core.parse()?, bytes.parse()?),
        [bytes, seconds] => {
            let (bytes, seconds): (usize, f64) = (bytes.parse()?, seconds.parse()?);
            if bytes <= STOP_BYTES {
                return Err("a sample has at least 2 bytes: one byte ends the run".into());
            }
            let times = measure(bytes, Duration::try_from_secs_f64(seconds)?)?;
            let half = |quantile: f64| times.value_at_quantile(quantile) as f64 / 2.0;
            println!(
                "{{\"peer\":\"iceoryx2\",\"bytes\":{bytes},\"count\":{},\"half_rtt_ns\":{{\"p50\":{:.1},\"p90\":{:.1},\
                 \"p99\":{:.1},\"p99_9\":{:.1},\"max\":{:.1}}}}}",
                times.len(),
                half(0.5),
                half(0.9),
                half(0.99),
                half(0.999),
                times.max() as f64 / 2.0
            );
            Ok(())
        }
        _ => Err("usage: rendez-bench-iceoryx2 BYTES SECONDS".into()),
    }
}

fn main() -> ExitCode {
    set_log_level(LogLevel::Error);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rendez-bench-iceoryx2: {error}");
            ExitCode::FAILURE
        }
    }
}
