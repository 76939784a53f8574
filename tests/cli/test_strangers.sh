#!/bin/bash
# ctest: timeout=120 cost=5 labels=noasan
# Files that come from somebody else: what docs/security.md promises of them, seen from the command line.
. "$SOURCE_DIR/tests/cli/common.sh"

tiny=(--threads 1 --batch 8 --max-steps 2 --progress none)

# ---- a file starts no program

cat >program.sh <<'END'
touch started
while read -r line; do
    case $line in
    *'"epoch":'*) epoch=${line#*\"epoch\":} && echo "{\"epoch\":${epoch%%[!0-9]*},\"op\":\"wait\"}" ;;
    *) echo '{"ok":true}' ;;
    esac
done
END
not_started() {
    n_checks=$((n_checks + 1))
    [ ! -e started ] || bad "$last" "the program was started"
    rm -f started
}
esper grow synth "${tiny[@]}" --epochs 1 --policy-cmd "sh program.sh" --run-dir sent
expect_code 0
expect_equal "the program" "$(ls started)" started
rm started
esper grow --resume sent --epochs 2 --progress none
expect_code 2
expect_words err "sent/last.safetensors names a program that decides, and a file starts none" "--policy-cmd 'sh program.sh'"
not_started
esper grow --resume sent --epochs 2 --progress none --config sent/config.ini
expect_code 2
expect_words err "a file starts none" "--policy-cmd 'sh program.sh'"
not_started
esper grow synth --config sent/config.ini --run-dir again
expect_code 2
expect_words err "sent/config.ini:" "a file starts none" "--policy-cmd 'sh program.sh'"
not_started
esper compare synth --threads 1 --batch 8 --max-steps 2 --epochs 1 --policies none,command --config sent/config.ini --dir compared
expect_code 2
expect_words err "a file starts none"
not_started
for command in "inspect sent" "eval sent" "replay sent --progress none" "report sent" "export sent --torch exported"; do
    esper $command
    expect_code 0
    not_started
done
esper grow --resume sent --epochs 2 --progress none --policy-cmd "sh program.sh"
expect_code 0
expect_equal "the program" "$(ls started)" started
rm started
ESPER_POLICY_CMD="sh program.sh" esper grow --resume sent --epochs 3 --progress none
expect_code 0

finish
