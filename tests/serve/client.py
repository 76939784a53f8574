#!/usr/bin/env python3
"""What the tests of the web server ask it, byte by byte: client.py PORT CHECK [ARGUMENTS]. A check that fails says what came, and
the exit status is 1."""
import json
import os
import select
import socket
import sys
import time


def connect(port, address="127.0.0.1"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    link = socket.socket(family, socket.SOCK_STREAM)
    link.settimeout(20)
    link.connect((address, port))
    return link


def read_all(link):
    got = b""
    while True:
        try:
            part = link.recv(65536)
        except ConnectionResetError:
            return got
        if not part:
            return got
        got += part


def ask(port, target, headers=(), method="GET", host=None, raw=None):
    """The answer's status, headers by small name, and body."""
    link = connect(port)
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host if host is not None else f'127.0.0.1:{port}'}", "Connection: close", *headers]
    link.sendall(raw if raw is not None else ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    got = read_all(link)
    link.close()
    if not got:
        return 0, {}, b""
    head, _, body = got.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in rest)}, body


bad = 0


def check(what, got, wanted):
    global bad
    if got != wanted:
        bad += 1
        print(f"FAILED: {what}\n    got      {got!r}\n    expected {wanted!r}")


def check_page(port):
    status, headers, body = ask(port, "/")
    check("the page", status, 200)
    check("its policy has no unsafe-", "unsafe" in headers["content-security-policy"], False)
    check("its policy begins with nothing", headers["content-security-policy"].startswith("default-src 'none'"), True)
    check("no sniffing", headers["x-content-type-options"], "nosniff")
    check("no referrer", headers["referrer-policy"], "no-referrer")
    check("no frames", headers["x-frame-options"], "DENY")
    check("not for other origins", "access-control-allow-origin" in headers, False)
    check("it is HTML", headers["content-type"], "text/html; charset=utf-8")
    names = [part.split(b'"')[0].decode() for attribute in (b'src="', b'href="') for part in body.split(attribute)[1:]]
    for name in [n for n in names if not n.startswith("#")]:
        check(f"/{name}", ask(port, "/" + name)[0], 200)
    tag = headers["etag"]
    check("known already", ask(port, "/", [f"If-None-Match: {tag}"])[0], 304)
    check("nothing is fetched from elsewhere", b"://" in body, False)
    status, _, body = ask(port, "/", method="HEAD")
    check("HEAD", (status, body), (200, b""))


def check_refusals(port):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE"):
        check(method, ask(port, "/api/runs", method=method)[0], 405)
    check("a body", ask(port, "/api/runs", ["Content-Length: 5"], method="POST")[0], 405)
    for target in ("/../etc/passwd", "/..%2f..%2f..%2fetc%2fpasswd", "/api/run?run=..", "/api/run?run=../secret", "/api/run?run=%2e%2e%2fsecret",
                   "/api/run?run=%2fetc%2fpasswd", "/api/run?run=plain/../../secret", "/api/run?run=linked", "/api/run?run=plain%2fstore.sqlite",
                   "/api/drawing?run=../secret&epoch=1", "/api/live?run=../secret", "/config.ini", "/plain/store.sqlite", "/api/nothing"):
        check(target, ask(port, target)[0], 404)
    for target in ("/api/run?run=%ff%fe", "/api/run?run=%c0%ae", "/api/run?run=a%00", "/api/run?run=%zz", "/api/run", "/api/drawing?run=plain&epoch=x"):
        check(target, ask(port, target)[0], 400)
    for host in ("example.org", "127.0.0.1.example.org", "localhost.evil", "10.0.0.1"):
        check(f"host {host}", ask(port, "/api/runs", host=host)[0], 403)
    check("no host", ask(port, "/", raw=b"GET /api/runs HTTP/1.0\r\n\r\n")[0] in (400, 403), True)
    check("localhost", ask(port, "/api/runs", host=f"localhost:{port}")[0], 200)
    check("bad bytes in a header", ask(port, "/", ["X-Odd: \xff\xfe\x01"])[0] in (200, 400), True)


def check_sizes(port):
    check("a long address", ask(port, "/" + "a" * 100000)[0] in (0, 400, 413, 414, 431), True)
    check("a long header", ask(port, "/", ["X-Long: " + "a" * 100000])[0] in (0, 400, 413, 431), True)
    check("many headers", ask(port, "/", [f"X-{i}: {'b' * 50}" for i in range(2000)])[0] in (0, 400, 413, 431), True)
    check("no HTTP", ask(port, "/", raw=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 300 + b"\r\n\r\n")[0] in (0, 400, 405, 505), True)
    check("a range is no reason for less", ask(port, "/", ["Range: bytes=0-99999999999999999999,5-1"])[0], 200)
    check("still there", ask(port, "/")[0], 200)


def check_slow(port):
    """Half a request, and one that drips: both are ended, and others are served meanwhile."""
    half = connect(port)
    half.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    drip = connect(port)
    began = time.time()
    drip.sendall(b"GET / HTTP/1.1\r\n")
    ended = None
    while time.time() - began < 25 and ended is None:
        try:
            drip.sendall(b"X")
            drip.settimeout(0.5)
            if drip.recv(100) == b"":
                ended = time.time() - began
        except socket.timeout:
            pass
        except OSError:
            ended = time.time() - began
    check("what drips is ended within 20 s", ended is not None and ended < 20, True)
    half.settimeout(15)
    try:
        check("half a request is ended", half.recv(100)[:4] in (b"", b"HTTP"), True)
    except ConnectionResetError:
        pass
    check("others are served", ask(port, "/")[0], 200)


def check_data(port):
    listed = json.loads(ask(port, "/api/runs")[2])
    by_name = {run["run"]: run for run in listed["runs"] if run["state"] != "unreadable"}
    check("runs", sorted(by_name), sorted(json.loads(os.environ["NAMES"])))
    odd = next(run for name, run in by_name.items() if "<script>" in name)
    check("points of a curve", len(by_name["plain"]["points"].split(",")), by_name["plain"]["epochs"])
    check("an odd name has a plain id", odd["id"][0] == "~" and odd["id"][1:].isalnum(), True)
    check("an odd run is read by its id", json.loads(ask(port, "/api/run?run=" + odd["id"].replace("~", "%7E"))[2])["name"], odd["run"])
    check("a link is not listed", "linked" in by_name, False)
    check("a damaged store is listed with the reason", [(u["run"], bool(u["problem"])) for u in listed["runs"] if u["state"] == "unreadable"], [("damaged", True)])
    whole = json.loads(ask(port, "/api/run?run=plain")[2])
    epochs = whole["tables"]["epochs"]
    check("epochs", len(epochs["rows"]), whole["run"]["epochs"])
    check("a row is as long as its head", {len(row) for row in epochs["rows"]}, {len(epochs["columns"])})
    check("the last seq is in the mark", max(row[0] for t in whole["tables"].values() for row in t["rows"]) <= int(whole["mark"].split(".")[1]), True)
    status, headers, body = ask(port, "/api/drawing?run=plain&epoch=1")
    check("a drawing", (status, headers["content-type"], body[:4]), (200, "image/svg+xml", b"<svg"))


def events(link, seconds):
    """Server-sent events that come within some seconds."""
    got = b""
    link.settimeout(0.2)
    until = time.time() + seconds
    while time.time() < until:
        try:
            part = link.recv(65536)
            if not part:
                break
            got += part
        except socket.timeout:
            continue
    return got


def listen(port, query, headers=()):
    link = connect(port)
    link.sendall("\r\n".join([f"GET /api/live{query} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode())
    return link


def check_live(port):
    """From the beginning: all rows, once; from a mark: those behind it; from another generation: to be read anew."""
    whole = json.loads(ask(port, "/api/run?run=plain")[2])
    generation, seq, control = whole["mark"].split(".")
    link = listen(port, f"?run=plain&since={generation}.-1.-1")
    got = events(link, 1)
    link.close()
    check("rows from the beginning", got.count(b"event: rows"), 1)
    check("their mark", f"id: {whole['mark']}".encode() in got, True)
    link = listen(port, f"?run=plain&since={generation}.0.-1", [f"Last-Event-ID: {whole['mark']}"])
    got = events(link, 1)
    link.close()
    check("what the header says is stronger", b'"epochs":[]' in got, True)
    link = listen(port, "?run=plain&since=1.0.-1")
    got = events(link, 1)
    link.close()
    check("another generation", (b"event: reset" in got, b"event: rows" in got), (True, False))
    check("no such run", ask(port, "/api/live?run=nothing")[0], 404)


def check_follow(port, name, n_epochs):
    """Every epoch of a run that is being made, in order, none twice, over a connection that is broken off once."""
    until = time.time() + 60
    while name not in [run["id"] for run in json.loads(ask(port, "/api/runs")[2])["runs"]] and time.time() < until:
        time.sleep(0.05)
    whole = json.loads(ask(port, f"/api/run?run={name}")[2])
    mark = whole["mark"]
    column = whole["tables"]["epochs"]["columns"].index("epoch")
    seen = [row[column] for row in whole["tables"]["epochs"]["rows"]]
    over = whole["run"]["ended"] is not None
    breaks = 0
    while not over and time.time() < until:
        link = listen(port, f"?run={name}&since={mark}")
        text = b""
        while not over and time.time() < until:
            link.settimeout(20)
            part = link.recv(65536)
            if not part:
                break
            text += part
            while b"\n\n" in text:
                event, _, text = text.partition(b"\n\n")
                fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line and not line.startswith(b":"))
                if fields.get(b"event") == b"reset":
                    whole = json.loads(ask(port, f"/api/run?run={name}")[2])
                    mark = whole["mark"]
                    seen = [row[column] for row in whole["tables"]["epochs"]["rows"]]
                    over = whole["run"]["ended"] is not None
                if fields.get(b"event") != b"rows":
                    continue
                data = json.loads(fields[b"data"])
                mark = fields[b"id"].decode()
                seen += [row[column] for row in data["rows"]["epochs"]]
                over = over or (data.get("run") or {}).get("ended") is not None
            if breaks == 0 and len(seen) > 2:
                breaks = 1
                break
        link.close()
    check("it came to its end", over, True)
    check("epochs", seen, list(range(1, int(n_epochs) + 1)))


def check_token(port, url):
    """url: as it was printed. The token opens the door once, and leaves the address."""
    token = url.split("token=")[1]
    check("without", ask(port, "/api/runs")[0], 401)
    check("without, the page", ask(port, "/")[0], 401)
    wrong = ("0" if token[0] != "0" else "1") + token[1:]
    for text in (wrong, token[:-1] + ("0" if token[-1] != "0" else "1")):
        check("a wrong one", ask(port, f"/?token={text}")[0], 401)
        check("a wrong bearer", ask(port, "/api/runs", [f"Authorization: Bearer {text}"])[0], 401)
        check("a wrong cookie", ask(port, "/api/runs", [f"Cookie: esper-{port}={text}"])[0], 401)
    check("one that is none", ask(port, "/?token=abc")[0], 400)
    check("as a bearer", ask(port, "/api/runs", [f"Authorization: Bearer {token}"])[0], 200)
    check("the token is not the cookie", ask(port, "/api/runs", [f"Cookie: esper-{port}={token}"])[0], 401)
    status, headers, body = ask(port, f"/?token={token}")
    check("sent on", (status, headers["location"], headers["cache-control"]), (303, "/", "no-store"))
    cookie = headers["set-cookie"]
    check("a cookie that scripts and others do not see", ("HttpOnly" in cookie, "SameSite=Strict" in cookie, token in cookie), (True, True, False))
    check("with the cookie", ask(port, "/api/runs", ["Cookie: " + cookie.split(";")[0]])[0], 200)
    check("any name of the machine", ask(port, "/api/runs", ["Cookie: " + cookie.split(";")[0]], host="box.example.org")[0], 200)


def private_memory(pid):
    """kB of its own: pages of files are the system's."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))


def check_crowds(port, name, n, n_crowds):
    """So many listen, and go, again and again: each hears the same, and descriptors and memory come back."""
    pid = int(os.environ["SERVER"])
    at_first = len(os.listdir(f"/proc/{pid}/fd"))
    # under a sanitizer memory that was freed is kept on purpose
    most = int(os.environ.get("MOST_KB", 1536))
    before = private_memory(pid)
    left = []

    for _ in range(int(n_crowds)):
        waiting = {listen(port, f"?run={name}") for _ in range(int(n))}
        links = set(waiting)
        until = time.time() + 60
        while waiting and time.time() < until:
            for link in select.select(list(waiting), [], [], 0.5)[0]:
                check("a listener", b"200 OK" in link.recv(65536), True)
                waiting.discard(link)
        check("those that were not heard", len(waiting), 0)
        for link in links:
            link.close()
        until = time.time() + 60
        while (len(os.listdir(f"/proc/{pid}/fd")) > at_first + 2 or private_memory(pid) - before >= most) and time.time() < until:
            time.sleep(0.05)
        check("descriptors come back", len(os.listdir(f"/proc/{pid}/fd")) <= at_first + 2, True)
        left.append(private_memory(pid))
    print(f"{n_crowds} crowds of {n}: of its own the server has {before} kB before, and behind each: {' '.join(map(str, left))}")
    check("memory comes back behind every crowd, kB", max(left) - before < most or (before, left), True)
    check("still there", ask(port, "/")[0], 200)


def check_siege(port, name, n, seconds):
    """So many listen to a run that goes on, for so long: each hears all of it, nobody is dropped, memory stays, and the processor time
    that the server takes is told."""
    pid = int(os.environ["SERVER"])

    def memory():
        return private_memory(pid)

    def processor():
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    links = {}
    for _ in range(int(n)):
        links[listen(port, f"?run={name}")] = [0, 0]
    began = time.time()
    settled = None
    ended = 0
    while time.time() - began < float(seconds):
        if settled is None and time.time() - began > float(seconds) / 6:
            settled = memory(), processor(), time.time()
        for link in select.select(list(links), [], [], 0.2)[0]:
            part = link.recv(1 << 20)
            if not part:
                ended += 1
                del links[link]
                continue
            links[link][0] += part.count(b"event: rows")
            links[link][1] += len(part)
    after = memory(), processor(), time.time()
    heard = sorted(count for count, _ in links.values())
    check("connections that were ended", ended, 0)
    check("all heard something", bool(heard) and heard[0] > 0, True)
    check("all heard the same, but for what is on its way", heard[-1] - heard[0] <= 2 or (heard[0], heard[-1]), True)
    check("memory stays, kB", after[0] - settled[0] < 2048 or (settled[0], after[0]), True)
    share = 100 * (after[1] - settled[1]) / (after[2] - settled[2])
    print(f"{n} listeners, {seconds} s: {heard[0]} messages each, server {share:.2f} % of a core, memory {settled[0]} kB, then {after[0]} kB")
    check("percent of a core", share < 4.0 or share, True)


globals()["check_" + sys.argv[2]](int(sys.argv[1]), *sys.argv[3:])
sys.exit(1 if bad else 0)
