#!/usr/bin/env bash
# ctest: timeout=240 cost=11 labels=noasan
# The documentation against the program and the tree:
#   - blocks that begin with ```sh test run, each in a folder of its own that has the program at build/esper;
#   - every command and flag of esper, every make target, file and name of the code that is mentioned exists, those of the
#     Python package among them;
#   - every relative link leads to a file, and to a heading in it;
#   - the parts that are generated are up to date, and what they list is explained.
set -uo pipefail

if [ ! -f "$SOURCE_DIR/README.md" ] || [ ! -d "$SOURCE_DIR/docs" ]; then
    echo "skipped: the documentation is not here"
    exit 77
fi
work=$PWD
cd "$SOURCE_DIR" || exit 1
pages=(README.md CONTRIBUTING.md CHANGELOG.md docs/*.md)
n_failed=0
declare -A n_seen=()

fail() {
    echo "FAILED: $*"
    n_failed=$((n_failed + 1))
}

# A check that met nothing has checked nothing.
expect_seen() {
    local what=$1 least=$2 n=${n_seen[$1]:-0}

    echo "$what: $n"
    [ "$n" -ge "$least" ] || fail "only $n $what found in all pages, expected $least or more"
}

seen() {
    n_seen[$1]=$((${n_seen[$1]:-0} + 1))
}

# ---- reading pages ----

# Prints "line<TAB>text" for everything that stands in code: spans, indented lines after a blank one, fenced blocks of
# sh. Blocks in other languages show output or code and are left out.
code_of() {
    awk '
        /^ *```/ { if (fence) fence = 0; else { fence = 1; shell = $0 ~ /```sh/ } next }
        fence { if (shell) print FNR "\t" $0; next }
        /^    / && (blank || indented) { print FNR "\t" $0; indented = 1; blank = 0; next }
        { blank = $0 ~ /^ *$/; if (!blank) indented = 0 }
        {
            rest = $0
            while (match(rest, /`[^`]+`/)) {
                print FNR "\t" substr(rest, RSTART + 1, RLENGTH - 2)
                rest = substr(rest, RSTART + RLENGTH)
            }
        }' "$1"
}

# Prints "line<TAB>target" for every link outside of code.
links_of() {
    awk '
        /^ *```/ { fence = !fence; next }
        fence || /^    / { next }
        {
            rest = $0
            gsub(/`[^`]*`/, "", rest)
            while (match(rest, /\]\([^) ]+\)/)) {
                print FNR "\t" substr(rest, RSTART + 2, RLENGTH - 3)
                rest = substr(rest, RSTART + RLENGTH)
            }
        }' "$1"
}

# Prints the anchors of a page's headings: small letters, words joined by "-", other signs left out.
anchors_of() {
    awk '/^```/ { fence = !fence } !fence && /^#+ / { sub(/^#+ /, ""); print tolower($0) }' "$1" |
        sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# ---- checks of one mention ----

check_link() {
    local page=$1 line=$2 target=$3 file anchor

    case "$target" in http://* | https://* | mailto:*) return ;; esac
    seen links
    file=${target%%#*}
    anchor=
    [ "$file" = "$target" ] || anchor=${target#*#}
    if [ -n "$file" ]; then file=$(dirname "$page")/$file; else file=$page; fi
    if [ ! -e "$file" ]; then
        fail "$page:$line: the link to $target leads nowhere"
    elif [ -n "$anchor" ] && ! anchors_of "$file" | grep -qxF -- "$anchor"; then
        fail "$page:$line: $file has no heading for #$anchor"
    fi
}

# Files and folders of the tree, by how their names begin. Names with wildcards or <parts> to fill in stand for many.
check_path() {
    local page=$1 line=$2 path=$3

    case "$path" in
    *[\<\>\*\ ]*) return ;;
    src/* | tests/* | scripts/* | cmake/* | include/* | docs/* | bindings/* | examples/* | .ci/*) ;;
    *) return ;;
    esac
    seen paths
    [ -e "$path" ] || fail "$page:$line: there is no $path"
}

# Names of functions, types and macros: they stand somewhere in the sources.
check_name() {
    local page=$1 line=$2 name=${3%%(*}

    [[ $name =~ ^(esper_[a-z0-9_]+|ESPER_[A-Z0-9_]+)$ ]] || return
    seen names
    [[ $name == *_ ]] || grep -rqw -- "$name" include src cmake scripts bindings tests/CMakeLists.txt ||
        fail "$page:$line: nothing in the sources is called $name"
}

# What `import esper` gives, or a module of its own: `esper.Guard(model, optimizer)`, `esper.lightning`.
check_python_name() {
    local page=$1 line=$2 text=$3

    [[ $text =~ ^esper\.([A-Za-z_]+) && $text != esper.h ]] || return
    seen "names of the Python package"
    [ -f "bindings/python/esper/${BASH_REMATCH[1]}.py" ] ||
        grep -qw -- "${BASH_REMATCH[1]}" bindings/python/esper/__init__.py ||
        fail "$page:$line: bindings/python/esper/__init__.py has no ${BASH_REMATCH[1]}"
}

# What follows `-m esper`: a command of the Python package, and flags that it knows.
check_python_command() {
    local page=$1 line=$2 text=$3 word

    [[ $text =~ -m\ esper\ ([a-z-][^\|\>\<\;\&\)#]*) ]] || return
    for word in ${BASH_REMATCH[1]}; do
        seen "words of the Python command"
        case "$word" in
        --help) ;;
        --*) grep -q "add_argument(\"$word\"" bindings/python/esper/__main__.py ;;
        *) [ "$word" = cpu ] || grep -q "add_parser(\"$word\"" bindings/python/esper/__main__.py ;;
        esac || fail "$page:$line: python -m esper does not know $word"
    done
}

check_make_target() {
    local page=$1 line=$2 text=$3 target

    while [[ $text =~ (^|[^-_/.a-zA-Z])make\ ([a-z]+)(.*) ]]; do
        target=${BASH_REMATCH[2]}
        text=${BASH_REMATCH[3]}
        seen "make targets"
        grep -q "^$target:" Makefile || fail "$page:$line: the Makefile has no target $target"
    done
}

# Flags of esper that stand alone: `--lr 0.1`.
check_flag() {
    local page=$1 line=$2 flag=${3%%[ =]*}

    [[ $flag == --[a-z]* ]] || return
    seen flags
    grep -qE -- "(^|[ ,])$flag([ ,]|$)" "$work/help.all" || fail "$page:$line: no command takes $flag"
}

# What follows `esper` up to the end of the command: it must be a command, and it must understand its arguments. Asked
# for its help as well, a command reads all arguments before it answers and does nothing else.
check_command() {
    local page=$1 line=$2 text=$3 command word
    local -a words help

    [[ $text != '! '* ]] || return # shown because it is refused
    text=$(sed "s/'[^']*'/quoted/g" <<<"$text") # what stands in quotes may have any sign in it
    while [[ $text =~ (^|[\ \(/])esper\ ([a-z-][^\|\>\<\;\&\)#]*)(.*) ]]; do
        read -ra words <<<"${BASH_REMATCH[2]}"
        text=${BASH_REMATCH[3]}
        command=${words[0]}
        seen commands
        case "$command" in --help | --version) continue ;; esac
        if ! grep -q "^  esper $command " "$work/help.main"; then
            fail "$page:$line: esper has no command $command"
            continue
        fi
        if ! "$ESPER" "${words[@]}" --help >"$work/said" 2>&1; then
            fail "$page:$line: esper ${words[*]}: $(cat "$work/said")"
        fi
        help=("$work/help.$command")
        [ "$command" != info ] || help+=("$work/help.train")
        for word in "${words[@]:1}"; do
            [[ $word != --* || $word = --help ]] || grep -qhE -- "(^|[ ,])${word%%=*}([ ,]|$)" "${help[@]}" ||
                fail "$page:$line: esper $command --help does not tell of ${word%%=*}"
        done
        check_first_argument "$page" "$line" "${words[@]}"
    done
}

# A task, topic or benchmark that is named must exist. Names in capitals stand for any; a word with a dot or a slash is a path.
check_first_argument() {
    local page=$1 line=$2 command=$3 first=${4:-} task=

    [[ $first =~ ^[a-z] ]] || return
    case "$command" in
    train) task=$first ;;
    info)
        grep -q "^  $first " "$work/help.info" || fail "$page:$line: esper info has no topic $first"
        [[ ${5:-} =~ ^[a-z] && $first != data ]] && task=$5 # data may be anybody's own
        ;;
    bench) grep -qE "(^|[ (])$first([ ,.)]|$)" "$work/help.bench" || fail "$page:$line: there is no benchmark $first" ;;
    esac
    [[ -z $task || $task = *[./]* ]] || awk -v task="$task" '$2 == task { found = 1 } END { exit !found }' "$work/tasks" ||
        fail "$page:$line: there is no task $task"
}

check_page() {
    local page=$1 line text

    while IFS=$'\t' read -r line text; do
        check_link "$page" "$line" "$text"
    done < <(links_of "$page")
    while IFS=$'\t' read -r line text; do
        check_path "$page" "$line" "$text"
        check_name "$page" "$line" "$text"
        check_flag "$page" "$line" "$text"
        check_make_target "$page" "$line" "$text"
        check_python_name "$page" "$line" "$text"
        check_python_command "$page" "$line" "$text"
        [[ $text == *"-m esper"* ]] || check_command "$page" "$line" "$text"
    done < <(code_of "$page")
}

# ---- facts that pages list ----

# All tasks are named in docs/data.md; those of a family by how they begin.
check_tasks() {
    local task

    while read -r task; do
        seen tasks
        grep -q "\`$task\`" docs/data.md || [[ $task == cifar_* ]] || fail "docs/data.md does not name the task $task"
    done < <(awk 'NR > 1 { print $2 }' "$work/tasks")
}

# Events: the table is the list's, and the text below it explains every event and every field. The store's tables explain
# themselves; tests/telemetry/test_store_docs.c holds them against a real store.
check_events() {
    local name

    bash scripts/docs events --check || fail "scripts/docs events --check"
    bash scripts/docs decisions --check || fail "scripts/docs decisions --check"
    bash scripts/docs store --check || fail "scripts/docs store --check"
    sed '1,/<!-- end of events -->/d' docs/events.md >"$work/prose"
    while read -r name; do
        seen "events and fields"
        grep -q "\`$name\`" "$work/prose" || fail "docs/events.md does not explain $name"
    done < <(sed -n '/<!-- events:/,/<!-- end of events -->/p' docs/events.md | grep -o '`[a-z_0-9]*`' | tr -d '`' |
        sort -u)
}

# Checkpoints: every note and every family of tensors of a real one is in the page, and no note that it has not.
check_checkpoint() {
    local name

    (cd "$work" && "$ESPER" train synth --optimizer adamw --epochs 1 --max-steps 1 --run-dir checkpoint >/dev/null &&
        "$ESPER" inspect checkpoint) >"$work/inspected" || fail "a checkpoint cannot be made and inspected"
    awk 'NR > 2 { if ($0 == "") exit; print $1 }' "$work/inspected" >"$work/notes"
    sed -n 's/^| `\([a-z_0-9]*\)` |.*/\1/p' docs/checkpoint.md >"$work/explained"
    while read -r name; do
        seen "notes of a checkpoint"
        grep -qx "$name" "$work/explained" || fail "docs/checkpoint.md does not explain the note $name"
    done <"$work/notes"
    while read -r name; do
        seen "families of a checkpoint"
        grep -qx "$name" "$work/explained" || fail "docs/checkpoint.md does not explain the family $name"
    done < <(sed -n 's,^\([a-z0-9]*\)/.* F32 .*,\1,p' "$work/inspected" | sort -u)
    sed -n '/^## Notes/,/^## /s/^| `\([a-z_0-9]*\)` |.*/\1/p' docs/checkpoint.md | grep -vxF -f "$work/notes" &&
        fail "docs/checkpoint.md explains these notes, which a checkpoint does not have"
}

# ---- examples ----

# Writes the blocks of a page that are tests to files, named by the line they begin at.
write_blocks() {
    awk -v dir="$2" '
        /^```sh test$/ { file = dir "/" FNR; next }
        /^```/ { file = "" }
        file != "" { print > file }' "$1"
}

run_blocks() {
    local page=$1 dir=$work/blocks/${1//\//.} block place

    mkdir -p "$dir"
    write_blocks "$page" "$dir"
    for block in "$dir"/*; do
        [ -f "$block" ] || continue
        seen "examples run"
        place=$block.d
        mkdir -p "$place/build"
        ln -s "$ESPER" "$place/build/esper"
        (cd "$place" && bash -eu -o pipefail "$block" >"$block.log" 2>&1 </dev/null) || {
            fail "$page:${block##*/}: the example that begins here failed:"
            sed 's/^/    /' "$block.log"
        }
    done
}

ESPER=$(realpath "$ESPER")
"$ESPER" --help >"$work/help.main" || fail "esper --help"
for command in $(sed -n 's/^  esper \([a-z]*\) .*/\1/p' "$work/help.main"); do
    "$ESPER" "$command" --help >"$work/help.$command" || fail "esper $command --help"
done
cat "$work"/help.* >"$work/help.all"
"$ESPER" info tasks >"$work/tasks" || fail "esper info tasks"

for page in "${pages[@]}"; do
    check_page "$page"
    run_blocks "$page"
done
check_tasks
check_events
check_checkpoint

expect_seen links 20
expect_seen paths 40
expect_seen names 10
expect_seen flags 5
expect_seen commands 20
expect_seen "names of the Python package" 5
expect_seen "words of the Python command" 2
expect_seen "make targets" 5
expect_seen tasks 10
expect_seen "events and fields" 20
expect_seen "notes of a checkpoint" 10
expect_seen "families of a checkpoint" 4
expect_seen "examples run" 8
[ "$n_failed" -eq 0 ] || echo "$n_failed checks failed"
[ "$n_failed" -eq 0 ]
