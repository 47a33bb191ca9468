//! What the near side says of bytes that came to the far side otherwise than they were sent.

use super::*;
use rendez::drive::PollPolicy;

const SHORT: Duration = Duration::from_millis(20);

fn case(pattern: Pattern, from: From, rate: Option<f64>) -> Case {
    Case {
        pattern,
        transport: Transport::Loopback,
        from,
        bytes: 64,
        warmup: Duration::ZERO,
        duration: SHORT,
        rate,
        check: false,
        touch: false,
        poll: PollPolicy::Adaptive,
        parked: None,
    }
}

/// What a measurement ends with whose far side expects what `expected` makes of the job.
fn ended(case: &Case, expected: impl FnOnce(Job) -> Job) -> Result<Measured, CliError> {
    let job = Job::of(case);
    let pair = machine::pair()?;
    let near = engine("near", pair.near, &pair, case)?;
    let far = Far::Here(far::start(&near, &pair, case, expected(job))?);
    let keys = Keys::new(STEP)?;
    let measured = match case.from {
        From::Shard => near::measure(&near, job, keys),
        From::Thread => std::thread::scope(|scope| {
            let caller = scope.spawn(|| thread::measure(&near, job, &keys, pair.near));
            caller.join().expect("no panic")
        }),
    };
    drop(far);
    near.shutdown(SHORT);
    measured
}

fn is_told(case: &Case, expected: impl FnOnce(Job) -> Job) {
    let error = ended(case, expected).expect_err("other bytes came");
    assert_eq!(error.reason(), "DATA_MISMATCH", "{case:?}");
}

#[test]
fn a_value_that_the_far_side_finds_wrong_is_told() {
    for (from, rate) in [
        (From::Shard, None),
        (From::Shard, Some(1e4)),
        (From::Thread, None),
    ] {
        let case = case(Pattern::Pingpong, from, rate);
        is_told(&case, |job| Job {
            check: true,
            bytes: job.bytes / 2,
            ..job
        });
        // An application thread writes and reads no bytes of its own.
        if from == From::Shard {
            is_told(&case, |job| Job { touch: true, ..job });
        }
    }
}

#[test]
fn a_stream_is_checked_from_its_first_byte() {
    // Those of fewer than 4 bytes carry no stamp, and those of 'rate' none at all.
    for (pattern, bytes) in [(Pattern::Rate, 8), (Pattern::Oneway, 3)] {
        let case = Case {
            bytes,
            touch: true,
            ..case(pattern, From::Shard, None)
        };
        is_told(&case, |job| Job {
            check: true,
            touch: false,
            ..job
        });
    }
}

#[test]
fn a_stream_of_values_that_are_not_written_is_told() {
    for pattern in [Pattern::Rate, Pattern::Oneway] {
        let case = case(pattern, From::Shard, None);
        is_told(&case, |job| Job { touch: true, ..job });
    }
}

#[test]
fn every_value_of_a_stream_is_written_where_that_is_asked_for() {
    for pattern in [Pattern::Rate, Pattern::Oneway] {
        for bytes in [3, 5, 64, 4096, 100_000] {
            let case = Case {
                bytes,
                touch: true,
                ..case(pattern, From::Shard, None)
            };
            let measured = ended(&case, |job| job).expect("all bytes came");
            assert!(measured.count > 0, "{case:?}");
        }
    }
}

#[test]
fn what_was_due_is_recorded_though_it_was_not_done() {
    // So fast that most are overdue when the time is over, as they are where a stall lies over the end.
    for pattern in [Pattern::Pingpong, Pattern::Oneway] {
        let case = case(pattern, From::Shard, Some(1e9));
        let measured = ended(&case, |job| job).expect("nothing is wrong");
        let times = measured.round_trips.or(measured.one_way).expect("times");
        assert!(measured.overdue > measured.count, "{}", measured.count);
        assert!(times.count() as f64 > 0.99e9 * SHORT.as_secs_f64());
        let median = times.summary().expect("times").p50;
        assert!(median > 0.4e9 * SHORT.as_secs_f64(), "{median}");
    }
}

/// Far beyond reach, so that the warm-up leaves most of what was due in it undone.
#[test]
fn what_was_due_before_an_open_loop_is_measured_is_no_part_of_it() {
    for bytes in [5, 64, 100_000] {
        let case = Case {
            bytes,
            warmup: SHORT,
            ..case(Pattern::Oneway, From::Shard, Some(1e9))
        };
        let measured = ended(&case, |job| job).expect("nothing is wrong");
        let due = measured.count + measured.overdue;
        assert_eq!(u128::from(due), SHORT.as_nanos(), "{bytes}");
        let times = measured.one_way.expect("times");
        assert_eq!(times.count(), due);
    }
}

#[test]
fn an_other_process_that_ends_before_it_is_connected_is_not_waited_for() {
    let pair = machine::pair().expect("cores");
    let case = case(Pattern::Pingpong, From::Shard, None);
    let near = engine("near", pair.near, &pair, &case).expect("started");
    let mut peer = Other::spawn(&mut std::process::Command::new("false")).expect("it starts");
    let keys = Keys::new(STEP).expect("keys");
    let far = keys.there.destination_task();
    let error = await_peer(&near, far, &mut peer).expect_err("it ended");
    assert_eq!(error.reason(), "BENCH_PEER_DIED");
    near.shutdown(SHORT);
}

/// On a busy machine the time may be over before the first answer.
#[test]
fn however_short_a_measurement_has_counted_something() {
    for (pattern, from, rate) in [
        (Pattern::Pingpong, From::Shard, None),
        (Pattern::Pingpong, From::Shard, Some(1e4)),
        (Pattern::Pingpong, From::Thread, None),
        (Pattern::Oneway, From::Shard, None),
        (Pattern::Rate, From::Shard, None),
    ] {
        let case = Case {
            duration: Duration::from_nanos(1),
            ..case(pattern, from, rate)
        };
        let measured = ended(&case, |job| job).expect("nothing is wrong");
        assert!(measured.count > 0, "{case:?}");
    }
}
