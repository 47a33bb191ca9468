#!/usr/bin/env bash
# Device memory on a real card: the tests that run over a played driver, once more over the one that is installed.
#   scripts/gpu.sh            builds, runs what a card can show, and writes target/gpu.md
# Wants a CUDA driver (libcuda.so.1) with at least one device; RENDEZ_DEVICE_LIBRARY names another library.
# Exit code: 0 all passed, 1 something failed, 2 there is no card: then what stays to be shown is listed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

table=target/gpu.md
mkdir -p target
pending() {
    {
        echo "# Device memory: pending hardware"
        echo
        echo "$1"
        echo
        echo "| call of the driver | run by |"
        echo "|---|---|"
        sed -n 's/^ *[a-z_]*: \(cu[A-Za-z0-9_]*\)(.*/| `\1` | the played driver only |/p' \
            src/core/memory/cuda/sys/table.rs
    } >"$table"
    cat "$table"
    exit 2
}
library="${RENDEZ_DEVICE_LIBRARY:-libcuda.so.1}"
if ! [ -e "$library" ] && ! ldconfig -p | grep -q "$library"; then
    pending "There is no $library on this machine."
fi
[ -e /dev/nvidiactl ] || [ -n "${RENDEZ_DEVICE_LIBRARY:-}" ] || pending "There is no /dev/nvidiactl: no card, or it is hidden."

export RENDEZ_DEVICE_LIBRARY="$library"
{
    echo "# Device memory on this machine"
    echo
    nvidia-smi --query-gpu=name,driver_version,uuid --format=csv,noheader 2>/dev/null || true
    echo
    cargo test --locked --release -p rendez --lib engine::devices::card -- --ignored --nocapture --test-threads 1 2>&1 |
        grep -E '^\||^test |panicked|test result'
} | tee "$table"
if grep -qE 'FAILED|panicked' "$table" || ! grep -qE 'test result: ok\. [1-9]' "$table"; then
    echo "gpu: something failed; see $table" >&2
    exit 1
fi
