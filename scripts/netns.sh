#!/usr/bin/env bash
# Three hosts of one machine: network namespaces on one switch. Two tasks of a cluster exchange tensors over TCP; ranks
# find each other though a host takes its own name for a loopback address; an outsider tries to get in; the link is cut and mended, and cut for good. Needs root and iproute2, takes half a minute,
# and leaves nothing behind.
#   scripts/netns.sh                    builds the release program first
#   RENDEZ=path/to/rendez scripts/netns.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rendez="${RENDEZ:-}"
if [ -z "$rendez" ]; then
    cargo build --release --locked --quiet
    rendez="${CARGO_TARGET_DIR:-$PWD/target}/release/rendez"
fi

id="rz$$"
work="$(mktemp -d)"
pids=()

cleanup() {
    local pid host
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    for host in a b x switch; do ip netns del "$id-$host" 2>/dev/null || true; rm -rf "/etc/netns/$id-$host"; done
    rmdir /etc/netns 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

fail() {
    printf 'netns: FAILED: %s\n' "$*" >&2
    local file
    for file in "$work"/*.log; do printf -- '--- %s\n' "${file##*/}" >&2; tail -n 20 "$file" >&2; done
    exit 1
}
say() { printf 'netns: %s\n' "$*"; }
on() { local host="$1"; shift; ip netns exec "$id-$host" "$@"; }

# Starts a command on a host in the background, with its output in $work/NAME.log; its process is $started.
begin() {
    local name="$1" host="$2"; shift 2
    # What a former one of that name said must not be taken for this one's.
    : >"$work/$name.log"
    (exec ip netns exec "$id-$host" env RENDEZ_LOG=rendez=info "$@" >"$work/$name.log" 2>&1) &
    started=$!
    pids+=("$started")
}

# Waits until a file has a line, for at most so many tenths of a second.
await() {
    local file="$1" line="$2" tenths="$3"
    for ((; tenths > 0; tenths--)); do
        grep -q -- "$line" "$file" 2>/dev/null && return
        sleep 0.1
    done
    fail "no line '$line' in ${file##*/}"
}

received() { on b cat /sys/class/net/eth0/statistics/rx_bytes; }
cut_link() { on switch ip link set to-b down; }
mend_link() { on switch ip link set to-b up; }

# ── hosts ──
ip netns add "$id-switch"
on switch ip link add switch type bridge
on switch ip link set switch up
at=0
for host in a b x; do
    at=$((at + 1))
    ip netns add "$id-$host"
    ip link add "to-$host" netns "$id-switch" type veth peer name eth0 netns "$id-$host"
    on switch ip link set "to-$host" master switch up
    on "$host" ip address add "10.77.0.$at/24" dev eth0
    on "$host" ip link set eth0 up
    on "$host" ip link set lo up
done

head -c 32 /dev/urandom | base64 >"$work/secret"
head -c 32 /dev/urandom | base64 >"$work/guess"
chmod 600 "$work/secret" "$work/guess"
cat >"$work/cluster.toml" <<TOML
shards = 1
share_cores = true
poll = "park"
failure_detection = "4s"
[cluster]
a = ["10.77.0.1:29700"]
b = ["10.77.0.2:29700"]
TOML
common=(--config "$work/cluster.toml" --cluster-secret-file "$work/secret")
a=(--job a --task 0)
b=(--job b --task 0)

# ── the demonstration's tensors ──
begin pull b "$rendez" pull "${common[@]}" "${b[@]}" --from /job:a/task:0
on a "$rendez" push "${common[@]}" "${a[@]}" --to /job:b/task:0 >"$work/push.log" 2>&1 || fail "the push failed"
wait "$started" || fail "the pull failed"
grep -q 'over tcp: 12 tensors, .* every byte right' "$work/pull.log" || fail "the tensors did not come over tcp"
say "two hosts exchanged the demonstration's tensors over tcp"

# ── ranks, and names that mean something else at home ──
# Debian writes a machine's own name beside 127.0.1.1. Two ranks are on the root's machine, and a third on another, which
# listens at all its addresses.
for host in a b; do mkdir -p "/etc/netns/$id-$host"; done
printf '127.0.0.1 localhost\n127.0.1.1 host-a\n' >"/etc/netns/$id-a/hosts"
printf '127.0.0.1 localhost\n10.77.0.1 host-a\n' >"/etc/netns/$id-b/hosts"
grep -v '^\[cluster\]\|^[ab] = ' "$work/cluster.toml" >"$work/rooted.toml"
ranks=()
for place in 0:a 1:a 2:b; do
    rank="${place%:*}"
    launched=(env RANK="$rank" WORLD_SIZE=3 MASTER_ADDR=host-a MASTER_PORT=29755)
    [ "$rank" != 2 ] || launched+=(RENDEZ_LISTEN=0.0.0.0:0)
    begin "rank$rank" "${place#*:}" "${launched[@]}" "$rendez" serve --check --once --config "$work/rooted.toml" \
        --cluster-secret-file "$work/secret"
    ranks+=("$started")
done
for rank in "${ranks[@]}"; do wait "$rank" || fail "the ranks did not find each other"; done
for rank in 0 1 2; do
    [ "$(grep -c 'every byte right' "$work/rank$rank.log")" = 2 ] || fail "rank $rank did not hear from both others"
done
for rank in 0 1; do
    grep -q 'the own host is a loopback address here' "$work/rank$rank.log" || fail "rank $rank does not say where it listens"
done
say "ranks found each other although the root's machine takes its own name for a loopback address"

# ── who waits for whom ──
# A task waits for a tensor that its producer never sends; a third host asks, and is told who that is.
begin pull b "$rendez" pull "${common[@]}" "${b[@]}" --from /job:a/task:0
pull=$started
begin serve a "$rendez" serve "${common[@]}" "${a[@]}"
serve=$started
await "$work/serve.log" 'a peer is connected' 100
for ((tries = 0; tries < 100; tries++)); do
    on x "$rendez" pending "${common[@]}" >"$work/pending.log" 2>&1 || fail "no task answers a third host"
    grep -q 'receive .* /job:b/replica:0/task:0$' "$work/pending.log" && break
    sleep 0.1
done
line="$(grep 'receive .* /job:b/replica:0/task:0$' "$work/pending.log")" || fail "a third host does not see who waits"
grep -q '^waits for /job:a/replica:0/task:0: ' "$work/pending.log" || fail "a third host does not see for whom"
sleep 0.3
on x "$rendez" pending "${common[@]}" --json >"$work/pending.json.log" 2>&1 || fail "no answer in JSON"
for part in '"at":"/job:b/replica:0/task:0"' '"what":"receive"' '"waits_for":"/job:a/replica:0/task:0"' '"connected":true' '"key":"/job:a/' \
    '"step":[0-9]' '"age_ns":[0-9]\{9,\}' '"count":1' '"bytes":0'; do
    grep -q -- "$part" "$work/pending.json.log" || fail "the JSON has no $part"
done
# The producer is gone: what waits still says for whom, and that it is not there; who does not answer is named.
kill -9 "$serve"
if on x "$rendez" pending "${common[@]}" --patience 1s >"$work/pending.log" 2>&1; then fail "a dead task answers"; fi
grep -q '/job:a/replica:0/task:0 cannot be asked: .*CONNECTION_REFUSED' "$work/pending.log" || fail "who does not answer is not named, or not why"
kill "$pull"
wait "$pull" "$serve" 2>/dev/null || true
say "a third host sees who waits, for what, how long and for whom: $(tr -s ' ' <<<"$line")"

# ── an outsider ──
begin serve a "$rendez" serve "${common[@]}" "${a[@]}"
serve=$started
await "$work/serve.log" 'at rendez://' 100
for what in "--cluster-secret-file $work/guess" "--insecure"; do
    # shellcheck disable=SC2086 # two words on purpose
    if on x "$rendez" pull --config "$work/cluster.toml" $what "${b[@]}" --listen 10.77.0.3:29700 \
        --from /job:a/task:0 --patience 2s >"$work/outsider.log" 2>&1; then
        fail "the outsider with $what got in"
    fi
    grep -q 'SECRET_WRONG\|secret' "$work/outsider.log" || fail "the outsider does not learn why"
done
await "$work/serve.log" 'SECRET_WRONG' 20
kill "$serve"
wait "$serve" || fail "the serving task did not end well"
say "an outsider without the secret got nothing, and the log says why"

# ── cut and mended in mid-transfer ──
# Eight tensors of 128 MiB: a header, and zeros for data.
header='{'
for ((i = 0; i < 8; i++)); do
    header+="\"t$i\":{\"dtype\":\"U8\",\"shape\":[134217728],\"data_offsets\":[$((i * 134217728)),$(((i + 1) * 134217728))]},"
done
header="${header%,}}"
length="$(printf '%016x' "${#header}")"
for ((i = 14; i >= 0; i -= 2)); do printf "\\x${length:i:2}"; done >"$work/large.safetensors"
printf '%s' "$header" >>"$work/large.safetensors"
truncate -s "$((8 + ${#header} + 1073741824))" "$work/large.safetensors"
begin pull b "$rendez" pull "${common[@]}" "${b[@]}" --from /job:a/task:0
pull=$started
before="$(received)"
begin push a "$rendez" push "$work/large.safetensors" "${common[@]}" "${a[@]}" --to /job:b/task:0
push=$started
cuts=0
while kill -0 "$pull" 2>/dev/null; do
    if [ "$cuts" -lt 2 ] && [ "$(($(received) - before))" -gt $(((cuts + 1) * 200000000)) ]; then
        cut_link
        sleep 2.5
        mend_link
        cuts=$((cuts + 1))
    fi
    sleep 0.01
done
wait "$pull" || fail "the pull over a link that was cut failed"
wait "$push" || fail "the push over a link that was cut failed"
[ "$cuts" -gt 0 ] || fail "the transfer was over before the link could be cut"
grep -q '8 tensors, 1.00GiB, every byte right' "$work/pull.log" || fail "the large file did not come whole"
say "1 GiB came whole although the link was cut $cuts times for 2.5 s"

# ── cut for good ──
begin serve b "$rendez" serve "${common[@]}" "${b[@]}"
await "$work/serve.log" 'at rendez://' 100
begin push a "$rendez" push "${common[@]}" "${a[@]}" --to /job:b/task:0
push=$started
await "$work/push.log" 'a peer is connected' 100
cut_link
began=$SECONDS
if wait "$push"; then fail "the push ended well although it was not taken"; fi
took=$((SECONDS - began))
grep -q 'PEER_LOST' "$work/push.log" || fail "the push does not say that its peer is lost"
[ "$took" -le 8 ] || fail "it took $took s to say so, with failure_detection = 4s"
say "a link cut for good was reported after $took s, failure_detection being 4 s"
say "passed"
