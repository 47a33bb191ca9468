#!/usr/bin/env bash
# Checks the store of keys of src/rpc/store against the real one: torch.distributed.TCPStore.
#
#   scripts/torch-store.sh          builds the example `store` and runs src/torch/suites/store_check.py with it
#
# Without a PyTorch it says so and ends with 3: RENDEZ_TORCH_ENV names the environment that has one, by default that of
# scripts/torch-suites.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=${RENDEZ_TORCH_VERSION:-2.15.0}
environment=${RENDEZ_TORCH_ENV:-$HOME/.cache/rendez/torch-$version}
if ! "$environment/bin/python" -c 'import torch.distributed' 2>/dev/null; then
    echo "torch-store: NOT CHECKED: there is no PyTorch in $environment; scripts/torch-suites.sh makes it, or name" >&2
    echo "torch-store: another in RENDEZ_TORCH_ENV" >&2
    exit 3
fi
# As one of all packages, with the features that a plain build of them has: what that made is used again.
cargo build --locked --quiet --example store
"$environment/bin/python" src/torch/suites/store_check.py "${CARGO_TARGET_DIR:-target}/debug/examples/store"
