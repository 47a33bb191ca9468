#!/usr/bin/env bash
# rendez beside UCX and iceoryx2 on this machine: hand-overs between two processes by shared memory, in turns, so that
# all see the same machine. Prints one Markdown table: medians, and the median, least and greatest paired ratio.
#   scripts/vs-peers.sh            4 B, 64 B and 1 KiB beside UCX's tag matching and from application threads; leases of
#                                  64 KiB and 64 MiB beside iceoryx2's loaned samples. Six minutes once all is built
#   scripts/vs-peers.sh --help     this text
# Measures Debian's UCX, and installs it (ucx-utils, as root) where there is no ucx_perftest. Beside it a newer one:
#   UCX_PERFTEST=/path/ucx_perftest    one that is built
#   UCX_SOURCE=/path                   a source tree, built once for each commit below target/ucx; installs autoconf,
#                                      automake, libtool, pkg-config, make and g++ where they are missing
# PAIRS=9 runs of each kind, SECONDS_EACH=1, ITERATIONS=3000000 round trips of UCX (half as many of 1 KiB) and
# UCX_TLS=posix,self change what is run; OUT=FILE takes the table as well; RENDEZ names the command, else it is built.
# Measures on a busy machine, too, and says how busy it was. Exit code: 0 whether bars are kept or missed, 1 if
# something could not be run, 2 for a wrong option.
set -euo pipefail
# Paths are meant from where the caller stands.
for name in OUT RENDEZ UCX_PERFTEST UCX_SOURCE; do
    if [ -n "${!name:-}" ]; then printf -v "$name" '%s' "$(readlink -m "${!name}")"; fi
done
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

case "${1:-}" in
    "") ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' scripts/vs-peers.sh; exit 0 ;;
    *) echo "vs-peers: no such option: $1; scripts/vs-peers.sh --help lists what there is" >&2; exit 2 ;;
esac

pairs="${PAIRS:-9}"
each="${SECONDS_EACH:-1}"
iterations="${ITERATIONS:-3000000}"
longest="${LONGEST_RUN:-120}"
transports="${UCX_TLS:-posix,self}"
small=(4 64 1024)
large=(65536 67108864)
work="$(mktemp -d)"
server=""
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

say() { printf 'vs-peers: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }
for number in "$pairs" "$iterations" "$longest"; do
    [[ "$number" =~ ^[1-9][0-9]*$ ]] || fail "PAIRS, ITERATIONS and LONGEST_RUN are whole numbers from 1, not '$number'"
done
[[ "$each" =~ ^[0-9]*\.?[0-9]+$ ]] || fail "SECONDS_EACH is a number of seconds, not '$each'"
[ -z "${OUT:-}" ] || : >>"$OUT" || fail "cannot write OUT=$OUT"

# A root shell in a container has no sudo, and a developer no root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Packages of the commands that are missing, given as COMMAND:PACKAGE.
install_missing() {
    local wanted packages=()
    for wanted in "$@"; do
        command -v "${wanted%%:*}" >/dev/null || packages+=("${wanted#*:}")
    done
    [ "${#packages[@]}" -gt 0 ] || return 0
    command -v apt-get >/dev/null || { say "no apt-get to install ${packages[*]}"; return 1; }
    say "installing ${packages[*]}"
    as_root apt-get update -qq >&2 &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2
}

# Which of a list such as 0-2,8 in ascending order.
members() {
    local part
    for part in ${1//,/ }; do seq "${part%-*}" "${part#*-}"; done
}

# The first two cores of the affinity mask that are not two threads of one core, as `rendez bench` takes them.
choose_cores() {
    local cores siblings core
    mapfile -t cores < <(members "$(awk '/^Cpus_allowed_list/{print $2}' /proc/self/status)")
    [ "${#cores[@]}" -ge 2 ] || fail "two cores are needed, and only core ${cores[*]} is in the affinity mask"
    near="${cores[0]}" far="${cores[1]}" siblings=" $near "
    if [ -r "/sys/devices/system/cpu/cpu$near/topology/thread_siblings_list" ]; then
        siblings=" $(members "$(cat "/sys/devices/system/cpu/cpu$near/topology/thread_siblings_list")" | tr '\n' ' ') "
    fi
    for core in "${cores[@]:1}"; do
        if [[ "$siblings" != *" $core "* ]]; then far="$core"; return; fi
    done
    say "cores $near and $far are hardware threads of one core"
}

# The version of the UCX that a ucx_perftest belongs to; its ucx_info lies beside it, or where the build leaves it.
version_of() {
    local info version
    for info in "${1%/*}/ucx_info" "${1%/*}/../info/ucx_info"; do
        [ -x "$info" ] || continue
        version="$("$info" -v 2>/dev/null | sed -n 's/.*[Vv]ersion[:= ]*\([0-9][0-9.]*\).*/\1/p' | head -n 1)" || true
        if [ -n "$version" ]; then echo "$version"; return; fi
    done
    echo unknown
}

# Builds the tree at $1 below target/ucx, unless its commit is there; prints the path of its ucx_perftest.
build_ucx() {
    local tree name at
    tree="$1"
    [ -f "$tree/contrib/configure-release" ] || fail "UCX_SOURCE=$1 is no source tree of UCX"
    if name="$(git -C "$tree" rev-parse --short=12 HEAD 2>/dev/null)"; then
        [ -z "$(git -C "$tree" status --porcelain --untracked-files=no)" ] ||
            say "$1 has changes that are not committed: they are left out"
    else
        name="tree-$(printf '%s' "$tree" | cksum | cut -d' ' -f1)"
    fi
    at="$PWD/target/ucx/$name"
    if [ ! -x "$at/bin/ucx_perftest" ]; then
        install_missing autoreconf:autoconf automake:automake libtoolize:libtool pkg-config:pkg-config make:make \
            gcc:gcc g++:g++ || fail "the tools that build UCX could not be installed"
        say "building UCX $name, some minutes; its output is in target/ucx/$name/log"
        rm -rf "$at"
        mkdir -p "$at/source" "$at/build"
        if [[ "$name" == tree-* ]]; then
            cp -a "$tree/." "$at/source/"
        else
            git -C "$tree" archive HEAD | tar -x -C "$at/source"
        fi
        # Its scripts ask git for a revision and for submodules: they are not to find this repository.
        (
            export GIT_CEILING_DIRECTORIES="$at"
            cd "$at/source"
            [ -x configure ] || ./autogen.sh
            cd "$at/build"
            ../source/contrib/configure-release --prefix="$at" --disable-static --disable-doxygen-doc --without-verbs \
                --without-rdmacm --without-cuda --without-rocm --without-ze --without-go --without-java \
                --without-knem --without-xpmem
            make -j"$(nproc)"
            make install
        ) >"$at/log" 2>&1 || { tail -n 20 "$at/log" >&2; fail "UCX could not be built; see target/ucx/$name/log"; }
        rm -rf "$at/source" "$at/build"
    fi
    echo "$at/bin/ucx_perftest"
}

# The median of half a round trip, in nanoseconds, is what each of these prints.
from_json() {
    local p50
    p50="$(sed -n 's/.*"half_rtt_ns":{"p50":\([0-9.]*\).*/\1/p' | head -n 1)"
    [ -n "$p50" ] || return 1
    echo "$p50"
}

measure_rendez() {
    timeout "$longest" taskset -c "$near,$far" "$rendez" bench --size "$1" --from "$2" --duration "${each}s" --json |
        from_json
}

measure_iceoryx2() {
    timeout "$longest" taskset -c "$near,$far" target/iceoryx2/release/rendez-bench-iceoryx2 "$1" "$each" | from_json
}

# True if a socket of this machine listens at port $1.
is_listening() {
    awk -v port="$(printf ':%04X' "$1")" '$4 == "0A" && $2 ~ port "$" {found = 1} END {exit !found}' \
        /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

# tag_lat prints half of a round trip, in microseconds; its percentile is of the last 2048 round trips.
measure_ucx() {
    local perftest="$1" size="$2" count="$iterations" port waited=0 p50
    [ "$size" -lt 1024 ] || count=$(((count + 1) / 2))
    port=$((20000 + RANDOM % 10000))
    while is_listening "$port"; do port=$((20000 + RANDOM % 10000)); done
    UCX_TLS="$transports" timeout "$longest" taskset -c "$far" "$perftest" -p "$port" >"$work/server" 2>&1 &
    server=$!
    until is_listening "$port"; do
        kill -0 "$server" 2>/dev/null || { cat "$work/server" >&2; return 1; }
        [ $((waited += 1)) -le 500 ] || { say "$perftest does not listen"; return 1; }
        sleep 0.02
    done
    UCX_TLS="$transports" timeout "$longest" taskset -c "$near" "$perftest" 127.0.0.1 -p "$port" -t tag_lat -s "$size" \
        -w 100000 -n "$count" -f >"$work/client" 2>&1 || { cat "$work/client" "$work/server" >&2; return 1; }
    wait "$server" || { cat "$work/server" >&2; return 1; }
    server=""
    p50="$(awk 'NF == 8 && $1 ~ /^[0-9]+$/ {p50 = $2 * 1000} END {print p50}' "$work/client")"
    [ -n "$p50" ] || { cat "$work/client" >&2; return 1; }
    echo "$p50" >"$work/p50"
}

# One run of kind $1 with $2 bytes; its figure goes into the file of both.
run_one() {
    local kind="$1" size="$2" p50
    case "$kind" in
        rendez) p50="$(measure_rendez "$size" shard)" ;;
        thread) p50="$(measure_rendez "$size" thread)" ;;
        iceoryx2) p50="$(measure_iceoryx2 "$size")" ;;
        # Not in a subshell: the server's number is to be known here.
        ucx*) measure_ucx "${ucx_at[${kind#ucx}]}" "$size" && p50="$(cat "$work/p50")" ;;
        rate) p50="$(timeout "$longest" taskset -c "$near,$far" "$rendez" bench rate --size "$size" \
            --duration "${each}s" --json | sed -n 's/.*"rate_per_s":{"mean":\([0-9.]*\).*/\1/p')" && [ -n "$p50" ] ;;
    esac || { echo >&2; fail "'$kind' at $(show_size "$size") could not be run"; }
    echo "$p50" >>"$work/$kind-$size"
    printf '  %s %s %s' "$kind" "$(show_size "$size")" "$p50" >&2
}

show_size() {
    if [ "$1" -ge 1048576 ]; then echo "$(($1 / 1048576)) MiB"
    elif [ "$1" -ge 1024 ]; then echo "$(($1 / 1024)) KiB"
    else echo "$1 B"; fi
}

median_of() { sort -g "$1" | awk '{at[NR] = $1} END {print (at[int((NR + 1) / 2)] + at[int(NR / 2) + 1]) / 2}'; }
load() { cut -d' ' -f1-3 /proc/loadavg; }

# A row: what is promised, the bar, the files of ours and of theirs.
rows=0
row() {
    local what="$1" bar="$2" ours="$work/$3" theirs="$work/$4" middle
    rows=$((rows + 1))
    paste "$ours" "$theirs" | awk '{print $1 / $2}' >"$work/ratios"
    middle="$(median_of "$work/ratios")"
    awk -v n="$rows" -v what="$what" -v bar="$bar" -v ours="$(median_of "$ours")" -v theirs="$(median_of "$theirs")" \
        -v middle="$middle" -v least="$(sort -g "$work/ratios" | head -n 1)" \
        -v most="$(sort -g "$work/ratios" | tail -n 1)" 'BEGIN {
            verdict = middle <= bar ? "kept" : "**missed**"
            printf "| %d | %s | ≤ %s × | %.0f ns | %.0f ns | %.2f (%.2f to %.2f) | %s | `scripts/vs-peers.sh` |\n",
                n, what, bar, ours, theirs, middle, least, most, verdict
        }'
}

report() {
    local size at bars bar
    printf 'Machine: %s, %s cores (%s and %s used), Linux %s; rendez %s; %s.\n' \
        "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc --all)" "$near" "$far" "$(uname -r)" \
        "$("$rendez" --version | awk '{print $2}')" "$(date -u +%Y-%m-%d)"
    printf 'Load average: %s before, %s after. Runs of each kind, in turns: %s of %s s; %s.\n\n' \
        "$load_before" "$(load)" "$pairs" "$each" "UCX over $transports, $iterations round trips (1 KiB: half as many)"
    echo '| # | half round trip p50 | bar | rendez | beside it | ratio (least to greatest) | verdict | command |'
    echo '|---|---|---|---|---|---|---|---|'
    for at in "${!ucx_at[@]}"; do
        # Debian's 1.13 takes longer than 1.22, and so has lower bars.
        bars=(1.3 1.5 1.3)
        [[ ! "${ucx_version[$at]}" =~ ^1\.([0-9]|1[0-3])\. ]] || bars=(0.9 1.0 0.9)
        for size in "${!small[@]}"; do
            bar="${bars[$size]}"
            row "$(show_size "${small[$size]}"), beside UCX ${ucx_version[$at]}" "$bar" "rendez-${small[$size]}" \
                "ucx$at-${small[$size]}"
        done
    done
    for size in "${small[@]}"; do
        row "$(show_size "$size"), application threads, beside in-shard" 1.4 "thread-$size" "rendez-$size"
    done
    for size in "${large[@]}"; do
        row "lease of $(show_size "$size"), beside iceoryx2 $iceoryx2_version" 1.0 "rendez-$size" "iceoryx2-$size"
    done
    printf '\nOne way, 4 B, by shared memory: %s million/s, the median of %s runs of rendez bench rate --size 4.\n' \
        "$(median_of "$work/rate-4" | awk '{printf "%.1f", $1 / 1e6}')" "$pairs"
}

choose_cores
install_missing taskset:util-linux cc:gcc git:git || fail "what the builds need could not be installed"
ucx_at=()
ucx_version=()
if install_missing ucx_perftest:ucx-utils; then
    ucx_at+=("$(command -v ucx_perftest)")
elif [ -z "${UCX_SOURCE:-}${UCX_PERFTEST:-}" ]; then
    fail "there is no ucx_perftest: install ucx-utils, or name one by UCX_PERFTEST or a source tree by UCX_SOURCE"
else
    say "going on without Debian's UCX"
fi
if [ -n "${UCX_PERFTEST:-}" ]; then
    [ -x "$UCX_PERFTEST" ] || fail "UCX_PERFTEST=$UCX_PERFTEST is no program"
    ucx_at+=("$UCX_PERFTEST")
fi
if [ -n "${UCX_SOURCE:-}" ]; then
    newer="$(build_ucx "$UCX_SOURCE")"
    ucx_at+=("$newer")
fi
for at in "${ucx_at[@]}"; do ucx_version+=("$(version_of "$at")"); done
rendez="${RENDEZ:-${CARGO_TARGET_DIR:-target}/release/rendez}"
if [ -z "${RENDEZ:-}" ]; then
    say "building rendez, some minutes the first time"
    cargo build --release --locked --quiet
fi
[ -x "$rendez" ] || fail "there is no program $rendez"
say "building the ping-pong of iceoryx2"
cargo build --release --locked --quiet --manifest-path bench/iceoryx2/Cargo.toml --target-dir target/iceoryx2
iceoryx2_version="$(sed -n '/^name = "iceoryx2"$/{n;s/version = "\(.*\)"/\1/p}' bench/iceoryx2/Cargo.lock)"

# What one pair runs, in this order; every other pair runs it backwards.
plan=()
for size in "${small[@]}"; do
    plan+=("rendez $size")
    for at in "${!ucx_at[@]}"; do plan+=("ucx$at $size"); done
    plan+=("thread $size")
done
for size in "${large[@]}"; do plan+=("rendez $size" "iceoryx2 $size"); done
plan+=("rate 4")

for at in "${!ucx_at[@]}"; do say "ucx$at is UCX ${ucx_version[$at]}, ${ucx_at[$at]}"; done
load_before="$(load)"
say "cores $near and $far, load average $load_before; ${#plan[@]} runs of each of $pairs pairs"
for pair in $(seq "$pairs"); do
    printf 'pair %s of %s, ns:' "$pair" "$pairs" >&2
    for at in "${!plan[@]}"; do
        if [ $((pair % 2)) -eq 0 ]; then at=$((${#plan[@]} - 1 - at)); fi
        read -r kind size <<<"${plan[$at]}"
        run_one "$kind" "$size"
    done
    echo >&2
done
report >"$work/report"
cat "$work/report"
[ -z "${OUT:-}" ] || cp "$work/report" "$OUT"
