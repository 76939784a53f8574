"""Markdown, as our pages use it, into HTML: headings, paragraphs, lists in lists, tables, code fenced and indented,
links, images, emphasis. Nothing of a page reaches the browser but as text: there is no raw HTML, every sign is escaped,
and a link goes where the caller says.
"""
import html
import re

import highlight

FENCE = re.compile(r"^( *)(```+)\s*([^`]*)$")
HEADING = re.compile(r"^(#{1,6}) +(.*?)(?: +#+)?$")
BULLET = re.compile(r"^( {0,3})([-*]|\d{1,9}[.)])( +)(?=\S)")
DIVIDER = re.compile(r"^\|?( *:?-+:? *\|)* *:?-+:? *\|?$")
TARGET = re.compile(r"\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?\s*\)")
RULE = re.compile(r"^ {0,3}(-{3,}|\*{3,})$")


class Heading:
    def __init__(self, level, text, anchor):
        self.level, self.text, self.anchor = level, text, anchor


class Page:
    """A text as HTML, with its headings, and its plain words by the heading they stand under.

    link(target, words, line) gives the address to write for a link, or None for none, and its words; image(target,
    line) the attributes of an image, as text; complain(line, text) hears of what is no Markdown of ours."""

    def __init__(self, text, link, image, complain):
        self.link, self.image, self.complain = link, image, complain
        self.headings = []
        self.anchors = {}
        self.words = [(None, [])]  # (heading, texts below it)
        self.line = 0
        text = re.sub("[\x00-\x08\x0b-\x1f\x7f]", "", text)
        lines = [(number, line.expandtabs(4)) for number, line in enumerate(text.split("\n"), 1)]
        self.html = self.blocks(without_comments(lines))

    # ---- blocks

    def blocks(self, lines):
        out = []
        at = 0
        while at < len(lines):
            self.line, line = lines[at]
            if not line.strip():
                at += 1
                continue
            for read in (self.fence, self.heading, self.rule, self.table, self.items, self.indented):
                used, text = read(lines, at)
                if used:
                    break
            else:
                used, text = self.paragraph(lines, at)
            out.append(text)
            at += used
        return "\n".join(out)

    def fence(self, lines, at):
        begin = FENCE.match(lines[at][1])
        if not begin:
            return 0, None
        end = next((i for i in range(at + 1, len(lines)) if lines[i][1].strip() == begin.group(2)), None)
        if end is None:
            self.complain(lines[at][0], "a fence that is not closed")
            end = len(lines)
        margin = len(begin.group(1))
        body = [line[margin:] if not line[:margin].strip() else line for _, line in lines[at + 1:end]]
        return end + 1 - at, self.code(body, (begin.group(3).split() or [""])[0])

    def code(self, lines, language):
        text = "\n".join(lines)
        self.words[-1][1].append(text)
        kind = ' class="%s"' % language if language in highlight.KEYWORDS else ""
        return '<pre tabindex="0"%s><code>%s</code></pre>' % (kind, highlight.paint(text, language))

    def heading(self, lines, at):
        found = HEADING.match(lines[at][1])
        if not found:
            return 0, None
        level, source = len(found.group(1)), found.group(2)
        text = plain(source)
        anchor = self.anchor(text)
        self.headings.append(Heading(level, text, anchor))
        self.words.append((self.headings[-1], []))
        return 1, '<h%d id="%s">%s<a class="anchor" href="#%s" aria-label="link to this heading">#</a></h%d>' % (
            level, html.escape(anchor), self.inline(source), html.escape(anchor), level)

    def anchor(self, text):
        """As GitHub makes them: small letters, words joined by "-"; the second of a name gets a number."""
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") or "section"
        n = self.anchors.get(name, -1) + 1
        self.anchors[name] = n
        return name if n == 0 else "%s-%d" % (name, n)

    def rule(self, lines, at):
        return (1, "<hr>") if RULE.match(lines[at][1]) else (0, None)

    def table(self, lines, at):
        if not lines[at][1].startswith("|") or at + 1 >= len(lines) or not DIVIDER.match(lines[at + 1][1]):
            return 0, None
        end = at + 2
        while end < len(lines) and lines[end][1].startswith("|"):
            end += 1
        head = cells(lines[at][1])
        right = [cell.endswith(":") and not cell.startswith(":") for cell in cells(lines[at + 1][1])]
        out = ['<div class="scroll" tabindex="0" role="region" aria-label="table"><table>',
               self.row(head, "th", right), "<tbody>"]
        for self.line, line in lines[at + 2:end]:
            found = cells(line)
            if len(found) != len(head):
                self.complain(self.line, "a row of %d cells below a head of %d" % (len(found), len(head)))
            out.append(self.row(found, "td", right))
        return end - at, "\n".join(out + ["</tbody></table></div>"])

    def row(self, found, tag, right):
        shown = "".join("<%s%s>%s</%s>" % (tag, ' class="right"' if i < len(right) and right[i] else "",
                                           self.inline(cell), tag) for i, cell in enumerate(found))
        self.words[-1][1].append(" ".join(plain(cell) for cell in found))
        return "<thead><tr>%s</tr></thead>" % shown if tag == "th" else "<tr>%s</tr>" % shown

    def items(self, lines, at):
        first = BULLET.match(lines[at][1])
        if not first:
            return 0, None
        ordered = first.group(2)[0].isdigit()
        out = []
        start = at
        while at < len(lines):
            begin = BULLET.match(lines[at][1])
            if not begin or begin.group(2)[0].isdigit() != ordered or len(begin.group(1)) != len(first.group(1)):
                break
            margin = begin.end()
            end = at + 1
            while end < len(lines) and self.goes_on(lines, end, margin):
                end += 1
            body = [(lines[at][0], lines[at][1][margin:])]
            body += [(number, line[min(margin, len(line) - len(line.lstrip())):]) for number, line in lines[at + 1:end]]
            shown = self.blocks(body)
            alone = re.match(r"<p>((?:(?!</?p>).)*)</p>(?=$|\n<[uo]l)", shown, re.S)  # a line, maybe with a list below
            out.append("<li>%s</li>" % (alone.group(1) + shown[alone.end():] if alone else shown))
            at = end
        tag = "ol" if ordered else "ul"
        number = int(re.match(r"\d*", first.group(2)).group() or 1)
        return at - start, "<%s%s>\n%s\n</%s>" % (tag, ' start="%d"' % number if ordered and number != 1 else "",
                                                  "\n".join(out), tag)

    def goes_on(self, lines, at, margin):
        """Whether a line belongs to an item whose text begins at that column: what is indented so far, and the rest of
        a paragraph, however it stands."""
        line = lines[at][1]
        if not line.strip():
            return at + 1 < len(lines) and indent_of(lines[at + 1][1]) >= margin and bool(lines[at + 1][1].strip())
        if indent_of(line) >= margin:
            return True
        starts = BULLET.match(line) or FENCE.match(line) or HEADING.match(line) or line.startswith("|")
        return not starts and bool(lines[at - 1][1].strip())

    def indented(self, lines, at):
        if indent_of(lines[at][1]) < 4:
            return 0, None
        end = at
        while end < len(lines) and (indent_of(lines[end][1]) >= 4 or not lines[end][1].strip()):
            end += 1
        while not lines[end - 1][1].strip():
            end -= 1
        body = [line[4:] for _, line in lines[at:end]]
        return end - at, self.code(body, highlight.guess(body))

    def paragraph(self, lines, at):
        end = at + 1
        while end < len(lines) and lines[end][1].strip():
            line = lines[end][1]
            table = line.startswith("|") and end + 1 < len(lines) and DIVIDER.match(lines[end + 1][1])
            if HEADING.match(line) or FENCE.match(line) or table or (BULLET.match(line) and not line[0].isdigit()):
                break
            end += 1
        text = "\n".join(line.strip() for _, line in lines[at:end])
        self.words[-1][1].append(plain(text))
        return end - at, "<p>%s</p>" % self.inline(text)

    # ---- inside of a line

    def inline(self, text):
        """Code comes first, as nothing in it means anything; then links and images; then emphasis."""
        out = []
        at = 0
        for found in re.finditer(r"\\([!-/:-@\[-`{-~])|(`+)(.+?)(?<!`)\2(?!`)|(!?)\[", text, re.S):
            if found.start() < at:
                continue
            out.append(emphasis(text[at:found.start()]))
            at = found.end()
            if found.group(1):
                out.append(html.escape(found.group(1)))
            elif found.group(2):
                out.append("<code>%s</code>" % html.escape(found.group(3).strip() or found.group(3)))
            else:
                shown, at = self.reference(text, found)
                out.append(shown)
        out.append(emphasis(text[at:]))
        return join_emphasis("".join(out))

    def reference(self, text, found):
        """[words](target) or ![words](target) that begins at `found`; gives what to write and where it ends."""
        close = matching(text, found.end())
        target = TARGET.match(text, close + 1) if close else None
        if not target:
            return html.escape(found.group()), found.end()
        words = text[found.end():close]
        end = target.end()
        if found.group(4):
            attributes = self.image(target.group(1), self.line)
            return '<img alt="%s"%s>' % (html.escape(plain(words)), attributes), end
        address, words = self.link(target.group(1), words, self.line)
        shown = self.inline(words)
        return (shown if address is None else '<a href="%s">%s</a>' % (html.escape(address), shown)), end


# ---- pieces

def without_comments(lines):
    """Lines less <!-- what is for writers -->, which stands at the beginning of a line; not in code."""
    out = []
    fenced = commented = False
    for number, line in lines:
        fenced ^= bool(FENCE.match(line)) and not commented
        if not fenced and not commented and line.startswith("<!--"):
            commented = True
        if not commented:
            out.append((number, line))
        elif "-->" in line:
            commented = False
            out.append((number, ""))
    return out


def indent_of(line):
    return len(line) - len(line.lstrip(" ")) if line.strip() else 0


def cells(line):
    """Of a row: what stands between bars, but for \\| and bars in code."""
    text = line.strip()
    text = text[1:] if text.startswith("|") else text
    found = [""]
    code = False
    i = 0
    while i < len(text):
        if text[i] == "\\" and text[i + 1:i + 2] == "|":
            found[-1] += "|" if code else "\\|"
            i += 1
        elif text[i] == "|" and not code:
            found.append("")
        else:
            code ^= text[i] == "`"
            found[-1] += text[i]
        i += 1
    if not found[-1].strip():
        found.pop()
    return [cell.strip() for cell in found]


def matching(text, at):
    """Where the bracket closes that was opened before `at`, brackets within and in code passed over; None: nowhere."""
    depth = 1
    code = False
    for i in range(at, len(text)):
        code ^= text[i] == "`"
        depth += 0 if code else (text[i] == "[") - (text[i] == "]")
        if depth == 0:
            return i
    return None


STRONG, EMPHASIS = "\x01", "\x02"  # where emphasis may begin or end; no page has these signs


def emphasis(text):
    text = html.escape(text)
    text = re.sub(r"\*\*", STRONG, text)
    return re.sub(r"(?<![\w*])\*(?=\S)|(?<=\S)\*(?![\w*])", EMPHASIS, text)


def join_emphasis(text):
    """Signs in pairs become tags; one that is alone is a sign."""
    text = re.sub(STRONG + r"(?=\S)([^\x01]*?\S)" + STRONG, r"<strong>\1</strong>", text)
    text = re.sub(EMPHASIS + r"(?=\S)([^\x02\x01]*?\S)" + EMPHASIS, r"<em>\1</em>", text)
    return text.replace(STRONG, "**").replace(EMPHASIS, "*")


def plain(text):
    """The words alone, as headings of anchors and the search have them."""
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)\s]*\)", r"\1", text)
    text = re.sub(r"(?<![\w*\\])\*{1,2}(?=\S)|(?<=[^\s\\])\*{1,2}(?![\w*])", "", re.sub(r"`+", "", text))
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text)
