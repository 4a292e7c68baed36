#!/usr/bin/env bash
# scripts/check-glibc accepts portable libraries and names the offences of others, which are made here with a
# stand-in for a glibc of the future.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir future good newer foreign relr empty

fail() {
    printf 'FAIL: %s\n' "$*"
    exit 1
}

# expect_refusal FOLDER PATTERN: the check fails, and its output matches PATTERN.
expect_refusal() {
    local output
    if output="$("$root/scripts/check-glibc" "$1" 2>&1)"; then
        fail "$1 was accepted: $output"
    fi
    grep -qE "$2" <<<"$output" || fail "refusing $1, it did not say '$2' but: $output"
}

cat >future/libc.c <<'END'
void from_the_future(void) {}
void from_the_present(void) {}
void of_another_kind(void) {}
END
cat >future/libc.map <<'END'
GLIBC_2.4 { global: from_the_present; local: *; };
GLIBC_2.99 { global: from_the_future; } GLIBC_2.4;
GLIBC_ABI_DT_RELR { global: of_another_kind; } GLIBC_2.99;
END
gcc -shared -fPIC -nostdlib future/libc.c -o future/libc.so.6 -Wl,-soname,libc.so.6 -Wl,--version-script=future/libc.map
echo 'void foreign(void) {}' | gcc -shared -fPIC -nostdlib -x c - -o future/libforeign.so -Wl,-soname,libforeign.so.3

# library FOLDER FUNCTION: makes FOLDER/library.so, which calls FUNCTION of the stand-ins.
library() {
    echo "void $2(void); void call(void) { $2(); }" |
        gcc -shared -fPIC -nostdlib -x c - -o "$1/library.so" -x none future/libc.so.6 -Wl,--as-needed future/libforeign.so
}
library good from_the_present
library newer from_the_future
library foreign foreign
library relr of_another_kind
printf "not a program\n" >empty/text

"$root/scripts/check-glibc" good >/dev/null || fail "a library that only needs glibc 2.4 was refused"
"$root/scripts/check-glibc" newer 2.99 >/dev/null || fail "a library that needs glibc 2.99 was refused where 2.99 is allowed"
expect_refusal newer 'library\.so needs glibc 2\.99 for: from_the_future@'
expect_refusal foreign 'needs libforeign\.so\.3'
expect_refusal relr 'needs GLIBC_ABI_DT_RELR'
expect_refusal empty 'no program and no library'
echo "check-glibc: accepts and refuses what it should"
