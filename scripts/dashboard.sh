#!/usr/bin/env bash
# The dashboard scripts/grafana.json is what Grafana takes: each metric it names is one of src/rendez/engine/METRICS.md
# or src/rpc/METRICS.md, each query is PromQL, each panel is one of its kind, and the whole fits Grafana's own types.
#   scripts/dashboard.sh                needs python3 and promtool (Debian package prometheus)
#   scripts/dashboard.sh --queries      only prints the queries, with everything chosen, one a line
# The types come from npm, @grafana/schema, and want node: without them that one check is left out and said, and with
# STRICT=1 it fails. Ends with 0 if all held.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
schema=13.2.3
typescript=5.9.3

queries() {
    python3 - scripts/grafana.json <<'PY'
import json, sys

for panel in json.load(open(sys.argv[1]))["panels"]:
    for target in panel.get("targets", []):
        query = target["expr"].replace("$__rate_interval", "1m").replace("$job", ".*").replace("$task", ".*")
        print(query)
PY
}
if [ "${1:-}" = --queries ]; then
    queries
    exit
fi
fail() {
    echo "dashboard.sh: $*" >&2
    exit 1
}
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

cat src/rendez/engine/METRICS.md src/rpc/METRICS.md >"$work/metrics.md"
python3 - scripts/grafana.json "$work/metrics.md" <<'PY' || fail "the dashboard is wrong"
import json, re, sys

dashboard = json.load(open(sys.argv[1]))
families = dict(re.findall(r"^\| `(rendez_\w+)` \| (\w+) \|", open(sys.argv[2]).read(), re.M))
known = {name for name, kind in families.items() if kind != "histogram"}
known |= {name + end for name, kind in families.items() if kind == "histogram" for end in ("_bucket", "_sum", "_count")}
wrong = []
texts = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
texts += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
for text in texts:
    wrong += [f"{name} is no metric: {text}" for name in re.findall(r"\brendez_\w+", text) if name not in known]
ids = [panel["id"] for panel in dashboard["panels"]]
if len(set(ids)) != len(ids):
    wrong.append("two panels have one id")
variables = {variable["name"] for variable in dashboard["templating"]["list"]}
taken = set()
for panel in dashboard["panels"]:
    title = panel.get("title", "")
    at = panel["gridPos"]
    place = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
    if at["x"] + at["w"] > 24 or place & taken:
        wrong.append(f"{title}: its place is taken, or beside the page")
    taken |= place
    if panel["type"] == "row":
        continue
    if panel["type"] not in ("timeseries", "stat"):
        wrong.append(f"{title}: {panel['type']} is no kind of panel that is used here")
    if not panel["description"] or not panel["targets"]:
        wrong.append(f"{title}: it says or shows nothing")
    if panel["fieldConfig"]["defaults"]["unit"] not in ("short", "ops", "s", "bytes", "percentunit"):
        wrong.append(f"{title}: no unit of Grafana's that is used here")
    for used in re.findall(r"\$\{?(\w+)", json.dumps([panel["datasource"], panel["targets"]])):
        if used not in variables | {"__rate_interval"}:
            wrong.append(f"{title}: there is no variable {used}")
print("\n".join(wrong), file=sys.stderr)
sys.exit(bool(wrong))
PY

{
    printf 'groups:\n  - name: dashboard\n    rules:\n'
    number=0
    while IFS= read -r query; do
        number=$((number + 1))
        printf "      - record: panel:%d\n        expr: '%s'\n" "$number" "${query//\'/\'\'}"
    done < <(queries)
} >"$work/queries.yml"
promtool check rules "$work/queries.yml" >"$work/said" 2>&1 || {
    cat "$work/said" >&2
    fail "a query is no PromQL"
}

if command -v npm >/dev/null && (cd "$work" && npm init -y && npm install --no-audit --no-fund --ignore-scripts \
    "@grafana/schema@$schema" "typescript@$typescript") >"$work/said" 2>&1; then
    {
        echo "import type { Dashboard } from '@grafana/schema';"
        printf 'export const dashboard: Dashboard = '
        cat scripts/grafana.json
        echo ';'
    } >"$work/dashboard.ts"
    (cd "$work" && node_modules/.bin/tsc --noEmit --strict --skipLibCheck --module nodenext \
        --moduleResolution nodenext dashboard.ts) || fail "it does not fit the types of @grafana/schema $schema"
elif [ -n "${STRICT:-}" ]; then
    fail "@grafana/schema cannot be installed from npm"
else
    echo "dashboard.sh: NOT checked against @grafana/schema: npm, or its registry, is unavailable" >&2
fi
echo "the dashboard is in order: $(queries | wc -l) queries"
