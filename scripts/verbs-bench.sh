#!/usr/bin/env bash
# RDMA beside the perftest of the same run: the ratio of rendez to ib_write_lat and ib_write_bw, on real hardware.
#   scripts/verbs-bench.sh DEVICE[,DEVICE]         both ends on this machine, one device each, or both on one
#   scripts/verbs-bench.sh DEVICE far HOST         the near end of two: on HOST run
#   scripts/verbs-bench.sh DEVICE serve            the far end, first
# Wants the packages perftest and rdma-core, a release build, and a device with an active port; PORT, GID_INDEX,
# SECONDS_EACH=3 of rendez and ROUNDS=5000 of perftest change what is used. The bar: at most 1.25 times the latency, at least 0.95 times the bandwidth.
# Exit code: 0 within the bar, 1 beyond it, 2 what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

missing() { printf 'verbs-bench: %s\n' "$*" >&2; exit 2; }
devices="${1:-}"
[ -n "$devices" ] || missing "name a device: ls /sys/class/infiniband"
near="${devices%%,*}"
far="${devices##*,}"
for device in "$near" "$far"; do
    [ "${2:-}" = far ] || [ -d "/sys/class/infiniband/$device" ] || missing "there is no device $device"
done
for tool in ib_write_lat ib_write_bw; do
    command -v "$tool" >/dev/null || missing "there is no $tool: install the package perftest"
done
rendez="${RENDEZ:-${CARGO_TARGET_DIR:-target}/release/rendez}"
[ -x "$rendez" ] || missing "there is no $rendez: cargo build --release"

each="${SECONDS_EACH:-3}"
rounds="${ROUNDS:-5000}"
port=18515
export RENDEZ_VERBS_DEVICE="$devices"
options=(--ib-port "${PORT:-1}" --CPU-freq)
if [ -n "${GID_INDEX:-}" ]; then options+=(--gid-index "$GID_INDEX"); export RENDEZ_VERBS_GID_INDEX="$GID_INDEX"; fi
if [ -n "${PORT:-}" ]; then export RENDEZ_VERBS_PORT="$PORT"; fi

if [ "${2:-}" = serve ]; then
    export RENDEZ_VERBS_DEVICE="$far"
    "$rendez" bench --listen "0.0.0.0:18600" --insecure --poll busy &
    trap 'kill %1 2>/dev/null || true' EXIT
    # As many as the near end asks for, in its order.
    while true; do
        ib_write_lat --ib-dev "$far" "${options[@]}" --port "$port" -s 64 -n "$rounds" >/dev/null || sleep 0.2
        ib_write_bw --ib-dev "$far" "${options[@]}" --port "$port" -s 4194304 -n $((rounds / 5)) >/dev/null || sleep 0.2
    done
fi

host=127.0.0.1
connect=()
if [ "${2:-}" = far ]; then
    host="${3:?the far host}"
    connect=(--connect "$host:18600" --insecure)
fi

# Waits, half a minute at most, until the server $1 listens: on a slow machine a client came before it, and gave up.
listens() {
    local left
    for ((left = 300; left > 0; left--)); do
        grep -q ":$(printf %04X "$port") [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6 && return
        kill -0 "$1" 2>/dev/null || break
        sleep 0.1
    done
    printf 'verbs-bench: the server of perftest does not listen at port %s\n' "$port" >&2
}

# The figure of one run of $4 rounds: of the line of numbers, field $3.
reference() {
    local tool="$1" size="$2" field="$3" count="$4" server= said
    if [ "$host" = 127.0.0.1 ]; then
        "$tool" --ib-dev "$far" "${options[@]}" --port "$port" -s "$size" -n "$count" >/dev/null &
        server=$!
        listens "$server"
    fi
    said="$("$tool" --ib-dev "$near" "${options[@]}" --port "$port" -s "$size" -n "$count" "$host" 2>&1)" ||
        printf '%s\n' "$said" >&2
    awk -v size="$size" -v field="$field" '$1 == size { print $field }' <<<"$said"
    # No client comes any more to a server that got none.
    [ -z "$server" ] || { sleep 1; kill "$server" 2>/dev/null || true; wait "$server" || true; }
}

# The figure of rendez: part $4 of field $3 of the row it prints.
own() {
    "$rendez" bench "$1" --transport verbs --size "$2" --duration "${each}s" --poll busy --json "${connect[@]}" |
        sed -n 's/.*"'"$3"'":{[^}]*"'"$4"'":\([0-9.]*\).*/\1/p'
}

# The typical time of one way, and the mean rate.
latency="$(reference ib_write_lat 64 5 "$rounds")"
bandwidth="$(reference ib_write_bw 4194304 4 $((rounds / 5)))"
[ -n "$latency" ] && [ -n "$bandwidth" ] || missing "perftest gave no figures"
own_ns="$(own pingpong 64 half_rtt_ns p50)"
own_bytes="$(own oneway 4194304 bytes_per_s mean)"
[ -n "$own_ns" ] && [ -n "$own_bytes" ] || missing "rendez gave no figures"
awk -v reference="$latency" -v own="$own_ns" -v stream="$bandwidth" -v bytes="$own_bytes" 'BEGIN {
    # ib_write_lat tells of one way in microseconds, as half_rtt_ns does in nanoseconds. ib_write_bw counts MiB.
    ours = own / 1000; rate = bytes / 1048576
    printf "64 B one way    ib_write_lat %8.2f us    rendez %8.2f us    ratio %.2f (bar 1.25)\n", reference, ours,
        ours / reference
    printf "4 MiB stream    ib_write_bw %9.0f MiB/s rendez %8.0f MiB/s ratio %.2f (bar 0.95)\n", stream, rate,
        rate / stream
    exit !(ours / reference <= 1.25 && rate / stream >= 0.95)
}'
