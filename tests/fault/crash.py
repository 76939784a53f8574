"""Crashes, power cuts and failing system calls, at every place or at places drawn from all of them; tests/fault/shim.c makes them.

    crash.py kill|cut|fail|fail2|clock JOB [--points N] [--seed K] [--twice]

A job is run unbroken first. Then it is broken somewhere and gone on with as a person would: by --resume where there is a
checkpoint, else by the same command. It has to end as the unbroken one: weights, decision log, rows of the store.

    kill    SIGKILL before the n-th call that changes a file; --twice: once more when it is gone on with
    cut     the power fails behind the n-th change: what was not synced is there, in part, or not at all, names in directories included
    fail    the n-th system call fails; fail2: two of them
    clock   the time of day jumps to and fro
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile

ESPER = os.environ["ESPER"]
SHIM = os.environ["SYSCALL_SHIM"]
SHARED_BYTES = 8192
MOST_SECONDS = 60

SMALL = ["--threads", "1", "--batch", "8", "--blocks", "2", "--channels", "2", "--max-steps", "3"]
QUIET = ["--progress", "none"]
GROW = ["--policy", "random", "--gates", "permissive", "--gate-epochs", "1", "--seed", "3"]


# ---------------------------------------------------------------------------------------------- what a job leaves

class Third(Exception):
    """Neither the old state nor the new."""


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def tensors_of(path):
    """The numbers of a safetensors file, and the notes that say where it stands."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    notes = json.loads(data[8:8 + size]).pop("__metadata__")
    return digest(data[8 + size:]), notes.get("cursor"), notes.get("weight_hash"), notes.get("policy_hash")


UNTOLD = ("time", "seconds", "began", "ended", "n_resumed", "name", "config") # clocks, and what differs by being resumed


def rows_of(path):
    """Every row of a store, but for clocks and speeds."""
    store = sqlite3.connect(path)
    rows = []
    if store.execute("PRAGMA integrity_check").fetchone() != ("ok",):
        raise Third("%s is damaged" % path)
    for (table,) in store.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall():
        columns = [row[1] for row in store.execute("PRAGMA table_info(%s)" % table)]
        told = [c for c in columns if c not in UNTOLD and not c.endswith("_per_s")]
        rows += ["|".join(map(str, (table,) + row)) for row in
                 store.execute("SELECT %s FROM %s ORDER BY 1, 2" % (", ".join(told), table))]
    store.close()
    return rows


def check_lines(path):
    with open(path, "rb") as file:
        text = file.read()
    if text and not text.endswith(b"\n"):
        raise Third("%s ends within a line" % path)
    for line in text.splitlines():
        try:
            json.loads(line)
        except ValueError:
            raise Third("%s has a line that is none: %r" % (path, line[:200]))


def state_of_run(path):
    """Weights, log and rows of a run directory."""
    state = {}
    if not os.path.isdir(path):
        raise Third("%s is not there" % path)
    for name in ("last.safetensors", "policy.safetensors"):
        if os.path.exists(os.path.join(path, name)):
            state[name] = tensors_of(os.path.join(path, name))
    if os.path.exists(os.path.join(path, "decisions.jsonl")):
        with open(os.path.join(path, "decisions.jsonl"), "rb") as file:
            state["log"] = file.read().decode().splitlines()
    if os.path.exists(os.path.join(path, "events.jsonl")):
        check_lines(os.path.join(path, "events.jsonl"))
    if os.path.exists(os.path.join(path, "store.sqlite")):
        state["rows"] = rows_of(os.path.join(path, "store.sqlite"))
    state["drafts"] = [name for name in os.listdir(path) if name.endswith(".tmp") and not name.startswith("report.html")]
    return state


class Run:
    """A run in a directory, that is gone on with by --resume."""
    def __init__(self, command, *flags):
        self.command, self.flags = command, list(flags)
        self.file = "policy.safetensors" if command == "learn" else "last.safetensors"

    def set_up(self, place):
        pass

    def first(self, place):
        return [self.command, "synth"] + SMALL + QUIET + self.flags + ["--run-dir", "run"]

    def next(self, place):
        if os.path.exists(os.path.join(place, "run", self.file)):
            return [self.command, "--resume", "run"] + QUIET
        return self.first(place)

    def is_over(self, said):
        return "spent all that was asked for" in said or "were asked for: ask for more" in said

    def state(self, place):
        return state_of_run(os.path.join(place, "run"))


class Compare:
    """The same command goes on."""
    def __init__(self, *flags):
        self.flags = list(flags)

    def set_up(self, place):
        pass

    def first(self, place):
        return ["compare", "synth"] + SMALL + self.flags + ["--dir", "runs"]

    next = first

    def is_over(self, said):
        return False

    def state(self, place):
        runs = os.path.join(place, "runs")
        state = {name: state_of_run(os.path.join(runs, name)) for name in sorted(os.listdir(runs))
                 if os.path.isdir(os.path.join(runs, name))}
        with open(os.path.join(runs, "report.html")) as file:
            state["report"] = len(file.read()) > 1000
        return state


class Export:
    """Module and weights, or neither; or those that were there before."""
    def __init__(self, replaces):
        self.replaces = replaces

    def set_up(self, place):
        make = ["train", "synth"] + SMALL + QUIET + ["--epochs", "1", "--run-dir"]
        run(place, make + ["run"], {})
        if self.replaces:
            run(place, make + ["other", "--seed", "2"], {})
            run(place, ["export", "other", "--torch", "out"], {})

    def first(self, place):
        return ["export", "run", "--torch", "out"] + (["--force"] if self.replaces else [])

    next = first

    def is_over(self, said):
        return "model.py is there already" in said

    def state(self, place):
        out = os.path.join(place, "out")
        state = {}
        for name in sorted(os.listdir(out)) if os.path.isdir(out) else []:
            if name.endswith(".tmp"):
                continue # of one that was killed; they are in nobody's way
            with open(os.path.join(out, name), "rb") as file:
                state[name] = digest(file.read())
        return state

    def check_broken(self, place, old, new):
        """What lies there between the crash and the second try."""
        state = self.state(place)
        if "model.py" in state and state not in (old, new):
            raise Third("module and weights do not belong together: %s" % state)


JOBS = {
    "train": Run("train", "--epochs", "3"),
    "grow": Run("grow", "--epochs", "5", *GROW, "--inject", "7:host:param:nan"),
    "trials": Run("grow", "--epochs", "3", "--policy", "trials", "--seed", "3"),
    "learn": Run("learn", "--epochs", "3", "--gate-epochs", "1", "--envs", "2", "--rounds", "2"),
    "compare": Compare("--epochs", "2", "--policies", "none,random", "--seeds", "1"),
    "export": Export(False),
    "replace": Export(True),
}


# ---------------------------------------------------------------------------------------------- running it

class Ran:
    def __init__(self, code, out, err, n_calls, failed):
        self.code, self.out, self.err, self.n_calls, self.failed = code, out, err, n_calls, failed


def run(place, arguments, shim):
    """Runs the program in its own process group, below the shim when there are settings for it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ESPER_")}
    shared = None
    if shim:
        handle, shared = tempfile.mkstemp(dir=os.path.dirname(place), prefix="shared")
        os.truncate(handle, SHARED_BYTES)
        os.close(handle)
        environment.update({k: str(v) for k, v in shim.items()}, LD_PRELOAD=SHIM, SHIM_SHARED=shared)
    process = subprocess.Popen([ESPER] + arguments, cwd=place, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise Third("it hangs: %s, %s" % (" ".join(arguments), describe(take_shared(shared)[1])))
    if process.returncode == -signal.SIGKILL: # who is left of its group
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    n_calls, failed = take_shared(shared)
    return Ran(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"), n_calls, failed)


def take_shared(path):
    if path is None:
        return 0, []
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    n_calls, _, n_failed = struct.unpack_from("<QII", data)
    failed = []
    for i in range(min(n_failed, 2)):
        call, code, where = struct.unpack_from("<24si228s", data, 16 + 256 * i)
        failed.append((call.split(b"\0")[0].decode(), code, where.split(b"\0")[0].decode()))
    return n_calls, failed


def describe(failed):
    return ", ".join("%s(%s): %s" % (call, os.path.basename(path), "in part" if code == 0 else os.strerror(code))
                     for call, code, path in failed) or "no fault"


def first_difference(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(set(a) | set(b)):
            found = first_difference(a.get(key), b.get(key), path + "/" + key)
            if found:
                return found
        return None
    if isinstance(a, list) and isinstance(b, list):
        mine, other = [x for x in a if x not in b][:3], [x for x in b if x not in a][:3]
        return None if a == b else "%s: %s instead of %s" % (path, mine, other)
    return None if a == b else "%s: %s instead of %s" % (path, a, b)


def go_on(job, place, env_of_first=None):
    """Until it is done. The first time below the shim, if asked for; later in peace."""
    said = ""
    for attempt in range(4):
        shim = env_of_first if attempt == 0 and env_of_first else {}
        ran = run(place, job.next(place), shim)
        said += ran.err
        if ran.code == 0 or job.is_over(ran.err):
            return said
        if not shim:
            raise Third("going on fails with %d: %s" % (ran.code, ran.err.strip()[-600:]))
        if ran.code != -signal.SIGKILL:
            raise Third("exit status %d: %s" % (ran.code, ran.err.strip()[-600:]))
    raise Third("it never ends")


def losses_are_told(rows, whole, is_told):
    """Whether every row is that of the unbroken run, number and all, and those that are missing are counted in drops, or leave a
    gap in the numbers, or were told of on the terminal."""
    drops = [row.split("|") for row in rows if row.startswith("drops|")]
    kept = {row for row in rows if not row.startswith(("drops|", "runs|"))}
    made = {row for row in whole if not row.startswith(("drops|", "runs|"))}
    if not kept <= made:
        return False
    lost = made - kept
    if is_told:
        return True
    if sum(int(row[3]) for row in drops) == len(lost):
        return True
    numbers = {int(row.split("|")[2]) for row in kept}
    return bool(numbers) and max(int(row.split("|")[2]) for row in lost) < max(numbers)


def compare_states(state, whole, is_told=False):
    """Equal; of a store it is enough that it tells what it has lost, or that the program said so."""
    for key in sorted(set(state) | set(whole)):
        mine, other = state.get(key), whole.get(key)
        if isinstance(mine, dict) and isinstance(other, dict):
            compare_states(mine, other, is_told)
        elif mine != other and not (key == "rows" and losses_are_told(mine or [], other or [], is_told)):
            raise Third(first_difference(mine, other, key))


# ---------------------------------------------------------------------------------------------- the power fails

CREATE, WRITE, TRUNCATE, SYNC, RENAME, UNLINK, LINK, MKDIR, RMDIR = range(1, 10)
HEAD = struct.Struct("<IIIIQQQ")
SECTOR = 512


def read_records(path):
    with open(path, "rb") as file:
        data = file.read()
    at, records = 0, []
    while at < len(data):
        op, n_path, n_other, is_dir, inode, offset, n_bytes = HEAD.unpack_from(data, at)
        at += HEAD.size
        where, at = data[at:at + n_path].decode(), at + n_path
        other, at = data[at:at + n_other].decode(), at + n_other
        content = b""
        if op == WRITE:
            content, at = data[at:at + n_bytes], at + n_bytes
        records.append((op, where, other, is_dir, inode, offset, content))
    return records


class File:
    def __init__(self, data=b""):
        self.safe = bytearray(data) # what is on the disk for certain
        self.pending = []           # changes since then: (offset, bytes), or (size, None)


class Directory:
    def __init__(self):
        self.now = {}     # name -> File or Directory
        self.safe = {}    # the same, of what is on the disk for certain
        self.pending = [] # changes since then: {name: File, Directory or None, when it is gone}

    def change(self, changes):
        settle(self.now, changes)
        self.pending.append(changes)


def settle(names, changes):
    for name, what in changes.items():
        names[name] = what
        if what is None:
            del names[name]


class Disk:
    """Files and names below a root: what is certain, and what has been done since it was last synced. Every subset of the changes of
    a file, and of the names of a directory, may be on the disk when the power fails; so may parts of a write. Two changes in
    another order are as if the later one were missing."""
    def __init__(self, root, inodes):
        self.root, self.top, self.by_inode = root, Directory(), {}
        for base, dirs, files in os.walk(root):
            here = self.find(base)
            here.safe.update({name: Directory() for name in dirs})
            for name in files:
                with open(os.path.join(base, name), "rb") as file:
                    here.safe[name] = File(file.read())
            here.now.update(here.safe)
        for inode, path in inodes.items():
            self.by_inode[inode] = self.find(root + path)

    def find(self, path):
        what = self.top
        for name in path[len(self.root):].split("/"):
            what = what.now[name] if name else what
        return what

    def do(self, record):
        op, path, other, is_dir, inode, offset, content = record
        where, name = os.path.split(path)
        if op == CREATE:
            self.by_inode[inode] = File()
            self.find(where).change({name: self.by_inode[inode]})
        elif op == WRITE:
            self.by_inode[inode].pending.append((offset, content))
        elif op == TRUNCATE:
            self.by_inode[inode].pending.append((offset, None))
        elif op == SYNC:
            what = self.find(path) if is_dir else self.by_inode[inode]
            for change in what.pending:
                settle(what.safe, change) if is_dir else apply_change(what.safe, change)
            what.pending = []
        elif op == MKDIR:
            self.find(where).change({name: Directory()})
        elif op in (UNLINK, RMDIR):
            self.find(where).change({name: None})
        elif op in (RENAME, LINK):
            assert os.path.dirname(other) == where, "between two directories: not modelled"
            moved = {os.path.basename(other): self.find(path)}
            self.find(where).change(dict({name: None}, **moved) if op == RENAME else moved)

    def build(self, place, draw):
        """A tree as it may be found after the power failed now."""
        luck = draw.choice((0.0, 0.1, 0.5, 0.9, 1.0)) # how much of it got to the disk
        contents = {}

        def lay(directory, where):
            names = dict(directory.safe)
            in_order = draw.random() < 0.5 # as a journal keeps it
            for changes in directory.pending:
                if draw.random() < luck:
                    for name, what in changes.items():
                        names[name] = what
                elif in_order:
                    break
            for name, what in sorted(names.items()):
                path = os.path.join(where, name)
                if isinstance(what, Directory):
                    os.mkdir(path)
                    lay(what, path)
                elif what is not None:
                    if id(what) not in contents: # two names, one file
                        contents[id(what)] = torn(what, luck, draw)
                    with open(path, "wb") as file:
                        file.write(contents[id(what)])

        lay(self.top, place)


def apply_change(data, change):
    offset, content = change
    if content is None:
        del data[offset:]
        data.extend(bytes(offset - len(data)))
        return
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset:offset + len(content)] = content


def torn(file, luck, draw):
    data = bytearray(file.safe)
    for offset, content in file.pending:
        if content is None:
            if draw.random() < luck:
                apply_change(data, (offset, None))
            continue
        if draw.random() < 0.7: # whole or not
            if draw.random() < luck:
                apply_change(data, (offset, content))
            continue
        at = 0 # sector by sector
        while at < len(content):
            n = min(SECTOR - (offset + at) % SECTOR, len(content) - at)
            if draw.random() < luck:
                apply_change(data, (offset + at, content[at:at + n]))
            at += n
    return bytes(data)


# ---------------------------------------------------------------------------------------------- the kinds of trouble

class Trouble:
    def __init__(self, job, base, seed, twice):
        self.job, self.base, self.seed, self.twice = job, base, seed, twice
        self.old_place = os.path.join(base, "old")
        os.mkdir(self.old_place)
        job.set_up(self.old_place)
        self.whole = self.copy("whole")
        ran = run(self.whole, job.first(self.whole), {"SHIM_ROOT": self.whole})
        if ran.code != 0:
            sys.exit("the unbroken job fails: %s" % ran.err)
        self.n_changes = ran.n_calls
        self.state = job.state(self.whole)
        self.whole_out = ran.out
        self.old = job.state(self.old_place) if os.path.isdir(os.path.join(self.old_place, "out")) else {}

    def copy(self, name):
        place = os.path.join(self.base, name)
        shutil.copytree(self.old_place, place)
        return place

    def look_at(self, place):
        if hasattr(self.job, "check_broken"):
            self.job.check_broken(place, self.old, self.state)

    def kill(self, point):
        place = self.copy("kill-%d" % point)
        draw = random.Random("%d %d" % (self.seed, point))
        ran = run(place, self.job.first(place), {"SHIM_ROOT": place, "SHIM_KILL": point, "SHIM_KILL_ALL": draw.randrange(2)})
        if ran.code == 0:
            self.finish(place) # it took fewer calls this time
            return "came to its end"
        self.look_at(place)
        again = {"SHIM_ROOT": place, "SHIM_KILL": draw.randint(1, self.n_changes), "SHIM_KILL_ALL": 1} if self.twice else None
        go_on(self.job, place, again)
        self.finish(place)
        return "killed"

    def finish(self, place):
        compare_states(self.job.state(place), self.state)
        shutil.rmtree(place)

    def record(self):
        self.recorded = self.copy("recorded")
        self.inodes = {os.stat(os.path.join(base, name)).st_ino: os.path.join(base, name)[len(self.recorded):]
                       for base, _, files in os.walk(self.recorded) for name in files}
        log = os.path.join(self.base, "records")
        ran = run(self.recorded, self.job.first(self.recorded), {"SHIM_ROOT": self.recorded, "SHIM_RECORD": log})
        if ran.code != 0:
            sys.exit("the recorded job fails: %s" % ran.err)
        self.records = read_records(log)

    def cut(self, point, trial):
        place = os.path.join(self.base, "cut-%d-%d" % (point, trial))
        old = os.path.join(self.base, "from-%d-%d" % (point, trial))
        shutil.copytree(self.old_place, old)
        disk = Disk(old, self.inodes)
        for record in self.records[:point]:
            disk.do(rebase(record, self.recorded, old))
        os.mkdir(place)
        disk.build(place, random.Random("%d %d %d" % (self.seed, point, trial)))
        shutil.rmtree(old)
        if point < len(self.records):
            self.look_at(place)
            go_on(self.job, place)
        self.finish(place) # behind the end nothing may be missing
        return "cut"

    def count_all(self):
        place = self.copy("counted")
        ran = run(place, self.job.first(place), {"SHIM_DRAW": 1})
        self.n_calls = ran.n_calls
        shutil.rmtree(place)

    def fail(self, points, draw):
        """Either it does its work all the same, or it says what went wrong, and can be gone on with."""
        place = self.copy("fail-%s-%d" % ("-".join(map(str, points)), draw))
        ran = run(place, self.job.first(place), {"SHIM_FAIL": ",".join(map(str, points)), "SHIM_DRAW": draw})
        where = describe(ran.failed)
        try:
            if ran.code < 0 or ran.code > 130:
                raise Third("it ended by signal %d: %s" % (-ran.code, ran.err[-600:]))
            if "AddressSanitizer" in ran.err or "runtime error" in ran.err:
                raise Third(ran.err[:2000])
            if ran.code != 0 and "esper: " not in ran.err and "failed" not in ran.out:
                raise Third("exit status %d without a word: %r" % (ran.code, ran.err))
            if ran.code != 0:
                self.look_at(place)
                go_on(self.job, place)
            compare_states(self.job.state(place), self.state, is_told="record" in ran.err or "store" in ran.err)
        except Third as third:
            raise Third("%s: %s [exit status %d, said: %s]" % (where, third, ran.code, ran.err.strip()[-300:]))
        shutil.rmtree(place)
        return "tolerated" if ran.code == 0 else "told"

    def clock(self, point):
        place = self.copy("clock-%d" % point)
        ran = run(place, self.job.first(place), {"SHIM_CLOCK": 1 + point % 7, "SHIM_DRAW": point})
        if ran.code != 0:
            raise Third("exit status %d: %s" % (ran.code, ran.err))
        self.finish(place)
        return "jumped"


def rebase(record, old, new):
    op, path, other, *rest = record
    return (op, path.replace(old, new, 1), other.replace(old, new, 1), *rest)


def chosen(n, points, draw):
    """All of 1..n, or so many, spread evenly with a random beginning in each part."""
    if points == 0 or points >= n:
        return list(range(1, n + 1))
    return sorted({int(n * (i + draw.random()) / points) + 1 for i in range(points)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trouble", choices=("kill", "cut", "fail", "fail2", "clock"))
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--points", type=int, default=0, help="how many places; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--twice", action="store_true", help="kill: also when it is gone on with")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    ground = "/dev/shm" if os.access("/dev/shm", os.W_OK) else os.getcwd() # syncing costs nothing there
    counts, wrong = {}, []
    with tempfile.TemporaryDirectory(dir=ground, prefix="esper-crash-") as base:
        trouble = Trouble(JOBS[asked.job], base, asked.seed, asked.twice)
        if asked.trouble == "kill":
            tries = [(trouble.kill, (n,)) for n in chosen(trouble.n_changes, asked.points, draw)]
        elif asked.trouble == "cut":
            trouble.record()
            n = len(trouble.records)
            places = chosen(n, asked.points, draw) + [n] * max(2, (asked.points or n) // 10)
            tries = [(trouble.cut, (point, i)) for i, point in enumerate(places)]
        elif asked.trouble == "clock":
            tries = [(trouble.clock, (n,)) for n in range(1, (asked.points or 20) + 1)]
        else:
            trouble.count_all()
            places = chosen(trouble.n_calls, asked.points, draw)
            two = asked.trouble == "fail2"
            tries = [(trouble.fail, (((n, min(n + draw.choice((1, 1, 2, 5, 20)), trouble.n_calls)) if two else (n,)),
                                     draw.randrange(1000))) for n in places]
        with concurrent.futures.ThreadPoolExecutor(asked.workers) as pool:
            futures = {pool.submit(work, *arguments): arguments for work, arguments in tries}
            for future in concurrent.futures.as_completed(futures):
                try:
                    what = future.result()
                    counts[what] = counts.get(what, 0) + 1
                except Third as third:
                    wrong.append((futures[future], third))
                    print("FAILED: %s %s at %s: %s" % (asked.trouble, asked.job, futures[future], third), flush=True)
    print("%s %s: %s of %d places; %s wrong" % (asked.trouble, asked.job, ", ".join(
        "%d %s" % (n, what) for what, n in sorted(counts.items())), len(tries), len(wrong) or "none"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
