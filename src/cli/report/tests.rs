//! The JSON that scripts read and the table that people read.

use serde_json::Value;

use super::*;

fn summary(p50: f64) -> Summary {
    Summary {
        p50,
        p90: p50 * 2.0,
        p99: p50 * 3.0,
        p99_9: p50 * 4.0,
        max: p50 * 5.0,
    }
}

/// A rate whose mean is half of its median: half of the time was a stall.
fn rates(p50: f64) -> Rates {
    Rates {
        mean: p50 / 2.0,
        percentiles: summary(p50),
    }
}

fn row() -> Row {
    Row {
        pattern: "pingpong",
        transport: "shm",
        bytes: 64,
        count: 1000,
        half_rtt_ns: Some(summary(70.0)),
        rtt_ns: Some(summary(140.0)),
        allocations_per_op: Some(0.0),
        machine: Some(Machine::read()),
        ..Row::default()
    }
}

/// All rows, as they are printed one after another.
fn table(rows: &[Row], width: Option<usize>) -> String {
    let has_ratio = rows.iter().any(|row| row.baseline.is_some());
    let has_spread = rows.iter().any(|row| row.repeated.is_some());
    let mut growing = Growing::new(has_ratio, has_spread, rows.len() > 1, width);
    rows.iter().map(|row| growing.line(row) + "\n").collect()
}

fn raw(pattern: &'static str) -> Row {
    Row {
        pattern,
        transport: "raw",
        bytes: 64,
        half_rtt_ns: Some(summary(50.0)),
        ..Row::default()
    }
}

fn with_baseline() -> Row {
    let baseline = Baseline {
        pingpong: raw("pingpong"),
        write_signal_read: Some(Row {
            half_rtt_ns: None,
            rtt_ns: Some(summary(200.0)),
            ..raw("write_signal_read")
        }),
        memcpy: Some(Row {
            half_rtt_ns: None,
            time_ns: Some(summary(2.0)),
            ..raw("memcpy")
        }),
        stream: None,
    };
    Row {
        baseline: Some(Box::new(baseline)),
        ..row()
    }
}

#[test]
fn json_has_the_promised_fields() {
    let text = with_baseline().json();
    assert!(!text.contains('\n'), "one object a line");
    let value: Value = serde_json::from_str(&text).unwrap();
    for path in [
        "/half_rtt_ns/p50",
        "/half_rtt_ns/p90",
        "/half_rtt_ns/p99",
        "/half_rtt_ns/p99_9",
        "/half_rtt_ns/max",
        "/rtt_ns/p50",
        "/allocations_per_op",
        "/machine/cpu",
        "/machine/kernel",
        "/machine/affinity/0",
        "/baseline/half_rtt_ns/p99_9",
        "/baseline/write_signal_read/rtt_ns/p50",
        "/baseline/memcpy/time_ns/max",
    ] {
        assert!(
            value.pointer(path).is_some_and(|found| !found.is_null()),
            "{path} in {text}"
        );
    }
    assert_eq!(value["pattern"], "pingpong");
    assert_eq!(value["bytes"], 64);
    assert_eq!(value["baseline"]["transport"], "raw");
    assert!(
        value.get("rate_per_s").is_none(),
        "what does not apply is left out"
    );
}

#[test]
fn a_table_is_aligned_and_says_which_half() {
    let text = table(
        &[
            row(),
            Row {
                pattern: "rate",
                half_rtt_ns: None,
                rtt_ns: None,
                rate_per_s: Some(rates(4e6)),
                ..row()
            },
        ],
        None,
    );
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines[1].contains("½ rtt") && lines[1].contains("70.0ns") && lines[2].contains("2.00M/s"),
        "{text}"
    );
    let ends = |line: &str, word: &str| {
        line.chars()
            .take(
                line.find(word)
                    .map(|at| line[..at].chars().count())
                    .unwrap()
                    + word.len(),
            )
            .count()
    };
    assert_eq!(ends(lines[0], "p50"), ends(lines[1], "70.0ns"), "{text}");
    assert!(
        lines.iter().all(|line| line.trim_end() == *line),
        "no trailing spaces"
    );
}

#[test]
fn a_ratio_is_shown_where_there_is_a_reference() {
    let text = table(&[with_baseline()], None);
    assert!(
        text.contains("× raw") && text.trim_end().ends_with("1.40"),
        "{text}"
    );
    assert!(!table(&[row()], None).contains("× raw"));
}

#[test]
fn a_stream_is_compared_with_a_stream() {
    let stream = Row {
        half_rtt_ns: None,
        bytes_per_s: Some(rates(8e9)),
        ..raw("oneway")
    };
    let baseline = Baseline {
        pingpong: raw("pingpong"),
        write_signal_read: None,
        memcpy: None,
        stream: Some(stream),
    };
    let streamed = Row {
        pattern: "rate",
        half_rtt_ns: None,
        rtt_ns: None,
        bytes_per_s: Some(rates(6e9)),
        baseline: Some(Box::new(baseline)),
        ..row()
    };
    let text = table(std::slice::from_ref(&streamed), None);
    assert!(text.trim_end().ends_with("0.75"), "{text}");
    let value: Value = serde_json::from_str(&streamed.json()).unwrap();
    let stream = &value["baseline"]["stream"]["bytes_per_s"];
    assert_eq!(
        (&stream["mean"], &stream["p50"]),
        (&4e9.into(), &8e9.into())
    );
    assert!(value["baseline"].get("memcpy").is_none());
}

#[test]
fn a_narrow_terminal_loses_columns_not_meaning() {
    let text = table(&[row()], Some(50));
    assert!(
        text.lines().all(|line| line.chars().count() <= 50),
        "{text}"
    );
    for kept in ["pattern", "bytes", "½ rtt", "70.0ns", "p99"] {
        assert!(text.contains(kept), "{kept} in {text}");
    }
}

#[test]
fn several_runs_are_shown_by_their_median_and_spread() {
    let run = |p50: f64| Row {
        half_rtt_ns: Some(summary(p50)),
        ..row()
    };
    let shown = Repeated::median_of(vec![run(90.0), run(50.0), run(70.0)]).expect("a row");
    assert_eq!(shown.half_rtt_ns, Some(summary(70.0)));
    let repeated = shown.repeated.expect("several");
    let spread = |factor: f64| Spread {
        min: 50.0 * factor,
        median: 70.0 * factor,
        max: 90.0 * factor,
    };
    assert_eq!((repeated.runs, repeated.p50), (3, spread(1.0)));
    assert_eq!((repeated.p99, repeated.max), (spread(3.0), spread(5.0)));
    let value: Value = serde_json::from_str(&shown.json()).unwrap();
    assert_eq!(value["repeated"]["p50"]["min"], 50.0);
    let text = table(&[shown], None);
    for part in ["  least", "50.0ns", "  most", "90.0ns"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(Repeated::median_of(Vec::new()).is_none());
    let of_two = Repeated::median_of(vec![run(90.0), run(50.0)]).expect("a row");
    assert_eq!(of_two.repeated.expect("several").p50.median, 70.0);
}

#[test]
fn several_runs_of_a_rate_are_shown_by_all_that_came() {
    let run = |mean: f64, p50: f64| Row {
        half_rtt_ns: None,
        rtt_ns: None,
        rate_per_s: Some(Rates {
            mean,
            percentiles: summary(p50),
        }),
        ..row()
    };
    let runs = vec![run(3e6, 8e6), run(1e6, 9e6), run(2e6, 7e6)];
    let shown = Repeated::median_of(runs).expect("a row");
    assert_eq!(shown.rate_per_s.expect("a rate").mean, 2e6);
    let repeated = shown.repeated.expect("several");
    let mean = repeated.mean.expect("of a rate");
    assert_eq!((mean.min, mean.max), (1e6, 3e6));
    assert_eq!((repeated.p50.min, repeated.p50.max), (7e6, 9e6));
    let text = table(&[shown], None);
    assert!(text.trim_end().ends_with("1.00M/s  3.00M/s"), "{text}");
}

#[test]
fn a_table_of_nothing_is_nothing() {
    assert_eq!(lay_out(&[], &[], &[], None), "");
}

fn widest(text: &str) -> usize {
    text.lines()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or(0)
}

#[test]
fn a_table_that_does_not_fit_becomes_paragraphs_and_leaves_nothing_out() {
    let heading = ["from", "path", "why"].map(str::to_owned).to_vec();
    let row = |from: &str, why: &str| vec![from.to_owned(), "tcp".into(), why.to_owned()];
    let lines = [
        heading,
        row(
            "/job:worker/replica:0/task:0",
            "the tasks run on two machines",
        ),
        row("/job:worker/replica:0/task:1", ""),
    ];
    let text = lay_out(&lines, &[0, 1, 2], &[1], Some(40));
    let expected = "from  /job:worker/replica:0/task:0\n\
                    path  tcp\n\
                    why   the tasks run on two machines\n\
                    \n\
                    from  /job:worker/replica:0/task:1\n\
                    path  tcp";
    assert_eq!(text, expected);
    let wide = lay_out(&lines, &[0, 1, 2], &[1], None);
    assert_eq!(wide.lines().count(), 3, "{wide}");
    let dropped = lay_out(&lines, &[0, 1, 2], &[1], Some(60));
    assert_eq!(
        dropped.lines().count(),
        3,
        "a column less is enough: {dropped}"
    );
}

#[test]
fn no_line_of_any_table_is_longer_than_its_terminal() {
    // Cells as long as names, keys, reasons and numbers get, in every number of columns.
    let cells = [
        "/job:parameter_server/replica:0/task:1234",
        "a better path exists or was tried, and is unavailable",
        "",
        "123456789",
        "/job:a/replica:0/task:0/device:CPU:0;0000000000000000;/job:b/replica:0/task:0/device:CPU:0;edge_7;0:0",
        "≤ 4.0 KiB: inline, in one frame",
        "±12.5µs",
    ];
    for columns in 1..=10 {
        for first in 0..cells.len() {
            let row = |at: usize| -> Vec<String> {
                let cell = |column: usize| cells[(at + first + column) % cells.len()].to_owned();
                (0..columns).map(cell).collect()
            };
            let heading = (0..columns)
                .map(|column| format!("column {column}"))
                .collect();
            let lines = [heading, row(0), row(1), row(2)];
            for width in [40, 80, 132] {
                let text = lay_out(&lines, &[0, 2], &[1], Some(width));
                assert!(widest(&text) <= width, "{width}: {text}");
            }
            let wide = lay_out(&lines, &[0, 2], &[1], None);
            assert!(wide.lines().count() <= 4, "{wide}");
        }
    }
}

#[test]
fn a_text_is_broken_at_blanks_under_where_it_began() {
    let text = wrapped("why: ", "because of this and that", Some(16));
    assert_eq!(text, "why: because of\n     this and\n     that");
    assert_eq!(wrapped("why: ", "because", None), "why: because");
    assert_eq!(wrapped("", "abcdefgh ij", Some(3)), "abc\ndef\ngh\nij");
    assert_eq!(wrapped("x ", "", Some(10)), "x ");
}

#[test]
fn rows_of_measurements_fit_a_terminal() {
    let slow = Row {
        half_rtt_ns: Some(summary(123_456_789.0)),
        rtt_ns: None,
        bytes: 1 << 30,
        count: 1_234_567_890,
        rate_per_s: Some(rates(1.234e7)),
        bytes_per_s: Some(rates(1.234e10)),
        allocations_per_op: Some(0.125),
        baseline: None,
        ..row()
    };
    let shown = Repeated::median_of(vec![slow.clone(), slow]).expect("a row");
    let text = table(&[shown], Some(80));
    assert!(widest(&text) <= 80, "{text}");
}
