#!/usr/bin/env bash
# Fuzzes the parsers of tests/fuzz/targets for a bounded time; any panic, overflow or bad access fails loudly and says
# how to repeat it.
#   scripts/fuzz.sh                  all targets, 20 s each
#   scripts/fuzz.sh 300              300 s each
#   scripts/fuzz.sh 60 key_text      one target (or several)
# Needs a nightly toolchain and cargo-fuzz, which is built once into target/tools if it is not there; ordinary builds
# need neither. What is found and learnt lies in tests/fuzz/artifacts and tests/fuzz/corpus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds="${1:-20}"
# For libFuzzer 0 is no bound.
if [[ ! "$seconds" =~ ^[1-9][0-9]*$ ]]; then
    echo "fuzz: the first argument is a number of seconds for each target, from 1, not '$seconds'" >&2
    exit 2
fi
shift || true
toolchain="${FUZZ_TOOLCHAIN:-nightly}"
dir=tests/fuzz
tools="$PWD/target/tools"
export PATH="$tools/bin:${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

if ! cargo "+$toolchain" --version >/dev/null 2>&1; then
    echo "fuzz: no $toolchain toolchain; get one with 'rustup toolchain install $toolchain', or name another in FUZZ_TOOLCHAIN" >&2
    exit 1
fi
if ! command -v cargo-fuzz >/dev/null; then
    cargo "+$toolchain" install --locked cargo-fuzz --root "$tools"
fi

# Its build lies with the others: in tests/fuzz it would count as source.
build="$PWD/target/fuzz"

mapfile -t known < <(cd "$dir/targets" && for file in *.rs; do echo "${file%.rs}"; done)
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then targets=("${known[@]}"); fi
for target in "${targets[@]}"; do
    [ -f "$dir/targets/$target.rs" ] || { echo "fuzz: no target '$target'; there are: ${known[*]}" >&2; exit 2; }
done

# The golden bytes of a kind of message, each as a file of the folder $2: tests hold that all of them are read, so a seed
# of these cannot go stale.
golden() {
    local file
    for file in "$(printf '%s\n' tests/golden/"$1"v* | sort -V | tail -n 1)"/*.hex; do
        sed 's/#.*//' "$file" | tr -d ' \n' | perl -0777 -ne 'print pack("H*", $_)' >"$2/$(basename "$file" .hex)"
    done
}

# Files as parts of a conversation: each after a byte of its length, and the byte $1, which says whose it is.
framed() {
    local how="$1" file
    shift
    for file in "$@"; do
        { printf "\\x$(printf %02x "$(stat -c %s "$file")")$how"; cat "$file"; } >"$file.framed"
        mv "$file.framed" "$file"
    done
}

# Something true to begin with: from noise alone a fuzzer finds no key and no hello in seconds.
make_seeds() {
    mkdir -p "$1"
    case "$2" in
        wire_message | channel_frames)
            # The golden frames. The channel has sent nothing that their credit could be for, so for it that is cleared.
            local clear=0
            [ "$2" = wire_message ] || clear=1
            local all="" file
            for file in tests/golden/v*/intern.hex tests/golden/v*/*.hex; do
                sed 's/#.*//' "$file" | tr -d ' \n' |
                    perl -0777 -ne '$b = pack("H*", $_); substr($b, 44, 4) = "\0" x 4 if '$clear'; print $b' >"$1/$(basename "$file")"
                all+=" $1/$(basename "$file")"
            done
            # shellcheck disable=SC2086 # names without blanks, on purpose as words
            [ $clear -eq 0 ] || cat $all >"$1/conversation"
            ;;
        key_text | device_name)
            printf '/job:a/replica:0/task:0/device:CPU:0;0000000000000001;/job:b/replica:1/task:2/device:GPU:3;edge_1_x;4:5' >"$1/key"
            printf '/job:a/replica:0/task:0/device:CPU:0' >"$1/full"
            printf '/job:a/task:1/cpu:*' >"$1/partial"
            ;;
        strings) printf '\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0abc' >"$1/one" ;;
        weights)
            printf '\65\0\0\0\0\0\0\0{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}x' >"$1/one"
            ;;
        units) local text; for text in 64 4KiB 1K..1M:2 1.5ms 10s 12.5G; do printf '%s' "$text" >"$1/$text"; done ;;
        config)
            printf 'task = "/job:a/task:1"\nshards = 2\npoll = "park"\n[peers]\n"/job:b/task:0" = "unix:@b"\n' >"$1/file"
            printf 'busy' >"$1/word"
            ;;
        host_list) local text; for text in 'node[01-04,7],login' 'r[0-1]n[1,3]' '2(x3),1'; do printf '%s' "$text" >"$1/${#text}"; done ;;
        graph_text)
            for file in tests/data/graphs/{conditional,partial_run,strings}/graph.pb*; do
                cp "$file" "$1/$(basename "$(dirname "$file")").${file##*.}"
            done
            ;;
        tf_config)
            for file in tests/data/launchers/tf_config_*.env; do
                sed -n 's/^TF_CONFIG=//p' "$file" | tr -d '\n' >"$1/$(basename "$file")"
            done
            ;;
        cluster_file)
            printf 'task = "/job:ps/task:0"\n[cluster]\nps = ["a:1"]\nworker = { 3 = "[::1]:2" }\n' >"$1/file"
            printf 'ps=a:1,3@b:2;worker=[::1]:2' >"$1/text"
            ;;
        tcp_stream)
            # The golden stream, received whole, and one cut into single bytes.
            local hex
            hex="$(sed 's/#.*//' "$(printf '%s\n' tests/golden/stream_v*.hex | sort -V | tail -n 1)" | tr -d ' \n')"
            perl -e 'print pack("H*", "01ff" . $ARGV[0])' "$hex" >"$1/whole"
            perl -e 'print pack("H*", "00" . $ARGV[0])' "$hex" >"$1/bytes"
            ;;
        rings)
            # A write that lands, and one of ours that is answered.
            printf '\74\0\20\1\0\377\240\10\170\0\0\377' >"$1/writes"
            ;;
        addresses)
            printf 'unix:@rendez' >"$1/abstract"; printf 'unix:/run/rendez' >"$1/path"
            printf 'host-0.net:2222' >"$1/name"; printf '[fe80::1%%eth0]:80' >"$1/v6"
            ;;
        newcomers)
            printf 'rendezC\1' >"$1/control"
            { printf 'rendezD\1\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0'; printf '\1%.0s' {1..16}; printf '\350\3\0\0\0\0\0\0'; head -c 32 /dev/zero; } >"$1/ticket"
            { printf '\1\0\0\0\0\0\0\0'; head -c 64 /dev/zero; } >"$1/handshake"
            ;;
        rpc_message) golden calls_ "$1" ;;
        rpc_worker)
            golden calls_ "$1"
            # Worker 2 made what they name. What ends its life (leave, over) is no part of the conversation.
            framed '\2' "$1"/*
            cat "$1"/hello "$1"/[!hlo]* >"$1/conversation"
            ;;
        rpc_values)
            printf '\0\1a\2\1b\0\1c\0' >"$1/tree"
            printf '\1\2\1a\1b' >"$1/texts"
            printf '\7\5\1\1\0\1a\2\7\10\0' >"$1/spans"
            ;;
        rpc_store)
            printf 'rendez-rpc 3\t2\n=\t2\t0\t0\n*\tb\t1\t0\tin\tw1\t/job:a/task:1\t127.0.0.1:5\n' >"$1/file"
            ;;
        rpc_signature)
            printf 'f((i8,Tensor,),Map<String,Vec<f32>>,Batch{images,labels,},RRef,(),) -> Option<()>' >"$1/all"
            ;;
        rpc_log)
            printf '+\ta\t2\tw0\t/job:a/task:0\tunix:@a\n+\tb\t2\tw1\t/job:a/task:1\t127.0.0.1:5\n-\ta\n' >"$1/comes"
            printf '=\t2\t0\t1\n*\tb\t1\t0\tin\tw1\t/job:a/task:1\t127.0.0.1:5\n' >"$1/state"
            ;;
        autograd_message)
            golden autograd_ "$1"
            # From worker 0; beside one of them come two gradients.
            framed '\0' "$1"/[!g]*
            framed '\x20' "$1/gradient"
            cat "$1"/* >"$seeds/all"; mv "$seeds/all" "$1/"
            ;;
        npy)
            # Two numbers behind a header of 128 bytes.
            { printf '\223NUMPY\1\0\166\0%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"; printf '12345678'; } >"$1/two"
            ;;
        rpc_queries)
            # What a client says first; that a key has a value; and which values two keys have.
            printf '\0\316\367\205\074' >"$1/validate"
            printf '\1\1\0\0\0\0\0\0\0a\2\0\0\0\0\0\0\0bc' >"$1/set"
            printf '\12\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0a\1\0\0\0\0\0\0\0b' >"$1/multi_get"
            ;;
        control) golden control_ "$1"; cat "$1"/* >"$seeds/all"; mv "$seeds/all" "$1/" ;;
    esac
}

cargo "+$toolchain" fuzz build --fuzz-dir "$dir" --target-dir "$build"
# The programs are run as they were built just now: `cargo fuzz run` would look at the sources again each time.
host="$(rustc "+$toolchain" -vV | sed -n 's/^host: //p')"
programs="$build/$host/release"
seeds="$(mktemp -d)"
log="$(mktemp)"
trap 'rm -rf "$log" "$seeds"' EXIT
failed=()
for target in "${targets[@]}"; do
    printf '== %-16s %s s\n' "$target" "$seconds"
    make_seeds "$seeds/$target" "$target"
    mkdir -p "$dir/corpus/$target" "$dir/artifacts/$target"
    # 4 KiB reaches every length the parsers treat apart; more only makes each try slower.
    if "$programs/$target" "$dir/corpus/$target" "$seeds/$target" -artifact_prefix="$dir/artifacts/$target/" \
        -max_total_time="$seconds" -max_len=4096 -timeout=10 >"$log" 2>&1; then
        grep -E '^(Done|stat::number_of_executed_units)|DONE' "$log" | tail -n 1
    else
        failed+=("$target")
        tail -n 60 "$log"
        printf '\nfuzz: %s FAILED. The input is the newest in %s/artifacts/%s; repeat it with\n' "$target" "$dir" "$target"
        printf '  cargo +%s fuzz run --fuzz-dir %s --target-dir target/fuzz %s <that file>\n\n' "$toolchain" "$dir" "$target"
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    printf 'fuzz: FAILED: %s\n' "${failed[*]}" >&2
    exit 1
fi
printf 'fuzz: passed, %d targets\n' "${#targets[@]}"
