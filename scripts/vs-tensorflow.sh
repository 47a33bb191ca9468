#!/usr/bin/env bash
# TensorFlow and rendez side by side: the same graphs over two tasks of this machine, each task a process, in one go.
#   scripts/vs-tensorflow.sh
#     a chain of 20 hops to and fro between the tasks, 4 B and 16 MiB, and steps that do nothing on both; rendez by
#     shared memory, which it chooses here, and by TCP. Prints one table. Some two minutes.
# Installs tensorflow-cpu into target/tensorflow, unless TENSORFLOW_VENV names a virtual environment that has it. Listens
# on 127.0.0.1 alone. RENDEZ names the command, else it is built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${TENSORFLOW_VENV:-$PWD/target/tensorflow}"
if ! "$venv/bin/python" -c 'import tensorflow' 2>/dev/null; then
    # Without python3-venv the environment is made by half, and has no pip.
    if [ ! -x "$venv/bin/pip" ]; then python3 -m venv "$venv"; fi
    "$venv/bin/pip" install --quiet tensorflow-cpu
fi
if [ -z "${RENDEZ:-}" ]; then
    cargo build --release --locked --quiet
    RENDEZ="${CARGO_TARGET_DIR:-$PWD/target}/release/rendez"
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export RENDEZ RENDEZ_LOG=rendez=warn TF_CPP_MIN_LOG_LEVEL=2 CUDA_VISIBLE_DEVICES=-1 TF_ENABLE_ONEDNN_OPTS=0
timeout --kill-after=5 "${SECONDS_MAX:-300}" "$venv/bin/python" scripts/vs-tensorflow.py "$work"
