#!/usr/bin/env bash
# Started with closed standard descriptors: what is printed lands in no file of the run.
. "$SOURCE_DIR/tests/cli/common.sh"

out='' err=''

# grow NAME: a run that prints to all it has, with the redirections of the call.
grow() {
    last="esper grow, $1"
    "$ESPER" grow synth "${small[@]}" --policy random --gates permissive --gate-epochs 1 --progress plain --log-level debug --run-dir "$1"
    code=$?
}

# expect_clean NAME: all lines of its logs are whole objects, and the checkpoint can be read.
expect_clean() {
    expect_code 0
    n_checks=$((n_checks + 2))
    [ -s "$1/events.jsonl" ] && ! grep -qvE '^\{.*\}$' "$1/events.jsonl" "$1/decisions.jsonl" ||
        bad "$last" "lines that are no JSON:" "$(grep -vE '^\{.*\}$' "$1"/*.jsonl | head -3)"
    "$ESPER" inspect "$1" >inspected.txt 2>&1 || bad "$last" "$(cat inspected.txt)"
}

grow no-input <&- >out.txt 2>err.txt
expect_clean no-input
grow no-output >&- 2>err.txt
expect_clean no-output
grow no-errors >out.txt 2>&-
expect_clean no-errors
grow nothing <&- >&- 2>&-
expect_clean nothing
finish
