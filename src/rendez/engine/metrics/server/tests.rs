//! The server against scrapers, probes and clients that are neither.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::*;

/// Counts how often the page is made, and takes its time to say whether the shards answer.
struct Fixed(Arc<AtomicU32>, Duration);

impl Pages for Fixed {
    fn metrics(&self, is_open: bool) -> Option<String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Some(if is_open {
            "open\n# EOF\n".into()
        } else {
            "plain\n".into()
        })
    }

    fn is_healthy(&self) -> bool {
        std::thread::sleep(self.1);
        true
    }

    fn missing(&self) -> Vec<String> {
        vec!["/job:b".into()]
    }
}

fn server() -> (MetricsServer, Arc<AtomicU32>) {
    let made = Arc::default();
    let pages = Fixed(Arc::clone(&made), Duration::ZERO);
    (serving(pages), made)
}

fn serving(pages: Fixed) -> MetricsServer {
    let address = HostPort::new("127.0.0.1", 0).expect("an address");
    MetricsServer::start(&address, false, pages).expect("it listens")
}

fn said(server: &MetricsServer, request: &[u8]) -> String {
    let mut socket = TcpStream::connect(server.address()).expect("it listens");
    // It may have answered and closed before all was written.
    let _ = socket.write_all(request);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn pages_are_found_and_their_format_is_as_asked() {
    let (server, _) = server();
    let plain = said(&server, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(
        plain.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"),
        "{plain}"
    );
    assert!(plain.ends_with("\r\n\r\nplain\n"), "{plain}");
    let accept = "GET /metrics?x=1 HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0;q=0.6,\
                  text/plain;version=0.0.4;q=0.5\r\n\r\n";
    let open = said(&server, accept.as_bytes());
    assert!(
        open.contains("application/openmetrics-text") && open.ends_with("# EOF\n"),
        "{open}"
    );
    assert!(said(&server, b"GET /healthz HTTP/1.0\r\n\r\n").ends_with("ok\n"));
    let ready = said(&server, b"GET /readyz HTTP/1.1\r\n\r\n");
    assert!(
        ready.starts_with("HTTP/1.1 503") && ready.contains("/job:b"),
        "{ready}"
    );
    assert!(said(&server, b"GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(said(&server, b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(said(&server, b"HEAD /healthz HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
}

#[test]
fn what_is_no_request_is_told_so() {
    let (server, _) = server();
    assert!(
        said(&server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").starts_with("HTTP/1.1 400")
    );
    assert!(said(&server, b"SSH-2.0-OpenSSH_9.2\r\n\r\n").starts_with("HTTP/1.1 400"));
    let mut huge = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
    huge.resize(64 << 10, b'a');
    assert!(said(&server, &huge).starts_with("HTTP/1.1 431"));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
    assert!(said(&server, many.as_bytes()).starts_with("HTTP/1.1 431"));
    assert!(
        said(&server, b"GET /healthz HTTP/1.1\r\n\r\n").ends_with("ok\n"),
        "the others are served"
    );
}

#[test]
fn the_silent_make_room_and_a_flood_makes_few_pages() {
    let (server, made) = server();
    let silent: Vec<TcpStream> = (0..3 * limits::METRICS_GUESTS)
        .map(|_| TcpStream::connect(server.address()).expect("it listens"))
        .collect();
    let open = b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text\r\n\r\n";
    let scrape = |_| {
        said(&server, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("plain\n")
            && said(&server, open).ends_with("# EOF\n")
    };
    let began = Instant::now();
    assert!((0..500).all(scrape));
    // A page of each kind in each tenth of a second, however long the machine took.
    let most = 2 * (1 + began.elapsed().as_millis() / 100);
    let made = made.load(Ordering::SeqCst);
    assert!(made as u128 <= most, "{made} pages, and {most} are due");
    drop(silent);
}

#[test]
fn a_page_that_takes_long_is_no_delay_of_those_behind_it() {
    let server = serving(Fixed(Arc::default(), PATIENCE + Duration::from_millis(300)));
    let connect = || TcpStream::connect(server.address()).expect("it listens");
    let (mut slow, mut quick) = (connect(), connect());
    slow.write_all(b"GET /healthz HTTP/1.1\r\n\r\n")
        .expect("written");
    std::thread::sleep(Duration::from_millis(300));
    quick.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("written");
    for socket in [&mut slow, &mut quick] {
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
}
