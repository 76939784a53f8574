#!/usr/bin/env bash
# Where does the time of a kernel go? Builds build/gpu/knock_out_lab: kernels of 3 x 3 convolutions and of their weights' gradients beside the
# same with a part knocked out: no pixels loaded, no products, no sums for the norm, and so on. What they compute is wrong; what a part
# costs is what is gained without it. Text of the sources is replaced, so the library has no switches for this; a part that is not found
# any more ends the script.
#   usage: dev/gpu/knock_out_lab.sh
# Environment: KIT, where to (build/gpu); ARCH, the architecture (sm_90).
set -euo pipefail

cd "$(dirname "$0")/../.."
out=${KIT:-build/gpu}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir -p "$out"

# part KIND NAME [SED-EXPRESSION]...: of block_KIND.cu, in a namespace of its own
part() {
    local kind=$1 name=$2 from=src/tensor/cuda/block_$1.cu to=$made/$1_$2.cu expression
    shift 2
    cp "$from" "$to"
    for expression; do
        sed -E "$expression" "$to" >"$to.new"
        ! cmp -s "$to" "$to.new" || {
            echo "knock_out_lab.sh: $name is not in $from any more: $expression" >&2
            exit 1
        }
        mv "$to.new" "$to"
    done
    sed -i -E "s/esper_block_/${name}_/g; /^#include/d; /^(CONVOLVE|WEIGH)\(/d" "$to"
    {
        echo "namespace ${kind}_$name {"
        cat "$to"
        echo "}"
        echo "#undef CONVOLVE"
        echo "#undef CONVOLVE_3"
        echo "#undef WEIGH"
        echo "#undef WEIGH_ON_CORES"
        echo "#undef CONVOLVE_AHEAD"
    } >"$to.new"
    mv "$to.new" "$to"
    echo "#include \"${kind}_$name.cu\"" >>"$made/parts.inc"
    echo "PART($kind, $name)" >>"$made/$kind.inc"
}

part conv whole
part conv no_loads 's/^( *)copy_samples\(to \+ k \* 16/\1if (there == 12345678u) copy_samples(to + k * 16/'
part conv no_products 's/^( *)mma_16x8x8\((sum\[oy\]\[ox\]), (.*), (.*)\);/\1\2[0] += __uint_as_float((\3)[0] ^ (\3)[1] ^ (\3)[2] ^ (\3)[3] ^ (\4)[0] ^ (\4)[1]);/' \
    's/^( *)mma_16x8x8\((sum\[i - dy\]\[ox\]), a, b\);/\1\2[0] += __uint_as_float(a[0] ^ a[1] ^ a[2] ^ a[3] ^ b[0] ^ b[1]);/' \
    's/^( *)mma_16x8x4\(sum\[i - dy\]\[ox\], .*/\1sum[i - dy][ox][0] += __uint_as_float(part[kind == 0][ox + 2][0] ^ part[kind == 0][ox + 2][1]);/' \
    's/^ *kind == 1 \? w_lo\[3 \* dy \+ 2\].*//'
part conv no_moments 's/if \(BACK \|\| !block_has_norm\(lane\) \|\| !lane_trains\(lane\)\)/if (true)/'
part conv no_weights 's/^( *)stage_weights<3, BACK>/\1if (first_in == 12345678) stage_weights<3, BACK>/'
part conv no_stores 's/if \(out \+ o < v\.out_c && i < n_rows && j < n_columns\)/if (out + o < v.out_c \&\& i < n_rows \&\& j < n_columns \&\& sum[i][j][o] == 1.2345678f)/'
part conv no_split 's/^( *)tf32_parts<PRODUCTS>\((.*), &([^,]*), &([^,]*)\);/\1\3 = \4 = __float_as_uint(\2);/'
part conv one_product 's/kind < 3/kind < 1/'
part conv two_blocks 's/^(CONVOLVE_3\(.*), 3, 3\)/\1, 2, 3)/'
part conv four_blocks 's/^(CONVOLVE_3\(.*), 3, 3\)/\1, 4, 3)/'
part weigh whole
part weigh no_loads 's/return is \? \*reinterpret_cast<const float2 \*>\(from\)/return is \&\& from == (const float *)12345678 ? *reinterpret_cast<const float2 *>(from)/'
part weigh no_products 's/^( *)mma_3\(c, a_hi, a_lo, b\.hi, b\.lo\);/\1c[0] += __uint_as_float(a_hi[0] ^ a_hi[1] ^ a_hi[2] ^ a_hi[3] ^ a_lo[0] ^ a_lo[1] ^ a_lo[2] ^ a_lo[3] ^ b.hi[0] ^ b.hi[1] ^ b.lo[0] ^ b.lo[1]);/'
part weigh one_product 's/^( *)mma_3\(c, a_hi, a_lo, b\.hi, b\.lo\);/\1mma_16x8x8(c, a_hi, b.hi);/'
part weigh no_split 's/^( *)tf32_cut\((.*), &([^,]*), &([^,]*)\);/\1\3 = \4 = __float_as_uint(\2);/'
part weigh no_forming 's/^( *)form<DY>\(back.*/\1dy[0][0] = y[0][0]; dy[0][1] = y[0][1]; dy[1][0] = y[1][0]; dy[1][1] = out_next[0];/' \
    's/^ *samples_in\(lane, here\.block\) - warp \* 8 - column \* 2, dy\);//'
part weigh three_blocks 's/BLOCK_THREADS, 4\)/BLOCK_THREADS, 3)/'
part weigh five_blocks 's/BLOCK_THREADS, 4\)/BLOCK_THREADS, 5)/'

PATH=$PATH:/usr/local/cuda/bin
nvcc -arch="${ARCH:-sm_90}" -O3 -std=c++17 -diag-suppress 128,177 -Isrc -Iinclude -I"$made" -cudart static dev/gpu/knock_out_lab.cu \
    src/tensor/cuda/block_conv.c -o "$out/knock_out_lab"
echo "$out/knock_out_lab"
