//! The story: when training is over, when a worker is killed, and when it is back.

use super::*;
use clap::Parser;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    digits: DigitsArgs,
}

fn args(more: &[&str]) -> DigitsArgs {
    let all = ["train"].iter().chain(more);
    Options::try_parse_from(all).expect("arguments").digits
}

fn look(steps: u64, each: [u64; 2]) -> Look {
    Look {
        steps,
        each: each.to_vec(),
        loss: 1.0,
        accuracy: 0.5,
    }
}

/// A story, its terminal, and what is written there.
struct Told {
    args: DigitsArgs,
    story: Story,
    terminal: Terminal,
    said: std::sync::Arc<std::sync::Mutex<Vec<u8>>>,
}

struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("the text").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Told {
    fn new(more: &[&str], target: u64, begun_at: u64) -> Self {
        let args = args(more);
        let said = std::sync::Arc::<std::sync::Mutex<Vec<u8>>>::default();
        let mut story = Story::new(&args, target, 360);
        story.begin(begun_at);
        Self {
            args,
            story,
            terminal: Terminal::into_writer(Box::new(Shared(said.clone())), None),
            said,
        }
    }

    fn tell(&mut self, look: &Look) -> Ending {
        self.story
            .tell(&self.args, look, &mut self.terminal)
            .expect("is told")
    }

    fn said(&self) -> String {
        String::from_utf8(self.said.lock().expect("the text").clone()).expect("text")
    }
}

#[test]
fn training_is_over_when_its_steps_are_made() {
    let mut told = Told::new(&["--json"], 100, 40);
    assert!(!told.story.is_enough(59));
    assert!(told.story.is_enough(60));
    assert_eq!(told.tell(&look(99, [30, 29])), Ending::GoesOn);
    assert!(told.story.is_enough(1));
    assert_eq!(told.tell(&look(101, [31, 30])), Ending::Over);
    assert_eq!(told.said().lines().count(), 2, "{}", told.said());
    let first: serde_json::Value =
        serde_json::from_str(told.said().lines().next().expect("a line")).expect("an object");
    assert_eq!(first["steps"], 99);
}

#[test]
fn a_worker_is_killed_once_and_training_waits_until_it_is_back() {
    let mut told = Told::new(&["--kill-worker-at", "1us"], 100, 0);
    std::thread::sleep(Duration::from_millis(1));
    // Nothing was trained yet: nothing would be seen of a death.
    assert_eq!(told.tell(&look(0, [0, 0])), Ending::GoesOn);
    let before = look(200, [100, 100]);
    assert_eq!(told.tell(&before), Ending::Kill, "also past its steps");
    told.story
        .killed(&told.args, &before, &mut told.terminal)
        .expect("is told");
    let said = told.said();
    let (worker, rest) = said.split_once(" was killed after ").expect(&said);
    assert!(worker.ends_with("worker:1"), "{said}");
    assert!(rest.contains(" s, at step 200"), "{said}");
    // What it had sent before it died still counts.
    assert_eq!(told.tell(&look(202, [101, 101])), Ending::GoesOn);
    assert_eq!(told.tell(&look(230, [129, 101])), Ending::GoesOn);
    assert!(!told.story.is_enough(1));
    let back = told.tell(&look(240, [135, 105]));
    assert!(matches!(back, Ending::Back(_, 40)), "{back:?}");
    assert!(
        told.said().contains("worker:1 trains again"),
        "{}",
        told.said()
    );
    assert_eq!(told.tell(&look(241, [136, 105])), Ending::Over);
}

#[test]
fn the_end_tells_how_well_it_reads() {
    let mut told = Told::new(&["--workers", "2"], 10, 4);
    let mut last = look(10, [3, 3]);
    assert_eq!(told.tell(&last), Ending::Over);
    last.accuracy = 0.975;
    let took = Duration::from_secs(2);
    told.story.kept("there/digits.safetensors".into());
    told.story
        .end(&told.args, took, &last, &[], &mut told.terminal)
        .expect("is told");
    let said = told.said();
    assert!(
        said.contains("async, 1 ps + 2 workers: 6 steps from step 4 on in 2.00 s, 3 a second"),
        "{said}"
    );
    assert!(
        said.contains("of 360 digits kept for testing 97.5 % are read right"),
        "{said}"
    );
    assert!(said.contains("97 % were not reached"), "{said}");
    assert!(
        said.contains("checkpoint: there/digits.safetensors"),
        "{said}"
    );
    told.tell(&last);
    told.story
        .end(&told.args, took, &last, &[], &mut told.terminal)
        .expect("is told");
    assert!(
        told.said().contains("97 % were reached after 0.00 s"),
        "{}",
        told.said()
    );
}
