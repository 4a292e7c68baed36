# Common parts of the scripts in this folder, which source it: paths, messages, root, building a preset. Bash.
# shellcheck shell=bash disable=SC2034

set -euo pipefail
GPUPOOL_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
GPUPOOL_DEPS="$GPUPOOL_ROOT/.deps"
GPUPOOL_JOBS="${GPUPOOL_JOBS:-$(nproc)}"

say() { printf '== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# Runs its arguments as root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root to run '$*': run it as root, or install sudo"
    fi
}

# Configures and builds a preset, or some targets of it: build_preset NAME [TARGET...]
build_preset() {
    local preset="$1"
    shift
    (cd "$GPUPOOL_ROOT" && cmake --preset "$preset" >"$(configure_log "$preset")" 2>&1) || {
        tail -n 20 "$(configure_log "$preset")" >&2
        die "configuring the preset $preset failed (whole output: $(configure_log "$preset"))"
    }
    cmake --build "$GPUPOOL_ROOT/build/$preset" -j "$GPUPOOL_JOBS" ${1:+--target "$@"}
}

configure_log() {
    mkdir -p "$GPUPOOL_ROOT/build"
    printf '%s\n' "$GPUPOOL_ROOT/build/configure-$1.log"
}
