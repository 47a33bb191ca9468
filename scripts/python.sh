#!/usr/bin/env bash
# The Python package as its users have it: builds the wheel, installs it into an empty environment without Rust, and
# runs there its tests, the examples of its pages, and the type checkers.
#
#   scripts/python.sh                 all of it, with `python3`, or with PYTHON=…
#   scripts/python.sh prepare         only what a test needs: the wheel, and the environments
#   scripts/python.sh test            only tests what was prepared
#   scripts/python.sh wheel           only builds the wheel, into target/python/wheels; with the command: COMMAND=1
#   scripts/python.sh sdist           the source distribution, and the wheel that is built of it
#   scripts/python.sh freethreaded    a wheel for a free-threaded interpreter, PYTHON=…, and its tests; where PYTHON is
#                                     none, the wheel for 3.14t alone, which is NOT tested then
#
# PROFILE=dev (as usual) or release. Exits with 3 where what it needs cannot be had, and with nothing else then.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python3}"
profile="${PROFILE:-dev}"
made="$PWD/target/python"
wheels="$made/wheels"
# What the tests want beside the wheel. typing_extensions is there for mypy under 3.11.
wanted=(pytest hypothesis numpy ml_dtypes anyio trio uvloop mypy typing_extensions)

# pytest ends with 3, too, and what takes too long with 124: those are failures.
trap 'case $? in 3 | 124) echo "python: FAILED" >&2; exit 1 ;; esac' EXIT
cannot() {
    trap - EXIT
    echo "python: $*" >&2
    exit 3
}

command -v "$python" >/dev/null || cannot "there is no $python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || cannot "$python is older than 3.11: set PYTHON"
version="$("$python" -c 'import sys, sysconfig; print(f"{sys.version_info[0]}.{sys.version_info[1]}" + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""))')"

# An environment of its own, made once: with maturin, or for each interpreter with what the tests want.
environment() {
    local at="$made/$1"
    shift
    if [ ! -e "$at/made" ]; then
        rm -rf "$at"
        "$python" -m venv "$at" || cannot "$python cannot make environments (Debian: apt-get install python3-venv)"
        timeout 240 "$at/bin/pip" install --quiet --disable-pip-version-check "$@" ||
            cannot "packages cannot be had: $*"
        touch "$at/made"
    fi
}

wheel() {
    environment tools "maturin>=1.9,<2" wheel
    rm -rf "$wheels"
    PATH="$made/tools/bin:$PATH" maturin build --quiet --locked --manifest-path src/python/Cargo.toml \
        --profile "$profile" --interpreter "${interpreter:-$(command -v "$python")}" --out "$wheels" "$@"
    if [ -n "${COMMAND:-}" ]; then add_command; fi
    ls -l "$wheels"
}

# The `rendez` command, as a script of the installation: a wheel's scripts may be programs.
add_command() {
    local folder=debug flags=() unpacked="$made/unpacked"
    if [ "$profile" = release ]; then folder=release flags=(--release); fi
    cargo build --locked --quiet "${flags[@]}"
    rm -rf "$unpacked"
    "$made/tools/bin/python" -m wheel unpack --dest "$unpacked" "$wheels"/*.whl
    local scripts
    scripts="$(echo "$unpacked"/*)" && scripts="$scripts/$(basename "$scripts").data/scripts"
    mkdir -p "$scripts"
    cp "${CARGO_TARGET_DIR:-target}/$folder/rendez" "$scripts/"
    rm "$wheels"/*.whl
    "$made/tools/bin/python" -m wheel pack --dest-dir "$wheels" "$unpacked"/*
}

# Rust is out of reach from here on: what was installed does without.
bare() {
    env -i HOME="$HOME" LANG=C.UTF-8 PATH=/usr/bin:/bin "$@"
}

prepare() {
    wheel "$@"
    environment "$version" "${wanted[@]}"
    # A driver of devices, played in memory.
    cargo build --locked --quiet -p rendez-played-cuda
}

install_and_test() {
    local at="$made/$version" file
    file="$(echo "$wheels"/*.whl)"
    # An empty environment takes the wheel alone.
    rm -rf "$made/empty"
    "$python" -m venv "$made/empty"
    bare "$made/empty/bin/pip" install --quiet --disable-pip-version-check --no-index "$file"
    bare "$made/empty/bin/python" -c 'import rendez; print("rendez", rendez.__version__, rendez.Code.OK.name)'
    bare "$at/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$file"
    # Not beside the sources, whose package has no extension.
    rm -rf "$made/tests" && cp -r src/python/tests "$made/tests"
    cp src/python/pyproject.toml "$made/tests/"
    mkdir "$made/tests/pages"
    cp src/book/tutorial/python.md "$made/tests/pages/tutorial.md"
    cp src/book/howto/python-calls.md "$made/tests/pages/calls.md"
    cp README.md "$made/tests/pages/front.md"
    cp src/python/README.md "$made/tests/pages/package.md"
    cp "${CARGO_TARGET_DIR:-target}/debug/librendez_played_cuda.so" "$made/tests/"
    (cd "$made/tests" && bare timeout 240 "$at/bin/python" -X dev -m pytest -c pyproject.toml --rootdir . -p no:cacheprovider .)
}

check_types() {
    local at="$made/$version"
    (cd "$made/tests" && bare timeout 120 "$at/bin/python" -m mypy --config-file pyproject.toml types_checked.py)
    (cd "$made/tests" && bare timeout 120 "$at/bin/python" -m mypy --config-file pyproject.toml -p rendez)
    # pyright is a program of Node's: of its packages this one brings both along.
    if ! timeout 120 "$at/bin/pip" install --quiet --disable-pip-version-check basedpyright 2>/dev/null; then
        echo "python: WARNING: NOT checked by pyright: it cannot be had here" >&2
        return
    fi
    (cd "$made/tests" && bare PATH="$at/bin:/usr/bin:/bin" timeout 120 basedpyright --level error types_checked.py)
    # Every type that a user sees is known, except in the part for PyTorch: its types are torch's, which is not here.
    local torch="$at/lib/python$version/site-packages/rendez/torch" status=0
    rm -rf "$made/aside" && mv "$torch" "$made/aside"
    (cd "$made/tests" && bare PATH="$at/bin:/usr/bin:/bin" timeout 120 basedpyright --verifytypes rendez --ignoreexternal) |
        grep -E 'error|score' || status=$?
    mv "$made/aside" "$torch"
    return "$status"
}

case "${1:-all}" in
    wheel) wheel ;;
    sdist)
        environment tools "maturin>=1.9,<2" wheel
        rm -rf "$made/sdist"
        PATH="$made/tools/bin:$PATH" maturin sdist --manifest-path src/python/Cargo.toml --out "$made/sdist"
        PATH="$made/tools/bin:$PATH" timeout 1500 "$made/tools/bin/pip" wheel --quiet --no-deps --no-build-isolation \
            --wheel-dir "$made/sdist" "$made"/sdist/*.tar.gz
        ls -l "$made/sdist"
        ;;
    freethreaded)
        case "$version" in
            *t)
                prepare --no-default-features --features cuda,verbs,stages
                install_and_test
                ;;
            *)
                interpreter=python3.14t wheel --no-default-features --features cuda,verbs,stages
                echo "python: WARNING: built and NOT tested: $python is not free-threaded" >&2
                ;;
        esac
        ;;
    prepare) prepare ;;
    all | test)
        [ "${1:-}" = test ] || prepare
        install_and_test
        check_types
        echo "python: passed with CPython $version"
        ;;
    *) echo "usage: scripts/python.sh [prepare|test|wheel|sdist|freethreaded]" >&2; exit 2 ;;
esac
