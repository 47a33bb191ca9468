#!/usr/bin/env bash
# Fuzzes every parser for a bounded time; any panic, overflow or bad access fails loudly and says how to repeat it.
#   scripts/fuzz.sh                  all targets, 20 s each
#   scripts/fuzz.sh 300              300 s each
#   scripts/fuzz.sh 60 key_text      one target (or several)
# Needs a nightly toolchain and cargo-fuzz, which is built once into target/tools if it is not there; ordinary builds
# need neither. What is found and learnt lies in tests/fuzz/artifacts and tests/fuzz/corpus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds="${1:-20}"
case "$seconds" in
    '' | *[!0-9]*) echo "fuzz: the first argument is a number of seconds for each target, not '$seconds'" >&2; exit 2 ;;
esac
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

fuzz() { cargo "+$toolchain" fuzz "$@"; }

mapfile -t known < <(cd "$dir/targets" && for file in *.rs; do echo "${file%.rs}"; done)
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then targets=("${known[@]}"); fi
for target in "${targets[@]}"; do
    [ -f "$dir/targets/$target.rs" ] || { echo "fuzz: no target '$target'; there are: ${known[*]}" >&2; exit 2; }
done

fuzz build --fuzz-dir "$dir"
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
failed=()
for target in "${targets[@]}"; do
    printf '== %-16s %s s\n' "$target" "$seconds"
    # 4 KiB reaches every length the parsers treat apart; more only makes each try slower.
    if fuzz run --fuzz-dir "$dir" "$target" -- -max_total_time="$seconds" -max_len=4096 -timeout=10 >"$log" 2>&1; then
        grep -E '^(Done|stat::number_of_executed_units)|DONE' "$log" | tail -n 1
    else
        failed+=("$target")
        tail -n 60 "$log"
        printf '\nfuzz: %s FAILED. The input is the newest in %s/artifacts/%s; repeat it with\n' "$target" "$dir" "$target"
        printf '  cargo +%s fuzz run --fuzz-dir %s %s <that file>\n\n' "$toolchain" "$dir" "$target"
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    printf 'fuzz: FAILED: %s\n' "${failed[*]}" >&2
    exit 1
fi
printf 'fuzz: passed, %d targets\n' "${#targets[@]}"
