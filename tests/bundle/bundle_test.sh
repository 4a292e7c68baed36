#!/usr/bin/env bash
# Makes the bundle, moves it, and runs a CUDA program through it on the software GPU, with nothing of the build tree in
# reach: bundle_test.sh FOLDER_WITH_CUDA_PROGRAMS. (scripts/bundle itself refuses a bundle that needs more than glibc 2.35.)
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
programs="$1"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
unset LD_LIBRARY_PATH LD_PRELOAD

fail() {
    printf 'FAIL: %s\n' "$*"
    exit 1
}

"$root/scripts/bundle" "$work/made"
for file in bin/gpupoold bin/gpupool bin/gpupool-worker lib/gpupool/libcuda.so.1 lib/gpupool/libcuda.so \
    lib/libgpupool-softgpu.so; do
    [ -e "$work/made/$file" ] || fail "the bundle has no $file"
done
"$root/scripts/check-glibc" "$work/made"

# Replaces an earlier bundle, but nothing else.
mkdir "$work/other"
echo precious >"$work/other/file"
! "$root/scripts/bundle" "$work/other" 2>/dev/null || fail "it took the place of a folder that is no bundle"
[ "$(cat "$work/other/file")" = precious ] || fail "it changed a folder that is no bundle"

mv "$work/made" "$work/elsewhere"
"$work/elsewhere/bin/gpupoold" --version
"$work/elsewhere/bin/gpupool" --version
(cd / && "$work/elsewhere/bin/gpupool" run --local -- "$programs/vector_add") || fail "vector_add failed in the moved bundle"
echo "bundle: portable, and runs from where it was moved to"
