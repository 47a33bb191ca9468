#!/usr/bin/env bash
# What takes too long for every change: run by night, or before a release. Writes a dated table to bench/NIGHTLY.md.
#   scripts/nightly.sh                      every part, one after the other: some four hours on two cores
#   scripts/nightly.sh seeds mutants        only these parts
#   scripts/nightly.sh --list               which parts there are, and about how long each takes
#   FIRST=5000000 SEEDS=200000 NEMESIS_SECONDS=1800 scripts/nightly.sh    other worlds, and more of them
#   OUT=path.md scripts/nightly.sh          writes there instead
#   LOGS=folder scripts/nightly.sh          keeps what each part printed; target/nightly otherwise
#   PATIENCE=12 scripts/nightly.sh          ends a part after so many times what --list says, or half an hour; 6 otherwise
# A part that fails does not stop the others; then the script fails at its end. A part that cannot run here (no
# nightly toolchain, no network namespaces) is marked as skipped, with the reason, and is no failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

# The timed ones first: they want a quiet machine, and nothing else runs then.
all=(nemesis peers seeds graphs calls passes long sizes release deny torch mutants address thread fuzz linked soft-roce kernel-tls)
out="${OUT:-bench/NIGHTLY.md}"
logs="$(readlink -m "${LOGS:-target/nightly}")"
patience="${PATIENCE:-6}"
# Other worlds every night, the same ones whenever that night is repeated: days since 1970.
day=$(($(date -u +%s) / 86400))
first="${FIRST:-$((day * 100000))}"
seeds="${SEEDS:-100000}"
nemesis_seconds="${NEMESIS_SECONDS:-600}"
nemesis_seed="${NEMESIS_SEED:-$day}"
fuzz_seconds="${FUZZ_SECONDS:-120}"

describe() {
    case "$1" in
        nemesis) echo "scripts/nemesis.sh $nemesis_seconds, SEED=$nemesis_seed: real processes under real faults (10 min)" ;;
        peers) echo "scripts/vs-peers.sh: beside UCX and iceoryx2 (6 min)" ;;
        seeds) echo "tests/sim, FIRST=$first SEEDS=$seeds: worlds with faults in virtual time (5 min)" ;;
        graphs) echo "tests/sim, FIRST=$first SEEDS=3000 graphs: worlds in which graphs run over tasks that die (2 min)" ;;
        calls) echo "src/rpc, FIRST=$first SEEDS=$seeds: workers that die, pause and are cut off in virtual time (3 min)" ;;
        passes) echo "src/autograd, FIRST=$first SEEDS=$seeds: backward passes over such workers (3 min)" ;;
        long) echo "engines that come and go, flat memory, races and properties, for longer; FIRST=$first (20 min)" ;;
        sizes) echo "scripts/ci.sh sizes: the size of the command, and instructions of a pass (8 min)" ;;
        release) echo "scripts/release/release.sh gnu deb sums: what people install is packed (10 min)" ;;
        deny) echo "scripts/ci.sh deny: licences, bans and advisories (1 min; 5 to build cargo-deny)" ;;
        torch) echo "scripts/torch-suites.sh all: PyTorch's own suites over rendez (25 min)" ;;
        mutants) echo "scripts/mutants.sh: what is broken on purpose is found (10 min)" ;;
        address) echo "scripts/sanitize.sh address (15 min)" ;;
        thread) echo "scripts/sanitize.sh thread (30 min)" ;;
        fuzz) echo "scripts/fuzz.sh $fuzz_seconds: parsers (30 min)" ;;
        linked) echo "the feature verbs-linked: libibverbs by rdma-sys, its structs held against ours (10 min)" ;;
        soft-roce) echo "scripts/soft-roce.sh: RDMA in an emulated guest (10 min)" ;;
        kernel-tls) echo "scripts/soft-roce.sh tls_kernel: TLS in the kernel, at both ends and at one (30 min)" ;;
        *) return 1 ;;
    esac
}

has_nightly() { cargo +nightly --version >/dev/null 2>&1; }

has_namespaces() {
    local probe="nightly-probe-$$"
    [ "$(id -u)" -eq 0 ] && ip netns add "$probe" 2>/dev/null && ip netns del "$probe"
}

has_ucx() {
    [ -n "${UCX_PERFTEST:-}" ] || command -v ucx_perftest >/dev/null || [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null
}

has_torch() {
    compgen -G "$HOME/.cache/rendez/torch-*/bin/python" >/dev/null || [ -n "${RENDEZ_TORCH_ENV:-}" ] ||
        timeout 30 python3 -m pip index versions torch >/dev/null 2>&1
}

# Why a part cannot run here; nothing if it can.
obstacle() {
    case "$1" in
        nemesis) has_namespaces || echo "no network namespaces (they need root and iproute2)" ;;
        peers) has_ucx || echo "no ucx_perftest, and only root can install it" ;;
        torch) has_torch || echo "no PyTorch, and none can be fetched" ;;
        release) command -v dpkg-deb >/dev/null && command -v readelf >/dev/null || echo "no dpkg-deb or no binutils" ;;
        linked) pkg-config --exists libibverbs librdmacm || echo "no libibverbs-dev, librdmacm-dev or libclang-dev" ;;
        address | thread | fuzz) has_nightly || echo "no nightly toolchain" ;;
    esac
}

run() {
    case "$1" in
        nemesis) SEED="$nemesis_seed" scripts/nemesis.sh "$nemesis_seconds" ;;
        peers) OUT="$logs/peers.md" scripts/vs-peers.sh ;;
        seeds) FIRST="$first" SEEDS="$seeds" cargo test --locked --release --test sim seeds ;;
        # Each task that dies leaves descriptors in the process that plays it: no more worlds than these in one.
        graphs) FIRST="$first" SEEDS=3000 cargo test --locked --release --test sim graphs::graphs ;;
        calls) FIRST="$first" SEEDS="$seeds" cargo test --locked --release -p rendez-rpc --lib node::tests::seeds ;;
        passes) FIRST="$first" SEEDS="$seeds" cargo test --locked --release -p rendez-autograd --lib autograd::tests::seeds ;;
        long)
            RENDEZ_TEST_CYCLES=3000 cargo test --locked --release --test cycles
            RENDEZ_FLAT_KEYS=1000000 RENDEZ_FLAT_VISITS=10000 cargo test --locked --release --test flat_memory
            RACES=20000 cargo test --locked --release --test engine unread
            FIRST="$first" RENDEZ_AUTOGRAD_SEEDS=100000 cargo test --locked --release -p rendez-autograd --lib \
                autograd::tests
            PROPTEST_CASES=20000 cargo test --locked --release -p rendez --lib control::
            PROPTEST_CASES=20000 cargo test --locked --release -p rendez-rpc --lib codec
            PROPTEST_CASES=2000 cargo test --locked --release --test oracle_table
            ;;
        sizes | deny) scripts/ci.sh "$1" ;;
        # The command is there if `sizes` went before.
        release)
            cargo build --locked --release
            local made="$logs/dist"
            rm -rf "$made"
            RENDEZ="${CARGO_TARGET_DIR:-target}/release/rendez" OUT="$made" scripts/release/release.sh gnu deb sums
            dpkg-deb --contents "$made"/*.deb
            for archive in "$made"/*.tar.gz; do tar -tzf "$archive"; done
            (cd "$made" && sha256sum --check SHA256SUMS)
            ;;
        torch) scripts/torch-suites.sh all ;;
        mutants) scripts/mutants.sh ;;
        address | thread) scripts/sanitize.sh "$1" ;;
        fuzz) scripts/fuzz.sh "$fuzz_seconds" ;;
        linked) cargo test --locked --no-default-features --features verbs-linked --test verbs layout ;;
        soft-roce) scripts/soft-roce.sh ;;
        kernel-tls) TIMEOUT=3600 scripts/soft-roce.sh tls_kernel ;;
    esac
}

child=""
trap '[ -z "$child" ] || { kill "$child"; wait "$child"; } 2>/dev/null; exit 130' INT TERM
# Runs a part in a process group of its own, so that it ends with all that it started.
bounded() {
    local minutes status=0
    minutes="$(describe "$1" | sed 's/.*(\([0-9]*\) min.*/\1/')"
    minutes=$((minutes * patience > 30 ? minutes * patience : 30))
    # What it was told to do for longer than usual takes that much more.
    case "$1" in
        nemesis) minutes=$((minutes + nemesis_seconds / 60)) ;;
        seeds | calls | passes) minutes=$((minutes * (1 + seeds / 100000))) ;;
        fuzz) minutes=$((minutes * (1 + fuzz_seconds / 120))) ;;
    esac
    timeout --kill-after=60 $((minutes * 60)) bash -euo pipefail -c 'run "$1"' run "$1" &
    child=$!
    wait "$child" || status=$?
    child=""
    [ "$status" -ne 137 ] || status=124
    [ "$status" -ne 124 ] || echo "nightly: $1 was ended after $minutes minutes"
    return "$status"
}
export -f run
export first seeds logs nemesis_seconds nemesis_seed fuzz_seconds

if [ "${1:-}" = --list ]; then
    for part in "${all[@]}"; do printf '%-10s %s\n' "$part" "$(describe "$part")"; done
    exit 0
fi
parts=("$@")
[ $# -gt 0 ] || parts=("${all[@]}")
for part in "${parts[@]}"; do
    describe "$part" >/dev/null || { echo "nightly: no such part: $part (see scripts/nightly.sh --list)" >&2; exit 2; }
done

mkdir -p "$logs" "$(dirname "$out")"
commit="$(git rev-parse --short HEAD)"
git diff --quiet HEAD -- || commit+=" with changes"
failed=()
if [ ! -e "$out" ]; then
    cat >"$out" <<'HEAD'
# Nightly

What `scripts/nightly.sh` has seen, the newest night last. Each row is a part of it, with the command that repeats it.
HEAD
fi
{
    printf '\n## %s, %s\n\n' "$(date -u +%F)" "$commit"
    printf '%s, %s cores, Linux %s.\n\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)" "$(nproc)" "$(uname -r)"
    printf '| part | result | took | what |\n|---|---|---|---|\n'
} >>"$out"
row() {
    printf '| %s | %s | %s | %s |\n' "$1" "$2" "$3" "$(describe "$1" | sed 's/ ([0-9]* min)$//')" >>"$out"
}
for part in "${parts[@]}"; do
    printf '\n== %s: %s\n' "$part" "$(describe "$part")"
    reason="$(obstacle "$part")"
    if [ -n "$reason" ]; then
        printf 'skipped: %s\n' "$reason"
        row "$part" "skipped: $reason" –
        continue
    fi
    began=$SECONDS
    status=0
    bounded "$part" > >(tee "$logs/$part.log") 2>&1 || status=$?
    case "$part $status" in
        *" 0") result=passed ;;
        "deny 3" | "torch 3" | "soft-roce 125" | "kernel-tls 125") result="skipped: what it needs cannot be had" ;;
        *" 124") result="**ended**, it took too long"; failed+=("$part") ;;
        *) result="**failed**"; failed+=("$part") ;;
    esac
    row "$part" "$result" "$((SECONDS - began)) s"
done
printf '\nwritten to %s; logs in %s\n' "$out" "$logs"
if [ "${#failed[@]}" -gt 0 ]; then
    echo "nightly: FAILED: ${failed[*]}" >&2
    exit 1
fi
