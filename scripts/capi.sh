#!/usr/bin/env bash
# The C library as its users have it.
#
#   scripts/capi.sh                   compiles the examples of C and C++ against its header with the address and
#                                     undefined-behaviour sanitizers, runs them against the shared library and, the C
#                                     one, against the static one, and once more as it is installed
#   scripts/capi.sh install PREFIX    builds it for release, and installs both libraries, the headers and what
#                                     pkg-config asks under PREFIX; DESTDIR stands before that, as for make install
set -euo pipefail
cd "$(dirname "$0")/.."

# Of those libraries, under that prefix.
install_from() {
    local prefix="$2" root="${DESTDIR:-}$2" version
    version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)"
    install -D -m 755 "$1/librendez_c.so" "$root/lib/librendez_c.so"
    install -D -m 644 "$1/librendez_c.a" "$root/lib/librendez_c.a"
    install -D -m 644 -t "$root/include" src/capi/rendez.h src/capi/rendez.hpp
    mkdir -p "$root/lib/pkgconfig"
    cat >"$root/lib/pkgconfig/rendez.pc" <<END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: rendez
Description: Hands tensors over by key, between threads, processes and machines
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lrendez_c
Libs.private: -lpthread -ldl -lm
END
}

if [ "${1:-}" = install ]; then
    case "${2:-}" in
        /*) ;;
        *) echo "capi: install needs the absolute path of a prefix, as /usr/local" >&2; exit 2 ;;
    esac
    cargo build --release --locked -p rendez-capi
    install_from "${CARGO_TARGET_DIR:-target}/release" "$2"
    exit
fi

for tool in cc c++ pkg-config; do
    command -v "$tool" >/dev/null || { echo "capi: no $tool: apt-get install g++ pkg-config" >&2; exit 1; }
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

DESTDIR="" install_from "$libraries" "$made/prefix"
export PKG_CONFIG_PATH="$made/prefix/lib/pkgconfig"
# shellcheck disable=SC2046 # flags are words
cc -std=c11 src/capi/examples/handover.c $(pkg-config --cflags --libs rendez) -o "$made/handover-installed"
LD_LIBRARY_PATH="$made/prefix/lib" run handover-installed
# What was linked by a path asks for the library by its name.
cc -std=c11 -Isrc/capi src/capi/examples/handover.c "$made/prefix/lib/librendez_c.so" -o "$made/handover-by-path"
LC_ALL=C readelf -d "$made/handover-by-path" | grep 'NEEDED.*\[librendez_c\.so\]' >/dev/null || {
    echo "capi: a program linked with $made/prefix/lib/librendez_c.so asks for it by another name than librendez_c.so" >&2
    exit 1
}
rm "$made/prefix/lib/librendez_c.so"
# shellcheck disable=SC2046
cc -std=c11 src/capi/examples/handover.c $(pkg-config --static --cflags --libs rendez) -o "$made/handover-one-file"
run handover-one-file
echo "capi: passed"
