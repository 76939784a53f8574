#!/usr/bin/env python3
"""Writes the completion of `esper` for bash from the program's own --help: commands, flags, the words that they take,
tasks, runs below runs/, and files.

    usage: completion.py PROGRAM FILE
"""
import re
import sys

import help_text
from help_text import Items, Title

HEAD = """\
# bash completion of esper %(version)s, made from its --help: source it, or put it where bash-completion looks, as `make
# install` does. It needs nothing but bash, and runs nothing.

_esper_commands=%(commands)s
_esper_tasks=%(tasks)s

# Runs below runs/, by their names; `last` is the newest.
_esper_runs() {
    local run

    printf 'last\\n'
    for run in runs/*/; do
        [[ -d $run ]] || continue
        run=${run%%/}
        [[ $run == *$'\\n'* ]] || printf '%%s\\n' "${run#runs/}"
    done
}

# Adds to COMPREPLY what begins with $1, of the kinds $2, several joined by "+": the words $3, tasks, runs, files,
# folders.
_esper_offer() {
    local start=$1 kinds=$2 words=$3 kind found

    for kind in ${kinds//+/ }; do
        case $kind in
        words) mapfile -t found < <(compgen -W "$words" -- "$start") ;;
        tasks) mapfile -t found < <(compgen -W "$_esper_tasks" -- "$start") ;;
        runs) mapfile -t found < <(_esper_runs | while IFS= read -r run; do
            [[ $run != "$start"* ]] || printf '%%s\\n' "$run"
        done) ;;
        files) compopt -o filenames 2>/dev/null; mapfile -t found < <(compgen -f -- "$start") ;;
        folders) compopt -o filenames 2>/dev/null; mapfile -t found < <(compgen -d -- "$start") ;;
        *) found=() ;;
        esac
        [[ $kind != runs ]] || compopt -o filenames 2>/dev/null # quoted, where a name wants it
        COMPREPLY+=("${found[@]}")
    done
}

# What a command takes: flags without a value, flags with one, and what stands without a flag, place by place, with
# the words for that.
_esper_command() {
    plain= valued= places= words=
    case $1 in
"""

COMMAND = """\
    %(name)s)
        plain=%(plain)s
        valued=%(valued)s
        places=%(places)s
        words=%(words)s
        ;;
"""

TAIL = """\
    esac
}

# What the value of a flag may be, for _esper_offer.
_esper_value() {
    kinds= words=
    case $1:$2 in
%(values)s
    esac
}

_esper() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
    local plain valued places kinds words word place skip=0 i

    COMPREPLY=()
    if [[ $COMP_CWORD -eq 1 ]]; then
        _esper_offer "$current" words "$_esper_commands help --help --version"
        return
    fi
    if [[ $command == help ]]; then
        _esper_offer "$current" words "$_esper_commands"
        return
    fi
    if [[ $current == '=' ]]; then # --flag=: bash makes three words of it
        current=
    elif [[ $before == '=' && $COMP_CWORD -gt 3 ]]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    _esper_command "$command"
    if [[ $before == --* && " $valued " == *" $before "* ]]; then
        _esper_value "$command" "$before"
        _esper_offer "$current" "$kinds" "$words"
        return
    fi
    if [[ $current == -* ]]; then
        _esper_offer "$current" words "$plain $valued --help"
        return
    fi
    place=0
    for ((i = 2; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $skip -eq 1 ]]; then
            skip=0
            [[ $word != '=' ]] || skip=1
        elif [[ $word == --* ]]; then
            [[ " $valued " != *" $word "* ]] || skip=1
        else
            place=$((place + 1))
        fi
    done
    read -ra places <<<"$places"
    [[ ${#places[@]} -gt 0 ]] || return
    if [[ $place -ge ${#places[@]} ]]; then # the last one may come again, or there is no more
        [[ ${places[-1]} == *+again ]] || return
        place=$((${#places[@]} - 1))
    fi
    _esper_offer "$current" "${places[place]}" "$words"
}

complete -F _esper esper
"""


def quoted(words):
    """A word of the shell; the help's words have no sign in them that it knows, and this says so."""
    text = " ".join(words)
    if not re.fullmatch(r"[\w .,:+-]*", text):
        raise ValueError("not a word to complete: %s" % text)
    return "'%s'" % text


# ---- what is taken where ----

def words_of(command):
    """The words that stand for TOPIC, VERB or NAME of a command: those of its first list that is none of flags."""
    for block in command.body:
        if isinstance(block, Items) and not block.items[0].term.startswith("--"):
            terms = [re.sub(r"^esper %s ?" % command.name, "", item.term) for item in block.items]
            return [term.split()[0] for term in terms if re.match(r"[a-z]", term)]
    return []


PLACES = {"TASK": "tasks+files", "RUN": "runs+folders", "RUN|FILE": "runs+files", "FILE": "files", "FILES": "files",
          "DIR": "folders", "TOPIC": "words", "VERB": "words", "NAME": "words"}


VALUES = {"RUN": {"runs", "files"}, "FILE": {"files"}, "PATH": {"files"}, "DIR": {"folders"}}


def places_of(command):
    """ "[TOPIC] [TASK] [flags]" -> ["words", "tasks+files"]; what may come again ends in "+again"."""
    arguments = re.sub(r"\[(flags|options|--[^]]*)\]", "", command.arguments)
    found = []
    for word in re.findall(r"[^\s\[\]]+", arguments):
        again = word.endswith(("...", "\N{HORIZONTAL ELLIPSIS}"))
        name = word.rstrip(".\N{HORIZONTAL ELLIPSIS}")
        if name not in PLACES:
            raise ValueError("esper %s takes %s, and what that is to complete is not known" % (command.name, word))
        found.append(PLACES[name] + ("+again" if again else ""))
    return found


def choices(value, meaning):
    """The words that may be given: --gates strict|permissive, "--split NAME   test (default), valid or train"."""
    if re.fullmatch(r"[a-z0-9_]+(\|[a-z0-9_]+)+", value):
        return value.split("|")
    if re.fullmatch(r"\w+( \(default\))?(, \w+)* or \w+", meaning):
        return re.findall(r"\w+", re.sub(r" \(default\)| or ", ",", meaning))
    return []


def described(blocks):
    """(title above it, flag, value, meaning) of every flag that is listed, and the lists whose title names a flag."""
    title = ""
    for block in blocks:
        if isinstance(block, Title):
            title = block.words
        for item in block.items if isinstance(block, Items) else ():
            meaning = " ".join(help_text.texts_of(item.body))
            for part in re.split(r", (?=--)", item.term) if item.term.startswith("--") else (item.term,):
                flag, _, value = part.partition(" ")
                yield title, flag, value, meaning
            yield from described(item.body)


def values_of(command):
    """Flag to (kinds, words) of its value, where anything is known of it."""
    found = {}
    for title, flag, value, meaning in described(command.body):
        whose = re.search(r"\((--[a-z-]+)\)", title)
        if whose and not flag.startswith("--"):
            found.setdefault(whose.group(1), (set(), []))[1].append(flag)
        if not flag.startswith("--"):
            continue
        kinds, words = found.setdefault(flag, (set(), []))
        words += choices(value, meaning)
        for word in re.findall(r"[A-Z]+", value):
            kinds |= VALUES.get(word, set())
    return {flag: (kinds | ({"words"} if words else set()), words) for flag, (kinds, words) in found.items()
            if kinds or words}


# ---- writing ----

def write(program):
    shared = {}  # "as for train"
    for command in reversed(program.commands):
        shared.update(values_of(command))
    out = [HEAD % {"version": program.version, "commands": quoted(command.name for command in program.commands),
                   "tasks": quoted(program.tasks)}]
    values = []
    for command in program.commands:
        options = help_text.options_of(command, program.commands)
        places = places_of(command)
        words = words_of(command) if "words" in places else []
        out.append(COMMAND % {"name": command.name,
                              "plain": quoted(flag for flag, value in options.items() if not value),
                              "valued": quoted(flag for flag, value in options.items() if value),
                              "places": quoted(places), "words": quoted(words)})
        own = values_of(command)
        for flag, value in options.items():
            kinds, words = own.get(flag) or shared.get(flag) or (set(), [])
            if value and kinds:
                values.append("    %s:%s) kinds=%s words=%s ;;" % (
                    command.name, flag, quoted(["+".join(sorted(kinds))]), quoted(words)))
    out.append(TAIL % {"values": "\n".join(values)})
    return "".join(out)


def main(arguments):
    if len(arguments) != 2:
        print(re.search(r"usage: .*", __doc__).group(), file=sys.stderr)
        return 2
    text = write(help_text.read_program(arguments[0]))
    with open(arguments[1], "w", encoding="utf-8") as file:
        file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
