#!/usr/bin/env bash
# Runs PyTorch's own suites over rendez. Each ends with a line "NAME: N passed, N failed, N skipped", and the script
# fails if one falls short of what is expected of it.
#
#   scripts/torch-suites.sh                    a part that takes minutes: what CI runs
#   scripts/torch-suites.sh all                everything: what the nightly runs
#   scripts/torch-suites.sh prepare            nothing: makes the environment, and builds
#   scripts/torch-suites.sh rpc group ...      these: tests rpc rpc-tcp tensorpipe faulty group gloo-name small
#
# The environment with PyTorch is made once, outside the tree: RENDEZ_TORCH_ENV, by default
# ~/.cache/rendez/torch-<version>; some 5 GB are fetched for it. RENDEZ_TORCH_VERSION says which PyTorch,
# RENDEZ_TORCH_PYTHON which Python, SUITE_SECONDS how long one suite may take.
#
# Exits with 1 where a suite falls short, and with 3 where what it needs is unavailable: then nothing was tested.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD

version=${RENDEZ_TORCH_VERSION:-2.15.0}
python=${RENDEZ_TORCH_PYTHON:-python3}
environment=${RENDEZ_TORCH_ENV:-$HOME/.cache/rendez/torch-$version}
seconds=${SUITE_SECONDS:-3600}
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
export RENDEZ_TORCH_OPTIMIZE=${RENDEZ_TORCH_OPTIMIZE:--O2} OMP_NUM_THREADS=1
export DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=${DISTRIBUTED_TESTS_DEFAULT_TIMEOUT:-120}

cannot() {
    echo "torch-suites: NOTHING WAS TESTED: $*" >&2
    exit 3
}

prepare() {
    command -v "$python" >/dev/null || cannot "there is no $python"
    command -v g++ >/dev/null || cannot "there is no g++"
    if ! "$environment/bin/python" -c 'import torch, pytest, expecttest, ninja' 2>/dev/null; then
        # What is there may be half an environment of ours, which is made anew; what is another's is left as it is.
        # The mark stands beside it: venv empties the folder, and may fail when it has.
        if [ -n "$(ls -A "$environment" 2>/dev/null)" ] && [ ! -e "$environment.made-for-rendez" ]; then
            cannot "$environment has no PyTorch, pytest, expecttest and ninja that can be imported, and this script did" \
                "not make it: install them there, or name a folder that is empty or not there yet"
        fi
        echo "making $environment with PyTorch $version: some 5 GB are fetched, once"
        mkdir -p "$environment" && touch "$environment.made-for-rendez"
        "$python" -m venv --clear "$environment" || cannot "$python makes no environments (Debian: apt-get install python3-venv)"
        "$environment/bin/pip" install --quiet --disable-pip-version-check "torch==$version" numpy pytest expecttest \
            hypothesis "setuptools>=77" ninja || cannot "PyTorch $version cannot be fetched"
    fi
    # The wheel, with `rendez.torch`, and with the command if `tests` is to use it; and its extension, built against this
    # PyTorch.
    local built=0
    COMMAND=$command PYTHON=$python PROFILE=${PROFILE:-release} scripts/python.sh wheel >/dev/null || built=$?
    case $built in
    0) ;;
    3) cannot "what builds the wheel is unavailable" ;;
    *)
        echo "torch-suites: the wheel does not build" >&2
        exit 1
        ;;
    esac
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall \
        target/python/wheels/rendez-*.whl
    (cd src/torch && PATH=$environment/bin:$PATH python setup.py --quiet build_ext --inplace >"$reports/build.log" 2>&1) || {
        cat "$reports/build.log"
        exit 1
    }
    # They are this script's, and no settings of an engine, which would say so.
    export -n RENDEZ_TORCH_ENV RENDEZ_TORCH_OPTIMIZE RENDEZ_TORCH_PYTHON RENDEZ_TORCH_VERSION
    export PYTHONPATH=$here/src/torch:$here/src/torch/suites
}

status=0
# NAME PASSED FAILED SUITE ARGUMENTS...: how many pass at least, and how many may fail.
run() {
    local name=$1 passed=$2 failed=$3 suite=$4
    shift 4
    local began=$SECONDS
    (cd "$reports" && COUNTS=$reports/$name timeout "$seconds" "$environment/bin/python" -m pytest -q -p counts \
        -p no:cacheprovider "$here/src/torch/$suite" "$@" >"$reports/$name.log" 2>&1) || tail -n 60 "$reports/$name.log"
    echo "$name took $((SECONDS - began)) s"
    "$environment/bin/python" src/torch/suites/counts.py "$reports/$name" "$name" "$passed" "$failed" || status=1
}

# True if the PyTorch is older than that.
before() {
    [ "$version" != "$1" ] && [ "$(printf '%s\n' "$1" "$version" | sort -V | head -n 1)" = "$version" ]
}

# Tests that older versions cannot pass skip themselves: PyTorch 2.12 lends `monitored_barrier` to no backend but gloo, and
# 2.9 tells no reason why a checkpoint cannot be read.
tests=197 leftovers=6
if before 2.15; then tests=192; fi
if before 2.12; then tests=187 leftovers=4; fi

# Under gloo's name PyTorch's own code looks for options that only the newest lets a backend of another have.
gloo_name() {
    if before 2.15; then
        echo "$1: left out: PyTorch $version lends no other backend the name of gloo"
        return
    fi
    NAME=gloo run "$@"
}

# Our store of keys beside PyTorch's own.
store() {
    RENDEZ_TORCH_ENV="$environment" scripts/torch-store.sh || status=1
}

suite() {
    case $1 in
    tests)
        run tests "$tests" 0 tests
        run leftovers "$leftovers" 0 ../python/tests/test_checkpoint_leftovers.py
        run claims 22 0 ../python/tests/test_checkpoint_claims.py
        store
        ;;
    rpc) SUITE=generic run rpc 365 0 suites/rpc_suite.py ;;
    rpc-tcp) RENDEZ_REQUIRE=tcp RENDEZ_LISTEN=127.0.0.1:0 SUITE=generic run rpc-tcp 365 0 suites/rpc_suite.py ;;
    faulty) SUITE=faulty run faulty 28 0 suites/rpc_suite.py ;;
    # Two ask for TensorPipe's options by type.
    tensorpipe) SUITE=tensorpipe run tensorpipe 67 2 suites/rpc_suite.py ;;
    # Without gloo's name torch writes `custom` into the log that one test reads.
    group) NAME=rendez run group 65 1 suites/group_suite.py ;;
    gloo-name) gloo_name gloo-name 91 0 suites/group_suite.py ;;
    small)
        SUITE=generic run rpc-small 20 0 suites/rpc_suite.py \
            -k 'RendezRpcTest and (test_add or test_py_ or test_nested or timeout)'
        NAME=rendez run group-small 12 0 suites/group_suite.py \
            -k 'all_reduce_sum or broadcast or all_gather or barrier or test_send_recv'
        gloo_name gloo-name-small 3 0 suites/group_suite.py -k 'test_DistributedDataParallelCPU or logging_data_cpu'
        SUITE=faulty run faulty-small 3 0 suites/rpc_suite.py -k 'dropped_pickle or context_cleanup'
        run tests-small 4 0 tests -k 'arena or errors_say or join_and_leave'
        store
        ;;
    prepare) ;;
    *)
        echo "there is no suite \`$1\`: tests rpc rpc-tcp tensorpipe faulty group gloo-name small all prepare" >&2
        exit 2
        ;;
    esac
}

wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(small)
[ "${wanted[0]}" != all ] || wanted=(tests rpc rpc-tcp tensorpipe faulty group gloo-name)
command=""
for name in "${wanted[@]}"; do
    if [ "$name" = tests ]; then command=1; fi
done
prepare
for name in "${wanted[@]}"; do
    suite "$name"
done
exit $status
