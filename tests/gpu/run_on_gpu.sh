#!/usr/bin/env bash
# Proves and measures on a machine with an NVIDIA GPU what tests without one cannot, in under ten
# minutes, and writes one JSON file (see README.md beside this).
#
#   tests/gpu/run_on_gpu.sh                   everything
#   tests/gpu/run_on_gpu.sh --quick           four minutes: fewer shapes, and little is timed
#   tests/gpu/run_on_gpu.sh --only STEP       device kernels probe plugin model service cluster
#                                             measure sanitizer (may be repeated; device always runs)
#   tests/gpu/run_on_gpu.sh --out FILE        not bench/results/gpu-DATE-DEVICE.json
#   tests/gpu/run_on_gpu.sh --without-gpu     where there is none: builds all, runs what can be run
#   tests/gpu/run_on_gpu.sh --bundle FILE     builds, and packs all that a machine with a driver and
#                                             python3 alone needs beside this repository (.tar.xz)
#   tests/gpu/run_on_gpu.sh --prebuilt FILE   takes what is in such a bundle, and builds nothing
#
# The exit code is 0 when nothing failed. What could not be done is "skip" in the file, with the reason.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
root=$PWD
build=${SY_GPU_BUILD:-$root/build/gpu}

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$root/tests/gpu/run_on_gpu.sh"
}

steps=()
without_gpu=0
bundle=""
prebuilt=""
while [ $# -gt 0 ]; do
    case "$1" in
        --quick) steps+=(--quick) ;;
        --without-gpu) without_gpu=1 ;;
        --only | --out | --bundle | --prebuilt)
            [ $# -gt 1 ] || { usage >&2; exit 2; }
            case "$1" in
                --bundle) bundle=$2 ;;
                --prebuilt) prebuilt=$2 ;;
                *) steps+=("$1" "$2") ;;
            esac
            shift
            ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done

say() { printf '==== %s\n' "$*"; }
die() { printf 'run_on_gpu.sh: %s\n' "$*" >&2; exit 1; }

python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
command -v "$python" >/dev/null || die "python3 is not there"

# ---- building ----

find_nvcc() {
    local nvcc
    for nvcc in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
        if [ -n "$nvcc" ] && [ -x "$nvcc" ]; then
            echo "$nvcc"
            return
        fi
    done
}

# The code that the plugin would run on this device, and no other; bundles are for any of them.
# CUDAARCHS, as CMake knows it, says otherwise.
architectures() {
    local cc=""
    if [ -n "${CUDAARCHS:-}" ]; then
        echo "$CUDAARCHS"
        return
    fi
    [ -n "$bundle" ] || [ $without_gpu = 1 ] ||
        cc=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
    case "$cc" in
        8.*) echo "80-real" ;;
        9.0) echo "90a-real" ;;
        10.0) echo "100-real" ;;
        "") echo "80-real;90a-real;100-real;90-virtual" ;;
        *) echo "90-virtual" ;;
    esac
}

configure() {
    local args=(-S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE=-O2
        -DSY_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=$(architectures)"
        # Where a bundle has its libraries, for the programs and for what those libraries need.
        "-DCMAKE_BUILD_RPATH=\$ORIGIN/../lib/shared"
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags")
    if command -v ninja >/dev/null && [ ! -e "$build/Makefile" ]; then args+=(-G Ninja); fi
    if command -v ccache >/dev/null; then
        args+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
    fi
    CUDACXX=$(find_nvcc)
    [ -n "$CUDACXX" ] || die "no nvcc on PATH, in CUDACXX or in /usr/local/cuda: install a CUDA" \
        "toolkit, or bring a bundle (--prebuilt)"
    export CUDACXX
    cmake "${args[@]}" >"$build/configure.log" 2>&1 || {
        tail -n 30 "$build/configure.log" >&2
        die "configuring failed. deploy/local/install.sh --tests installs what is missing; where" \
            "that cannot be, bring a bundle (--prebuilt)"
    }
}

# What does not build must not stop what does.
make_targets() { # WHAT TARGET...
    local what=$1 go_on=(-k)
    shift
    [ -e "$build/Makefile" ] || go_on=(-k 0)
    cmake --build "$build" -j "$(nproc)" --target "$@" -- "${go_on[@]}" \
        >"$build/build-$what.log" 2>&1 || {
        grep -v '^\[' "$build/build-$what.log" | tail -n 40 >&2
        return 1
    }
    # nvcc's warnings are errors, the linker's are not.
    if grep -n 'warning' "$build/build-$what.log" >&2; then return 1; fi
}

n_bad_builds=0
build_all() {
    mkdir -p "$build" || die "$build cannot be made"
    say "configuring"
    configure
    local part
    for part in "gpu gpu_programs" "plugin switchyard_cuda" "emulated switchyard_cuda_emulated" \
        "service switchyard switchyard-router switchyard-expert switchyard-aggregator"; do
        say "building ${part%% *}"
        # shellcheck disable=SC2086 # words are targets
        make_targets $part || n_bad_builds=$((n_bad_builds + 1))
    done
}

# ---- bundles ----

# Shared objects that a machine with nothing but a C library lacks.
needed_libraries() { # FILE...
    ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
        grep -v -E '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libresolv)\.so'
}

pack() { # FILE
    local stage file library site
    stage=$(mktemp -d) || die "no temporary folder"
    mkdir -p "$stage"/{bin,gpu,lib/switchyard,lib/shared,python,tests/emu/plugin}
    for file in switchyard switchyard-router switchyard-expert switchyard-aggregator; do
        cp "$build/bin/$file" "$stage/bin/"
    done
    find "$build/gpu" -maxdepth 1 -type f -perm -u+x -exec cp {} "$stage/gpu/" \;
    cp "$build/lib/switchyard/libswitchyard_cuda.so" "$stage/lib/switchyard/"
    cp "$build/tests/emu/plugin/libswitchyard_cuda.so" "$stage/tests/emu/plugin/"
    cp -L "$(command -v redis-server)" "$stage/lib/redis-server"
    for library in $(needed_libraries "$stage"/bin/* "$stage"/gpu/* "$stage/lib/redis-server"); do
        cp -L "$library" "$stage/lib/shared/"
    done
    # It was not built here, so it is told where its libraries are; nobody else is, least of all python3.
    cat >"$stage/bin/redis-server" <<'END'
#!/bin/sh
lib=$(cd "$(dirname "$0")/../lib" && pwd)
LD_LIBRARY_PATH=$lib/shared exec "$lib/redis-server" "$@"
END
    chmod +x "$stage/bin/redis-server"
    find "$stage" -type f \( -perm -u+x -o -name '*.so*' \) -exec strip --strip-debug {} + 2>/dev/null
    # Messages as protoc describes them: they fit any version of the Python packages over there.
    "$python" -m grpc_tools.protoc -I"$root/proto" --include_imports \
        --descriptor_set_out="$stage/python/switchyard.pb" "$root"/proto/switchyard/v1/*.proto ||
        die "protoc failed: tests/run.sh makes .venv, which has it"
    site=$("$python" -c 'import os, redis; print(os.path.dirname(redis.__file__))') &&
        cp -r "$site" "$stage/python/"
    find "$stage/python" -name __pycache__ -prune -exec rm -r {} +
    git -C "$root" rev-parse --short=10 HEAD >"$stage/commit" 2>/dev/null ||
        echo unknown >"$stage/commit"
    [ -z "$(git -C "$root" status --porcelain --untracked-files=no 2>/dev/null)" ] ||
        sed -i 's/$/-dirty/' "$stage/commit"
    XZ_OPT="-3 -T0" tar -C "$stage" -cJf "$1" . || die "$1 cannot be written"
    rm -r "$stage"
    say "$1: $(du -h "$1" | cut -f 1)"
}

unpack() { # FILE
    build=$(mktemp -d) || die "no temporary folder"
    trap 'rm -rf "$build"' EXIT
    # tar needs another program for this, which not every machine has.
    tar -C "$build" -xf "$1" 2>/dev/null || "$python" -m tarfile -e "$1" "$build" ||
        die "$1 cannot be read"
    export PATH=$build/bin:$PATH
    steps+=(--commit "$(cat "$build/commit")")
    "$python" -c 'import redis' 2>/dev/null ||
        export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$build/python
}

# ---- all of it ----

main() {
    if [ -n "$prebuilt" ]; then
        unpack "$prebuilt"
    else
        begin=$SECONDS
        build_all
        steps+=(--built-in $((SECONDS - begin)))
    fi
    if [ -n "$bundle" ]; then
        [ $n_bad_builds = 0 ] || die "not all of it was built"
        pack "$bundle"
        exit 0
    fi
    seconds=$((570 - SECONDS))
    # Where nobody waits for a GPU, code for all of them may take longer to build than that.
    [ $without_gpu = 0 ] || { steps+=(--without-gpu); seconds=540; }
    # Programs that were not built are missing from the steps; that alone must not look good.
    "$python" "$root/tests/gpu/gpu_run.py" --build "$build" --seconds $seconds "${steps[@]}"
    code=$?
    if [ $n_bad_builds != 0 ]; then
        echo "$n_bad_builds of the builds failed: their logs are $build/build-*.log" >&2
        [ $code != 0 ] || code=1
    fi
    exit $code
}

main
