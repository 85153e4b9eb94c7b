#!/bin/bash
# The sandbox image where no registry is reachable: a Debian tree by debootstrap, wheels by pip, then `docker import`.
#
#   docker/build_offline.sh          makes miles-agents/sandbox:VERSION, as docker/sandbox.Dockerfile does
#   docker/build_offline.sh --tree   makes the tree only and prints the name of its tar file; needs no daemon
#
# Needs root, debootstrap, pip and the docker command; a Debian mirror and a package index must be within reach. The
# tree (some minutes the first time) is kept as a tar file named by the hash of what it is made from.
#   DEBIAN_MIRROR=http://...   PYTHON=python3 (whose pip is used)   CACHE=~/.cache/miles_agents   DOCKER_HOST=unix://...
set -euo pipefail
umask 022 # any user must be able to read what lies in the image

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(cat "$here/sandbox.version")
tag=miles-agents/sandbox:$version
mirror=${DEBIAN_MIRROR:-} # empty: debootstrap knows one
python=${PYTHON:-python3}
cache=${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/miles_agents}/sandbox-image
machine=$(uname -m)
made_from=("$here/build_offline.sh" "$here/sandbox.finish.sh" "$here/sandbox.constraints.txt")
key=$({ cat "${made_from[@]}"; echo "$machine"; } | sha256sum)
tar_file=$cache/tree-${key:0:12}.tar

say() { echo "build_offline.sh: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

check_tools() {
    [ "$(id -u)" = 0 ] || fail "debootstrap needs root: sudo -E $0 $*"
    command -v debootstrap >/dev/null || fail "no debootstrap here: apt-get install debootstrap"
    "$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip; name one that has: PYTHON=... $0"
}

make_tree() {
    local tree=$1 platforms=(--platform "manylinux2014_$machine") glibc
    say "Debian 12 and its Python (some minutes)"
    debootstrap --variant=minbase --include=python3 bookworm "$tree" ${mirror:+"$mirror"} >"$tree.log" 2>&1 || {
        tail -n 20 "$tree.log" >&2
        fail "debootstrap failed"
    }
    say "numpy, sympy, pandas"
    for glibc in 17 24 27 28 31 34 35 36; do platforms+=(--platform "manylinux_2_${glibc}_$machine"); done
    "$python" -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
        --no-deps --no-compile --only-binary :all: --implementation cp --python-version 3.11 "${platforms[@]}" \
        --target "$tree/usr/local/lib/python3.11/dist-packages" -r "$here/sandbox.constraints.txt"
    chroot "$tree" /bin/bash <"$here/sandbox.finish.sh" >&2
}

make_tar() {
    local work
    check_tools "$@"
    mkdir -p "$cache"
    work=$(mktemp -d)
    # shellcheck disable=SC2064 -- the folder's name is known now
    trap "rm -rf '$work'" EXIT
    mkdir "$work/tree"
    make_tree "$work/tree"
    tar --create --file "$work/tree.tar" --directory "$work/tree" --numeric-owner --sort=name \
        --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' --exclude='./run/*' --exclude='./tmp/*' .
    cp "$work/tree.tar" "$tar_file.$$"
    mv "$tar_file.$$" "$tar_file" # renamed into place: another run sees all of it or nothing
}

[ -f "$tar_file" ] || make_tar "$@"
if [ "${1:-}" = --tree ]; then
    echo "$tar_file"
    exit 0
fi
command -v docker >/dev/null || fail "no docker command here: apt-get install docker.io"
docker import --change "LABEL miles-agents.sandbox-image=$version" --change 'CMD ["bash"]' \
    --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' "$tar_file" "$tag" >&2
say "made $tag"
