#!/usr/bin/env bash
# Builds what people install, into target/dist.
#   scripts/release/release.sh              every part that this machine can build; says what is missing for the others
#   scripts/release/release.sh gnu deb      only these parts; fails if one of them cannot be built
#   scripts/release/release.sh --list       which parts there are, and what is missing for each
#   RENDEZ=path scripts/release/release.sh gnu deb    packs this gnu binary instead of building one
#   OUT=folder scripts/release/release.sh   writes there instead
# Changes nothing outside of target/, except that the container runtime keeps the image.
set -euo pipefail
# A build that fails in `$(…)` ends the script, too: nothing is packed of one that was made before.
shopt -s inherit_errexit
# Paths that are given are meant from where this is called.
[ -z "${RENDEZ:-}" ] || RENDEZ="$(realpath "$RENDEZ")"
[ -z "${OUT:-}" ] || OUT="$(realpath -m "$OUT")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

all=(gnu musl deb image sums)
target="${CARGO_TARGET_DIR:-target}"
out="${OUT:-target/dist}"
here="scripts/release"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)"
machine="$(uname -m)"
gnu="$machine-unknown-linux-gnu"
musl="$machine-unknown-linux-musl"
commit="$(git rev-parse --short HEAD 2>/dev/null || true)"
if [ -n "$commit" ]; then
    export RENDEZ_VERSION="$version ($commit)"
    # Packed again, the same binary of the same commit makes the same archives.
    export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
fi
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-0}"

describe() {
    case "$1" in
        gnu) echo "rendez-$version-$gnu.tar.gz: the stripped command, manual pages, completions" ;;
        musl) echo "rendez-$version-$musl.tar.gz: the same, static; it cannot load libibverbs, so it has no RDMA" ;;
        deb) echo "rendez_${version}_$(debian_machine).deb, from the gnu binary" ;;
        image) echo "container image rendez:$version, from $here/Containerfile" ;;
        sums) echo "SHA256SUMS of what is in the folder" ;;
        *) return 1 ;;
    esac
}

debian_machine() {
    case "$machine" in
        x86_64) echo amd64 ;;
        aarch64) echo arm64 ;;
        *) echo "$machine" ;;
    esac
}

runtime() {
    local name
    for name in podman buildah; do
        if command -v "$name" >/dev/null; then echo "$name"; return; fi
    done
    # A client without its daemon builds nothing.
    if command -v docker >/dev/null && docker info >/dev/null 2>&1; then echo docker; fi
}

# What is missing for a part; nothing if it can be built.
missing() {
    local tool
    case "$1" in
        gnu)
            if [ -z "${RENDEZ:-}" ]; then
                command -v cargo >/dev/null || echo "cargo (https://rustup.rs)"
                # glommio's build compiles bundled C and asks git for it.
                command -v cc >/dev/null || echo "cc (apt-get install gcc libc6-dev)"
                command -v git >/dev/null || echo "git (apt-get install git)"
            fi
            for tool in strip readelf; do command -v "$tool" >/dev/null || echo "$tool (apt-get install binutils)"; done
            ;;
        musl)
            if ! ls "$(rustc --print sysroot 2>/dev/null)/lib/rustlib/$musl/lib" >/dev/null 2>&1; then
                echo "the target $musl (rustup target add $musl)"
            fi
            command -v musl-gcc >/dev/null || echo "musl-gcc (apt-get install musl-tools)"
            # Its timer is `Send` with glibc only (executor/stall.rs), and its bundled C wants the kernel's headers.
            if cargo tree --locked --target "$musl" --prefix none -e normal | grep '^glommio v0\.9\.0' >/dev/null; then
                echo "a rendez without glommio 0.9.0, which does not compile for musl"
            fi
            command -v strip >/dev/null || echo "strip (apt-get install binutils)"
            ;;
        deb)
            missing gnu
            command -v dpkg-deb >/dev/null || echo "dpkg-deb (only Debian and its kin have it)"
            ;;
        image)
            [ -n "$(runtime)" ] || echo "podman, buildah, or docker with a daemon that runs"
            ;;
        sums) ;;
    esac
}

# The gnu binary, stripped, built once for all parts that want it.
gnu_binary() {
    local stripped="$out/.build/$gnu/rendez"
    if [ ! -e "$stripped" ]; then
        mkdir -p "${stripped%/*}"
        local built="${RENDEZ:-}"
        if [ -z "$built" ]; then
            cargo build --release --locked --bin rendez >&2
            built="$target/release/rendez"
        fi
        strip -o "$stripped.part" "$built"
        mv "$stripped.part" "$stripped"
    fi
    echo "$stripped"
}

# The newest version of glibc that a binary asks for.
glibc_of() {
    readelf --version-info --wide "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -1
}

# Manual pages and completions; they come from the program itself.
write_pages() {
    local binary="$1" man="$2" bash="$3" zsh="$4" fish="$5"
    mkdir -p "$man" "${bash%/*}" "${zsh%/*}" "${fish%/*}"
    "$binary" man "$man" >/dev/null
    "$binary" completions bash >"$bash"
    "$binary" completions zsh >"$zsh"
    "$binary" completions fish >"$fish"
}

# An archive of `binary` and what goes with it.
pack() {
    local triple="$1" binary="$2" name="rendez-$version-$1"
    local folder="$out/.build/$name"
    rm -rf "$folder"
    mkdir -p "$folder"
    install -m 755 "$binary" "$folder/rendez"
    write_pages "$binary" "$folder/man/man1" "$folder/completions/rendez.bash" "$folder/completions/_rendez" \
        "$folder/completions/rendez.fish"
    install -m 644 LICENSE "$here/README.md" CHANGELOG.md "$here/rendez.service" "$here/rendez.sysusers" "$folder"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$out/.build" -cf - "$name" |
        gzip -n -9 >"$out/$name.tar.gz"
    echo "$out/$name.tar.gz: $(stat -c %s "$out/$name.tar.gz") bytes, the command $(stat -c %s "$folder/rendez")"
}

part_gnu() {
    local binary
    binary="$(gnu_binary)"
    pack "$gnu" "$binary"
    echo "it needs glibc $(glibc_of "$binary") or later"
}

part_musl() {
    local name="${musl//-/_}" stripped="$out/.build/$musl/rendez"
    # Crates that hold C (ring) take the compiler from the first.
    env "CC_$name=musl-gcc" "CARGO_TARGET_${name^^}_LINKER=musl-gcc" \
        cargo build --release --locked --bin rendez --target "$musl"
    mkdir -p "${stripped%/*}"
    strip -o "$stripped" "$target/$musl/release/rendez"
    if readelf --dynamic "$stripped" | grep NEEDED >/dev/null; then
        echo "release: the musl binary is not static" >&2
        return 1
    fi
    pack "$musl" "$stripped"
}

# Packages of the libraries that a binary loads at its start.
dependencies() {
    local library needed=""
    while read -r library; do
        case "$library" in
            libc.so.6 | libm.so.6 | ld-linux*) needed+="libc6 (>= $(glibc_of "$1"))"$'\n' ;;
            libgcc_s.so.1) needed+="libgcc-s1"$'\n' ;;
            *) echo "release: no Debian package is known for $library" >&2; return 1 ;;
        esac
    done < <(readelf --dynamic --wide "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    printf '%s' "$needed" | sort -u | paste -sd, | sed 's/,/, /g'
}

part_deb() {
    local binary root="$out/.build/deb" depends
    local package="rendez_${version}_$(debian_machine).deb"
    binary="$(gnu_binary)"
    depends="$(dependencies "$binary")"
    rm -rf "$root"
    install -D -m 755 "$binary" "$root/usr/bin/rendez"
    install -D -m 644 "$here/rendez.service" "$root/usr/lib/systemd/system/rendez.service"
    install -D -m 644 "$here/rendez.sysusers" "$root/usr/lib/sysusers.d/rendez.conf"
    write_pages "$binary" "$root/usr/share/man/man1" "$root/usr/share/bash-completion/completions/rendez" \
        "$root/usr/share/zsh/vendor-completions/_rendez" "$root/usr/share/fish/vendor_completions.d/rendez.fish"
    gzip -n -9 "$root"/usr/share/man/man1/*.1
    install -D -m 644 "$here/README.md" "$root/usr/share/doc/rendez/README.md"
    install -D -m 644 "$here/debian/copyright" "$root/usr/share/doc/rendez/copyright"
    gzip -n -9 -c CHANGELOG.md >"$root/usr/share/doc/rendez/changelog.gz"
    find "$root" -type d -exec chmod 755 {} +
    find "$root/usr/share" -type f -exec chmod 644 {} +
    mkdir -p "$root/DEBIAN"
    install -m 755 "$here"/debian/{postinst,prerm,postrm} "$root/DEBIAN"
    sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$(debian_machine)/" -e "s/@DEPENDS@/$depends/" \
        -e "s/@SIZE@/$(du -sk --apparent-size "$root/usr" | cut -f1)/" \
        -e "s/@MAINTAINER@/${DEBFULLNAME:-$(git log -1 --format=%an)} <${DEBEMAIL:-$(git log -1 --format=%ae)}>/" \
        "$here/debian/control.in" >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    dpkg-deb --root-owner-group --build "$root" "$out/$package" >/dev/null
    echo "$out/$package: $(stat -c %s "$out/$package") bytes, depends on $depends"
}

part_image() {
    local runtime
    runtime="$(runtime)"
    case "$runtime" in
        buildah) buildah bud -f "$here/Containerfile" -t "rendez:$version" . ;;
        *) "$runtime" build -f "$here/Containerfile" -t "rendez:$version" . ;;
    esac
    echo "image rendez:$version, built by $runtime"
}

part_sums() {
    (cd "$out" && find . -maxdepth 1 -type f \( -name '*.tar.gz' -o -name '*.deb' \) -printf '%P\0' | sort -z |
        xargs -0 -r sha256sum >SHA256SUMS && cat SHA256SUMS)
}

if [ "${1:-}" = --list ]; then
    for part in "${all[@]}"; do
        printf '%-6s %s\n' "$part" "$(describe "$part")"
        missing "$part" | sort -u | sed 's/^/       missing: /'
    done
    exit 0
fi
is_asked="${1:+yes}"
parts=("$@")
[ $# -gt 0 ] || parts=("${all[@]}")
for part in "${parts[@]}"; do
    describe "$part" >/dev/null || { echo "release: no such part: $part (see --list)" >&2; exit 2; }
done

mkdir -p "$out"
# Nothing of an earlier run is packed again.
rm -rf "$out/.build"
skipped=""
for part in "${parts[@]}"; do
    printf '\n== %s: %s\n' "$part" "$(describe "$part")"
    lacks="$(missing "$part" | sort -u | paste -sd';' | sed 's/;/; /g')"
    if [ -z "$lacks" ]; then
        "part_$part"
    elif [ -n "$is_asked" ]; then
        echo "release: $part cannot be built, missing: $lacks" >&2
        exit 1
    else
        skipped+="  $part, missing: $lacks"$'\n'
        echo "skipped, missing: $lacks"
    fi
done
rm -rf "$out/.build"
if [ -n "$skipped" ]; then printf '\nrelease: skipped\n%s' "$skipped"; fi
