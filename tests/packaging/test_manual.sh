#!/usr/bin/env bash
# ctest: cost=6 labels=noasan
# Man pages and completion, made from --help: nothing that help tells is lost in a page, every page is clean roff, every
# option can be completed, and whatever a help or a run is called, it is text.
. "$SOURCE_DIR/tests/cli/common.sh"
packaging=$SOURCE_DIR/packaging

if ! command -v python3 >/dev/null || [ ! -d "$packaging" ]; then
    echo "skipped: there is no python3, or no packaging/, here"
    exit 77
fi
export LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 MANWIDTH=80 MAN_KEEP_FORMATTING='' GROFF_NO_SGR=1

# make_manual PROGRAM FOLDER: what the build does.
make_manual() {
    last="packaging/, of $1"
    mkdir -p "$2"
    python3 "$packaging/man_pages.py" "$1" "$2/man" >out.txt 2>err.txt &&
        python3 "$packaging/completion.py" "$1" "$2/completion" >>out.txt 2>>err.txt
    code=$?
    out=$(cat out.txt) err=$(cat err.txt)
}

# words_of FILE: each word once, in small letters, as titles begin with a capital. Quotes and brackets are no part of them, and
# where a sentence ends neither.
words_of() {
    tr -s ' \n' '\n' <"$1" | tr A-Z a-z | sed -E 's/^[`(]+//; s/[`).,;:]+$//; s/`//g' | tr -d '\\' | grep . | sort -u
}

make_manual "$ESPER" made
expect_code 0
make_manual "$ESPER" again
expect_equal "the same bytes" "$(diff -r made again)" ""
SOURCE_DATE_EPOCH=86400 make_manual "$ESPER" dated
expect_equal "the date of SOURCE_DATE_EPOCH" "$(grep -l '"1970-01-02"' dated/man/*.1 | wc -l)" "$(ls made/man | wc -l)"

# ---- pages
esper --help
commands=$(sed -n 's/^  esper \([a-z]*\) .*/\1/p' <<<"$out")
expect_equal "pages" "$(ls made/man | tr '\n' ' ')" "$(printf 'esper-%s.1 ' $(sort <<<"$commands"))esper.1 "
has_man=no
if command -v man >/dev/null && command -v groff >/dev/null; then has_man=yes; else echo "skipped: pages are not shown, there is no man here"; fi
for command in $commands; do
    page=made/man/esper-$command.1
    esper "$command" --help
    for section in NAME SYNOPSIS DESCRIPTION "SEE ALSO"; do
        expect_equal "$page: $section" "$(grep -c "^\.SH $section$" "$page")" 1
    done
    sed 's/\\-/-/g' "$page" >plain.txt
    for flag in $(grep -oE '(^|[ (])--[a-z][a-z0-9-]*' <<<"$out" | tr -d ' (' | sort -u); do
        n_checks=$((n_checks + 1))
        grep -qF -e "$flag" plain.txt || bad "$page" "does not tell of $flag"
    done
    [ "$has_man" = yes ] || continue
    man --warnings -E UTF-8 -l "$page" >shown.txt 2>warnings.txt
    expect_equal "$page: warnings" "$(cat warnings.txt)" ""
    col -b <shown.txt >page.txt
    lost=$(comm -23 <(tail -n +2 out.txt | words_of /dev/stdin) <(words_of page.txt) | grep -vxE 'examples?')
    expect_equal "words of esper $command --help that its page lost" "$lost" ""
done

# ---- completion: asked as bash asks
# complete WORD... (the last one is under the cursor): the answers, one a line, sorted.
complete_words() {
    last="completion of $*"
    answers=$(bash -c '
        . "$0"/completion
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        _esper
        printf "%s\n" "${COMPREPLY[@]}" | sort -u | grep .' "$here/made" "$@" 2>&1)
}
expect_answers() { # WORDS EXPECTED: one line
    expect_equal "$last" "$(tr '\n' ' ' <<<"$answers")" "${1:- }"
}
here=$PWD
mkdir -p place/runs/synth-1 'place/runs/two words' 'place/runs/$(touch hit)`touch hit`' place/photos
touch place/book.txt place/runs/index.db
cd place || exit 1
complete_words esper gr
expect_answers "grow "
complete_words esper ''
expect_equal "commands" "$(grep -vE '^(help|--)' <<<"$answers")" "$(sort <<<"$commands")"
complete_words esper help wa
expect_answers "watch "
complete_words esper grow fashion_
expect_answers "fashion_fast fashion_impaired fashion_long "
complete_words esper grow ph
expect_answers "photos "
complete_words esper grow photos --static-control --epochs 3 bo
expect_answers ""
complete_words esper eval ''
expect_equal "runs and files" "$answers" "$(printf '%s\n' '$(touch hit)`touch hit`' book.txt last photos runs synth-1 'two words' | sort)"
complete_words esper eval la
expect_answers "last "
complete_words esper grow --resume syn
expect_answers "synth-1 "
complete_words esper grow --policy tr
expect_answers "trials "
complete_words esper grow --policy = tr
expect_answers "trials "
complete_words esper grow --policy =
expect_equal "after a sign of equality" "$(grep -cxE 'trials|last|book.txt' <<<"$answers")" 3
complete_words esper train --optimizer ''
expect_answers "adamw sgd "
complete_words esper eval --split ''
expect_answers "test train valid "
complete_words esper eval --backend re
expect_answers "ref "
complete_words esper replay --progress p
expect_answers "plain "
complete_words esper grow --epochs ''
expect_answers ""
complete_words esper info ta
expect_answers "tasks "
complete_words esper info net syn
expect_answers "synth synth_table synth_text "
complete_words esper runs d
expect_answers "delete "
complete_words esper runs compare one syn
expect_answers "synth-1 "
complete_words esper bench gu
expect_answers "guard "
complete_words esper serve ''
expect_answers "photos runs "
complete_words esper nothing --
expect_answers "--help "
for command in $commands; do
    "$ESPER" "$command" --help >../help.txt
    complete_words esper "$command" --
    # Examples of other commands have flags of theirs.
    for flag in $(grep -vE "^ *(examples?: +)?esper (help|[a-z]+) " ../help.txt | grep -oE '(^|[ (])--[a-z][a-z0-9-]*' | tr -d ' (' |
        sort -u) $(grep -E "esper $command " ../help.txt | grep -v 'of `esper' | grep -oE ' --[a-z][a-z0-9-]*'); do
        n_checks=$((n_checks + 1))
        grep -qxF -e "$flag" <<<"$answers" || bad "esper $command" "completion does not offer $flag"
    done
    while read -r flag; do
        err=$("$ESPER" "$command" --help "$flag=1" 2>&1 >/dev/null)
        expect_no_word err "there is no option"
        expect_no_word err "takes no flag"
    done <<<"$answers"
done
cd "$here" || exit 1
expect_equal "no name was run" "$(find . -name hit)" ""

# ---- a help that means ill
cat >program <<'END'
#!/bin/sh
case "$*" in
--version) echo "esper 9.9 (x)" ;;
--help) printf 'esper is here. usage: esper COMMAND [arguments]\n\n  esper bad      TASK                    what is bad\n\n' ;;
"bad --help") printf "usage: esper bad TASK\n\n.so /etc/passwd\n\n'br and \\\\\\\\n(.g\n\n  .term          .ft 99\n  'two           \\\\\\\\X(ab\n  --flag%s WORD   as it is\n" "$EVIL" ;;
"info tasks") printf 'tasks\n  + one    first\n' ;;
esac
END
chmod +x program
EVIL='' make_manual "$PWD/program" evil
expect_code 0
if [ "$has_man" = yes ]; then
    man --warnings -E UTF-8 -l evil/man/esper-bad.1 >shown.txt 2>warnings.txt
    expect_equal "warnings" "$(cat warnings.txt)" ""
    out=$(col -b <shown.txt)
    expect_words out ".so /etc/passwd" "'br and \\\\n(.g" ".term" ".ft 99" "'two" "\\\\X(ab" "--flag WORD"
    expect_no_word out "root:"
fi
for evil in '$(touch,hit)' '`x`' ';x' "'x"; do
    EVIL=$evil make_manual "$PWD/program" evil
    expect_code 1
    expect_words err "not a word to complete"
done
finish
