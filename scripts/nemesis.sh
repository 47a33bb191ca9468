#!/usr/bin/env bash
# Four tasks on three hosts exchange tensors while their world is broken: processes are killed and stopped, links are
# cut both ways and one way, addresses change, the clock of the day jumps, descriptors run out. Then a judge reads what
# every task saw: every value at most once, right, in order and of the right life; every receive ended by its deadline;
# every loss told in time; traffic again within a second of a task's next life; nothing failed while nothing was broken;
# memory and descriptors bounded, also with senders that outrun their receivers. Meanwhile each task has a session that
# runs a graph over all of them: each step gives the right answer, or fails in time with what was broken; sessions come
# back, and leave nothing. And each task is a worker of remote calls: every call is carried out once at most, ends with
# its own answer or a reason, by its deadline and sooner if its callee is lost; a value is kept as long as a task that
# is there has a share of it, and no longer; a training by remote calls does each of its steps once, and gets on.
# Some values lie on devices, of a driver that is played in memory: they are read there by a task of the same host, and
# copied for another; streams stall, processes die with leases out, and all memory comes home.
# Hosts are network namespaces; it needs root and iproute2, and leaves nothing behind.
#   scripts/nemesis.sh [SECONDS]              30 by default, 15 at least; builds the release program first
#   SEED=7 scripts/nemesis.sh                 the same faults in the same order
#   DETECTION=1000 scripts/nemesis.sh         with another failure_detection, in milliseconds
#   NEMESIS=path/to/rendez-nemesis scripts/nemesis.sh
#   KEEP=folder scripts/nemesis.sh            copies histories and logs there, whatever they show
# The clock of the day is one for a whole machine, so it is moved in what a task's own C library says of it: by a small
# library that is loaded before it, where there is a C compiler. The clock that engines read cannot jump while they run,
# and differs from life to life where the kernel has time namespaces.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds="${1:-30}"
# The last eight are without faults.
if [[ ! "$seconds" =~ ^[1-9][0-9]*$ ]] || [ "$seconds" -lt 15 ]; then
    echo "nemesis: SECONDS is a whole number from 15, not '$seconds'" >&2
    exit 2
fi
seed="${SEED:-$((RANDOM * 32768 + RANDOM))}"
RANDOM=$((seed % 32768))
detection_ms="${DETECTION:-300}"

nemesis="${NEMESIS:-}"
if [ -z "$nemesis" ]; then
    cargo build --release --locked --quiet -p rendez-nemesis
    nemesis="${CARGO_TARGET_DIR:-$PWD/target}/release/rendez-nemesis"
fi

id="nm$$"
work="$(mktemp -d)"
faults="$work/faults.history"
sampler=
# By task: its host, its port, its life, and the process that started it.
hosts=(a a b c)
ports=(29700 29701 29700 29700)
lives=(0 0 0 0)
starters=(0 0 0 0)
names=(a b c)

cleanup() {
    local pid host
    [ -z "$sampler" ] || kill "$sampler" 2>/dev/null || true
    # The process that started a task takes it along, stopped or not.
    for pid in "${starters[@]}"; do [ "$pid" = 0 ] || kill -9 "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    [ -z "${KEEP:-}" ] || { mkdir -p "$KEEP"; cp "$work"/*.history "$work"/*.log "$KEEP"/ 2>/dev/null || true; }
    for host in "${names[@]}" switch; do
        ip netns del "$id-$host" 2>/dev/null || true
        rm -rf "/etc/netns/$id-$host"
    done
    rmdir /etc/netns 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

say() { printf 'nemesis: %s\n' "$*"; }
fail() {
    say "FAILED (SEED=$seed): $*" >&2
    local file
    for file in "$work"/*.log; do printf -- '--- %s\n' "${file##*/}" >&2; tail -n 8 "$file" >&2; done
    exit 1
}
# Whatever else fails says where, and with which seed; a subshell leaves that to its parent.
trap '[ "$BASHPID" != "$$" ] || fail "line $LINENO: $BASH_COMMAND"' ERR
on() { local host="$1"; shift; ip netns exec "$id-$host" "$@"; }
pick() { local -n from="$1"; picked="${from[RANDOM % ${#from[@]}]}"; }

# A line of the script's own history.
note() {
    local up
    read -r up _ </proc/uptime
    printf '%s0000000 %s\n' "${up/./}" "$*" >>"$faults"
}
break_it() { say "fault $*"; note "fault $*"; }
# Broken by now: what broke it has taken its time, and that of a busy machine. Promises of time count from here.
broken() { note "struck $*"; }
# The kernel has taken the killed processes down, which for large ones takes long. What it tells by their handles counts
# from here.
gone() { note "gone $*"; }
mend_it() { note "healed $*"; }

# The tasks on a host, as histories name them.
tasks_on() {
    local task
    on_host=()
    for task in "${!hosts[@]}"; do [ "${hosts[task]}" != "$1" ] || on_host+=("$task"); done
}

# ── hosts ──
declare -A addresses=()
tell_names() {
    local host text="127.0.0.1 localhost"
    for host in "${names[@]}"; do text+=$'\n'"${addresses[$host]} host-$host"; done
    # In place: running processes see this very file.
    for host in "${names[@]}"; do printf '%s\n' "$text" >"/etc/netns/$id-$host/hosts"; done
}
ip netns add "$id-switch"
on switch ip link add switch type bridge
on switch ip link set switch up
next_address=10
for host in "${names[@]}"; do
    next_address=$((next_address + 1))
    addresses[$host]="10.78.0.$next_address"
    mkdir -p "/etc/netns/$id-$host"
    ip netns add "$id-$host"
    ip link add "to-$host" netns "$id-switch" type veth peer name eth0 netns "$id-$host"
    on switch ip link set "to-$host" master switch up
    on "$host" ip address add "${addresses[$host]}/24" dev eth0
    on "$host" ip link set eth0 up
    on "$host" ip link set lo up
done
tell_names
head -c 32 /dev/urandom | base64 >"$work/secret"
chmod 600 "$work/secret"
cat >"$work/cluster.toml" <<TOML
shards = 1
share_cores = true
poll = "park"
failure_detection = "${detection_ms}ms"
arena_segment_bytes = "16MiB"
arena_bytes = "128MiB"
parked_bytes = "64MiB"
parked_bytes_per_step = "4MiB"
inline_max = 4096
landing_bytes = "32MiB"
drain_timeout = "500ms"
devices = "require"
device_library = "$(dirname "$nemesis")/deps/librendez_played_cuda.so"
device_segment_bytes = "16MiB"
device_bytes = "64MiB"
device_pinned_bytes = "192KiB"
[cluster]
n = ["host-a:29700", "host-a:29701", "host-b:29700", "host-c:29700"]
TOML
unshare_clock=()
if unshare --time --monotonic 1000 --fork true 2>/dev/null; then unshare_clock=(yes); else
    say "no time namespaces here: all tasks read one clock"
fi

# ── the clock of the day ──
# What is added to it, in seconds, stands in a file for each task.
if command -v cc >/dev/null; then
    cat >"$work/day.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *ahead;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("NEMESIS_DAY");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) ahead = page;
    close(fd);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*of_system)(clockid_t, struct timespec *);
    if (!of_system) of_system = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int answer = of_system(clock, now);
    if (!answer && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
    return answer;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec day;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &day)) return -1;
    now->tv_sec = day.tv_sec;
    now->tv_usec = day.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now) {
    struct timespec day;
    clock_gettime(CLOCK_REALTIME, &day);
    if (now) *now = day.tv_sec;
    return day.tv_sec;
}
C
    cc -shared -fPIC -O1 -o "$work/day.so" "$work/day.c" -ldl
    for task in "${!hosts[@]}"; do printf '\0\0\0\0\0\0\0\0' >"$work/day-$task"; done
else
    say "no C compiler here: the clock of the day stays as it is"
fi
# Breaks a task's day: adds so many seconds to it, in one write.
set_day() {
    local task="$1" seconds="$2" bytes="" at
    for ((at = 0; at < 8; at++)); do bytes+="$(printf '\\x%02x' $(((seconds >> (8 * at)) & 255)))"; done
    break_it clock "$task"
    # shellcheck disable=SC2059 # the bytes are the format
    printf "$bytes" | dd of="$work/day-$task" conv=notrunc status=none
}

# ── tasks ──
start_task() {
    local task="$1" life="${lives[$1]}" ahead devices=(01,02 02,01)
    printf '%s\n' "${lives[*]}" >"$work/lives.new"
    mv "$work/lives.new" "$work/lives"
    ahead=$((RANDOM * 3000))
    local clock=()
    [ -z "${unshare_clock[*]}" ] || clock=(--time --monotonic "$ahead")
    local day=()
    [ ! -e "$work/day.so" ] || day=(LD_PRELOAD="$work/day.so" NEMESIS_DAY="$work/day-$task")
    # Neighbours number their devices differently.
    # A backtrace keeps the line tables of a debug build in memory, 200 MB: errors of functions go without here.
    (exec ip netns exec "$id-${hosts[task]}" env RENDEZ_LOG="${RENDEZ_LOG:-rendez=info}" RUST_BACKTRACE=0 \
        PLAYED_CUDA_DEVICES="${devices[task % 2]}" \
        unshare "${clock[@]}" --fork --kill-child env "${day[@]}" "$nemesis" peer \
        --config "$work/cluster.toml" --cluster-secret-file "$work/secret" --job n --task "$task" \
        --listen "0.0.0.0:${ports[task]}" --life "$life" --lives "$work/lives" \
        --history "$work/task-$task-$life.history" >"$work/task-$task-$life.log" 2>&1) &
    starters[task]=$!
}
# Waits until a task has begun; its process is $process.
await_task() {
    local task="$1" tries file="$work/task-$1-${lives[$1]}.history" word
    for ((tries = 0; tries < 200; tries++)); do
        if read -r _ word _ _ process _ <"$file" && [ "$word" = begin ]; then
            printf '%s %s\n' "${lives[task]}" "$process" >"$work/process-$task"
            return
        fi 2>/dev/null
        sleep 0.05
    done
    fail "task $task did not begin its life ${lives[task]}"
}
process_of() { read -r _ process <"$work/process-$1"; }
# Sends a task a signal.
signal() {
    process_of "$2"
    kill "-$1" "$process" || fail "task $2 ended by itself"
}

# What every process holds, twice a second.
sample() {
    local task life process resident up descriptors
    while sleep 0.5; do
        for task in "${!hosts[@]}"; do
            read -r life process <"$work/process-$task" || continue
            resident="$(awk '/^VmRSS:/ { print $2 }' "/proc/$process/status")" || continue
            descriptors=("/proc/$process/fd"/*)
            [ -n "$resident" ] || continue
            read -r up _ </proc/uptime
            printf '%s0000000 used %s %s %s %s\n' "${up/./}" "$task" "$life" "$resident" "${#descriptors[@]}" \
                >>"$work/uses.history"
        done
    done 2>/dev/null
}

# ── faults ──
lasting=(0.1 0.3 0.6 1.2 2.5 3.5)
cut_for() {
    local host="$1" lasts="$2"
    tasks_on "$host"
    break_it cut "${on_host[@]}"
    ip -n "$id-switch" link set "to-$host" down
    broken cut "${on_host[@]}"
    sleep "$lasts"
    ip -n "$id-switch" link set "to-$host" up
    mend_it cut "${on_host[@]}"
}
one_way_for() {
    local what="$1" host="$2" lasts="$3" at=switch port="to-$2"
    [ "$what" = deaf ] || { at="$host"; port=eth0; }
    tasks_on "$host"
    break_it "$what" "${on_host[@]}"
    tc -n "$id-$at" qdisc replace dev "$port" root blackhole
    broken "$what" "${on_host[@]}"
    sleep "$lasts"
    tc -n "$id-$at" qdisc del dev "$port" root
    mend_it "$what" "${on_host[@]}"
}
kill_for() {
    local task lasts="$1"
    shift
    break_it kill "$@"
    for task in "$@"; do signal KILL "$task"; done
    broken kill "$@"
    for task in "$@"; do wait "${starters[task]}" 2>/dev/null || true; done
    gone kill "$@"
    sleep "$lasts"
    for task in "$@"; do
        lives[task]=$((lives[task] + 1))
        start_task "$task"
    done
    for task in "$@"; do await_task "$task"; done
    mend_it kill "$@"
}
fault_kill() { local task=$((RANDOM % ${#hosts[@]})); pick lasting; kill_for "$picked" "$task"; }
# Two at once: each has to do without the other when it begins again.
fault_kills() {
    local task=$((RANDOM % ${#hosts[@]})) other
    other=$(((task + 1 + RANDOM % (${#hosts[@]} - 1)) % ${#hosts[@]}))
    pick lasting
    kill_for "$picked" "$task" "$other"
}
stop_for() {
    local lasts="$1" task="$2"
    break_it stop "$task"
    signal STOP "$task"
    broken stop "$task"
    sleep "$lasts"
    signal CONT "$task"
    mend_it stop "$task"
}
fault_stop() { local task=$((RANDOM % ${#hosts[@]})); pick lasting; stop_for "$picked" "$task"; }
fault_cut() { pick names; local host="$picked"; pick lasting; cut_for "$host" "$picked"; }
fault_deaf() { pick names; local host="$picked"; pick lasting; one_way_for deaf "$host" "$picked"; }
fault_mute() { pick names; local host="$picked"; pick lasting; one_way_for mute "$host" "$picked"; }
fault_address() {
    pick names
    local host="$picked"
    pick lasting
    tasks_on "$host"
    break_it address "${on_host[@]}"
    on "$host" ip address flush dev eth0
    sleep "$picked"
    next_address=$((next_address >= 250 ? 10 : next_address + 1))
    addresses[$host]="10.78.0.$next_address"
    on "$host" ip address add "${addresses[$host]}/24" dev eth0
    tell_names
    mend_it address "${on_host[@]}"
}
# An hour back, or years on.
days=(3600 -3600 315360000 -315360000 86400 -1000000)
# By task, what is added now: the same again would be no jump.
day_of=(0 0 0 0)
fault_clock() {
    [ -e "$work/day.so" ] || return 0
    local task=$((RANDOM % ${#hosts[@]}))
    pick days
    until [ "$picked" != "${day_of[task]}" ]; do pick days; done
    day_of[task]="$picked"
    set_day "$task" "$picked"
    # As long as the task may take to see it.
    sleep 1.2
    mend_it clock "$task"
}
# None left, and connections to be made again.
fault_descriptors() {
    local task=$((RANDOM % ${#hosts[@]})) of limit free=0
    process_of "$task"
    of="$process"
    limit="$(prlimit --pid "$of" --nofile --noheadings --output SOFT)" || fail "task $task ended by itself"
    # A limit is one of numbers, not of how many are open: none is to be had while all below it are in use. The first ten
    # are those that a task opens when it begins, so that what the cut closes makes no room.
    while [ "$free" -lt 10 ] && [ -L "/proc/$of/fd/$free" ]; do free=$((free + 1)); done
    break_it descriptors "$task"
    prlimit --pid "$of" --nofile="$free": || fail "task $task ended by itself"
    cut_for "${hosts[task]}" 0.8
    sleep 1
    prlimit --pid "$of" --nofile="$limit": || fail "task $task ended by itself"
    mend_it descriptors "$task"
}

# ── the run ──
say "SEED=$seed, $seconds s, failure_detection = $detection_ms ms"
for host in "${names[@]}"; do tasks_on "$host"; note host "${on_host[@]}"; done
for task in "${!hosts[@]}"; do start_task "$task"; done
for task in "${!hosts[@]}"; do await_task "$task"; done
sample &
sampler=$!
sleep 3.5
# What the dice may leave out: a neighbour's death and return, a neighbour that is stopped, and a link that is cut for so
# long that it must be told. Each has the time after it in which the judge looks what became of it.
long="$(printf '%d.%03d' $(((2 * detection_ms + 200) / 1000)) $(((2 * detection_ms + 200) % 1000)))"
kill_for "$long" 0
sleep 1.5
stop_for "$long" 1
sleep 1
cut_for c "$long"
sleep 1
pauses=(0.1 1 4.5)
began=$SECONDS
deck=()
while [ $((SECONDS - began)) -lt $((seconds - 8)) ]; do
    # All kinds before one comes again.
    [ "${#deck[@]}" -gt 0 ] || deck=(kill kills stop cut deaf mute address clock descriptors)
    at=$((RANDOM % ${#deck[@]}))
    what="${deck[at]}"
    unset "deck[at]"
    deck=("${deck[@]}")
    "fault_$what"
    pick pauses
    sleep "$picked"
    for task in "${!hosts[@]}"; do
        kill -0 "${starters[task]}" 2>/dev/null || fail "task $task ended by itself"
    done
done
# Three seconds in which everything is mended, and six in which nothing is broken: calls, graphs, trainings, references
# and workers must get on then, in every run.
sleep 11
for task in "${!hosts[@]}"; do
    kill -0 "${starters[task]}" 2>/dev/null || fail "task $task ended by itself"
done
note fault over "${!hosts[@]}"
for task in "${!hosts[@]}"; do signal TERM "$task"; done
# More than all that a task waits for, one after the other: a call, what is left of calls, and that the group leaves.
# What became of one that does not end is in its history all the same.
unended=
for task in "${!hosts[@]}"; do
    for ((tries = 0; tries < 200; tries++)); do
        kill -0 "${starters[task]}" 2>/dev/null || break
        sleep 0.1
    done
    if kill -0 "${starters[task]}" 2>/dev/null; then
        unended+="; task $task does not end"
        continue
    fi
    wait "${starters[task]}" || unended+="; task $task did not end well"
    starters[task]=0
done
kill "$sampler"
wait "$sampler" 2>/dev/null || true
sampler=
# Both arenas of a task, full: what runs beside them is small.
"$nemesis" check --failure-detection "${detection_ms}ms" --resident-max-kib $((2 * 128 * 1024)) --descriptors-max 200 \
    --logs "$work"/task-*.log -- "$work"/*.history || fail "the judge found what should not be$unended"
[ -z "$unended" ] || fail "${unended#; }"
say "passed (SEED=$seed)"
