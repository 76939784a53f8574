"""Reads a site as a browser would, with a parser that is not the one that made it: every tag is closed in its order,
every link leads to a file and to a heading in it, every picture is there and has words, and nothing on a page runs but
the script beside it.

    usage: check_site.py FOLDER       prints what it saw; the exit status is 1 where something is wrong
"""
import html.parser
import json
import os
import re
import sys
import urllib.parse

VOID = {"meta", "link", "img", "input", "br", "hr"}
TAGS = VOID | set("html head title script body a header span div button nav details summary ul ol li main h1 h2 h3 h4 "
                  "h5 h6 p pre code table thead tbody tr th td strong em".split())
CLOSED_BY_HAND = {"p": set("p ul ol pre table div h1 h2 h3 h4 h5 h6".split())}  # what may not stand in it


class Reader(html.parser.HTMLParser):
    def __init__(self, name):
        super().__init__()
        self.name, self.open, self.ids, self.links, self.images, self.errors = name, [], [], [], [], []
        self.scripts = 0

    def complain(self, text):
        self.errors.append("%s:%d: %s" % (self.name, self.getpos()[0], text))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag not in TAGS:
            self.complain("<%s> is no tag of ours" % tag)
        if len(given) != len(attributes):
            self.complain("<%s> has an attribute twice" % tag)
        for name in given:
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.complain("<%s %s>" % (tag, name))
        for above in self.open:
            if tag in CLOSED_BY_HAND.get(above, ()) or (tag == "a" and above == "a"):
                self.complain("<%s> in <%s>" % (tag, above))
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a":
            self.links.append((self.getpos()[0], given.get("href", "")))
        if tag in ("script", "link"):
            self.links.append((self.getpos()[0], given.get("src") or given.get("href", "")))
            self.scripts += tag == "script"
        if tag == "img":
            self.images.append((self.getpos()[0], given.get("src", ""), given.get("alt")))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.complain("</%s> closes another tag" % tag)

    def handle_data(self, data):
        if self.open and self.open[-1] == "script" and data.strip():
            self.complain("a script in the page")


def read_site(folder):
    pages = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".html"):
                path = os.path.relpath(os.path.join(place, name), folder)
                reader = Reader(path)
                with open(os.path.join(place, name), encoding="utf-8") as file:
                    reader.feed(file.read())
                reader.close()
                if reader.open:
                    reader.complain("not closed: %s" % reader.open)
                if reader.scripts != 1:
                    reader.complain("%d scripts" % reader.scripts)
                for anchor in {anchor for anchor in reader.ids if reader.ids.count(anchor) > 1}:
                    reader.complain("two of id %s" % anchor)
                pages[path] = reader
    return pages


def check_link(folder, pages, page, line, target, counts):
    scheme = urllib.parse.urlsplit(target)
    if scheme.scheme or scheme.netloc:
        counts["links out"] += 1
        return [] if scheme.scheme in ("http", "https", "mailto") else ["%s:%d: a link to %s" % (page, line, target)]
    name = urllib.parse.unquote(scheme.path)
    path = os.path.normpath(os.path.join(os.path.dirname(page), name)) if name else page
    if path.startswith("..") or not os.path.isfile(os.path.join(folder, path)):
        return ["%s:%d: %s is not there" % (page, line, target)]
    counts["links"] += 1
    anchor = urllib.parse.unquote(scheme.fragment)
    if anchor:
        counts["anchors"] += 1
    return ["%s:%d: %s has no #%s" % (page, line, path, anchor)] if anchor and anchor not in pages[path].ids else []


def check_index(folder, pages, counts):
    """The search's rows: their addresses lead somewhere, and no text in the file could end a script."""
    with open(os.path.join(folder, "search.js"), encoding="utf-8") as file:
        text = file.read()
    errors = ["search.js has a %s" % sign for sign in "<>&" if sign in text]
    for address, title, _, _ in json.loads(re.fullmatch(r"window.esperSearch = (.*);\n", text, re.S).group(1)):
        counts["sections"] += 1
        errors += check_link(folder, pages, "search.js", 1, address, counts)
        errors += [] if title else ["search.js has a row without a title"]
    return errors


def main(arguments):
    folder = arguments[0]
    pages = read_site(folder)
    counts = dict.fromkeys(("links", "links out", "anchors", "images", "sections"), 0)
    errors = [error for reader in pages.values() for error in reader.errors]
    for name, reader in pages.items():
        for line, target in reader.links:
            errors += check_link(folder, pages, name, line, target, counts)
        for line, target, words in reader.images:
            counts["images"] += 1
            errors += check_link(folder, pages, name, line, target, counts)
            if words is None:
                errors.append("%s:%d: a picture without words" % (name, line))
    errors += check_index(folder, pages, counts)
    print("\n".join(errors))
    print("%d pages, %s" % (len(pages), ", ".join("%d %s" % (n, what) for what, n in counts.items())))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
