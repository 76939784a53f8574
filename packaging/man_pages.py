#!/usr/bin/env python3
"""Writes man pages from the program's own --help: esper(1), and esper-COMMAND(1) for each of its commands.

    usage: man_pages.py PROGRAM FOLDER

The same program gives the same pages. They bear the date of SOURCE_DATE_EPOCH, and none where that is not set.
"""
import datetime
import os
import re
import sys

import help_text
from help_text import Code, Items, Text, Title

COLUMNS = 70  # of examples: 80, less the margins of a page
EXIT_STATUS = (("0", "all went well"), ("1", "it failed; standard error says why"),
               ("2", "what was typed, or a setting, cannot be"),
               ("130", "it was stopped, by Ctrl-C or SIGTERM, and has saved"))


# ---- roff ----

def escape(text):
    r"""Text as roff shows it. Quotes and the like are typographic signs to it unless told otherwise; \& keeps a dot at
    the beginning of a line from being a request."""
    for sign, name in (("\\", "\\e"), ("'", "\\(aq"), ("`", "\\(ga"), ("^", "\\(ha"), ("~", "\\(ti")):
        text = text.replace(sign, name)
    text = re.sub(r"(?<![A-Za-z])-|-(?![A-Za-z])", r"\\-", text)  # not the hyphens of words
    return re.sub(r"(?m)^([.])", r"\\&\1", text)


def literal(text):
    """What is typed: every hyphen is a minus sign."""
    return re.sub(r"(?<!\\)-", r"\\-", escape(text))


def bold(text):
    return "\\fB" + literal(text) + "\\fR"


def prose(text):
    """A paragraph: what stands `in quotes`, and flags, in bold."""
    parts = re.split(r"(`[^`]+`|(?<![\w-])--[a-z][a-z0-9-]*)", text)
    shown = [bold(part.strip("`")) if i % 2 else escape(part) for i, part in enumerate(parts)]
    return "".join(shown)


def term(text):
    """--lr X: what is typed as it stands in bold, what stands for something else in italics."""
    words = [word if re.fullmatch(r"\s+|\W*\b[A-Z][A-Z_]*\b.*", word) else "\\fB%s\\fR" % word
             for word in re.split(r"(\s+)", literal(text))]
    return "".join("\\fI%s\\fR" % word if word.strip() and not word.startswith("\\fB") else word for word in words)


def fold(line):
    """An example in lines that fit: its explanation before it, and the command broken as a shell takes it."""
    command, _, remark = re.sub(r" {3,}", "\0", line, count=1).partition("\0")
    lines = ["# " + remark] if remark else []
    while len(command) > COLUMNS and " " in command[:COLUMNS - 2].strip() and "'" not in command:
        at = command.rindex(" ", 0, COLUMNS - 2)
        lines.append(command[:at] + " \\")
        command = "    " + command[at + 1:]
    return lines + [command]


# ---- blocks ----

def write_blocks(blocks, out):
    """Paragraphs, lists and lines to type; lists in lists are indented."""
    for block in blocks:
        if isinstance(block, Title):
            out += [".SS", escape(block.words[0].upper() + block.words[1:])]
        elif isinstance(block, Text):
            out += [".PP", prose(block.words)]
        elif isinstance(block, Code):
            lines = [literal(part) for line in block.lines for part in fold(line)]
            out += [".PP", ".in +4n", ".EX", *lines, ".EE", ".in"]
        else:
            for item in block.items:
                out += [".TP", term(item.term)]
                write_body(item.body, out)


def write_body(body, out):
    if not body:
        return
    first, *rest = body
    if isinstance(first, Text):
        out.append(prose(first.words))
    else:
        rest = body
    if rest:
        out.append(".RS")
        write_blocks(rest, out)
        out.append(".RE")


def is_options(block):
    return isinstance(block, Items) and all(item.term.startswith("--") for item in block.items)


def sections(body):
    """The blocks of a command under the headings of a man page. A list that a paragraph introduces stays with it."""
    found = [("DESCRIPTION", [])]
    for i, block in enumerate(body):
        here = found[-1][0]
        introduced = i > 0 and isinstance(body[i - 1], Text) and body[i - 1].words.endswith(":")
        if isinstance(block, Code) and block.examples:
            heading = "EXAMPLES"
        elif isinstance(block, Text) and block.words.startswith("Settings come from"):
            heading = "SETTINGS"
        elif isinstance(block, Text) and block.words.startswith("Environment: "):
            heading, block = "ENVIRONMENT", Text(block.words[len("Environment: "):])
        elif is_options(block) and here == "DESCRIPTION" and not introduced:
            heading = "OPTIONS"
        elif isinstance(block, Text) and here in ("OPTIONS", "EXAMPLES"):
            heading = "NOTES"
        elif isinstance(block, Title) and here == "EXAMPLES" and not block.words.startswith("and"):
            heading, block = re.sub(r"(?<![-\w])[a-z]+", lambda word: word.group().upper(), block.words), None
        else:
            heading = here
        if heading != here:
            found.append((heading, []))
        if block is not None:
            found[-1][1].append(block)
    return [(heading, blocks) for heading, blocks in found if blocks]


# ---- pages ----

def head(name, version, summary):
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    day = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).strftime("%Y-%m-%d") if epoch else ""
    return ['.\\" Made from the program\'s own --help.',
            ".nr HY 0",  # no name, path or flag is broken: hyphenation off, in paragraphs to come, too
            '.TH %s 1 "%s" "esper %s" "Esper"' % (literal(name).upper(), day, version),
            ".ad l", ".SH NAME", "%s \\- %s" % (literal(name), prose(summary))]


def see_also(names):
    shown = [".BR %s (1)" % literal(name) for name in names]
    return [".SH SEE ALSO"] + [line + " ," for line in shown[:-1]] + shown[-1:]


def page_of_command(command, program):
    name = "esper-" + command.name
    out = head(name, program.version, command.summary)
    out += [".SH SYNOPSIS", bold("esper " + command.name) + " " + term(command.arguments)]
    for heading, blocks in sections(command.body):
        out += [".SH " + escape(heading)]
        write_blocks(blocks, out)
    text = "\n".join(help_text.texts_of(command.body))
    others = ["esper"] + ["esper-" + other.name for other in program.commands
                          if other.name != command.name and "esper %s" % other.name in text]
    return "\n".join(out + see_also(others)) + "\n"


def page_of_program(program):
    name, _, summary = program.summary.partition(" ")
    out = head(name, program.version, summary)
    out += [".SH SYNOPSIS", bold("esper") + " \\fICOMMAND\\fR [\\fIarguments\\fR]",
            ".br", bold("esper help") + " \\fICOMMAND\\fR", ".br", bold("esper --version"), ".SH COMMANDS"]
    for command in program.commands:
        out += [".TP", bold("esper " + command.name) + " " + term(command.arguments), prose(command.summary) + ";",
                "see", ".BR %s (1)." % literal("esper-" + command.name)]
    out.append(".SH DESCRIPTION")
    for block in program.body:
        for item in block.items if isinstance(block, Items) else ():
            out += [".TP", escape(item.term), bold(item.body[0].words)]
    out.append(".SH EXIT STATUS")
    for status, meaning in EXIT_STATUS:
        out += [".TP", "\\fB%s\\fR" % status, prose(meaning)]
    return "\n".join(out + see_also(["esper-" + command.name for command in program.commands])) + "\n"


def main(arguments):
    if len(arguments) != 2:
        print(re.search(r"usage: .*", __doc__).group(), file=sys.stderr)
        return 2
    program = help_text.read_program(arguments[0])
    os.makedirs(arguments[1], exist_ok=True)
    pages = {"esper": page_of_program(program)}
    pages.update(("esper-" + command.name, page_of_command(command, program)) for command in program.commands)
    for name, text in pages.items():
        with open(os.path.join(arguments[1], name + ".1"), "w", encoding="utf-8") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
