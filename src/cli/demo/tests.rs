//! The table and the summary of a hand-over, and what happens when a tensor does not come.

use std::io::Write;
use std::sync::{Arc, Mutex};

use super::*;

/// Reads every tensor and says that it arrived, except those it loses.
struct Reading {
    lose: Option<usize>,
}

impl Handover for Reading {
    fn hand_over(
        &mut self,
        weights: &Weights,
        each: &mut dyn FnMut(Handed),
    ) -> Result<Outcome, CliError> {
        for (index, entry) in weights.entries().iter().enumerate() {
            weights.read_into(entry, &mut vec![0; entry.len as usize])?;
            if self.lose != Some(index) {
                each(Handed::summed_up(
                    index,
                    9000,
                    vec![(200, Path::Lease), (250, Path::Copy), (300, Path::Lease)],
                ));
            }
        }
        let figures = Summary {
            p50: 250.0,
            p90: 260.0,
            p99: 270.0,
            p99_9: 280.0,
            max: 290.0,
        };
        Ok(Outcome {
            rounds: 3,
            bytes: 3 * weights.total_bytes(),
            elapsed: Duration::from_millis(3),
            first: Some(figures.times(10.0)),
            latencies: Some(figures),
            facts: vec![Fact {
                name: "control",
                text: "by pigeon".into(),
            }],
        })
    }
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn written(json: bool, lose: Option<usize>) -> (Result<(), CliError>, String) {
    let kept = Kept::default();
    let mut terminal = Terminal::into_writer(Box::new(kept.clone()), None);
    let result = run(
        &DemoArgs {
            file: None,
            json,
            rounds: None,
            linger: Duration::ZERO,
        },
        &mut Reading { lose },
        &mut terminal,
    );
    let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
    (result, text)
}

#[test]
fn every_tensor_has_its_line() {
    let (result, text) = written(false, None);
    result.unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("hidden.0.weight"))
        .unwrap();
    for cell in [
        "f32",
        "[512,288]",
        "576KiB",
        "lease",
        "250ns",
        "9.00µs",
        "lease 2, copy 1",
    ] {
        assert!(line.contains(cell), "{cell} in {line}");
    }
    for told in [
        "12 tensors, 3 rounds: every byte of each compared",
        "0.90GB/s handed over, read and compared (2.58MiB in 3.00ms)",
        "p50 250ns, p99 270ns, p99.9 280ns, max 290ns",
        "first    p50 2.50µs, max 2.90µs",
        "lease    read in place",
        "control  by pigeon",
    ] {
        assert!(text.contains(told), "{told} in {text}");
    }
}

#[test]
fn json_is_an_object_a_line() {
    let (result, text) = written(true, None);
    result.unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 13);
    assert_eq!(
        (&lines[0]["latency_ns"], &lines[0]["first_ns"]),
        (&250.into(), &9000.into())
    );
    assert_eq!(
        (&lines[12]["rounds"], &lines[12]["facts"]["control"]),
        (&3.into(), &"by pigeon".into())
    );
    assert_eq!(
        (&lines[12]["tensors"], &lines[12]["checked"]),
        (&12.into(), &true.into())
    );
}

#[test]
fn a_lost_tensor_is_an_error_that_names_it() {
    let (result, _) = written(false, Some(0));
    let error = result.unwrap_err();
    assert_eq!(error.reason(), "TENSOR_LOST");
    assert!(
        error
            .message()
            .contains(&Weights::built_in().unwrap().entries()[0].name)
    );
}

#[test]
fn long_names_keep_their_ends() {
    assert_eq!(shortened("model.layers.17.weight", 11), "model…eight");
    assert_eq!(shortened("short", 11), "short");
}
