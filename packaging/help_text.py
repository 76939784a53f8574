"""Reads what `esper --help` and `esper COMMAND --help` print, so that man pages and completion are made of the same
words.

A help text is paragraphs at the margin, and indented below them lists of terms with what they mean, or lines to type:

    usage: esper eval RUN|FILE [flags]

    FILE is a checkpoint.

      --split NAME    test (default), valid or train

It becomes a list of blocks: Text, Title, Items (each with blocks of its own, as lists stand in lists) and Code.
"""
import os
import re
import subprocess
from typing import NamedTuple


class Text(NamedTuple):
    words: str


class Title(NamedTuple):
    """A line that names the list below it: "Run", "who decides (--policy):"."""
    words: str


class Item(NamedTuple):
    term: str
    body: list


class Items(NamedTuple):
    items: list


class Code(NamedTuple):
    """Lines as they are typed; examples: they stand under that word."""
    lines: list
    examples: bool


class Command(NamedTuple):
    name: str
    arguments: str
    summary: str
    body: list


class Program(NamedTuple):
    version: str
    summary: str
    commands: list
    body: list  # what `esper --help` says besides
    tasks: list


# ---- asking the program ----

def ask(program, *arguments):
    """What it prints, in the same words whoever asks, wherever."""
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("ESPER_", "OMPI_", "PMI_"))}
    environment.update(LC_ALL="C.UTF-8", TERM="dumb")
    done = subprocess.run([program, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          check=True, timeout=60)
    return done.stdout.decode("utf-8")


def read_program(program):
    front = ask(program, "--help")
    lines = front.splitlines()
    commands = []
    for name, arguments, summary in re.findall(r"(?m)^  esper (\S+) +(\S.*?)  +(\S.*)$", front):
        usage, body = read_help(ask(program, name, "--help"))
        if usage != "esper %s %s" % (name, arguments):
            raise ValueError("esper --help and esper %s --help differ in its arguments" % name)
        commands.append(Command(name, arguments, summary, body))
    tasks = re.findall(r"(?m)^  ([^\s-]) (\w+)  ", ask(program, "info", "tasks"))  # "-": a kind of one's own data
    return Program(ask(program, "--version").split()[1], lines[0].split(". usage:")[0], commands,
                   parse([line for line in lines[1:] if not line.startswith("  esper ")]), [name for _, name in tasks])


def read_help(text):
    """The line of usage without its first word, and the blocks behind it."""
    first, *lines = text.rstrip("\n").splitlines()
    if not first.startswith("usage: "):
        raise ValueError("a help that does not begin with its usage: %s" % first)
    return first[len("usage: "):], parse(lines)


# ---- blocks ----

def indent_of(line):
    return len(line) - len(line.lstrip(" "))


def parse(lines):
    """The blocks of lines whose margin is the first column."""
    blocks = []
    for chunk in split_at_blank(lines):
        at = 0
        while at < len(chunk):
            start = at
            margin = indent_of(chunk[at]) == 0
            while at < len(chunk) and (indent_of(chunk[at]) == 0) == margin:
                at += 1
            part = chunk[start:at]
            if margin:
                at = start + parse_margin(part, chunk[at:], blocks)
            else:
                blocks.append(parse_indented(part))
    return blocks


def split_at_blank(lines):
    chunk = []
    for line in [*lines, ""]:
        if line.strip():
            chunk.append(line.rstrip())
        elif chunk:
            yield chunk
            chunk = []


def parse_margin(part, below, blocks):
    """Lines at the margin; gives how many of the chunk's lines were taken, as examples begin there and go on below."""
    example = re.fullmatch(r"(examples?):(?:  +(\S.*))?", part[0])
    if example:
        lines = [example.group(2)] if example.group(2) else []
        lines += [line.strip() for line in below]
        blocks.append(Code(lines, True))
        return len(part) + len(below)
    *before, last = part
    is_title = below and (last.endswith(":") or not re.search(r"[.:,;)]", last)) and len(last) < 60 and not before
    if is_title:
        blocks.append(Title(last.rstrip(":")))
    elif is_table(part):
        pairs = [re.split(":  +", line, maxsplit=1) for line in part]
        blocks.append(Items([Item(term, [Text(words)]) for term, words in pairs]))
    else:
        blocks.append(Text(" ".join(part)))
    return len(part)


def is_table(lines):
    """Lines such as "A first run:     esper grow fashion", each of its own."""
    return len(lines) > 1 and all(re.match(r"[^:]+:  +\S", line) for line in lines)


def parse_indented(lines):
    """Terms with their meaning, or lines to type."""
    base = min(indent_of(line) for line in lines)
    heads = [line for line in lines if indent_of(line) == base]
    if len(heads) == len(lines) and not any(cells_of(line)[1:] for line in lines):
        return Code([line.strip() for line in lines], False)
    columns = []  # of terms: most often one; where there are two beside each other, the second is read after the first
    for line in lines:
        if indent_of(line) > base:
            columns[0][-1].body.append(line)
            continue
        for i, (term, meaning, at) in enumerate(definitions(line)):
            if i == len(columns):
                columns.append([])
            columns[i].append(Item(term, [" " * at + meaning] if meaning else []))
    return Items([Item(item.term, parse(dedent(item.body))) for column in columns for item in column])


def cells_of(line):
    return re.split(r" {2,}", line.strip())


def shape_of(text):
    """Two terms of one kind have the same: "--trial-share X" and "--trial-first X", "G1" and "G3"."""
    return "--" if text.startswith("--") else re.sub(r"\d+", "0", re.sub(r"[A-Za-z]+", "a", text))


def definitions(line):
    """(term, meaning, column of the meaning) of a line; most have one, some two beside each other."""
    cells = cells_of(line)
    groups = [[cells[0]]]
    for i, cell in enumerate(cells[1:], 1):
        if i > 1 and len(cell) < 30 and shape_of(cell) == shape_of(cells[0]) and i + 1 < len(cells):
            groups.append([cell])
        else:
            groups[-1].append(cell)
    for group in groups:
        column = line.index(group[1], indent_of(line) + len(group[0])) if len(groups) == 1 and group[1:] else 0
        yield group[0], ": ".join(group[1:]), column


def dedent(lines):
    """The meaning's lines with its first column as their margin."""
    margin = indent_of(lines[0]) if lines else 0
    return [" " * max(0, indent_of(line) - margin) + line.strip() for line in lines]


# ---- what is in a text ----

def texts_of(blocks):
    """Every text in them."""
    for block in blocks:
        if isinstance(block, (Text, Title)):
            yield block.words
        elif isinstance(block, Code):
            yield from block.lines
        else:
            for item in block.items:
                yield item.term
                yield from texts_of(item.body)


def listed_options(blocks):
    """Flag to what it takes, "" for nothing, of every option that stands in a list."""
    found = {}
    for block in blocks:
        for item in block.items if isinstance(block, Items) else ():
            for part in re.split(r", (?=--)", item.term) if item.term.startswith("--") else ():
                flag, _, value = part.partition(" ")
                found.setdefault(flag, value)
            for flag, value in listed_options(item.body).items():
                found.setdefault(flag, value)
    return found


def settings_of(command):
    """The flags that are settings of the configuration, which stand below "Settings come from ..."."""
    at = next((i for i, block in enumerate(command.body)
               if isinstance(block, Text) and block.words.startswith("Settings come from")), len(command.body))
    return listed_options(command.body[at:])


def options_of(command, commands):
    """Flag to what it takes, of every option that a command's help tells of: in lists, in passing, and in examples of
    the command itself. "The flags of `esper train`" are that command's settings."""
    found = listed_options(command.body)
    lines = [command.arguments, *(line for line in texts_of(command.body)
                                  if not re.match(r"(esper|python3) (?!%s )" % command.name, line))]
    for flag, value in re.findall(r"(?:^|[ (\[])(--[a-z][a-z0-9-]*)(?: ([A-Z]{2,}))?", "\n".join(lines), re.M):
        found[flag] = found.get(flag) or value
    for name in re.findall(r"take the flags of `esper (\w+)`", "\n".join(lines)):
        other = next(other for other in commands if other.name == name)
        for flag, value in settings_of(other).items():
            found[flag] = found.get(flag) or value
    return found
