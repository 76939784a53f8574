#!/usr/bin/env bash
# ctest: labels=noasan
# libesper-guard.so: its name, what it needs, and what it shows.
. "$SOURCE_DIR/tests/guard/library.sh"
command -v readelf >/dev/null && command -v nm >/dev/null || skip "readelf and nm (binutils) are not here"

version=$(sed -n 's/^#define ESPER_VERSION "\(.*\)"/\1/p' "$SOURCE_DIR/include/esper.h")
expect "link" "$(readlink "$library")" "libesper-guard.so.0"
expect "link of the soname" "$(readlink "$library.0")" "libesper-guard.so.$version"

# ---- the C library, its libm and its loader, alone (libdl and libpthread are files of their own before glibc 2.34)
dynamic=$(readelf -dW "$library")
expect "soname" "$(sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p' <<<"$dynamic")" "libesper-guard.so.0"
needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic")
expect "needs libc" "$(grep -c '^libc\.so' <<<"$needed")" 1
expect "needs besides" "$(grep -vE '^(libc|libm|libdl|libpthread|ld-linux[a-z0-9-]*)\.so(\.[0-9]+)*$' <<<"$needed")" ""
expect "no search path of our own" "$(grep -E '\((RPATH|RUNPATH)\)' <<<"$dynamic")" ""
expect "no relocations in its code" "$(grep -F '(TEXTREL)' <<<"$dynamic")" ""
expect_run "ldd" ldd -r "$library"
expect "symbols nobody defines" "$(grep -E 'undefined symbol|not found' <<<"$out")" ""

# ---- every function of the header but for the experimental ones, which are libesper.so's, and nothing else
sed '/=== experimental$/,$d' "$SOURCE_DIR/include/esper.h" >header
declared=$(sed -n 's/^ESPER_API.*[ *]\(esper_[a-z0-9_]*\)(.*/\1/p' header | sort)
exported=$(nm -D --defined-only "$library" | awk '{ print $3 }' | sort)
n_declared=$(grep -c '^ESPER_API' header)
expect "as many functions as declarations" "$(wc -l <<<"$declared")" "$n_declared"
expect "declared, not exported" "$(comm -23 <(echo "$declared") <(echo "$exported"))" ""
expect "exported, not declared" "$(comm -13 <(echo "$declared") <(echo "$exported"))" ""
finish
