#!/usr/bin/env bash
# A real Prometheus scrapes two tasks of a cluster: that it takes their metrics in both formats, that promtool finds
# nothing to say of them and of the alert rules, that each rule fires when it should and only then, that the dashboard is
# in order and all its queries are answered, and that the 99th percentile of a stage can be asked back from it.
#   scripts/prometheus.sh               needs prometheus and promtool (unpacked into target/tools where they are missing),
#                                       curl and python3 (installed)
#   RENDEZ=target/release/rendez scripts/prometheus.sh
# Ends with 0 if all held, 3 if no Prometheus is available. Leaves nothing running.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

unpacked="$PWD/target/tools/prometheus"
export PATH="$PATH:$unpacked/usr/bin"
lacks() {
    local tool
    for tool in "$@"; do command -v "$tool" >/dev/null || echo "$tool"; done
}
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}
# Only unpacked: Debian starts the server of a package that it installs, then and with the machine.
unpack() {
    rm -rf "$unpacked" && mkdir -p "$unpacked"
    (cd "$unpacked" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download prometheus && dpkg -x prometheus_*.deb . &&
        rm prometheus_*.deb)
}
obtain() {
    if [ -n "$(lacks prometheus promtool)" ]; then unpack || { as_root apt-get update -qq && unpack; } || return; fi
    if [ -n "$(lacks curl python3)" ]; then
        as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
            --no-install-recommends curl python3
    fi
}
obtain >/dev/null 2>&1 || true
missing="$(lacks prometheus promtool curl python3)"
if [ -n "$missing" ]; then
    echo "prometheus.sh: not here, and cannot be had:" $missing >&2
    exit 3
fi
if [ -z "${RENDEZ:-}" ]; then
    cargo build --locked --quiet
    RENDEZ="${CARGO_TARGET_DIR:-$PWD/target}/debug/rendez"
fi

work="$(mktemp -d)"
pids=()
finish() {
    status=$?
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    if [ "$status" -ne 0 ]; then tail -n 20 "$work"/*.log >&2 || true; fi
    rm -rf "$work"
}
trap finish EXIT
fail() {
    echo "prometheus.sh: $*" >&2
    exit 1
}

# Below the ports of benchmarks, and those that the kernel hands out by itself; two for the tasks, two for their
# metrics, one for Prometheus.
is_listening() {
    awk -v port="$(printf ':%04X' "$1")" '$4 == "0A" && $2 ~ port "$" {found = 1} END {exit !found}' \
        /proc/net/tcp /proc/net/tcp6 2>/dev/null
}
are_free() {
    local at
    for at in 0 1 2 3 4; do if is_listening $(($1 + at)); then return 1; fi; done
}
port=$((10000 + RANDOM % 9990))
until are_free "$port"; do port=$((10000 + RANDOM % 9990)); done
cat >"$work/cluster.toml" <<TOML
shards = 1
share_cores = true
poll = "park"
[cluster]
a = ["127.0.0.1:$port"]
b = ["127.0.0.1:$((port + 1))"]
TOML
metrics=("127.0.0.1:$((port + 2))" "127.0.0.1:$((port + 3))")
index=0
for job in a b; do
    "$RENDEZ" serve --config "$work/cluster.toml" --job "$job" --task 0 --check --metrics "${metrics[$index]}" \
        >"$work/$job.log" 2>&1 &
    pids+=($!)
    index=$((index + 1))
done

until_it_holds() {
    local what="$1" tries=150
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "$what"
        sleep 0.2
    done
}
has_delivered() { curl -fsS "http://$1/metrics" 2>/dev/null | grep '^rendez_delivered_total{.*} [1-9]' >/dev/null; }
for address in "${metrics[@]}"; do
    until_it_holds "$address has delivered nothing" has_delivered "$address"
    until_it_holds "$address is not healthy" curl -fsS -o /dev/null "http://$address/healthz"
    until_it_holds "$address is not ready" curl -fsS -o /dev/null "http://$address/readyz"
    curl -fsS "http://$address/metrics" >"$work/page.txt"
    promtool check metrics <"$work/page.txt" || fail "promtool has something to say of $address"
    curl -fsS -H 'Accept: application/openmetrics-text' "http://$address/metrics" | tail -n 1 | grep -x '# EOF' >/dev/null ||
        fail "$address speaks no OpenMetrics"
done
promtool check rules scripts/alerts.yml || fail "the alert rules are wrong"
promtool test rules scripts/alerts-test.yml || fail "an alert rule does not fire when it should, or does when it should not"
scripts/dashboard.sh || fail "the dashboard is wrong"

cat >"$work/prometheus.yml" <<YAML
global: { scrape_interval: 1s }
rule_files: [ "$PWD/scripts/alerts.yml" ]
scrape_configs:
  - job_name: rendez
    static_configs: [ { targets: [ "${metrics[0]}", "${metrics[1]}" ] } ]
YAML
server="127.0.0.1:$((port + 4))"
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" --web.listen-address="$server" \
    >"$work/prometheus.log" 2>&1 &
pids+=($!)

query() { curl -fsS --get "http://$server/api/v1/query" --data-urlencode "query=$1" 2>/dev/null; }
both_are_up() { query 'sum(up{job="rendez"})' | grep '"2"\]' >/dev/null; }
until_it_holds "Prometheus does not scrape both tasks" both_are_up
p99='histogram_quantile(0.99, sum by (le) (rendez_stage_seconds_bucket{stage="landed"}))'
has_p99() { query "$p99" | grep -E '"value":\[[0-9.]+,"[0-9.e-]+"\]' >/dev/null; }
until_it_holds "Prometheus gives no 99th percentile" has_p99
# Every query of the dashboard is answered, and all but those of what has not happened here have something to show.
is_answered() { query "$1" | grep '"status":"success"' >/dev/null; }
has_series() { query "$1" | grep '"value":\[' >/dev/null; }
while IFS= read -r asked; do
    until_it_holds "Prometheus does not answer the dashboard's query $asked" is_answered "$asked"
    case "$asked" in
        *rendez_fallbacks_total* | *rendez_peer_clock_error_seconds* | *"(rendez_peer_connected == bool 0)"*"> 0") ;;
        *) until_it_holds "the dashboard's query $asked shows nothing" has_series "$asked" ;;
    esac
done < <(scripts/dashboard.sh --queries)
echo "p99 of the stage 'landed', asked back from $(prometheus --version 2>&1 | head -n 1 | cut -d' ' -f1-3):" \
    "$(query "$p99" | sed -E 's/.*"value":\[[0-9.]+,"([^"]+)"\].*/\1/') s"
