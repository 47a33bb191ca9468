//! The protocol against bytes of torch 2.15's client and server, and our client against our server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rendez::ground::catalogue;

use super::query::{Query, VALUE_MAX};
use super::table::{STORE_MAX, Table};
use super::*;

const LONG: Duration = Duration::from_secs(60);

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .filter_map(|digit| digit.to_digit(16).map(|digit| digit as u8))
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// What torch 2.15's client wrote (`dist.TCPStore`, a proxy between), and what its server answered, in this order.
const RECORDED: &[(&str, Query<'static>, &str)] = &[
    ("00 cef7853c", Query::Validate, ""),
    ("0d 5a320000", Query::Ping(0x325a), "5a320000"),
    (
        "01 0200000000000000 2f6b 0200000000000000 7676",
        Query::Set(b"/k", b"vv"),
        "",
    ),
    (
        "03 0200000000000000 2f6b",
        Query::Get(b"/k"),
        "0200000000000000 7676",
    ),
    (
        "04 0200000000000000 2f6e fbffffffffffffff",
        Query::Add(b"/n", -5),
        "fbffffffffffffff",
    ),
    (
        "04 0200000000000000 2f6e 0700000000000000",
        Query::Add(b"/n", 7),
        "0200000000000000",
    ),
    (
        "03 0200000000000000 2f6e",
        Query::Get(b"/n"),
        "0100000000000000 32",
    ),
    (
        "02 0200000000000000 2f63 0000000000000000 0100000000000000 61",
        Query::CompareSet(b"/c", b"", b"a"),
        "0100000000000000 61",
    ),
    (
        "02 0200000000000000 2f63 0100000000000000 61 0100000000000000 62",
        Query::CompareSet(b"/c", b"a", b"b"),
        "0100000000000000 62",
    ),
    (
        "02 0200000000000000 2f63 0100000000000000 61 0100000000000000 7a",
        Query::CompareSet(b"/c", b"a", b"z"),
        "0100000000000000 62",
    ),
    (
        "02 0200000000000000 2f64 0100000000000000 71 0100000000000000 7a",
        Query::CompareSet(b"/d", b"q", b"z"),
        "0100000000000000 71",
    ),
    ("07", Query::Count, "0300000000000000"),
    (
        "08 0200000000000000 2f63",
        Query::Delete(b"/c"),
        "0100000000000000",
    ),
    (
        "08 0200000000000000 2f63",
        Query::Delete(b"/c"),
        "0000000000000000",
    ),
    (
        "09 0200000000000000 2f6b 0100000000000000 77",
        Query::Append(b"/k", b"w"),
        "",
    ),
    (
        "0e 0200000000000000 2f71 0100000000000000 65",
        Query::QueuePush(b"/q", b"e"),
        "",
    ),
    ("07", Query::Count, "0200000000000000"),
    (
        "10 0200000000000000 2f71",
        Query::QueueLen(b"/q"),
        "0100000000000000",
    ),
    (
        "0f 0200000000000000 2f71",
        Query::QueuePop(b"/q"),
        "0100000000000000 0100000000000000 65",
    ),
    (
        "10 0200000000000000 2f71",
        Query::QueueLen(b"/q"),
        "0000000000000000",
    ),
    (
        "0f 0200000000000000 2f71",
        Query::QueuePop(b"/q"),
        "0000000000000000",
    ),
    (
        "12 0200000000000000 2f62 0100000000000000",
        Query::Barrier(b"/b", 1),
        "00",
    ),
    (
        "03 0200000000000000 2f62",
        Query::Get(b"/b"),
        "0100000000000000 31",
    ),
    ("0c", Query::CancelWait, "01"),
];

/// The same of queries with lists.
fn recorded_lists() -> Vec<(&'static str, Query<'static>, &'static str)> {
    vec![
        (
            "0b 0200000000000000 0200000000000000 2f61 0100000000000000 31 0200000000000000 2f62 0200000000000000 3232",
            Query::MultiSet(vec![(b"/a", b"1"), (b"/b", b"22")]),
            "",
        ),
        (
            "0a 0200000000000000 0200000000000000 2f61 0200000000000000 2f62",
            Query::MultiGet(vec![b"/a", b"/b"]),
            "0100000000000000 31 0200000000000000 3232",
        ),
        (
            "05 0200000000000000 0200000000000000 2f61 0200000000000000 2f62",
            Query::Check(vec![b"/a", b"/b"]),
            "00",
        ),
        (
            "05 0200000000000000 0200000000000000 2f61 0200000000000000 2f78",
            Query::Check(vec![b"/a", b"/x"]),
            "01",
        ),
        (
            "06 0100000000000000 0200000000000000 2f61",
            Query::Wait(vec![b"/a"]),
            "00",
        ),
        (
            "06 0100000000000000 0200000000000000 2f78",
            Query::Wait(vec![b"/x"]),
            "",
        ),
        ("0c", Query::CancelWait, "01"),
        (
            "08 0200000000000000 2f61",
            Query::Delete(b"/a"),
            "0100000000000000",
        ),
        ("11", Query::List, "0100000000000000 0200000000000000 2f62"),
    ]
}

#[test]
fn queries_and_answers_have_the_bytes_of_torch() {
    let mut table = Table::default();
    for part in [RECORDED.to_vec(), recorded_lists()] {
        for (wire, query, answer) in part {
            let wire = bytes(wire);
            let mut written = Vec::new();
            query.write(&mut written);
            assert_eq!(written, wire, "{query:?}");
            let read = Query::read(&wire).expect("a query").expect("whole");
            assert_eq!(read, (query, wire.len()));
            for end in 0..wire.len() {
                assert_eq!(Query::read(&wire[..end]), Ok(None), "{read:?}");
            }
            let mut answers = Vec::new();
            table
                .handle(7, read.0.clone(), &mut answers)
                .expect("an answer");
            let answers: Vec<u8> = answers.into_iter().flat_map(|(_, answer)| answer).collect();
            assert_eq!(answers, bytes(answer), "{:?}", read.0);
        }
        table = Table::default();
    }
}

#[test]
fn what_is_no_query_is_refused_before_it_takes_room() {
    let no = |hex: &str| Query::read(&bytes(hex)).unwrap_err().0;
    assert!(no("00 00000000").contains("magic"));
    assert!(no("13").contains("there is not"));
    assert!(no("01 ffffffffffffffff").contains("key"));
    assert!(no("01 0100000000000000 6b 0000000001000000").contains("value"));
    assert!(no("06 ffffffffffffff7f").contains("keys"));
    let mut endless = bytes("06 0000020000000000");
    endless.extend(std::iter::repeat_n(bytes("0010000000000000"), 1).flatten());
    endless.resize(super::query::QUERY_MAX, 0);
    // Zero-length keys: 131072 of them are whole long before that.
    assert!(Query::read(&endless).is_ok_and(|read| read.is_some()));
}

#[test]
fn a_store_is_full_at_its_limit_and_refuses_what_has_no_answer() {
    let mut table = Table::default();
    let large = vec![0; VALUE_MAX];
    let mut answers = Vec::new();
    let fits = STORE_MAX / (VALUE_MAX + 128);
    for key in 0..fits {
        let set = Query::Set(key.to_string().leak().as_bytes(), &large);
        assert_eq!(table.handle(1, set, &mut answers), Ok(()), "{key}");
    }
    assert!(
        table
            .handle(1, Query::Set(b"one more", &large), &mut answers)
            .is_err()
    );
    assert!(
        table
            .handle(1, Query::Append(b"0", b"x"), &mut answers)
            .is_err()
    );
    assert_eq!(table.handle(1, Query::Delete(b"0"), &mut answers), Ok(()));
    assert_eq!(
        table.handle(1, Query::Set(b"one more", &large), &mut answers),
        Ok(())
    );
    assert!(table.handle(1, Query::Get(b"0"), &mut answers).is_err());
    assert!(
        table.handle(1, Query::Add(b"1", 1), &mut answers).is_err(),
        "it is no number"
    );
}

/// Of many appends none copies what those before made: that would be half a terabyte here.
#[test]
fn a_value_grows_in_place() {
    let (mut table, mut answers, begun) = (Table::default(), Vec::new(), Instant::now());
    for _ in 0..VALUE_MAX / 64 {
        let append = Query::Append(b"log", &[7; 64]);
        assert_eq!(table.handle(1, append, &mut answers), Ok(()));
        let value = &table.values[&b"log"[..]];
        // The store's bound counts lengths.
        assert!(value.capacity() <= value.len() / 8 * 9 + 64);
    }
    assert!(begun.elapsed() < Duration::from_secs(20));
    let more = table.handle(1, Query::Append(b"log", b"x"), &mut answers);
    assert!(more.is_err(), "it is as long as a value may be");
    assert_eq!(table.handle(1, Query::Get(b"log"), &mut answers), Ok(()));
    assert_eq!(answers.remove(0).1.len(), 8 + VALUE_MAX);
}

/// So a client that sends a long list byte by byte does not have all that has come read again for each.
#[test]
fn a_query_that_has_not_all_come_says_how_long_it_is_at_least() {
    let keys = vec![&b"0123456789"[..]; 5000];
    let mut wire = Vec::new();
    Query::MultiGet(keys.clone()).write(&mut wire);
    let (mut there, mut tries) = (0, 0);
    let read = loop {
        match Query::read_or_least(&wire[..there]).expect("a query") {
            Ok(read) => break read,
            Err(least) => {
                assert!(there < least && least <= wire.len(), "{least} with {there}");
                (there, tries) = (least, tries + 1);
            }
        }
    };
    assert_eq!(read, (Query::MultiGet(keys), wire.len()));
    assert!(tries < 50, "{tries} tries");
}

fn served() -> (Server, String) {
    let server = Server::start("127.0.0.1:0").expect("a store");
    let address = server.address().to_string();
    (server, address)
}

#[test]
fn a_client_does_all_that_a_store_can() {
    let (_server, address) = served();
    let mut store = Client::connect(&address, LONG).expect("a client");
    store.set("k", b"v").expect("set");
    store.append("k", b"w").expect("appended");
    assert_eq!(store.get("k", LONG).expect("a value"), b"vw");
    assert_eq!(store.find("x").expect("an answer"), None);
    assert_eq!(store.find("k").expect("an answer"), Some(b"vw".to_vec()));
    assert_eq!(store.compare_set("c", b"", b"a").expect("an answer"), b"a");
    assert_eq!(store.compare_set("c", b"x", b"b").expect("an answer"), b"a");
    store.multi_set(&[("a", b"1"), ("b", b"")]).expect("set");
    assert_eq!(
        store.multi_get(&["b", "a"]).expect("values"),
        [b"".to_vec(), b"1".to_vec()]
    );
    assert!(store.check(&["a", "b"]).expect("an answer"));
    assert_eq!(store.count().expect("a count"), 4);
    assert_eq!(
        (
            store.delete("a").expect("gone"),
            store.delete("a").expect("gone")
        ),
        (true, false)
    );
    let error = store.get("never", Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_STORE);
    assert!(error.message().contains("'never'"), "{error}");
    // The wait was cancelled in good order: the connection goes on.
    assert_eq!(store.add("n", 2).expect("a sum"), 2);
}

#[test]
fn a_wait_ends_when_the_last_of_its_keys_is_set() {
    let (_server, address) = served();
    let waiting = std::thread::spawn({
        let address = address.clone();
        move || {
            let mut store = Client::connect(&address, LONG).expect("a client");
            store.set("ready", b"").expect("set");
            store.wait(&["one", "two"], LONG)
        }
    });
    let mut store = Client::connect(&address, LONG).expect("a client");
    assert!(store.wait(&["ready"], LONG).expect("an answer"));
    store.set("one", b"").expect("set");
    store.add("two", 1).expect("a sum");
    assert!(waiting.join().expect("no panic").expect("an answer"));
}

#[test]
fn a_wait_that_is_broken_ends() {
    let (_server, address) = served();
    let mut store = Client::connect(&address, LONG).expect("a client");
    let breaker = store.breaker().expect("a handle");
    let waiting = std::thread::spawn(move || store.wait(&["never"], LONG));
    drop(breaker);
    assert!(waiting.join().expect("no panic").is_err());
}

#[test]
fn a_connection_that_sends_nonsense_ends_and_no_other_does() {
    let (_server, address) = served();
    let mut good = Client::connect(&address, LONG).expect("a client");
    for nonsense in [
        "ff",
        "01ffffffffffffffff",
        "00 00000000",
        "03 0100000000000000 78",
    ] {
        let mut bad = TcpStream::connect(&address).expect("a connection");
        bad.write_all(&bytes(nonsense)).expect("sent");
        let mut rest = Vec::new();
        // An end, or a reset where bytes were left unread.
        let _ = bad.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{nonsense}");
        good.set("still", b"here").expect("set");
    }
    assert_eq!(good.get("still", LONG).expect("a value"), b"here");
}

#[test]
fn a_client_that_does_not_read_gets_its_answers_when_it_does() {
    const ASKED: usize = 200;
    let (_server, address) = served();
    let mut store = Client::connect(&address, LONG).expect("a client");
    let large = vec![7; 1 << 20];
    store.set("large", &large).expect("set");
    // A set has no answer; what follows it on its connection has.
    assert_eq!(store.add("is_set", 1).expect("a sum"), 1);
    // 200 MiB are asked for by 2 KiB in one piece, and others are served meanwhile.
    let mut lazy = TcpStream::connect(&address).expect("a connection");
    let mut asked = Vec::new();
    (0..ASKED).for_each(|_| Query::Get(b"/large").write(&mut asked));
    lazy.write_all(&asked).expect("sent");
    assert_eq!(store.add("others", 1).expect("a sum"), 1);
    let mut answer = vec![0; 8 + large.len()];
    for _ in 0..ASKED {
        lazy.read_exact(&mut answer).expect("an answer");
        assert!(answer[8..] == large[..]);
    }
}

#[test]
fn what_is_no_store_is_told_by_name() {
    let nobody = Client::connect("127.0.0.1:1", Duration::from_millis(30)).unwrap_err();
    assert_eq!(nobody.reason(), catalogue::RPC_STORE);
    assert!(nobody.message().contains("127.0.0.1:1"), "{nobody}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address").to_string();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .expect("sent");
    });
    let error = Client::connect(&address, LONG).unwrap_err();
    assert!(error.message().contains("no TCPStore"), "{error}");
    other.join().expect("no panic");
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (mut table, mut at, mut answers) = (Table::default(), 0, Vec::new());
        while let Ok(Some((query, size))) = Query::read(&bytes[at..]) {
            at += size;
            let _ = table.handle(1, query, &mut answers);
        }
    }

    #[test]
    fn a_query_is_what_it_was(key in prop::collection::vec(any::<u8>(), 0..40), by in any::<i64>()) {
        let all = [
            Query::Add(&key, by),
            Query::Barrier(&key, by),
            Query::CompareSet(&key, b"", &key),
            Query::MultiSet(vec![(&key, b"x"), (b"", &key)]),
            Query::Wait(vec![&key, b""]),
        ];
        for query in all {
            let mut bytes = Vec::new();
            query.write(&mut bytes);
            let read = Query::read(&bytes);
            prop_assert_eq!(read, Ok(Some((query, bytes.len()))));
        }
    }
}
