#!/usr/bin/env bash
# What a scrape of /metrics takes where a task has many peers: times of so many scrapes. A shard has done its part of a
# scrape before the page is there, so for none does it stall longer than that took. Fails where a scrape does.
#   scripts/scrape.sh            64 peers, 200 scrapes
#   scripts/scrape.sh 16 50      so many
# RENDEZ names the program, BASE the first of the ports: of the tasks, and after them of their metrics.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

peers="${1:-64}"
scrapes="${2:-200}"
rendez="${RENDEZ:-${CARGO_TARGET_DIR:-target}/release/rendez}"
base="${BASE:-22000}"
[ -x "$rendez" ] || { echo "scrape: no $rendez: run 'cargo build --release' first" >&2; exit 1; }
command -v curl >/dev/null || { echo "scrape: no curl: apt-get install curl" >&2; exit 1; }

directory="$(mktemp -d)"
up=""
end() {
    if [ -n "$up" ] && kill -0 "$up" 2>/dev/null; then kill -INT "$up"; wait "$up" || true; fi
    rm -rf "$directory"
}
trap end EXIT

{
    printf 'shards = 1\nshare_cores = true\npoll = "adaptive"\nmetrics = "127.0.0.1:%d"\n\n[cluster]\nworker = [' \
        $((base + peers + 1))
    for index in $(seq 0 "$peers"); do printf '"127.0.0.1:%d", ' $((base + index)); done
    echo ']'
} >"$directory/cluster.toml"
"$rendez" up "$directory/cluster.toml" --check >"$directory/log" 2>&1 &
up=$!
url="http://127.0.0.1:$((base + peers + 1))/metrics"
page() { curl -sf --max-time 5 "$url"; }
connected() { page | grep -c '^rendez_peer_connected{' || true; }
for _ in $(seq 600); do
    [ "$(connected)" -lt "$peers" ] || [ "$(grep -c 'every byte right' "$directory/log")" -lt $((peers * (peers + 1))) ] || break
    kill -0 "$up" || { tail -n 5 "$directory/log" >&2; exit 1; }
    sleep 0.2
done
[ "$(connected)" -ge "$peers" ] || { echo "scrape: only $(connected) of $peers peers came" >&2; exit 1; }
sleep 1

# A page is kept for a tenth of a second: each is to be a new one.
for index in $(seq "$scrapes"); do
    sleep 0.12
    curl -sSf --max-time 5 -o "$directory/page" -w '%{time_total}\n' "$url" ||
        { echo "scrape: scrape $index failed" >&2; exit 1; }
done | sort -g >"$directory/times"
grep -q '^rendez_poll_turns_total' "$directory/page" || { echo "scrape: the page tells of no shard" >&2; exit 1; }
awk -v peers="$peers" -v bytes="$(wc -c <"$directory/page")" '{ ms[NR] = $1 * 1000 } END {
    printf "%d peers, a page of %d bytes, %d scrapes: p50 %.2f ms, p99 %.2f ms, max %.2f ms\n",
        peers, bytes, NR, ms[int((NR + 1) / 2)], ms[int(NR * 0.99 + 0.5)], ms[NR]
}' "$directory/times"
