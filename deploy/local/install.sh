#!/usr/bin/env bash
# Installs the Debian packages that Switchyard needs, and nothing when all of them are there.
# usage: install.sh [--tests]      --tests: also what the tests need
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lists=("$here/packages.txt")
case "${1:-}" in
    "") ;;
    --tests) lists+=("$here/packages-test.txt") ;;
    *)
        echo "usage: $0 [--tests]" >&2
        exit 2
        ;;
esac

mapfile -t packages < <(grep -hv -e '^#' -e '^[[:space:]]*$' "${lists[@]}")

if ! command -v apt-get >/dev/null; then
    echo "$0: no apt-get here: install what these Debian packages hold by other means, then run the" \
        "next step without this one: ${packages[*]}" >&2
    exit 1
fi

missing=()
for package in "${packages[@]}"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "all ${#packages[@]} packages are installed"
    exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "$0: packages are missing, and you are neither root nor have sudo: as root, run" \
            "apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi

# redis-server may come with a system service that starts at once. It is not used, and does not
# disturb: a local cluster has a Redis of its own on a Unix socket.
echo "installing ${#missing[@]} packages: ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}"
