#!/usr/bin/env bash
# Measures every promise of bench/PROMISES.md on this machine, in the order they stand there, and prints what the
# commands print. Takes about a minute and a half. Needs two free cores: whatever else runs shows in p99 and above.
#   scripts/promises.sh            all of them
#   RUNS=3 scripts/promises.sh     three times: machines are noisy, quote the best
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --release --locked --quiet
rendez=target/release/rendez

say() { printf '\n== %s\n' "$*"; }

for run in $(seq "${RUNS:-1}"); do
    printf '\n#### run %s, load %s\n' "$run" "$(cut -d' ' -f1 /proc/loadavg)"
    say "1-3  cross-process, small, both ready: half round trips against the raw cache line"
    $rendez bench --size 4,64,1KiB --baseline --duration 2s
    say "4    the same from application threads"
    $rendez bench --size 4 --from thread --duration 2s
    say "5    cross-process by lease, bytes not touched: constant in size"
    $rendez bench --size 64KiB,64MiB --baseline --duration 1s
    say "6    16 MiB written in place, handed over, read in place: the whole cycle (rtt) against the raw one"
    $rendez bench --size 16MiB --touch --baseline --duration 2s --json
    say "7    between two cores of one process"
    $rendez bench --transport loopback --size 4 --baseline --duration 2s
    say "8    send and receive within one shard"
    $rendez bench rate --transport local --size 4 --duration 2s
    say "9    small tensors one way, cross-process"
    $rendez bench rate --size 4 --duration 2s
    say "10   1 and a million parked keys, received at random in bursts of 64"
    $rendez bench rate --transport local --size 4 --parked 1 --duration 1s
    $rendez bench rate --transport local --size 4 --parked 1000000 --duration 2s
    say "11   rendez demo"
    ( TIMEFORMAT='%R s wall'; time $rendez demo >/dev/null )
done
