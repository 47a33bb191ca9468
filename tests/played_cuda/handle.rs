//! What a test holds to play the driver: the library as the engine loads it, and what it can be told.

use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::ptr;

use libloading::Library;

/// The played library, loaded. All handles of a process are to one library, with one state.
pub struct Played(Library);

/// What a library holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Handles of allocations.
    pub handles: u64,
    /// Ranges of addresses.
    pub reserved: u64,
    /// Mappings.
    pub mapped: u64,
    /// Memory of the host that is registered.
    pub registered: u64,
    /// Streams.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Primary contexts.
    pub contexts: u64,
}

/// Where the library lies: beside the test that was built with it.
///
/// # Panics
/// If it was not built.
#[must_use]
pub fn path() -> String {
    let exe = std::env::current_exe().expect("a test has a path");
    let near = exe.ancestors().skip(1).take(2).map(PathBuf::from);
    let found = near
        .flat_map(|folder| [folder.join("deps"), folder])
        .map(|folder| folder.join("librendez_played_cuda.so"))
        .find(|path| path.exists());
    let found = found.expect("librendez_played_cuda.so is built with the tests");
    found.to_str().expect("a path of UTF-8").to_owned()
}

macro_rules! told {
    ($($(#[$doc:meta])* $vis:vis $name:ident => $symbol:literal ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Played {$(
            $(#[$doc])*
            ///
            /// # Panics
            /// If the library is another.
            $vis fn $name(&self, $($argument: $type),*) -> $result {
                // SAFETY: the symbol is one of `control.rs`, of this signature.
                let symbol = unsafe {
                    self.0.get::<unsafe extern "C" fn($($type),*) -> $result>(
                        concat!($symbol, "\0").as_bytes(),
                    )
                };
                let call = symbol.expect("the library is the played one");
                // SAFETY: it takes plain numbers, or the pointers that the callers below vouch for.
                unsafe { call($($argument),*) }
            }
        )*}
    };
}

told! {
    /// No call fails or takes longer from now on; how many faults had not come to anything.
    pub heal => "played_heal"() -> u64;
    /// The devices fail: no stream does anything any more, and every call but those for contexts fails with that code.
    pub break_devices => "played_break"(code: u32) -> ();
    /// True if a call has failed by [`Played::fail`] since it was healed.
    pub has_failed => "played_failed"() -> bool;
    /// A stream does nothing more by itself, or all of it.
    pub hold => "played_hold"(stream: usize, is_held: bool) -> bool;
    /// Streams that are made from now on are held, or not.
    pub hold_new => "played_hold_new"(is_held: bool) -> ();
    /// A held stream does so many pieces of its work.
    pub step => "played_step"(stream: usize, count: u64) -> bool;
    /// How many pieces of work wait in a stream.
    pub pending => "played_pending"(stream: usize) -> usize;
    /// A stream of a context that is no device's primary one.
    pub alien_stream => "played_alien_stream"() -> usize;
    /// At most so many bytes more can be held by handles; zero for no such bound.
    pub limit => "played_limit"(bytes: usize) -> ();
    /// How often work met memory that it might not touch, or that was gone.
    pub violations => "played_violations"() -> u64;
    /// The name is null or a C string.
    fail_call => "played_fail"(name: *const c_char, nth: u64, code: u32) -> ();
    /// As above.
    count_calls => "played_count"(name: *const c_char) -> u64;
    /// As above.
    stall_call => "played_stall"(name: *const c_char, millis: u64) -> ();
    /// As above, and it is not null.
    set_ability => "played_can"(what: *const c_char, can: bool) -> ();
    /// There is room for them.
    count_held => "played_held"(counts: *mut [u64; 7]) -> ();
}

impl Played {
    /// The library.
    ///
    /// # Panics
    /// If it was not built.
    #[must_use]
    pub fn load() -> Self {
        // SAFETY: it is the library of this crate, which runs nothing when it is loaded.
        Self(unsafe { Library::new(path()) }.expect("the played library loads"))
    }

    /// The `nth` call from now on of that name, or of any if there is none, fails with `code`, once.
    ///
    /// # Panics
    /// If the library is another.
    pub fn fail(&self, name: Option<&str>, nth: u64, code: u32) {
        let name = name.map(text);
        self.fail_call(
            name.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
            nth,
            code,
        );
    }

    /// How many calls there were, of that name or of all.
    ///
    /// # Panics
    /// If the library is another.
    #[must_use]
    pub fn count(&self, name: Option<&str>) -> u64 {
        let name = name.map(text);
        self.count_calls(name.as_ref().map_or(ptr::null(), |name| name.as_ptr()))
    }

    /// Each call of that name takes so much longer until this is called again; none if there is none.
    ///
    /// # Panics
    /// If the library is another.
    pub fn stall(&self, name: Option<&str>, millis: u64) {
        let name = name.map(text);
        self.stall_call(
            name.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
            millis,
        );
    }

    /// Gives the devices an ability, or takes it away: `words`, `descriptors`, `vmm`, `readonly`, `peers`, `copies`.
    ///
    /// # Panics
    /// If the library is another.
    pub fn can(&self, what: &str, can: bool) {
        self.set_ability(text(what).as_ptr(), can);
    }

    /// What is held now.
    ///
    /// # Panics
    /// If the library is another.
    #[must_use]
    pub fn held(&self) -> Held {
        let mut counts = [0_u64; 7];
        self.count_held(&raw mut counts);
        let [
            handles,
            reserved,
            mapped,
            registered,
            streams,
            events,
            contexts,
        ] = counts;
        Held {
            handles,
            reserved,
            mapped,
            registered,
            streams,
            events,
            contexts,
        }
    }
}

fn text(name: &str) -> CString {
    CString::new(name).expect("a name")
}
