#!/usr/bin/env bash
# Types the commands of docs/tenants.md in a fresh shell, with programs of this build and free ports, and checks what
# they print: tenants_page_test.sh PAGE BUILD [SANITIZER_RUNTIME]
set -euo pipefail

page="$1" build="$2" runtime="${3:-}"
work="$(mktemp -d)"
tidy() {
    # The page's server and programs, if the page did not get to its end.
    [ ! -s "$work/group" ] || kill -KILL -- "-$(cat "$work/group")" 2>/dev/null || true
    rm -rf "$work"
}
trap tidy EXIT

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
port="$(free_port)" metrics_port="$(free_port)"

# The blocks of shell commands, without their indentation.
awk '/^ *```sh$/ { inside = 1; next } /^ *```$/ { inside = 0 } inside { sub(/^   /, ""); print }' "$page" |
    sed "s#\$PWD/build/release#$build#; s#9470#$port#g; s#9471#$metrics_port#g; s#/var/lib/gpupool#$work/state/gpupool#" \
        >"$work/commands"
[ "$(wc -l <"$work/commands")" -gt 30 ] || { echo "the page has no commands" >&2; exit 1; }

# Root's state directory is not below HOME, so the setting names it.
sed -i "s#^listen = .*#&\nstate_directory = \"$work/state/gpupool/$port\"#" "$work/commands"
sed -i "s#^state=.*#state=$work/state/gpupool/$port#" "$work/commands"
mkdir -p "$work/runtime" "$work/bin"
command -v curl >/dev/null || { echo "curl is not installed"; exit 77; }
# curl hangs with a sanitizer's library.
printf '#!/bin/sh\nunset LD_PRELOAD\nexec %s --max-time 60 "$@"\n' "$(command -v curl)" >"$work/bin/curl"
chmod +x "$work/bin/curl"
status=0
# shellcheck disable=SC2016
setsid env -i HOME="$work" PATH="$work/bin:$PATH" XDG_RUNTIME_DIR="$work/runtime" TMPDIR="$work" GPUPOOL_SERVER="127.0.0.1:$port" \
    ${runtime:+LD_PRELOAD="$runtime" ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0} \
    timeout 120 bash -c 'echo $$ >"$1/group"; exec bash -eux -o pipefail "$1/commands"' _ "$work" \
    >"$work/output" 2>&1 </dev/null || status=$?
cat "$work/output"
[ "$status" -eq 0 ] || { echo "the page's commands failed with $status" >&2; exit 1; }

expect() {
    grep -qE -- "$1" "$work/output" || { echo "the page's commands did not print: $1" >&2; exit 1; }
}
expect '^sessions +1 .*tenant'
expect '^ *1  bob .* vector_add'
expect '^session [0-9a-f]+ ends'
expect '"event":"ended","by":"(administrator|user).*"reason":"maintenance"'
expect '^gpupool_tenant_gpu_seconds_total\{tenant="alice"\} [0-9.]+'
expect '^gpupool_tenant_sessions\{tenant="bob"\} 0'
