#!/usr/bin/env bash
# ctest: timeout=60
# esper report from the outside: where the page goes, what is said about it, and what is refused, leaving no trace.
. "$SOURCE_DIR/tests/cli/common.sh"

expect_no_file() {
    n_checks=$((n_checks + 1))
    [ ! -e "$1" ] || bad "$last" "$1 is there"
}

# ---- no run
refused 2 "expected one run, got 0" report
refused 2 "expected one run, got 2" report a b
refused 1 "'nowhere' is no run" report nowhere
refused 1 "no run below runs/ yet" report last
refused 2 "--out wants a file" report nowhere --out ""
refused 2 "esper report takes no --lr" report nowhere --lr 0.1
refused 2 "there is no option '--ouk'|did you mean '--out'" report nowhere --ouk page.html
mkdir empty
refused 1 "empty holds no run" report empty

# ---- a run without a store, and files that are none
esper train synth "${small[@]}" --run-dir trained
expect_code 0
refused 1 "trained has no run store (store.sqlite)|was it made by \`esper train\`?|esper inspect trained" report trained
echo "this is no database, and it is long enough to be looked at as one: $(seq 200)" >trained/store.sqlite
refused 1 "trained/store.sqlite|the store is damaged" report trained
: >trained/store.sqlite
refused 1 "trained/store.sqlite: is empty" report trained
rm trained/store.sqlite && mkdir trained/store.sqlite
refused 1 "trained/store.sqlite" report trained
expect_no_file trained/report.html

# ---- stores to report on are made by the test of the report
maker=$(dirname "$ESPER")/tests/ui/test_report
if [ ! -x "$maker" ]; then
    echo "skipped: no $maker to make run stores; looked at bad input only"
    finish
fi
mkdir made
(cd made && "$maker" >maker.txt 2>&1) || bad "$maker" "$(tail -n 20 made/maker.txt)"
for run in full unfinished; do
    mkdir $run
    : >$run/events.jsonl
    cp made/$run.sqlite $run/store.sqlite
done

esper report full
expect_code 0
expect_equal "standard error of report" "$err" ""
expect_words out "full, 40 epochs" "written   full/report.html (" "next " "full/report.html"
expect_no_word out "not ended"
page=$(cat full/report.html)
expect_words page "fashion, grown by heuristic" "91.23 %" "</html>"
expect_equal "drafts" "$(find full -name '*.tmp')" ""
esper report full --out elsewhere.html
expect_code 0
expect_words out "written   elsewhere.html"
expect_equal "the same page" "$(cksum <elsewhere.html)" "$(cksum <full/report.html)"
esper report unfinished
expect_code 0
expect_words out "unfinished, 2 epochs, not ended"

# ---- places where no page can go; the old one stays
before=$(cksum <full/report.html)
refused 2 "--out empty is a directory" report full --out empty
refused 2 "is a file of the run itself" report full --out full/store.sqlite
refused 2 "is a file of the run itself" report full --out ./full/../full/events.jsonl
refused 1 "no/such/page.html" report full --out no/such/page.html
expect_equal "the page that was there" "$(cksum <full/report.html)" "$before"

# ---- a damaged store: pages in its middle, and a store cut short
cp -r full damaged
rm damaged/report.html
size=$(stat -c %s damaged/store.sqlite)
dd if=/dev/zero of=damaged/store.sqlite bs=4096 seek=3 count=$((size / 4096 - 4)) conv=notrunc 2>/dev/null
refused 1 "damaged/store.sqlite|the store is damaged" report damaged
expect_no_file damaged/report.html
head -c 5000 full/store.sqlite >damaged/store.sqlite
refused 1 "damaged/store.sqlite|the store is damaged" report damaged
expect_no_file damaged/report.html
finish
