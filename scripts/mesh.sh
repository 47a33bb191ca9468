#!/usr/bin/env bash
# Starts N tasks on this machine, lets every one hand a small file to every other and check every byte, and prints how
# long the whole took and what each task held of memory.
#   scripts/mesh.sh                  64 tasks
#   scripts/mesh.sh 16               so many
#   scripts/mesh.sh 64 --require tcp further options go to `rendez up`
# RENDEZ names the program, BASE the first of the ports.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

count="${1:-64}"
shift || true
rendez="${RENDEZ:-${CARGO_TARGET_DIR:-target}/release/rendez}"
base="${BASE:-21000}"
[ -x "$rendez" ] || { echo "mesh: no $rendez: run 'cargo build --release' first" >&2; exit 1; }

directory="$(mktemp -d)"
trap 'rm -rf "$directory"' EXIT

{
    echo 'shards = 1'
    echo 'share_cores = true'
    echo 'poll = "adaptive"'
    echo
    echo '[cluster]'
    printf 'worker = ['
    for index in $(seq 0 $((count - 1))); do printf '"127.0.0.1:%d", ' $((base + index)); done
    echo ']'
} > "$directory/cluster.toml"

start="$(date +%s%N)"
"$rendez" up "$directory/cluster.toml" --check --once "$@" > "$directory/log" 2>&1 &
up=$!

# The most that each task had, in kilobytes: resident in all, of which its own, and of which shared memory. One process
# looks at all tasks, twice a second: one for each task took half as much time as the tasks themselves. It is not waited
# for: the time is that of the tasks.
touch "$directory/memory"
while kill -0 "$up" 2>/dev/null; do
    read -ra tasks < "/proc/$up/task/$up/children" || true
    files=("${tasks[@]/#//proc/}")
    awk 'FNR == 1 { split(FILENAME, path, "/") }
         /^(VmHWM|RssAnon|RssShmem):/ { print path[3], $1, $2 }' "${files[@]/%//status}" \
        >> "$directory/memory" 2>/dev/null < /dev/null || true
    sleep 0.5
done &
sampler=$!
status=0
wait "$up" || status=$?
end="$(date +%s%N)"
kill "$sampler" 2>/dev/null || true
wait "$sampler" 2>/dev/null || true

ways="$(grep -c 'every byte right' "$directory/log" || true)"
awk -v ms=$(((end - start) / 1000000)) -v count="$count" -v ways="$ways" 'BEGIN {
    printf "%d tasks, %d of %d ways checked, %.2f s from the first process to the end of the last\n",
        count, ways, count * (count - 1), ms / 1000
}'
awk '{ key = $1 " " $2; if ($3 > most[key]) most[key] = $3 }
     END { for (key in most) { split(key, part, " "); print part[2], most[key] } }' "$directory/memory" |
    sort -k1,1 -k2,2n | awk '{ all[$1] = all[$1] " " $2 } END { for (name in all) {
        n = split(all[name], kb, " ")
        printf "  %-10s per task: median %.1f MiB, most %.1f MiB\n", name, kb[int((n + 1) / 2)] / 1024, kb[n] / 1024
    } }' | sort
if [ "$status" -ne 0 ] || [ "$ways" -ne $((count * (count - 1))) ]; then
    tail -n 5 "$directory/log" >&2
    exit 1
fi
