#!/usr/bin/env python3
"""Makes pages for a browser of the documentation: README, CONTRIBUTING, CHANGELOG and docs/*.md, with their pictures
and the files that they link to.

    usage: build.py FOLDER [SOURCE]

FOLDER is replaced. The pages need no server and fetch nothing: links are relative, and the search reads an index that
lies beside them. A link to a page, a heading, a file or a picture that is not there ends the build with status 1, and
the same sources give the same bytes.
"""
import html
import json
import os
import posixpath
import re
import shutil
import struct
import sys
import tempfile
import urllib.parse

import highlight
from markdown import Page, plain

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = "made-by-esper-site"  # a file in what we made, and may therefore replace
FRONT = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
LISTING = "docs/README.md"  # its table gives the order of pages
PICTURES = (".png", ".svg")
SHOWN = {".c": "c", ".h": "c", ".py": "python", ".sh": "sh", ".txt": "", "": ""}  # files that links may lead to

FRAME = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%(title)s</title>
<meta name="description" content="%(description)s">
<link rel="icon" href="%(up)sicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="%(up)sstyle.css">
<script src="%(up)ssite.js" data-up="%(up)s"></script>
</head>
<body>
<a class="skip" href="#content">to the content</a>
<header>
<a class="brand" href="%(up)sindex.html"><img src="%(up)sicon.svg" alt="" width="22" height="22">Esper</a>
<span class="version">%(version)s</span>
<div class="search" role="search" hidden>
<input type="search" placeholder="Search" aria-label="Search all pages" aria-controls="found" autocomplete="off"
 aria-keyshortcuts="/">
<div id="found" role="listbox" aria-label="found" hidden></div>
</div>
<button class="theme" type="button" hidden></button>
</header>
<div class="sheet">
<nav class="pages" aria-label="pages"><details open><summary>Pages</summary>
%(pages)s
</details></nav>
<main id="content" tabindex="-1">
%(body)s
%(turn)s
</main>
%(contents)s
</div>
</body>
</html>
"""


class Site:
    def __init__(self, source):
        self.source = source
        self.errors = []
        self.files = {}    # what a link leads to that is no page: its path in the tree -> its address
        self.pictures = set()
        self.pages = {}    # path in the tree -> Page
        self.links = []    # (path, line, target page, anchor), looked at when all are read
        self.paths = self.find_pages()
        self.titles = {path: title_of(self.read(path)) or path for path in self.paths}
        for path in self.paths:
            self.read_page(path)
        self.check_names([(path, address(path)) for path in self.paths])
        self.check_names([(path, os.path.basename(path)) for path in sorted(self.pictures)])
        for path, line, target, anchor in self.links:
            if anchor and anchor not in {heading.anchor for heading in self.pages[target].headings}:
                self.complain(path, line, "%s has no heading for #%s" % (target, anchor))

    def check_names(self, pairs):
        """Two files that would be written to one place."""
        taken = {}
        for path, name in pairs:
            if taken.setdefault(name, path) != path:
                self.complain(path, 1, "it would be written to %s, and so would %s" % (name, taken[name]))

    def complain(self, path, line, text):
        self.errors.append("%s:%d: %s" % (path, line, text))

    def read(self, path):
        with open(os.path.join(self.source, path), encoding="utf-8") as file:
            return file.read()

    def exists(self, path):
        return os.path.exists(os.path.join(self.source, path))

    # ---- reading

    def find_pages(self):
        """In the order of the list of pages; those that it does not name come last."""
        names = sorted(os.listdir(os.path.join(self.source, "docs")))
        docs = ["docs/" + name for name in names if name.endswith(".md")]
        listed = [posixpath.normpath("docs/" + target) for target in
                  re.findall(r"(?m)^\| *\[[^]]*\]\(([^)#]+\.md)\)", self.read(LISTING))]
        front = [path for path in FRONT if self.exists(path)]
        order = [front[0], LISTING] + [path for path in listed if path in docs] + docs + front
        return list(dict.fromkeys(order))

    def read_page(self, path):
        page = Page(self.read(path), lambda target, words, line: self.resolve(path, target, words, line),
                    lambda target, line: self.picture(path, target, line),
                    lambda line, text: self.complain(path, line, text))
        if not page.headings or page.headings[0].level != 1:
            self.complain(path, 1, "a page begins with a heading: # Name")
        self.pages[path] = page

    def resolve(self, path, target, words, line):
        """The address of what a link of that page leads to, None where there is nothing, which is a complaint; and its
        words: of a page that is called by its file's name, its title."""
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", target)
        if scheme or target.startswith("//"):
            if scheme and scheme.group(1).lower() in ("http", "https", "mailto"):
                return target, words
            self.complain(path, line, "a link to %s: only http, https, mailto and files of the project" % target)
            return None, words
        name, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path
        if file.startswith("..") or file.startswith("/") or not self.exists(file):
            self.complain(path, line, "the link to %s leads nowhere" % target)
            return None, words
        if os.path.isdir(os.path.join(self.source, file)):
            file = posixpath.join(file, "README.md")
        if file in self.paths:
            self.links.append((path, line, file, anchor))
            here = file == path and anchor
            by_name = words in (target, posixpath.basename(name))
            return (("" if here else relative(address(path), address(file))) + ("#" + anchor if anchor else ""),
                    self.titles[file].split(":")[0] if by_name else words)
        kind = os.path.splitext(file)[1]
        if kind not in SHOWN or not self.exists(file):
            self.complain(path, line, "the link to %s leads to what is no page" % target)
            return None, words
        self.files[file] = "files/%s.html" % file
        return relative(address(path), self.files[file]), words

    def picture(self, path, target, line):
        """src, width and height of an image."""
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if "://" in target or file.startswith("..") or not file.endswith(PICTURES) or not self.exists(file):
            self.complain(path, line, "there is no picture %s" % target)
            return ""
        self.pictures.add(file)
        width, height = size_of(os.path.join(self.source, file))
        size = ' width="%d" height="%d"' % (width, height) if width else ""
        there = relative(address(path), "images/" + os.path.basename(file))
        return ' src="%s"%s loading="lazy"' % (html.escape(there), size)

    # ---- writing

    def write(self, folder):
        version = re.search(r'#define ESPER_VERSION "([^"]+)"', self.read("include/esper.h")).group(1)
        for number, path in enumerate(self.paths):
            self.write_page(folder, path, number, version)
        for path, target in sorted(self.files.items()):
            self.write_source(folder, path, target, version)
        os.makedirs(os.path.join(folder, "images"), exist_ok=True)
        for path in sorted(self.pictures):
            shutil.copyfile(os.path.join(self.source, path), os.path.join(folder, "images", os.path.basename(path)))
        for name in ("style.css", "site.js"):
            shutil.copyfile(os.path.join(HERE, name), os.path.join(folder, name))
        shutil.copyfile(os.path.join(self.source, "web", "icon.svg"), os.path.join(folder, "icon.svg"))
        put(folder, "search.js", "window.esperSearch = %s;\n" % script_json(self.index()))
        put(folder, MARK, "packaging/site/build.py replaces this folder.\n")

    def write_page(self, folder, path, number, version):
        page = self.pages[path]
        here = address(path)
        first = next((text for heading, texts in page.words[1:] for text in texts if "\n    " not in text), "")
        body = page.html
        put(folder, here, FRAME % {
            "title": html.escape(self.titles[path] if number == 0 else self.titles[path] + " \u2013 Esper"),
            "description": html.escape(" ".join(first.split())[:200]), "up": relative(here, ""), "version": version,
            "pages": self.list_pages(path, here), "body": body, "turn": self.turn(number, here),
            "contents": contents(page)})

    def write_source(self, folder, path, target, version):
        kind = SHOWN[os.path.splitext(path)[1]]
        body = '<h1>%s</h1>\n<pre tabindex="0"><code>%s</code></pre>' % (html.escape(path),
                                                                        highlight.paint(self.read(path), kind))
        put(folder, target, FRAME % {
            "title": html.escape(path) + " \u2013 Esper", "description": html.escape(path), "up": relative(target, ""),
            "version": version, "pages": self.list_pages(None, target), "body": body, "turn": "", "contents": ""})

    def list_pages(self, path, here):
        rows = []
        for other in self.paths:
            current = ' aria-current="page"' if other == path else ""
            name = self.titles[other].split(":")[0] if other != LISTING else "All pages"
            rows.append('<li><a href="%s"%s>%s</a></li>' % (html.escape(relative(here, address(other))), current,
                                                           html.escape(name)))
        return "<ul>\n%s\n</ul>" % "\n".join(rows)

    def turn(self, number, here):
        """The pages before and after."""
        out = []
        for other, rel, sign in ((number - 1, "prev", "\u2190 %s"), (number + 1, "next", "%s \u2192")):
            if 0 <= other < len(self.paths):
                path = self.paths[other]
                out.append('<a rel="%s" href="%s">%s</a>' % (rel, html.escape(relative(here, address(path))),
                                                            html.escape(sign % self.titles[path].split(":")[0])))
        return '<nav class="turn" aria-label="before and after">%s</nav>' % "".join(out)

    def index(self):
        """A section a row: [address, title of its page, its heading, its words]."""
        rows = []
        for path in self.paths:
            for heading, texts in self.pages[path].words:
                words = " ".join(" ".join(texts).split())
                if heading or words:
                    anchor = "#" + heading.anchor if heading and heading.level > 1 else ""
                    rows.append([relative("", address(path)) + anchor, self.titles[path],
                                 heading.text if heading else "", words])
        return rows


def contents(page):
    """The headings of a page, where there are several."""
    chosen = [heading for heading in page.headings if heading.level in (2, 3)]
    if len(chosen) < 3:
        return '<nav class="contents"></nav>'
    rows = ['<li class="level%d"><a href="#%s">%s</a></li>' % (heading.level, html.escape(heading.anchor),
                                                              html.escape(heading.text)) for heading in chosen]
    return ('<nav class="contents" aria-label="on this page"><p>On this page</p>\n<ul>\n%s\n</ul></nav>'
            % "\n".join(rows))


# ---- names and files

def title_of(text):
    found = re.search(r"(?m)^# +(.*?)(?: +#+)?$", text)
    return plain(found.group(1)) if found else None


def address(path):
    """README.md -> index.html, docs/README.md -> pages.html, docs/your-data.md -> your-data.html"""
    if path == LISTING:
        return "pages.html"
    name = posixpath.basename(path)[:-len(".md")].lower()
    return "index.html" if name == "readme" else name + ".html"


def relative(here, there):
    """From one address to another, as it is written in a link; to "", the way up to the root. Every sign that means
    something in an address is written by its number, the colon of a scheme among them."""
    return "../" * here.count("/") + urllib.parse.quote(there, safe="/")


def size_of(path):
    """Width and height of a picture, as its head tells; (0, 0) where it does not."""
    with open(path, "rb") as file:
        head = file.read(400)
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return struct.unpack(">II", head[16:24])
    found = re.search(rb'<svg[^>]* width="(\d+)"[^>]* height="(\d+)"', head)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def script_json(value):
    """JSON that is safe in a script: no sign in it could end one."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, "\\u%04x" % ord(sign))
    return text


def put(folder, name, text):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def replace(folder, new):
    """Puts `new` in the folder's place; nothing is deleted that we did not make."""
    if os.path.isdir(folder) and os.listdir(folder) and not os.path.exists(os.path.join(folder, MARK)):
        raise SystemExit("%s is there already and is no site of ours: name another folder, or remove it" % folder)
    shutil.rmtree(folder, ignore_errors=True)
    os.chmod(new, 0o755)
    os.replace(new, folder)


def main(arguments):
    if len(arguments) not in (1, 2) or arguments[0].startswith("-"):
        print(re.search(r"usage: .*", __doc__).group(), file=sys.stderr)
        return 2
    folder = os.path.abspath(arguments[0])
    site = Site(arguments[1] if len(arguments) == 2 else os.path.dirname(os.path.dirname(HERE)))
    for error in site.errors:
        print(error, file=sys.stderr)
    if site.errors:
        return 1
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(folder), prefix=".site-") as work:
        new = os.path.join(work, "new")
        os.mkdir(new)
        site.write(new)
        replace(folder, new)
    print("%s: %d pages, %d pictures; open %s/index.html" % (arguments[0], len(site.paths), len(site.pictures),
                                                             arguments[0].rstrip("/")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
