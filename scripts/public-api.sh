#!/usr/bin/env bash
# Writes the public face of the library, src/rendez/PUBLIC_API.txt; with `check` it compares. What a change does to
# programs that depend on the library is seen in the difference of that file.
#
# rustdoc writes JSON for the nightly compiler; RUSTC_BOOTSTRAP has the stable one do it too. It is set for rustdoc
# alone: build scripts that look at it would have all that depends on them built again.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-$PWD/target}"
mkdir -p "$target"
printf '#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc "$@"\n' >"$target/rustdoc-json"
chmod +x "$target/rustdoc-json"
for crate in rendez rendez-core; do
    RUSTDOC="$target/rustdoc-json" cargo rustdoc --locked --quiet -p "$crate" --lib -- \
        -Z unstable-options --output-format json --document-hidden-items
done
exec python3 scripts/public-api.py src/rendez/PUBLIC_API.txt "$target/doc/rendez.json" "$target/doc/rendez_core.json" \
    ${1:+--"$1"}
