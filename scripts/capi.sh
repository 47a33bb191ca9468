#!/usr/bin/env bash
# The C library as its users have it: builds it, compiles the examples of C and C++ against its header with the address
# and undefined-behaviour sanitizers, and runs them against the shared library and, the C one, against the static one.
#
#   scripts/capi.sh
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in cc c++; do
    command -v "$tool" >/dev/null || { echo "capi: no $tool: apt-get install g++" >&2; exit 1; }
done
# The whole of it: what the tests have built is used again.
cargo build --locked --quiet
libraries="${CARGO_TARGET_DIR:-target}/debug"
made="$(mktemp -d)"
trap 'rm -r "$made"' EXIT
strict=(-Wall -Wextra -Wpedantic -Werror -g -fsanitize=address,undefined -fno-sanitize-recover=all -Isrc/capi)
shared=("-L$libraries" -lrendez_c "-Wl,-rpath,$(realpath "$libraries")" -lpthread)
static=("$libraries/librendez_c.a" -lpthread -ldl -lm)

run() {
    echo "capi: $1"
    timeout 60 "$made/$1"
}
cc -std=c11 "${strict[@]}" src/capi/examples/handover.c "${shared[@]}" -o "$made/handover"
run handover
cc -std=c11 "${strict[@]}" src/capi/examples/handover.c "${static[@]}" -o "$made/handover-static"
run handover-static
c++ -std=c++17 "${strict[@]}" src/capi/examples/handover.cpp "${shared[@]}" -o "$made/handover-cpp"
run handover-cpp
echo "capi: passed"
