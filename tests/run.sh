#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. On a fresh Debian 12, as root or with sudo:
#
#   tests/run.sh                 everything, fast checks first
#   tests/run.sh --fast          style, the release build and its tests only
#   tests/run.sh --long          longer chaos, and libFuzzer after everything else
#   tests/run.sh --only STEP     one step (may be repeated): style release chaos asan tsan tidy fuzz
#   tests/run.sh --no-install    leave packages alone; .venv is still made when it is not there
#
# The last line is `N passed, M failed`; the exit code is 0 when nothing failed.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
root=$PWD

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$root/tests/run.sh"
}

steps=(style release chaos asan tsan tidy)
only=()
install=1
long=0
while [ $# -gt 0 ]; do
    case "$1" in
        --fast) steps=(style release) ;;
        --long) long=1 ;;
        --no-install) install=0 ;;
        --only)
            [ $# -gt 1 ] || { usage >&2; exit 2; }
            only+=("$2")
            shift
            ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
[ "$long" = 0 ] || steps+=(fuzz)
[ ${#only[@]} = 0 ] || steps=("${only[@]}")

n_passed=0
n_failed=0
results=$root/build/test-results
rm -rf "$results"
mkdir -p "$results"

say() { printf '\n==== %s (%d s)\n' "$*" "$SECONDS"; }

# Something that is not a test has failed: it counts, so that the last line cannot look good.
fail() {
    printf 'FAILED: %s\n' "$*"
    n_failed=$((n_failed + 1))
}

# Adds a JUnit file's counts. One that is not there is a runner that died; one without failures
# whose runner says otherwise does not tell all.
count() { # FILE EXIT-CODE
    local counts
    counts=$(python3 - "$1" <<'PY'
import sys
import xml.etree.ElementTree as tree

suites = tree.parse(sys.argv[1]).getroot()
suites = [suites] if suites.tag == "testsuite" else list(suites)
total, bad, skipped = (sum(int(s.get(k) or 0) for s in suites for k in keys) for keys in (
    ("tests",), ("failures", "errors"), ("skipped", "disabled")))
print(max(total - bad - skipped, 0), bad)
PY
    ) || { fail "no results in $1"; return; }
    n_passed=$((n_passed + ${counts% *}))
    n_failed=$((n_failed + ${counts#* }))
    [ "$2" = 0 ] || [ "${counts#* }" != 0 ] || fail "exit code $2 with $1"
}

# ---- what the tests need ----

prepare() {
    if [ "$install" = 1 ]; then
        say "packages"
        deploy/local/install.sh --tests </dev/null || { fail "install.sh --tests"; return 1; }
    fi
    # Debian's own interpreter: python3-venv belongs to it.
    local python=/usr/bin/python3
    [ -x "$python" ] || python=python3
    local stamp=.venv/requirements.txt
    cmp -s tests/support/requirements.txt "$stamp" && return 0
    say "Python packages"
    rm -rf .venv
    if ! "$python" -m venv .venv || ! .venv/bin/pip install --quiet --no-input \
        --disable-pip-version-check -r tests/support/requirements.txt </dev/null; then
        fail "making .venv"
        return 1
    fi
    cp tests/support/requirements.txt "$stamp"
}

SY_CCACHE=$(command -v ccache || true)
# What was compiled in one checkout is found again in another: it differs in its directory alone.
export SY_CCACHE CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
jobs=$(nproc)

build() { # PRESET
    say "build $1"
    cmake --preset "$1" >"$results/configure-$1.log" 2>&1 || {
        cat "$results/configure-$1.log"
        fail "configuring $1"
        return 1
    }
    cmake --build --preset "$1" -j "$jobs" -- -k 0 >"$results/build-$1.log" 2>&1 || {
        grep -v '^\[' "$results/build-$1.log" | tail -80
        fail "building $1"
        return 1
    }
}

unit() { # PRESET CTEST-ARGS...
    local preset=$1
    shift
    say "unit tests, $preset"
    ctest --preset "$preset" -j "$jobs" --output-junit "$results/unit-$preset.xml" "$@" 2>&1 |
        grep -v -e ' Passed ' -e '^ *Start '
    count "$results/unit-$preset.xml" "${PIPESTATUS[0]}"
}

system_tests() { # PRESET NAME PYTEST-ARGS...
    local preset=$1 name=$2
    shift 2
    say "whole-system tests, $preset: $name"
    SY_BUILD=build/$preset SY_LONG=$long .venv/bin/python -m pytest -c tests/pytest.ini \
        --rootdir tests -q --junitxml "$results/$name-$preset.xml" "$@" </dev/null
    count "$results/$name-$preset.xml" $?
}

# ---- steps ----

# Files of tests side by side: they wait for processes more than they compute.
together=(-n "$jobs" --dist loadfile)

own_sources() { # PATTERN...
    git ls-files --cached --others --exclude-standard -- "$@"
}

step_style() {
    say "style"
    cmake -DROOT="$root" -P cmake/check_includes.cmake || fail "an include points upwards"
    if command -v clang-format >/dev/null; then
        own_sources '*.c' '*.h' | xargs -d '\n' clang-format --dry-run -Werror ||
            fail "clang-format -i on the files above"
    else
        fail "clang-format is not there"
    fi
    own_sources '*.sh' .ci/run | xargs -d '\n' shellcheck || fail "shellcheck"
}

step_release() {
    build release || return
    unit release
    # Alone, and before the machine gets busy; skipped where valgrind or the baseline's compiler is not.
    system_tests release instructions tests/perf
    system_tests release integration "${together[@]}" tests/integration
}

step_chaos() {
    build release || return
    system_tests release chaos tests/chaos
}

sanitized() { # PRESET MARKERS CTEST-ARGS...
    local preset=$1 markers=$2
    shift 2
    build "$preset" || return
    unit "$preset" "$@"
    SY_SANITIZED=1 system_tests "$preset" integration "${together[@]}" -m "$markers" tests/integration
}

step_asan() {
    export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    export LSAN_OPTIONS=print_suppressions=0
    sanitized asan-ubsan 'sanitize or asan'
}

step_tsan() {
    export TSAN_OPTIONS=suppressions=$root/tests/support/tsan.supp:second_deadlock_stack=1
    # What has one thread has no races: it would only take its time here.
    local one_thread='sampler|balance.*|sim_.*|tokenizer.*|matmul.*|pairs|exp|wire_.*|snapshot.*|config.*|gguf.*|chat.*'
    one_thread+='|model|model_gguf|safetensors|tensor_encoded|synth|checkpoint_hash|shard_(rounded|families|encoded.*)|trunk_(forms|encoded|device_(families|weights))|families|transformers|golden|tensors_refused|not_finite|inspect_.*|devices|backend_load|cuda_backend|cuda_pack|device_measure'
    sanitized tsan sanitize -E "^(test_($one_thread)|fuzz_.*|model_.*)\$"
}

step_tidy() {
    if ! command -v clang-tidy >/dev/null; then
        say "clang-tidy is not there: skipped"
        return
    fi
    build release || return
    say "clang-tidy"
    own_sources 'lib/*.c' 'kernels/*.c' 'services/*.c' 'tools/*.c' 'bench/*.c' |
        xargs -d '\n' python3 tests/support/run_tidy.py build/release "$jobs" >"$results/tidy.log" 2>&1 || {
        grep -h 'error:' "$results/tidy.log" | sort -u
        fail "clang-tidy: the whole story is in $results/tidy.log"
    }
}

step_fuzz() {
    say "fuzzing"
    cmake -S . -B build/fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug \
        -DCMAKE_C_FLAGS_DEBUG=-O1 -DCMAKE_C_COMPILER_LAUNCHER="$SY_CCACHE" -DSY_BUILD_FUZZ=ON \
        -DSY_SANITIZE=address,undefined >"$results/configure-fuzz.log" 2>&1 ||
        { fail "configuring the fuzz targets"; return; }
    local source name
    for source in tests/fuzz/fuzz_*.c; do
        name=$(basename "$source" .c)
        cmake --build build/fuzz -j "$jobs" --target "$name" >"$results/build-$name.log" 2>&1 ||
            { fail "building $name"; continue; }
        # New inputs are kept beside the build; the corpus in the tree is read only.
        mkdir -p "build/fuzz/corpus/$name"
        if build/fuzz/bin/"$name" -max_total_time=120 -rss_limit_mb=2048 -print_final_stats=1 \
            -artifact_prefix="$results/$name-" "build/fuzz/corpus/$name" \
            "tests/fuzz/corpus/${name#fuzz_}" >"$results/$name.log" 2>&1; then
            n_passed=$((n_passed + 1))
            grep 'number_of_executed_units' "$results/$name.log"
        else
            tail -40 "$results/$name.log"
            fail "$name: the input is in $results"
        fi
    done
}

for step in "${steps[@]}"; do
    declare -F "step_$step" >/dev/null || { echo "no such step: $step" >&2; usage >&2; exit 2; }
done
if prepare; then
    for step in "${steps[@]}"; do "step_$step"; done
fi
say "done"
echo "$n_passed passed, $n_failed failed"
[ "$n_failed" = 0 ]
