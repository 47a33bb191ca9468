#!/usr/bin/env bash
# Runs what touches memory by hand, or from several threads and processes, under the compiler's sanitizers.
#   scripts/sanitize.sh                   address
#   scripts/sanitize.sh address thread    and thread
#   SANITIZE_TOOLCHAIN=nightly-2026-05-15 scripts/sanitize.sh
# Needs a nightly toolchain, and thread its rust-src component too: it is added where it can be had.
#   address   takes the standard library as it comes: what std and C do goes through the allocator and the copies that
#             the sanitizer replaces.
#   thread    builds the standard library as well, or it would not see what std's own locks order. It does not see
#             fences, nor what goes over descriptors to other processes; where orders matter, loom goes through them
#             (tests/loom_*.rs).
# The builds lie in target/sanitize; a first one takes minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

toolchain="${SANITIZE_TOOLCHAIN:-nightly}"
if ! cargo "+$toolchain" --version >/dev/null 2>&1; then
    echo "sanitize: no $toolchain toolchain; get one with 'rustup toolchain install $toolchain', or name another in SANITIZE_TOOLCHAIN" >&2
    exit 1
fi
host="$(rustc "+$toolchain" -vV | sed -n 's/^host: //p')"
# For the program's own crates and their dependencies, not for build scripts: those are for the host.
export CARGO_PROFILE_DEV_DEBUG=line-tables-only CARGO_INCREMENTAL=0

std=()
sanitize() {
    local which="$1" what
    shift
    export CARGO_TARGET_DIR="$PWD/target/sanitize/$which"
    # A library that a program loads, as the played driver of CUDA, finds the sanitizer in the program.
    export RUSTFLAGS="-Zsanitizer=$which -Cunsafe-allow-abi-mismatch=sanitizer -Cforce-frame-pointers=yes -Clink-arg=-rdynamic"
    for what in "$@"; do
        printf '== %s: %s\n' "$which" "$what"
        # shellcheck disable=SC2086 # words on purpose
        cargo "+$toolchain" test --locked --quiet --profile checked --target "$host" "${std[@]}" $what
    done
}

run_address() {
    std=()
    export ASAN_OPTIONS="detect_stack_use_after_return=1:strict_string_checks=1:exitcode=99"
    export LSAN_OPTIONS="suppressions=$PWD/scripts/lsan.supp:print_suppressions=0"
    sanitize address \
        "-p rendez-core --lib -- memory:: fabric:: trace:: mail:: shard:: testing:: wire:: channel::" \
        "--test conformance" \
        "--test engine foreign_memory::" \
        "--test engine private_memory::" \
        "--test program end_to_end::"
}

run_thread() {
    if [ ! -e "$(rustc "+$toolchain" --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" ]; then
        rustup component add rust-src --toolchain "$toolchain"
    fi
    std=(-Zbuild-std)
    export TSAN_OPTIONS="second_deadlock_stack=1:exitcode=99"
    sanitize thread \
        "-p rendez-core --lib -- memory:: fabric:: trace:: mail:: shard:: testing::" \
        "--test conformance" \
        "--test engine drive::"
}

if [ $# -eq 0 ]; then set -- address; fi
for which in "$@"; do
    case "$which" in
        address | thread) ;;
        *) echo "sanitize: no sanitizer '$which'; there are address and thread" >&2; exit 2 ;;
    esac
done
for which in "$@"; do
    began=$SECONDS
    "run_$which"
    printf 'sanitize: %s passed, %d s\n' "$which" $((SECONDS - began))
done
