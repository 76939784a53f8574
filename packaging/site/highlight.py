"""Colours for code, sparingly: comments, texts, words of the language, and in a terminal what is typed."""
import html
import re

KEYWORDS = {
    "c": "break case char const continue default do double else enum extern float for if int long return short signed "
         "sizeof static struct switch typedef union unsigned void volatile while bool NULL true false",
    "python": "and as assert break class continue def del elif else except False finally for from global if import in "
              "is lambda None nonlocal not or pass raise return True try while with yield",
    "sql": "SELECT FROM WHERE GROUP ORDER BY JOIN LEFT ON USING AS AND OR NOT NULL IS IN LIMIT DESC ASC WITH CASE WHEN "
           "THEN ELSE END DISTINCT HAVING UNION",
    "sh": "for do done if then else fi while case esac",
    "json": "true false null",
}
HASH, SLASHES, DASHES = r"(?:(?<=\s)|^)#[^\n]*", r"/\*.*?\*/|//[^\n]*", r"--[^\n]*"
COMMENTS = {"c": SLASHES, "python": r"#[^\n]*", "sql": DASHES, "sh": HASH, "json": r"(?!)"}
TEXT = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
COMMANDS = re.compile(r"^(build/|esper |make\b|python3? |cmake |ctest |sudo |apt|venv/|scripts/|bench/|mpirun |git |"
                      r"sh |ESPER_\w+=|[$] )")
FLAG = {"sh": r"|(?P<flag>(?<=\s)--?[a-z][\w-]*)"}  # never broken where a line is


def guess(lines):
    """The language of a block that does not say: commands, or none."""
    return "sh" if any(COMMANDS.match(line) for line in lines) else ""


def paint(text, language):
    """Escaped, with <span class="..."> around what has a colour."""
    if language not in KEYWORDS:
        return html.escape(text)
    flags = re.I if language == "sql" else 0
    pieces = re.compile(r"(?P<comment>%s)|(?P<text>%s)|(?P<word>(?<![\w./-])(?:%s)(?![\w./=-]))%s" % (
        COMMENTS[language], r'"""[\s\S]*?"""|' + TEXT if language == "python" else TEXT,
        "|".join(KEYWORDS[language].split()), FLAG.get(language, "")), re.M | re.S | flags)
    out = []
    at = 0
    for found in pieces.finditer(text):
        out += [html.escape(text[at:found.start()]),
                '<span class="%s">%s</span>' % (found.lastgroup, html.escape(found.group()))]
        at = found.end()
    return "".join(out) + html.escape(text[at:])
