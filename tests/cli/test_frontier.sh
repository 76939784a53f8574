#!/usr/bin/env bash
# ctest: timeout=120 cost=6 labels=noasan
# esper compare --frontier from the outside: its runs, what is gone on with, and what is refused.
. "$SOURCE_DIR/tests/cli/common.sh"

refused 2 "are those of a frontier: add --frontier" compare synth --budgets 1,2
refused 2 "--sizes: 'big' is no number above 0" compare synth --frontier --sizes big
refused 2 "--rates: 1 comes after 2" compare synth --frontier --rates 2,1
refused 2 "one policy that grows" compare synth --frontier --policies trials,heuristic
refused 2 "--against" compare synth --frontier --against none
refused 2 "nothing to grow to" compare synth --frontier --sizes 0.5,1

tiny=(compare synth "${small[@]}" --frontier --policies heuristic --sizes 1,2 --rates 1,2 --budgets 0.5,1 --seeds 2 --dir f --jobs 2)
esper "${tiny[@]}" --out table.md
expect_code 0
expect_words out "frontier  synth: 2 budgets, 6 networks in each, 2 seeds: 24 runs, 2 at a time, in f" "x1/none-1" "24/24" \
    "Grown networks are on or above the static frontier at" "| training FLOPs up to |" "written   f/report.html"
for page in f/report.html f/x0.5/report.html f/x1/report.html; do
    [ -s "$page" ] || bad "$last" "$page is not there"
done
grep -q "| x1, " table.md || bad "$last" "table.md has no row of the larger budget"
esper "${tiny[@]}" --json # all of it was there
expect_code 0
[ "$(grep -c '"frontier":"point"' <<<"$out")" -eq 12 ] || bad "$last" "there are not 12 points"
[ "$(grep -c '"frontier":"limit"' <<<"$out")" -eq 4 ] || bad "$last" "there are not 4 limits"
[ "$(grep -c '(was there)' <<<"$err")" -eq 24 ] || bad "$last" "runs that had ended were run again"

rm -rf f/x1 # a run that is not there is run, and those of the other budget are not
esper "${tiny[@]}"
expect_code 0
[ "$(grep -c '(was there)' <<<"$out")" -eq 12 ] || bad "$last" "12 runs were there"
finish
