# What the guest does, after the devices are there: run by init as part of the shared folder's run.sh. Failures are
# counted here, and by no pipe.
cd /mnt/shared || exit 1
failed=0
over=(env RENDEZ_VERBS_DEVICES=rxe0,rxe1)
run() {
    local began=$SECONDS
    echo "== $*"
    "$@" || { echo "== FAILED ($?): $*"; failed=$((failed + 1)); }
    echo "== $((SECONDS - began)) s"
}
# PROGRAM FILTER...: its tests whose names contain one of these, into `listed` and `all_listed`. One that cannot even
# list them has failed.
all_listed=""
list() {
    listed="$("./$1" --include-ignored --list "${@:2}")" ||
        { echo "== FAILED ($?): $1 lists no tests"; failed=$((failed + 1)); }
    listed="$(grep ': test$' <<<"$listed")"
    all_listed+="$listed"$'\n'
}
# Beside the perftest of the same run. Times mean nothing here, so the bar does not: that there are figures does.
beside() {
    local status=0
    RENDEZ=/mnt/shared/rendez RENDEZ_VERBS_QUEUE_PAIRS=8 GID_INDEX="$(index_of rxe0)" SECONDS_EACH=1 \
        ROUNDS=50 bash ./verbs-bench.sh rxe0,rxe1 || status=$?
    [ "$status" -le 1 ]
}
# Where the device's address over IPv4 stands.
index_of() {
    grep -ls '^0000:0000:0000:0000:0000:ffff:' "/sys/class/infiniband/$1/ports/1/gids/"* | sed 's|.*/||' | head -n 1
}
list conformance "${names[@]}"
[ -z "$listed" ] || run "${over[@]}" ./conformance --include-ignored --test-threads=1 "${names[@]}"
if [[ " ${names[*]} " == *" guest_ "* ]]; then
    cat >/tmp/cluster.toml <<'END'
verbs_queue_pairs = 8
arena_segment_bytes = "16MiB"
failure_detection = "4s"
connect_timeout = "60s"
[cluster]
worker = ["127.0.0.1:29701", "127.0.0.1:29702"]
END
    run ./rendez doctor
    run ./rendez up /tmp/cluster.toml --check --once --require verbs --shards 1 --share-cores=true --patience 60s
fi
if [[ " ${names[*]} " == *" guest_ "* || " ${names[*]} " == *" bench "* ]]; then run beside; fi
if [[ " ${names[*]} " == *" tls_kernel"* ]]; then
    engines=tls::values_survive_cuts_under_tls
    [[ " ${names[*]} " == *" tls_kernel "* ]] && engines=tls::
    list engine "$engines"
    [ -n "$listed" ] || { echo "== FAILED: engine has no test $engines"; failed=$((failed + 1)); }
    run env RENDEZ_TEST_KERNEL_TLS=1 ./engine --test-threads=1 --nocapture "$engines"
fi
# Its last test takes a device's link down.
list verbs "${names[@]}"
[ -z "$listed" ] || run "${over[@]}" ./verbs --include-ignored --test-threads=1 --nocapture "${names[@]}"
for name in "${names[@]}"; do
    if [ "$name" != bench ] && [[ "$all_listed" != *"$name"* ]]; then
        echo "== FAILED: there is no test $name"
        failed=$((failed + 1))
    fi
done
[ "$failed" -eq 0 ]
