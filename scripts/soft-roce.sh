#!/usr/bin/env bash
# Real verbs without a card: boots a stock Debian kernel under QEMU's emulation with two Soft-RoCE devices on one wire,
# and runs there over them: the conformance suite, engines of several processes on a good and on a bad wire
# (tests/verbs/guest.rs), and the command itself. The guest's kernel has TLS, too: data connections whose records it
# keeps (tests/conformance, tests/engine/tls.rs) run there.
#   scripts/soft-roce.sh             builds all that, prepares the guest if there is none, runs it
#   scripts/soft-roce.sh prepare     only the guest
#   scripts/soft-roce.sh NAME...     only the tests whose names contain one of these words
# Installs nothing: packages are downloaded and unpacked into a cache folder (650 MB, RENDEZ_SOFT_ROCE). Wants apt-get
# update to have run, python3, and a cc; no root, no /dev/kvm. Times under emulation mean nothing.
# BUILT=DIR takes the four programs from there; FEATURES=verbs-linked,stages builds them with these and no others.
# Exit code: the suite's own, 1 also if a program does not build or the guest dies of its tests; 124 the guest hung, 125 it
# cannot be had or ended before. TIMEOUT=600 MEM=2G SMP=2 change the guest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache="${RENDEZ_SOFT_ROCE:-${XDG_CACHE_HOME:-$HOME/.cache}/rendez-soft-roce}"
here="$PWD/scripts/soft-roce"
system="$cache/sys"
triple=x86_64-linux-gnu
libraries="$system/usr/lib/$triple:$system/lib/$triple"
features=()
if [ -n "${FEATURES:-}" ]; then features=(--no-default-features --features "$FEATURES"); fi
fail() { printf 'soft-roce: %s\n' "$*" >&2; exit 125; }

# A program of the unpacked packages, or of this machine.
program() {
    local at
    for at in "$system"/{usr/bin,bin,sbin,usr/sbin}/"$1" {/usr/bin,/bin,/sbin,/usr/sbin}/"$1"; do
        if [ -x "$at" ] && [ ! -d "$at" ]; then echo "$at"; return; fi
    done
    fail "there is no $1"
}

needed() { LD_LIBRARY_PATH="$libraries" ldd "$1" 2>/dev/null | awk '/=> \//{print $3} $1 ~ /^\/lib64/{print $1}'; }

download() {
    local kernel deb
    mkdir -p "$cache/debs/partial" "$system" "$cache/kernel"
    kernel="$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/{print $2; exit}')"
    [ -n "$kernel" ] || fail "no kernel package: has apt-get update run?"
    # Only downloaded: installing qemu-system-x86 would put out newer packages of the same machine.
    apt-get -o Dir::Cache::archives="$cache/debs" -o APT::Sandbox::User="$(id -un)" -y -d -qq --no-install-recommends \
        --reinstall install qemu-system-x86 qemu-system-common qemu-system-data seabios libibverbs1 ibverbs-providers \
        librdmacm1 perftest libibumad3 libpci3 busybox-static iproute2 cpio kmod >/dev/null
    (cd "$cache/debs" && apt-get -o APT::Sandbox::User="$(id -un)" -qq download "$kernel" 2>/dev/null)
    for deb in "$cache"/debs/*.deb; do
        case "${deb##*/}" in
            linux-image-*) dpkg -x "$deb" "$cache/kernel" ;;
            systemd* | udev_* | libc6_* | libnss* | libpam*) ;;
            *) dpkg -x "$deb" "$system" ;;
        esac
    done
}

# The guest's files, as small as they can be: busybox, iproute2, bash, the verbs library and the kernel's modules.
pack() {
    local modules version stage file library
    modules="$(echo "$cache"/kernel/lib/modules/*)"
    version="${modules##*/}"
    mkdir -p "$cache/tools"
    ln -sf "$(program kmod)" "$cache/tools/depmod"
    ln -sf "$(program kmod)" "$cache/tools/modprobe"
    stage="$(mktemp -d "$cache/stage.XXXX")"
    mkdir -p "$stage"/{bin,proc,sys,dev,tmp,run,mnt,root,lib,lib64,usr/bin,etc/libibverbs.d} \
        "$stage/usr/lib/$triple/libibverbs" "$stage/lib/modules/$version"
    ln -s "../usr/lib/$triple" "$stage/lib/$triple"
    cp "$(program busybox)" "$stage/bin/busybox"
    ln -s busybox "$stage/bin/sh"
    (
        export LD_LIBRARY_PATH="$libraries" PATH="$cache/tools:$PATH"
        depmod -b "$cache/kernel" "$version"
        for file in rdma_rxe ib_uverbs crc32_generic crc32_pclmul crc32c_generic crc32c_intel veth sch_netem virtio_pci \
            sch_ingress cls_matchall act_gact act_pedit 9p 9pnet_virtio tls aesni_intel gcm ctr ghash_generic; do
            modprobe -d "$cache/kernel" -S "$version" --show-depends "$file" 2>/dev/null | awk '$1=="insmod"{print $2}' ||
                true
        done | sort -u | while read -r file; do
            library="$stage/lib/modules/$version/${file##*/"$version"/}"
            mkdir -p "${library%/*}"
            case "$file" in *.xz) xz -dc "$file" >"${library%.xz}" ;; *) cp "$file" "$library" ;; esac
        done
        cp "$modules"/modules.{builtin,builtin.modinfo,order} "$stage/lib/modules/$version/"
        depmod -b "$stage" "$version"
    )
    {
        for file in rdma ip tc bash ib_write_lat ib_write_bw; do
            file="$(program "$file")"
            install -D "$file" "$stage/usr/bin/${file##*/}"
            needed "$file"
        done
        for file in "$system/usr/lib/$triple"/libibverbs/librxe-rdmav*.so; do
            install -D "$file" "$stage/usr/lib/$triple/libibverbs/${file##*/}"
            needed "$file"
        done
        cp "$system/etc/libibverbs.d/rxe.driver" "$stage/etc/libibverbs.d/"
        for file in libibverbs.so.1 libgcc_s.so.1; do
            for library in "$system/usr/lib/$triple" "/usr/lib/$triple" "/lib/$triple"; do
                if [ -e "$library/$file" ]; then echo "$library/$file"; needed "$library/$file"; break; fi
            done
        done
    } | sort -u | while read -r library; do
        case "$library" in
            /lib64/*) cp -L "$library" "$stage/lib64/" ;;
            *) cp -L "$library" "$stage/usr/lib/$triple/" ;;
        esac
    done
    install -m755 "$here/init" "$stage/init"
    install -m755 "$here/devices.sh" "$stage/root/devices.sh"
    (cd "$stage" && find . | LD_LIBRARY_PATH="$libraries" "$(program cpio)" -o -H newc --quiet --owner 0:0) |
        gzip -1 >"$cache/guest.cpio.gz"
    rm -rf "$stage"
    python3 "$here/unpack-kernel.py" "$cache/kernel/boot/vmlinuz-$version" "$cache/guest.kernel"
    cksum "$here"/* >"$cache/packed-from"
}

prepare() {
    # A cache of before a package was added is filled again.
    if [ ! -d "$cache/kernel/boot" ] || [ ! -x "$system/usr/bin/ib_write_lat" ]; then
        download
        rm -f "$cache/packed-from"
    fi
    [ -e "$cache/guest.kernel" ] && cksum "$here"/* | cmp -s - "$cache/packed-from" || pack
}

# Boots, shares folder $1 and runs its run.sh there.
boot() {
    local shared="$1" khz code log="$1/console.log"
    # Under emulation the guest measures its clock wrongly; this machine's kernel knows it, where it may be asked.
    khz="$(dmesg 2>/dev/null | sed -n 's/.*tsc: Detected \([0-9]*\)\.\([0-9]\{3\}\) MHz.*/\1\2/p' | head -n 1 || true)"
    set +e
    LD_LIBRARY_PATH="$libraries" timeout -k 5 "${TIMEOUT:-600}" "$system/usr/bin/qemu-system-x86_64" \
        -L "$system/usr/share/qemu" -L "$system/usr/share/seabios" -accel tcg,thread=multi,tb-size=256 -cpu max \
        -M pc,vmport=off -nodefaults -no-user-config -display none -no-reboot -smp "${SMP:-2}" -m "${MEM:-2G}" \
        -kernel "$cache/guest.kernel" -initrd "$cache/guest.cpio.gz" -serial stdio -monitor none \
        -append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable ${khz:+tsc_early_khz=$khz}" \
        -virtfs "local,path=$shared,mount_tag=shared,security_model=none,multidevs=remap" \
        </dev/null 2>&1 | tee "$log"
    code="${PIPESTATUS[0]}"
    set -e
    [ "$code" -ne 124 ] && [ "$code" -ne 137 ] || { echo "soft-roce: the guest hung" >&2; exit 124; }
    if [ ! -e "$shared/exit" ]; then
        # Once tests run they may be what stopped its kernel.
        if [ "$code" -eq 0 ] && grep -a '^== ' "$log" >/dev/null; then
            echo "soft-roce: the guest ended in the midst of its tests" >&2
            exit 1
        fi
        fail "the guest ended without a word (QEMU: $code)"
    fi
    # Said again, where the end of a long log is all that is kept.
    if [ "$(cat "$shared/exit")" -ne 0 ]; then grep -aE 'FAILED|panicked at' "$log" >&2 || true; fi
    return "$(cat "$shared/exit")"
}

# A test program, as cargo built it.
built() {
    local made=(cargo test --no-run --test "$1")
    if [ "$1" = rendez ]; then made=(cargo build --bin rendez); fi
    "${made[@]}" --locked --quiet --profile checked "${features[@]}" --message-format=json-render-diagnostics |
        sed -n 's/.*"name":"'"$1"'".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

if [ "${1:-}" = prepare ]; then prepare; exit; fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
for program in conformance verbs engine rendez; do
    if [ -n "${BUILT:-}" ]; then cp "$BUILT/$program" "$work/$program"; continue; fi
    at="$(built "$program")" && [ -n "$at" ] || { echo "soft-roce: $program does not build" >&2; exit 1; }
    # Without what only a debugger wants: the guest reads it over a slow wire.
    strip -S -o "$work/$program" "$at" 2>/dev/null || cp "$at" "$work/$program"
done
prepare
cp scripts/verbs-bench.sh "$work/"
names=("$@")
# Of the three suites over TLS in the kernel only one: under emulation each takes minutes. All: soft-roce.sh tls_kernel
if [ ${#names[@]} -eq 0 ]; then names=(verbs_devices guest_ tls_kernel_mixed); fi
{
    echo '. /root/devices.sh || exit 1'
    echo "names=(${names[*]@Q})"
    cat scripts/soft-roce/run.sh
} >"$work/run.sh"
boot "$work"
