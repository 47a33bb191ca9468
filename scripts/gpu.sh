#!/usr/bin/env bash
# Device memory on a real card: tests over the driver that is installed, and what hand-overs and copies take there.
#   scripts/gpu.sh            builds, runs what a card can show, and writes target/gpu.md
#   scripts/gpu.sh build      only builds, into target/gpu: for a machine that has a card and no Rust
#   scripts/gpu.sh run        only runs what was built there
# Wants a CUDA driver (libcuda.so.1) with at least one device; RENDEZ_DEVICE_LIBRARY names another library. The tests and
# the bench from Python want a Python (PYTHON=…) with PyTorch for CUDA and pytest, and are left out without one; those
# of PyTorch's backends want g++ too, and ninja, without which they are built one after the other.
# Exit code: 0 all passed, 1 something failed, 2 there is no card: then what stays to be shown is listed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

what="${1:-all}"
table=target/gpu.md
made=target/gpu
python="${PYTHON:-python3}"
mkdir -p "$made"

build() {
    local card
    rm -f "$made/card"
    # The compiler's errors go to where they can be read.
    card="$(cargo test --locked --release -p rendez --lib --no-run --message-format=json-render-diagnostics |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')" || exit 1
    # Symbols take nine tenths of it.
    strip -o "$made/card" "$card"
    rm -f "$made"/*.whl
    PROFILE=release scripts/python.sh wheel || exit 1
    cp target/python/wheels/*.whl "$made/"
    # For PyTorch's own suites, and to build the extension fast.
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$made" expecttest ninja ||
        echo "gpu: without expecttest and ninja, which cannot be fetched" >&2
}
case "$what" in
    # No list with &&: a function in one goes on after what fails in it.
    build) build; exit ;;
    all) build ;;
    run) [ -x "$made/card" ] || { echo "gpu: nothing is built: scripts/gpu.sh build" >&2; exit 1; } ;;
    *) echo "gpu: no such part: $what" >&2 && exit 1 ;;
esac

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
# `grep -q` would end at its first hit, and the pipe then fail by the signal that ldconfig gets.
if ! [ -e "$library" ] && ! ldconfig -p | grep "$library" >/dev/null; then
    pending "There is no $library on this machine."
fi
[ -e /dev/nvidiactl ] || [ -n "${RENDEZ_DEVICE_LIBRARY:-}" ] || pending "There is no /dev/nvidiactl: no card, or it is hidden."

export RENDEZ_DEVICE_LIBRARY="$library"
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT
failed=""
part() {
    local name="$1" seconds="$2"
    shift 2
    printf '\n## %s\n\n' "$name"
    timeout --kill-after=5 "$seconds" "$@" 2>&1 || { failed+=" $name,"; printf '\nFAILED: %s\n' "$name"; }
}
# SUITE PASSED FAILED: one of PyTorch's own; how many pass at least, and how many may fail.
suite() {
    part "PyTorch's own: $1" 1200 env PYTHONPATH="$PWD/src/torch:$PWD/src/torch/suites:$site" SUITE="$1" \
        COUNTS="$site/$1.counts" bash -c '
            "$0" -m pytest -q -p counts -p no:cacheprovider src/torch/suites/rpc_suite.py
            "$0" src/torch/suites/counts.py "$COUNTS" "$@"' "$python" "$@"
}
in_python() {
    part "The package" 60 "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$made"/*.whl
    export PYTHONPATH="$site" PYTHONDONTWRITEBYTECODE=1 PATH="$site/bin:$PATH"
    part "Tests from Python" 180 "$python" -m pytest -q -p no:cacheprovider src/python/tests/card.py
    part "PyTorch's extension" 600 env -C src/torch "$python" setup.py --quiet build_ext --inplace
    PYTHONPATH="$PWD/src/torch:$site" part "Tests from PyTorch" 300 "$python" -m pytest -q -p no:cacheprovider \
        src/torch/tests/card.py
    if "$python" -c 'import expecttest' 2>/dev/null; then
        suite cuda 7 0
        # Four look for the name of TensorPipe in a message.
        suite cuda-tensorpipe 22 4
    else
        printf '\nLeft out: PyTorch'"'"'s own suites: %s has no expecttest.\n' "$python"
    fi
    part "What it takes" 180 "$python" bench/devices.py
    PYTHONPATH="$PWD/src/torch:$site" part "Calls beside TensorPipe" 120 "$python" src/torch/bench/rpc.py --device cuda
}
all() {
    echo "# Device memory on this machine"
    echo
    nvidia-smi --query-gpu=name,driver_version,uuid --format=csv,noheader 2>/dev/null || true
    part "Tests" 120 "$made/card" engine::devices::card --ignored --nocapture --test-threads 1
    if "$python" -c 'import sys, torch, pytest; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        in_python
    else
        printf '\nLeft out: %s has no PyTorch with a card, or no pytest.\n' "$python"
    fi
    [ -z "$failed" ]
}
all | tee "$table" || { echo "gpu: something failed; see $table" >&2; exit 1; }
