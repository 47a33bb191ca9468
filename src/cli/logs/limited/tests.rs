//! One place that says too much, beside one that does not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::*;

/// Seconds since the first look.
static NOW: AtomicU64 = AtomicU64::new(0);

fn now() -> Instant {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    *BEGAN.get_or_init(Instant::now) + Duration::from_secs(NOW.load(Ordering::Relaxed))
}

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Page {
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// One place of the code.
fn often(count: u64) {
    tracing::warn!(count, "said often");
}

#[test]
fn what_is_said_too_often_is_counted() {
    for format in [LogFormat::Text, LogFormat::Json] {
        let page = Page::default();
        let writer = page.clone();
        let mut limited = Limited::new(move || writer.clone(), format);
        limited.now = now;
        let subscriber = tracing_subscriber::fmt()
            .with_writer(limited)
            .with_ansi(false);
        let said = |emit: &dyn Fn()| match format {
            LogFormat::Text => tracing::subscriber::with_default(subscriber.finish(), emit),
            LogFormat::Json => tracing::subscriber::with_default(subscriber.json().finish(), emit),
        };
        said(&|| {
            (0..100).for_each(often);
            tracing::info!("another place");
            let lines = page.take();
            assert_eq!(lines.len(), 11, "{lines:#?}");
            assert!(lines[9].contains("said often") && lines[10].contains("another place"));

            NOW.fetch_add(1, Ordering::Relaxed);
            often(100);
            let lines = page.take();
            assert_eq!(lines.len(), 2, "{lines:#?}");
            assert!(lines[0].contains("90 lines like the next one were left out"));
            assert!(lines[1].contains("said often"));
            if matches!(format, LogFormat::Json) {
                let notice: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
                assert_eq!(notice["left_out"], 90);
            }

            NOW.fetch_add(1, Ordering::Relaxed);
            often(101);
            assert_eq!(page.take().len(), 1, "told once");
        });
    }
}
