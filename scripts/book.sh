#!/usr/bin/env bash
# The documentation site, from src/book.
#   scripts/book.sh             builds target/book with mdBook, and puts the API documentation under target/book/api
#   scripts/book.sh generate    writes the pages that come from the program: commands.md and errors.md
#   scripts/book.sh check       fails if one of these is out of date (tests/tidy checks summary and links)
# RENDEZ=path names the program; otherwise it is built. NO_API=1 leaves the API documentation out.
# mdBook is not installed here: cargo install mdbook --locked. generate and check need python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

program() {
    if [ -z "${RENDEZ:-}" ]; then
        cargo build --locked --quiet
        RENDEZ="${CARGO_TARGET_DIR:-target}/debug/rendez"
    fi
    printf '%s' "$RENDEZ"
}

case "${1:-build}" in
    build)
        if ! command -v mdbook >/dev/null; then
            echo "book: there is no mdbook: cargo install mdbook --locked" >&2
            exit 1
        fi
        mdbook build src/book
        if [ -z "${NO_API:-}" ]; then
            cargo doc --locked --no-deps
            rm -rf target/book/api
            cp -r "${CARGO_TARGET_DIR:-target}/doc" target/book/api
        fi
        echo "book: target/book/index.html"
        ;;
    generate) python3 scripts/book-pages.py "$(program)" ;;
    check) python3 scripts/book-pages.py "$(program)" --check ;;
    *)
        echo "usage: scripts/book.sh [build|generate|check]" >&2
        exit 2
        ;;
esac
