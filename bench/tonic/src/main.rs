//! The half round trip of tonic's unary call with 64 bytes, over loopback: what the control plane's calls are compared
//! with.
//!
//! Server and client are two threads, each with a current-thread runtime: the least there is between two tonic ends.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::server::{NamedService, UnaryService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

const WARM: usize = 2_000;
const ROUNDS: usize = 20_000;

/// As the echo of rendez: bytes, and nothing else.
#[derive(Clone, PartialEq, prost::Message)]
struct Bytes {
    #[prost(bytes = "bytes", tag = "1")]
    bytes: bytes::Bytes,
}

#[derive(Clone, Copy)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "rendez.bench.Echo";
}

impl UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
            Ok(grpc.unary(Echo, request).await)
        })
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

async fn measure(channel: Channel) -> Result<Vec<Duration>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    let path = PathAndQuery::from_static("/rendez.bench.Echo/Echo");
    let message = Bytes {
        bytes: vec![0x5a; 64].into(),
    };
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..WARM + ROUNDS {
        let begin = Instant::now();
        let unready = |error| Status::unavailable(format!("{error}"));
        grpc.ready().await.map_err(unready)?;
        let codec = ProstCodec::<Bytes, Bytes>::default();
        let request = Request::new(message.clone());
        let answer = grpc.unary(request, path.clone(), codec).await?;
        assert_eq!(answer.get_ref(), &message, "other bytes came back");
        if round >= WARM {
            times.push(begin.elapsed());
        }
    }
    Ok(times)
}

fn main() {
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
            told.send(listener.local_addr().expect("bound")).expect("main waits");
            let incoming = TcpListenerStream::new(listener);
            let server = Server::builder().tcp_nodelay(true).add_service(Echo);
            server.serve_with_incoming(incoming).await.expect("it serves");
        });
    });
    let address = heard.recv().expect("it listens");
    let mut times = runtime().block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let channel = endpoint.tcp_nodelay(true).connect().await.expect("it is there");
        measure(channel).await.expect("answers")
    });
    times.sort_unstable();
    let half = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6 / 2.0;
    println!(
        "tonic, unary, 64 B, {ROUNDS} calls: half round trip p50 {:.1} µs, p90 {:.1} µs, p99 {:.1} µs",
        half(50),
        half(90),
        half(99)
    );
}
