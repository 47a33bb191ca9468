#!/usr/bin/env bash
# The one entry of all checks, for a bare Debian 12 with Rust as for a developer's machine.
#   scripts/ci.sh              everything that every change must pass
#   scripts/ci.sh fmt test     only these steps
#   scripts/ci.sh sanitize     what is for a night, not for every change: the address sanitizer,
#   scripts/ci.sh sizes        the size of the command, and instructions of a pass over a model: an optimised build of all
#   scripts/ci.sh mutants      and whether the simulation finds what is broken on purpose (all of that: scripts/nightly.sh)
#   scripts/ci.sh soft-roce    RDMA in an emulated guest; part of every run where QEMU's packages can be had
#   CI_STRICT=1 scripts/ci.sh  what cannot be done here is a failure too, not only a warning
#   SEEDS=1000 FUZZ_SECONDS=60 NEMESIS_SECONDS=600 scripts/ci.sh   more simulations, longer fuzzing, more faults
# Changes nothing but target/, ~/.cache and what the fuzzer keeps in tests/fuzz, and installs what is missing: gcc, g++,
# pkg-config, git, valgrind, curl, python3 (apt), iproute2 (apt, as root), rustfmt and clippy (rustup). Prometheus is
# unpacked into target/tools; cargo-deny and, where there is a nightly toolchain, cargo-fuzz are built there once, some
# five minutes each on two cores. What the guest of soft-roce wants (650 MB) and PyTorch (5 GB) are fetched once, into
# ~/.cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools="$PWD/target/tools"
built="${CARGO_TARGET_DIR:-$PWD/target}"
export PATH="$tools/bin:${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"
deny_version=0.20.2
seeds="${SEEDS:-300}"

steps=(tools fmt clippy test long capi python doc book sim counts nemesis metrics soft-roce deny fuzz torch)
is_asked=""
# What tests say that cannot be done here: cargo shows nothing of a test that passes.
export RENDEZ_TEST_SKIPPED="$PWD/target/skipped-tests"
timings=""
warnings=""
current="arguments"
trap 'status=$?; [ $status -eq 0 ] || printf "\nci: FAILED in step %s (exit %d)\n%s" "$current" "$status" "$timings"' EXIT

warn() {
    warnings+="  $*"$'\n'
    printf 'ci: WARNING: %s\n' "$*"
}

# What cannot be done here is said loudly; asked for by name, that fails, with 3.
cannot() {
    [ -z "$is_asked" ] || { printf 'ci: %s\n' "$*" >&2; return 3; }
    warn "$*"
}

# All steps together end within an hour: those that may be left out say how long they may take, and are left out, loudly,
# where the steps before have left them less.
has_time() {
    local step="$1" seconds="$2" what="$3"
    [ -z "$is_asked" ] && [ $((SECONDS + seconds)) -gt 3480 ] || return 0
    warn "$what: the steps before took $((SECONDS / 60)) minutes of the hour. Run scripts/ci.sh $step"
    return 1
}

# A root shell in a container has no sudo, and a developer no root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

step_tools() {
    # glommio's build compiles bundled C and asks git for it; proto and the rest of the tree need neither.
    local packages=()
    command -v cc >/dev/null || packages+=(gcc libc6-dev)
    # The examples of the C library, one of which is C++.
    command -v c++ >/dev/null || packages+=(g++)
    command -v pkg-config >/dev/null || packages+=(pkg-config)
    command -v git >/dev/null || packages+=(git)
    # It counts the instructions of a hand-over.
    command -v valgrind >/dev/null || packages+=(valgrind libc6-dbg)
    # Only a test of several hosts wants it; it says so itself where it is unavailable.
    if [ "$(id -u)" -eq 0 ]; then command -v ip >/dev/null || packages+=(iproute2); fi
    if [ "${#packages[@]}" -gt 0 ]; then
        echo "missing: ${packages[*]}"
        as_root apt-get update -qq
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
    fi
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
    rustc --version
}

step_fmt() {
    cargo fmt --all --check
    # A workspace of its own, which only the fuzzer builds.
    cargo fmt --manifest-path tests/fuzz/Cargo.toml --check
}

# Left out of a plain `cargo test` by `test = false` in a Cargo.toml, and so of --all-targets: what takes long, and what
# only measures.
long=(--test cluster --test conformance --test cycles --test examples --test flat_memory --test hot_path --test netns
    --test oracle_table --test training --test loom_drive --test loom_memory --test loom_rings --test loom_shard)
costs=(--test costs --test hop_cost --test pass_cost --test rpc_cost --test verbs_cost)

step_clippy() {
    cargo clippy --locked --all-targets -- -D warnings
    cargo clippy --locked "${long[@]}" "${costs[@]}" --test sim -- -D warnings
    # No default member, so that a plain build asks for no Python; neither does this.
    cargo clippy --locked -p rendez-python -- -D warnings
    # Neither are the judge of nemesis and what makes the messages.
    cargo clippy --locked -p rendez-nemesis -p rendez-proto -p rendez-proto-generate --all-targets -- -D warnings
    # Features that packagers leave out, and those of the wheel for free-threaded Python.
    cargo clippy --locked -p rendez-cli --no-default-features -- -D warnings
    cargo clippy --locked -p rendez-python --no-default-features --features cuda,verbs,stages -- -D warnings
    # The fuzzer's workspace: its lock has the versions of ours, which tests/tidy.rs sees to.
    cargo clippy --locked --manifest-path tests/fuzz/Cargo.toml --target-dir target -- -D warnings
}

# As the README says. tests/tidy.rs is part of it.
step_test() {
    cargo test --locked
}

step_long() {
    cargo run --locked -p rendez-proto-generate -- check
    cargo test --locked "${long[@]}"
    cargo test --locked -p rendez-nemesis
    # Of these a plain run tries few cases.
    PROPTEST_CASES=2048 cargo test --locked --lib -- wire:: channel:: fabric::tcp:: graph::text:: graph::partition:: \
        server::executor::tests::random::
    RENDEZ_DRIVE_ROUNDS=20000 cargo test --locked --test engine drive::
}

# The C library, as programs of C and C++ see it, under the sanitizers.
step_capi() {
    scripts/capi.sh
}

# The wheel, as users of Python have it. Asked for by name it must run, and may take what a fresh clone takes to build;
# among all steps it says loudly where it cannot be prepared.
step_python() {
    local status=0 seconds="${PYTHON_SECONDS:-360}"
    has_time python $((seconds + 240)) "the Python wheel NOT tested" || return 0
    if [ -n "$is_asked" ]; then seconds="${PYTHON_SECONDS:-1800}"; fi
    timeout "$seconds" scripts/python.sh prepare || status=$?
    if [ -z "$is_asked" ]; then
        case "$status" in
            3) warn "the Python wheel NOT tested: what that needs cannot be had here (see above)"; return ;;
            124) warn "the Python wheel NOT tested: to prepare it took longer than $seconds s"; return ;;
        esac
    fi
    [ "$status" -eq 0 ] || return "$status"
    timeout 420 scripts/python.sh test
}

# A part of PyTorch's own suites over rendez. The first time some 5 GB are fetched, to ~/.cache/rendez. Asked for by name
# it must run; among all steps it is the last, and says loudly where it cannot be prepared.
step_torch() {
    local status=0
    has_time torch 720 "PyTorch over rendez NOT tested" || return 0
    timeout "${TORCH_SECONDS:-420}" scripts/torch-suites.sh prepare || status=$?
    if [ -z "$is_asked" ]; then
        case "$status" in
            3) warn "PyTorch over rendez NOT tested: what that needs cannot be had here (see above)"; return ;;
            124) warn "PyTorch over rendez NOT tested: to prepare it took longer than ${TORCH_SECONDS:-420} s"; return ;;
        esac
    fi
    [ "$status" -eq 0 ] || return "$status"
    timeout 300 scripts/torch-suites.sh small
}

step_doc() {
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps
    if command -v python3 >/dev/null; then
        scripts/public-api.sh check
    else
        cannot "the library's public face NOT compared: there is no python3"
    fi
}

# The book's pages that the program makes are those of this program. tests/tidy checks summary and links.
step_book() {
    if ! command -v python3 >/dev/null; then
        cannot "pages of the book NOT compared: there is no python3"
        return
    fi
    cargo build --locked --quiet
    RENDEZ="$built/debug/rendez" scripts/book.sh check
    if command -v mdbook >/dev/null; then NO_API=1 scripts/book.sh build; fi
}

# More worlds are the nightly run's.
step_sim() {
    SEEDS="$seeds" cargo test --locked --test sim
}

# Instructions, which are the same on a busy machine: a hand-over and a call cost what they did. Optimised builds of the
# core and of calls only; those of graphs take minutes (step_sizes).
step_counts() {
    cargo test --locked --release -p rendez-core --test verbs_cost -- --ignored --nocapture
    cargo test --locked --release -p rendez-rpc --test rpc_cost -- --ignored --nocapture
}

# What wants an optimised build of everything: instructions of a pass, and bytes, for the command that people install
# has fewer than 20 million.
step_sizes() {
    cargo test --locked --release -p rendez-autograd --test pass_cost -- --ignored --nocapture
    cargo build --locked --release
    local bytes
    bytes="$(stat -c %s "$built/release/rendez")"
    echo "the command, release/rendez: $bytes bytes"
    [ "$bytes" -lt 20000000 ] || { echo "ci: the command is too large" >&2; return 1; }
}

# Real processes under real faults, with a program that is built for this: what a task must do in time is too much for
# one that is not optimised, and a release would not check its own rules. The same faults each time: new seeds are for
# the nightly run, not for a change of something else.
step_nemesis() {
    local probe="nm-probe-$$"
    if [ "$(id -u)" -ne 0 ] || ! ip netns add "$probe" 2>/dev/null; then
        cannot "nemesis skipped: there are no network namespaces here (they need root and iproute2)"
        return
    fi
    ip netns del "$probe"
    cargo build --locked --quiet --profile checked -p rendez-nemesis
    NEMESIS="$built/checked/rendez-nemesis" SEED="${NEMESIS_SEED:-1}" scripts/nemesis.sh "${NEMESIS_SECONDS:-30}"
}

# Real queue pairs in a guest that QEMU emulates, some six minutes. What cannot be had here, or does not come to its end
# on a slow machine, is said loudly; asked for by name, this step fails then.
step_soft-roce() {
    local reason status=0
    has_time soft-roce 720 "RDMA NOT tested" || return 0
    if timeout "${SOFT_ROCE_PREPARE_SECONDS:-420}" scripts/soft-roce.sh prepare; then
        TIMEOUT="${SOFT_ROCE_SECONDS:-470}" scripts/soft-roce.sh || status=$?
        case "$status" in
            124) reason="the guest did not come to its end in ${SOFT_ROCE_SECONDS:-470} s" ;;
            125) reason="the guest could not be run" ;;
            *) return "$status" ;;
        esac
    else
        reason="the guest could not be prepared: its packages are unavailable (apt-get update, python3, cc)"
    fi
    cannot "RDMA NOT tested: $reason"
}

# A real Prometheus over two tasks. Asked for by name it must run; among all steps it says loudly where it cannot.
step_metrics() {
    cargo build --locked --quiet
    local status=0
    RENDEZ="$built/debug/rendez" scripts/prometheus.sh || status=$?
    if [ "$status" -eq 3 ]; then
        cannot "metrics NOT scraped by a real Prometheus: its package cannot be had here"
        return
    fi
    return "$status"
}

# Parsers, each for a few seconds: enough to find what a change has just broken. Needs a nightly toolchain.
step_fuzz() {
    has_time fuzz 720 "parsers NOT fuzzed" || return 0
    if ! cargo +nightly --version >/dev/null 2>&1; then
        cannot "fuzzing skipped: there is no nightly toolchain"
        return
    fi
    scripts/fuzz.sh "${FUZZ_SECONDS:-5}"
}

# Each sanitizer wants a build of everything, its own: minutes on two cores, so it is no step of every run.
step_sanitize() {
    if ! cargo +nightly --version >/dev/null 2>&1; then
        cannot "sanitizers skipped: there is no nightly toolchain"
        return
    fi
    scripts/sanitize.sh
}

# A build for each mutant: minutes again.
step_mutants() {
    scripts/mutants.sh
}

# Licences, bans and sources need no network and are always checked. The advisories lie in a git repository: where it
# cannot be reached this says so, at its place and again at the end, and still fails if what was fetched before objects.
step_deny() {
    if [ "$(cargo deny --version 2>/dev/null)" != "cargo-deny $deny_version" ]; then
        # Some five minutes on two cores.
        has_time deny 420 "licences, bans and advisories NOT checked" || return 0
        cargo install --locked "cargo-deny@$deny_version" --root "$tools" --target-dir "$tools/build"
        rm -rf "$tools/build"
    fi
    local config=(--config scripts/deny.toml)
    cargo deny "${config[@]}" check licenses bans sources
    if cargo deny "${config[@]}" fetch db; then
        cargo deny "${config[@]}" check advisories
    elif compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/*/crates" >/dev/null; then
        warn "advisories checked against an OLD copy: the advisory database could not be reached"
        cargo deny --offline "${config[@]}" check advisories
    else
        cannot "advisories NOT checked: the advisory database could not be reached and no copy of it is here"
    fi
}

if [ $# -gt 0 ]; then
    steps=("$@"); is_asked=yes
else
    # Each thing is built once: what a compiler would keep for the next build is a gigabyte that nothing reads.
    export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
fi
mkdir -p target
rm -f "$RENDEZ_TEST_SKIPPED"
for step in "${steps[@]}"; do
    case "$step" in
        tools | fmt | clippy | test | long | capi | python | torch | doc | book | sim | counts | nemesis | metrics | soft-roce | fuzz | deny | sizes | sanitize | mutants) ;;
        *) echo "ci: no such step: $step" >&2; exit 2 ;;
    esac
    current="$step"
    # Linkers that find no room die of a bus error, which says nothing.
    printf '\n== %s (free here: %d MB)\n' "$step" "$(df -Pm . | awk 'NR == 2 { print $4 }')"
    began=$SECONDS
    "step_$step"
    while read -r line; do warn "NOT tested: $line"; done < <(sort -u "$RENDEZ_TEST_SKIPPED" 2>/dev/null || true)
    rm -f "$RENDEZ_TEST_SKIPPED"
    timings+="$(printf '  %-9s %4d s' "$step" $((SECONDS - began)))"$'\n'
done
current="done"
printf '\nci: passed\n%s' "$timings"
if [ -n "$warnings" ]; then
    printf 'ci: with warnings\n%s' "$warnings"
    [ -z "${CI_STRICT:-}" ] || { current="done: CI_STRICT takes warnings for failures"; exit 3; }
fi
