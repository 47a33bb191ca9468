//! The order in which pieces go, what comes of another order, and of an end that leaves.

use ring::digest::digest;

use super::*;
use rendez::engine::Config;

/// Longer than anything here takes: what is found out earlier is found out by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two engines of which the first knows where the other is.
fn pair() -> (Engine, Engine) {
    let start = |task: &str| {
        let mut config = Config::new(task);
        (config.shards, config.share_cores) = (1, true);
        config.arena.segment_bytes = 4 << 20;
        config.verbs.enabled = false;
        Engine::start(config).expect("it starts")
    };
    let (a, b) = (start("/job:a/task:0"), start("/job:b/task:0"));
    a.add_peer(b.task().clone(), b.address().expect("it listens").clone());
    a.connect(b.task());
    (a, b)
}

/// What another says.
fn heard_of(engine: &Engine, heard: Recv, task: &TaskName) -> Result<Received, Status> {
    let mut there = probe(engine, task)?;
    wait(heard, &mut there, task, Instant::now() + PATIENCE)
}

/// What was taken, in the order in which it was told.
#[derive(Default)]
struct Kept {
    told: Vec<String>,
    bytes: Vec<u8>,
}

impl Sink for Kept {
    fn begin(&mut self, manifest: &Manifest) -> Result<(), CliError> {
        self.told.push(format!("{} files", manifest.files.len()));
        Ok(())
    }
    fn write(&mut self, file: usize, bytes: &[u8]) -> Result<(), CliError> {
        self.told.push(format!("{} of {file}", bytes.len()));
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
    fn took(&mut self, taken: &Taken<'_>) -> Result<(), CliError> {
        self.told.push(taken.entry.name.clone());
        Ok(())
    }
    fn finish(&mut self) -> Result<bool, CliError> {
        self.told.push("end".into());
        Ok(true)
    }
}

#[test]
fn every_piece_is_taken_in_order_and_told_to_its_source() {
    take_every_piece(false);
}

#[test]
fn every_piece_of_a_file_that_was_read_once_is_taken_too() {
    take_every_piece(true);
}

fn take_every_piece(is_kept: bool) {
    let (a, b) = pair();
    let push_files = PushFiles::of(&[]).expect("a model");
    if is_kept {
        push_files.keep(&a).expect("room");
    }
    let Content::Weights(weights) = &push_files.push_files[0].content else {
        panic!("{push_files:?}");
    };
    let (kept, progress, taken, sent) = handed_over(&push_files, &a, &b);
    let (taken, sent) = (taken.expect("taken"), sent.expect("sent"));
    assert!(taken.is_written && sent.is_written);
    assert_eq!(taken.sums, sent.sums);
    assert_eq!(sent.sums, [hex(digest(&SHA256, &kept.bytes).as_ref())]);
    assert_eq!(kept.bytes.len() as u64, push_files.bytes());

    let mut expected = vec!["1 files".to_owned(), "8 of 0".into()];
    expected.push(format!("{} of 0", weights.header().len()));
    for entry in weights.entries() {
        expected.extend([format!("{} of 0", entry.len), entry.name.clone()]);
    }
    expected.push("end".into());
    assert_eq!(kept.told, expected);
    // The manifest, the header, each tensor, the digest.
    assert_eq!(progress.len(), weights.entries().len() + 3);
    assert!(progress.is_sorted() && progress.last() > Some(&push_files.bytes()));
}

/// What `a` hands over to `b`: what was kept, the progress, and what either end says of it.
fn handed_over(
    push_files: &PushFiles,
    a: &Engine,
    b: &Engine,
) -> (
    Kept,
    Vec<u64>,
    Result<ExchangeOutcome, CliError>,
    Result<ExchangeOutcome, CliError>,
) {
    let mut kept = Kept::default();
    let mut progress = Vec::new();
    let (taken, sent) = std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            let heard = hear_data(b, a.task()).expect("it waits");
            let known = hear_known(b, a.task()).expect("it waits");
            let taken = take(b, a.task(), heard, PATIENCE, &mut kept);
            settled(b, a.task(), known).expect("it knows");
            taken
        });
        let heard = hear_taken(a, b.task()).expect("it waits");
        let sent = push_files
            .send(a, b.task(), heard, PATIENCE)
            .and_then(|delivery| delivery.wait(&mut |bytes| progress.push(bytes)));
        (taker.join().expect("it ends"), sent)
    });
    (kept, progress, taken, sent)
}

/// Takes some seconds to write what is long.
struct SlowDisk;

impl Sink for SlowDisk {
    fn begin(&mut self, _: &Manifest) -> Result<(), CliError> {
        Ok(())
    }
    fn write(&mut self, _: usize, bytes: &[u8]) -> Result<(), CliError> {
        std::thread::sleep(Duration::from_secs(if bytes.len() > 1 << 20 {
            5
        } else {
            0
        }));
        Ok(())
    }
    fn took(&mut self, _: &Taken<'_>) -> Result<(), CliError> {
        Ok(())
    }
    fn finish(&mut self) -> Result<bool, CliError> {
        Ok(true)
    }
}

/// The patience is for who says nothing; no one can know beforehand how long the longest tensor takes.
#[test]
fn a_long_piece_may_take_as_long_as_slow_disks_do() {
    const SHORT: Duration = Duration::from_secs(1);
    const BYTES: u64 = 64 << 20;
    let header =
        format!(r#"{{"x":{{"dtype":"U8","shape":[{BYTES}],"data_offsets":[0,{BYTES}]}}}}"#);
    let start = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("long.safetensors");
    std::fs::write(&path, &start).expect("written");
    let file = std::fs::File::options()
        .append(true)
        .open(&path)
        .expect("opened");
    file.set_len(start.len() as u64 + BYTES).expect("zeros");
    let (a, b) = pair();
    let push_files = PushFiles::of(std::slice::from_ref(&path)).expect("a file");
    let (taken, sent) = std::thread::scope(|scope| {
        let heard = hear_data(&b, a.task()).expect("it waits");
        let known = hear_known(&b, a.task()).expect("it waits");
        let taker = scope.spawn(|| {
            let taken = take(&b, a.task(), heard, SHORT, &mut SlowDisk);
            settle(&b, a.task(), known);
            taken
        });
        let heard = hear_taken(&a, b.task()).expect("it waits");
        let sent = push_files.send(&a, b.task(), heard, SHORT);
        let sent = sent.and_then(|delivery| delivery.wait(&mut |_| ()));
        (taker.join().expect("it ends"), sent)
    });
    assert_eq!(taken.expect("taken").sums, sent.expect("sent").sums);
}

/// An engine makes each that is not zero a one: so none would come out as it went in.
#[test]
fn a_truth_that_is_neither_zero_nor_one_is_refused() {
    let (a, b) = pair();
    let header = br#"{"x":{"dtype":"BOOL","shape":[2,2],"data_offsets":[0,4]}}"#;
    let length = (header.len() as u64).to_le_bytes();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mask.safetensors");
    let file = |data: [u8; 4]| {
        std::fs::write(&path, [&length[..], header, &data].concat()).expect("written");
        PushFiles::of(std::slice::from_ref(&path)).expect("a file")
    };
    let odd = file([0, 1, 1, 255]);
    let (_, _, taken, sent) = handed_over(&odd, &a, &b);
    let kept = odd.keep(&a);
    for error in [taken.map(drop), sent.map(drop), kept].map(Result::unwrap_err) {
        assert_eq!(error.reason(), catalogue::SAFETENSORS_MALFORMED, "{error}");
        for part in ["mask.safetensors", "byte 3 of tensor 'x' is 255"] {
            assert!(error.message().contains(part), "{error}");
        }
    }
    let (kept, _, taken, sent) = handed_over(&file([0, 1, 1, 0]), &a, &b);
    assert_eq!(kept.bytes, std::fs::read(&path).expect("readable"));
    assert_eq!(taken.expect("taken").sums, sent.expect("sent").sums);
}

/// What a pull says to a source that sends these pieces after a manifest of a file of so many bytes, and what it kept.
fn answered(bytes: u64, pieces: Vec<Tensor>) -> (Failed, Vec<String>) {
    let (a, b) = pair();
    let manifest = Manifest {
        name: "it".into(),
        is_folder: false,
        files: vec![Described {
            name: "it.safetensors".into(),
            bytes,
            is_weights: true,
        }],
    };
    let mut kept = Kept::default();
    let failed = std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            let heard = hear_data(&b, a.task()).expect("it waits");
            let known = hear_known(&b, a.task()).expect("it waits");
            let taken = take(&b, a.task(), heard, PATIENCE, &mut kept);
            settled(&b, a.task(), known).expect("it knows");
            taken
        });
        let step = a.step(STEP);
        let to = key(a.task(), b.task(), DATA).expect("a key");
        let first = text(&manifest, b.task()).expect("a text");
        for piece in std::iter::once(first).chain(pieces) {
            step.send(&to, piece).expect("sent");
        }
        let report = loop {
            let heard = hear_taken(&a, b.task()).expect("it waits");
            let got = heard_of(&a, heard, b.task()).expect("it answers");
            if got.tensor.dtype() != DType::U64 {
                break read::<Report>(&got, b.task()).expect("a report");
            }
        };
        let told = key(a.task(), b.task(), HEARD).expect("a key");
        step.send(&told, Tensor::scalar(1_u64)).expect("sent");
        let taken = taker.join().expect("it ends");
        let failed = report.failed.expect("it is refused");
        assert_eq!(taken.expect_err("it is refused").reason(), failed.reason);
        assert!(!report.is_written && report.sums.is_empty());
        failed
    });
    (failed, kept.told)
}

#[test]
fn what_comes_out_of_order_is_refused_and_never_finished() {
    let name = TaskName::parse("/job:a/task:0").expect("a name");
    let bytes = |bytes: &[u8]| row(bytes.to_vec(), &name).expect("a row");
    let header = br#"{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
    let len = (8 + header.len() + 3) as u64;
    let whole = [&(header.len() as u64).to_le_bytes()[..], header, &[1, 2, 3]].concat();
    let sum = hex(digest(&SHA256, &whole).as_ref());
    let sum = sum.as_bytes();
    for (pieces, reason) in [
        // A tensor, or the digest, before the header; the digest before the tensor; a tensor of another length.
        (vec![bytes(&[1, 2, 3])], catalogue::SAFETENSORS_MALFORMED),
        (vec![bytes(sum)], catalogue::SAFETENSORS_MALFORMED),
        (vec![bytes(header), bytes(sum)], catalogue::DATA_MISMATCH),
        (
            vec![bytes(header), bytes(&[1, 2, 3, 4])],
            catalogue::DATA_MISMATCH,
        ),
        // Other bytes than those of the digest.
        (
            vec![bytes(header), bytes(&[1, 2, 4]), bytes(sum)],
            catalogue::DATA_MISMATCH,
        ),
    ] {
        let (failed, told) = answered(len, pieces);
        assert_eq!(failed.reason, reason, "{}", failed.message);
        assert!(told.iter().all(|told| told != "end"), "{told:?}");
    }
}

#[test]
fn a_source_that_leaves_is_told_at_once() {
    let (a, b) = pair();
    let mut kept = Kept::default();
    let heard = hear_data(&b, a.task()).expect("it waits");
    let manifest = Manifest {
        name: "it".into(),
        is_folder: false,
        files: vec![Described {
            name: "it".into(),
            bytes: 100,
            is_weights: true,
        }],
    };
    let to = key(a.task(), b.task(), DATA).expect("a key");
    let first = text(&manifest, b.task()).expect("a text");
    a.step(STEP).send(&to, first).expect("sent");
    let heard_by_a = hear_taken(&a, b.task()).expect("it waits");
    let (from, other) = (a.task().clone(), b.task().clone());
    let leaves = std::thread::spawn(move || {
        // It has the first, and waits for the next.
        let _ = heard_of(&a, heard_by_a, &other);
        a.shutdown(Duration::ZERO);
    });
    let error = take(&b, &from, heard, PATIENCE, &mut kept).expect_err("it left");
    leaves.join().expect("it left");
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(kept.told, ["1 files"]);
}

/// As each of many does that check each other: it takes from all, and then asks each whether it knows.
#[test]
fn a_source_that_knew_and_left_is_waited_for_no_longer() {
    let (a, b) = pair();
    let push_files = PushFiles::of(&[]).expect("a model");
    let mut kept = Kept::default();
    let from = a.task().clone();
    let heard = hear_data(&b, &from).expect("it waits");
    let known = hear_known(&b, &from).expect("it waits");
    let to = b.task().clone();
    let source = std::thread::spawn(move || {
        let heard = hear_taken(&a, &to).expect("it waits");
        let delivery = push_files.send(&a, &to, heard, PATIENCE).expect("it goes");
        delivery.wait(&mut |_| ()).expect("it went");
        a.shutdown(PATIENCE);
    });
    take(&b, &from, heard, PATIENCE, &mut kept).expect("taken");
    source.join().expect("it left");
    let settled = settled(&b, &from, known);
    let reason = settled.err().map(|status| status.reason());
    assert!(
        matches!(reason, None | Some(catalogue::PEER_LOST)),
        "{reason:?}"
    );
}

#[test]
fn a_destination_that_leaves_is_told_at_once() {
    let (a, b) = pair();
    let push_files = PushFiles::of(&[]).expect("a model");
    let (from, to) = (a.task().clone(), b.task().clone());
    let leaves = std::thread::spawn(move || {
        let heard = hear_data(&b, &from).expect("it waits");
        let first = heard_of(&b, heard, &from).expect("the manifest");
        read::<Manifest>(&first, &from).expect("it is first");
        b.shutdown(Duration::ZERO);
    });
    let heard = hear_taken(&a, &to).expect("it waits");
    let error = push_files
        .send(&a, &to, heard, PATIENCE)
        .and_then(|delivery| delivery.wait(&mut |_| {}))
        .expect_err("it left");
    leaves.join().expect("it left");
    assert_eq!(error.code(), Code::Unavailable, "{error}");
}

/// Waits until an engine knows that another is gone.
fn until_lost(engine: &Engine, task: &TaskName) {
    let there = probe(engine, task).expect("it waits");
    block_on(there).expect_err("nothing is sent to it");
}

/// What the other said last is here, and what it says next is waited for only when it is gone.
#[test]
fn a_destination_that_left_between_two_words_is_told() {
    let (a, b) = pair();
    let push_files = PushFiles::of(&[]).expect("a model");
    let (from, to) = (a.task().clone(), b.task().clone());
    let leaves = std::thread::spawn(move || {
        let heard = hear_data(&b, &from).expect("it waits");
        let first = heard_of(&b, heard, &from).expect("the manifest");
        read::<Manifest>(&first, &from).expect("it is first");
        let told = key(b.task(), &from, TAKEN).expect("a key");
        b.step(STEP)
            .send(&told, Tensor::scalar(1_u64))
            .expect("sent");
        b.shutdown(PATIENCE);
    });
    let heard = hear_taken(&a, &to).expect("it waits");
    let delivery = push_files.send(&a, &to, heard, Duration::from_millis(100));
    let delivery = delivery.expect("it goes");
    leaves.join().expect("it left");
    until_lost(&a, &to);
    let error = delivery.wait(&mut |_| {}).expect_err("it left");
    assert_eq!(error.reason(), catalogue::PEER_LOST, "{error}");
}

/// A sink that is slow with what will come, until the source is gone.
struct Slow<'a>(&'a Engine, TaskName);

impl Sink for Slow<'_> {
    fn begin(&mut self, _: &Manifest) -> Result<(), CliError> {
        until_lost(self.0, &self.1);
        Ok(())
    }
    fn write(&mut self, _: usize, _: &[u8]) -> Result<(), CliError> {
        Ok(())
    }
    fn took(&mut self, _: &Taken<'_>) -> Result<(), CliError> {
        Ok(())
    }
    fn finish(&mut self) -> Result<bool, CliError> {
        Ok(true)
    }
}

#[test]
fn a_source_that_left_between_two_pieces_is_told() {
    let (a, b) = pair();
    let (from, to) = (a.task().clone(), b.task().clone());
    let heard = hear_data(&b, &from).expect("it waits");
    let leaves = std::thread::spawn(move || {
        let manifest = Manifest {
            name: "it".into(),
            is_folder: false,
            files: vec![Described {
                name: "it".into(),
                bytes: 100,
                is_weights: true,
            }],
        };
        let header = br#"{"x":{"dtype":"U8","shape":[37],"data_offsets":[0,37]}}"#;
        let pieces = [text(&manifest, &to), row(header.to_vec(), &to)];
        for piece in pieces {
            let step = a.step(STEP);
            let key = key(a.task(), &to, DATA).expect("a key");
            step.send(&key, piece.expect("a piece")).expect("sent");
        }
        a.shutdown(PATIENCE);
    });
    let mut slow = Slow(&b, from.clone());
    let patience = Duration::from_millis(100);
    let error = take(&b, &from, heard, patience, &mut slow).expect_err("it left");
    leaves.join().expect("it left");
    assert_eq!(error.reason(), catalogue::PEER_LOST, "{error}");
}
