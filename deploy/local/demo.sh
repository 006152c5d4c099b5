#!/usr/bin/env bash
# The whole of Switchyard on one machine in a few minutes: installs packages, builds, starts Redis, a
# router, two expert nodes and an aggregator with the bundled model, generates text, and moves an
# expert from one node to the other while text is generated.
# usage: demo.sh [--keep] [--no-install]
#   --keep        leave the cluster running at the end
#   --no-install  the packages of packages.txt are there already
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
keep=0
install=1
for arg in "$@"; do
    case "$arg" in
        --keep) keep=1 ;;
        --no-install) install=0 ;;
        *)
            echo "usage: $0 [--keep] [--no-install]" >&2
            exit 2
            ;;
    esac
done

build=$root/build/demo
switchyard=$build/bin/switchyard
key='switchyard:{trio}:placement'
run=""
finished=0

say() { printf '\n== %s\n' "$*"; }
show() {
    local word
    printf '$'
    for word in "$@"; do
        case "$word" in *[[:space:]]*) printf ' "%s"' "$word" ;; *) printf ' %s' "$word" ;; esac
    done
    printf '\n'
    "$@"
}

clean_up() {
    local code=$?
    trap - EXIT INT TERM
    [ -n "$run" ] || exit "$code"
    if [ $keep -eq 1 ] && [ $finished -eq 1 ]; then exit "$code"; fi
    if [ $finished -eq 0 ]; then
        echo "the demo did not finish; the ends of the logs in $run:" >&2
        tail -n 5 "$run"/*.log >&2 2>/dev/null || true
    fi
    "$switchyard" down --dir "$run" || true
    rm -rf "$run"
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ $install -eq 1 ]; then
    say "Packages"
    "$here/install.sh"
fi

say "Build (into $build)"
if command -v ccache >/dev/null; then export SY_CCACHE=${SY_CCACHE-ccache}; fi
(cd "$root" && cmake --preset release -B "$build" -DSY_BUILD_TESTS=OFF >/dev/null)
cmake --build "$build" --target \
    switchyard switchyard-router switchyard-expert switchyard-aggregator

say "A cluster: Redis, one router, two expert nodes, one aggregator, on Unix sockets"
run=$(mktemp -d /tmp/switchyard-demo.XXXXXX)
show "$switchyard" up --model "$root/models/trio" --dir "$run" \
    --experts 2 --routers 1 --aggregators 1 --threads 1 --detach

say "Its processes, as each of them says it is"
show "$switchyard" status --dir "$run"

say "Text through the three tiers"
show "$switchyard" generate --target "unix:$run/aggregator.sock" \
    --prompt "In the beginning" --max-tokens 48
echo

say "Which expert is wanted where: a hash in Redis"
show "$switchyard" placement show --dir "$run"

generate_long() {
    "$switchyard" generate --target "unix:$run/aggregator.sock" \
        --prompt "In the beginning" --max-tokens 800
}
redis() { redis-cli -s "$run/redis.sock" "$@"; }
# The hash of the placement in force; nothing while the servers differ.
hash_in_force() {
    "$switchyard" status --dir "$run" | sed -n 's/^placement: the same in all servers, hash //p'
}

say "Moving expert 5 of layer 3 to the other node, while 800 tokens are generated"
generate_long >"$run/before.txt"
hash_before=$(hash_in_force)
from=$(redis HGET "$key" 3/5)
if [ "$from" = expert-0/cpu:0 ]; then to=expert-1/cpu:0; else to=expert-0/cpu:0; fi
generate_long >"$run/during.txt" &
generating=$!
sleep 0.2
if kill -0 "$generating" 2>/dev/null; then when="while it generates"; else when="too late"; fi
echo "\$ redis-cli -s $run/redis.sock HSET '$key' 3/5 $to      # $when"
redis HSET "$key" 3/5 "$to"
wait "$generating"
if ! cmp -s "$run/before.txt" "$run/during.txt"; then
    echo "the texts differ:" >&2
    diff "$run/before.txt" "$run/during.txt" >&2 || true
    exit 1
fi
echo "the text is the same as without the move: $(wc -c <"$run/during.txt") bytes"

hash_after=""
for _ in $(seq 50); do
    hash_after=$(hash_in_force)
    [ -n "$hash_after" ] && [ "$hash_after" != "$hash_before" ] && break
    sleep 0.1
done
if [ -z "$hash_after" ] || [ "$hash_after" = "$hash_before" ]; then
    echo "the servers did not take the new placement" >&2
    exit 1
fi
echo "the placement in force in every server: before $hash_before, now $hash_after"
show "$switchyard" placement show --dir "$run" --layer 3
finished=1

say "What to try next"
cat <<END
  $switchyard run --model $root/models/trio --prompt "In the beginning"
      the same in one process: no gRPC, no Redis, the same text
  $here/demo.sh --keep, and then, with RUNDIR as it prints:
      kill -9 \$(cat RUNDIR/expert-1.pid), and watch $switchyard status --dir RUNDIR
      redis-cli -s RUNDIR/redis.sock HSET '$key' 3/5 'expert-0/cpu:0 expert-1/cpu:0'
          expert 5 of layer 3 on both nodes: for this one, either node may die
END
if [ $keep -eq 1 ]; then
    say "The cluster goes on in $run. Stop it with"
    echo "  $switchyard down --dir $run && rm -r $run"
fi
