#!/usr/bin/env bash
# Measures on this machine the promises of bench/PROMISES.md that two cores can show without Python, PyTorch, TensorFlow
# or valgrind, and prints what is measured; not those of RDMA, device memory and remote calls. Takes about
# seven minutes after it is built. Needs two free cores: whatever else runs shows in p99 and above.
#   scripts/promises.sh            all of them
#   RUNS=3 scripts/promises.sh     three times: machines are noisy, quote the best
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --release --locked --quiet
rendez="${CARGO_TARGET_DIR:-target}/release/rendez"

say() { printf '\n== %s\n' "$*"; }

# The same hand-over with stages and recorder, and built without them: in turns, so that both see the same machine.
what_seeing_costs() {
    local turn
    cp "$rendez" target/rendez-seen
    cargo build --release --locked --quiet -p rendez-cli --no-default-features --features verbs
    cp "$rendez" target/rendez-unseen
    cargo build --release --locked --quiet
    for turn in 1 2 3; do
        printf 'turn %s, with and without\n' "$turn"
        target/rendez-seen bench --size 4,64,1KiB,64KiB --duration 2s
        target/rendez-unseen bench --size 4,64,1KiB,64KiB --duration 2s
    done
    rm -f target/rendez-seen target/rendez-unseen
}

# One task that serves and a client that spins, and tonic's two, in turns; nothing is left behind.
control_calls() (
    served=""
    directory="$(mktemp -d)"
    stop() { [ -z "$served" ] || { kill -TERM "$served" 2>/dev/null || true; wait "$served" || true; served=""; }; }
    trap 'stop; rm -rf "$directory"' EXIT
    printf 'shards = 1\nshare_cores = true\n[cluster]\na = ["127.0.0.1:%d"]\n' "${BASE:-21000}" > "$directory/cluster.toml"
    for turn in 1 2 3 4 5; do
        printf 'turn %s, rendez and tonic\n' "$turn"
        $rendez serve --config "$directory/cluster.toml" --job a --task 0 --poll busy > /dev/null &
        served=$!
        $rendez ping --config "$directory/cluster.toml" --require tcp --poll busy --count 10000
        stop
        cargo run --release --quiet --manifest-path bench/tonic/Cargo.toml --target-dir target/tonic
    done
)

for run in $(seq "${RUNS:-1}"); do
    printf '\n#### run %s, load %s\n' "$run" "$(cut -d' ' -f1 /proc/loadavg)"
    say "1-4  cross-process, small, both ready: half round trips against the raw cache lines"
    $rendez bench --size 4,64,1KiB --baseline --duration 2s
    say "5    the same from application threads"
    $rendez bench --size 4,64,1KiB --from thread --duration 2s
    say "6-7  cross-process by lease, bytes not touched: constant in size"
    $rendez bench --size 64KiB,64MiB --baseline --duration 1s
    say "8    16 MiB written in place, handed over, read in place: the whole cycle (rtt) against the raw one"
    $rendez bench --size 16MiB --touch --baseline --duration 2s --json
    say "9    between two cores of one process"
    $rendez bench --transport loopback --size 4 --baseline --duration 2s
    say "10   send and receive within one shard"
    $rendez bench rate --transport local --size 4 --duration 2s
    say "11   small tensors one way, cross-process"
    $rendez bench rate --size 4 --duration 2s
    say "13   1 and a million parked keys, received at random in bursts of 64"
    $rendez bench rate --transport local --size 4 --parked 1 --duration 1s
    $rendez bench rate --transport local --size 4 --parked 1000000 --duration 2s
    say "14   rendez demo"
    ( TIMEFORMAT='%R s wall'; time $rendez demo >/dev/null )

    say "beside UCX and iceoryx2   the same hand-overs by those, in turns (installs ucx-utils)"
    PAIRS=3 scripts/vs-peers.sh

    say "across machines 1     tcp, 64 B: half round trips against bare spinning sockets"
    $rendez bench --transport tcp --size 64 --baseline --duration 500ms
    say "across machines 2     tcp, 16 MiB stream at its receiver against a bare socket's"
    $rendez bench rate --transport tcp --size 16MiB --baseline --duration 500ms --warmup 200ms
    say "across machines 3, 8-9  a TCP port with 255 idle peers beside the busy one; streams under TLS"
    cargo test --release --locked --quiet --test conformance bare_socket -- --ignored --nocapture
    say "across machines 4     a call of the control plane, 64 B, whole round trips; and tonic's, half round trips"
    control_calls
    say "across machines 5-6   connect with a secret, and with TLS"
    cargo test --release --locked --quiet --test costs -- --ignored connect:: --nocapture
    say "across machines 7, 10   16 and 64 tasks, fully meshed, and what they hold"
    scripts/mesh.sh 16
    scripts/mesh.sh 64

    say "reliability 1-4      a minute of real processes under faults: the worst of each bound (as root)"
    SEED=1 scripts/nemesis.sh 60

    say "seen 1, 4 and 5       what stages and recorder cost, and whether the stages leave nothing out"
    what_seeing_costs
    $rendez bench --size 4,64,1KiB --duration 2s --json | \
        grep -o '"bytes":[0-9]*\|"stage_sum_over_mean":[0-9.]*\|"timed_over_all":[0-9.]*' | uniq

    say "executor 1-3          a trivial node, a node in a loop, a hop between two tasks"
    cargo bench --locked --quiet --bench executor
    say "executor 5            a graph of 10 000 and of 100 000 nodes: cut and registered"
    cargo bench --locked --quiet --bench graphs

    say "parts                 rings, the table, a tensor's life, a hop's own work"
    cargo test --release --locked --quiet --test conformance raw_cache_line -- --ignored --nocapture
    cargo test --release --locked --quiet --test costs -- --ignored table:: --nocapture
    cargo test --release --locked --quiet --test costs -- --ignored memory:: --nocapture
    cargo test --release --locked --quiet -p rendez-core --test hop_cost -- --ignored --nocapture
done
