"""Builds wheels, source archives and editable installs of esper-guard (PEP 517, PEP 660) with Python's own library.

A wheel carries libesper-guard.so beside the Python files; its tag says which processor the library was built for, the
oldest C library that has all it needs (manylinux_2_34 is glibc 2.34), and any Python 3. Both are read from the library
itself. The same files give the same bytes: names are sorted, times and modes are fixed.

The library is taken from the first of these places that has it:

    ESPER_GUARD_LIBRARY     in the environment: the path of the file
    esper/lib/              the package's own folder
    build/ of the checkout  where `make` puts it
    the system              where `make install` puts it

ESPER_WHEEL_ENGINE in the environment names a libesper.so that goes along, for esper.GrowEnv: such a wheel is for
systems that have the same libraries (jansson, xxHash, inih, zlib, libpng, libjpeg).

    usage: esper_build.py FOLDER               puts a wheel there (make wheel)
           esper_build.py --unpacked FOLDER    puts the package there as it lies when it is installed, without
                                               the library: for a system that has a package of that
"""
import base64
import ctypes.util
import gzip
import hashlib
import io
import os
import re
import struct
import sys
import tarfile
import zipfile

NAME = "esper-guard"
FILE_NAME = "esper_guard"  # how a distribution's name is written in names of files
LIBRARY = "libesper-guard.so"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CHECKOUT = os.path.dirname(os.path.dirname(ROOT))

# ELF's number for a processor, and the name in a wheel's tag.
MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64le"}
# Libraries that every Linux with glibc has; the last is the processor's own loader. One that needs another is for this
# system alone, and gets no manylinux tag.
EVERYWHERE = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0"}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
OLDEST = (2, 17)  # no installer tells older ones apart


def fail(text):
    """Ends the build with a sentence: installers show what goes to standard error, below a page of their own."""
    print("\nesper-guard: " + text + "\n", file=sys.stderr)
    raise SystemExit(1)


# ---- what goes in ----

def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def version():
    """The one in include/esper.h; in an unpacked source archive, the one it was packed with."""
    for path, pattern in ((os.path.join(CHECKOUT, "include", "esper.h"), rb'#define ESPER_VERSION "([^"]+)"'),
                          (os.path.join(ROOT, "PKG-INFO"), rb"(?m)^Version: (\S+)")):
        if os.path.exists(path):
            found = re.search(pattern, read(path))
            if found:
                return found.group(1).decode()
    return fail("no version: neither include/esper.h of the project nor PKG-INFO of a source archive is here")


def field(name):
    """A text of the project's table in pyproject.toml. There is no reader for that format before Python 3.11."""
    found = re.search(r'(?m)^%s = "([^"]+)"$' % re.escape(name), read(ROOT, "pyproject.toml").decode())
    return found.group(1) if found else fail("pyproject.toml has no line %s = \"...\"" % name)


def fields(name):
    """The texts of a list there, one on each line."""
    found = re.search(r"(?m)^%s = \[\n((?:    \"[^\"]+\",\n)+)\]$" % re.escape(name),
                      read(ROOT, "pyproject.toml").decode())
    return re.findall(r'"([^"]+)"', found.group(1)) if found else fail("pyproject.toml has no list %s" % name)


def metadata():
    lines = ["Metadata-Version: 2.1", "Name: " + NAME, "Version: " + version(), "Summary: " + field("description"),
             "Author: The Esper developers", "License: MIT", "License-File: LICENSE",
             "Keywords: " + ",".join(fields("keywords")),
             *("Classifier: " + text for text in fields("classifiers")),
             "Requires-Python: " + field("requires-python"),
             "Description-Content-Type: text/markdown", "", read(ROOT, "README.md").decode()]
    return "\n".join(lines).encode()


def sources():
    """The package's files, by their names in it."""
    found = {}
    for folder, folders, names in os.walk(os.path.join(ROOT, "esper")):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(".py") or name == "py.typed":
                found[os.path.relpath(path, ROOT).replace(os.sep, "/")] = read(path)
    return found


def system_library():
    """Where the loader would find it. ctypes knows only the soname, and that is enough to load, not to copy."""
    if ctypes.util.find_library("esper-guard") is None:
        return None
    try:
        ctypes.CDLL("libesper-guard.so.0")
        with open("/proc/self/maps") as maps:
            return next((line.split()[-1] for line in maps if "/libesper-guard.so" in line), None)
    except OSError:
        return None


def find_library():
    named = os.environ.get("ESPER_GUARD_LIBRARY")
    if named:
        return named if os.path.exists(named) else fail("ESPER_GUARD_LIBRARY is %s, and there is no such file" % named)
    for path in (os.path.join(ROOT, "esper", "lib", LIBRARY), os.path.join(CHECKOUT, "build", LIBRARY),
                 system_library()):
        if path and os.path.exists(path):
            return path
    return fail("%s is not built yet. Run `make` in the root of the project first (%s), or name the file in "
                "ESPER_GUARD_LIBRARY." % (LIBRARY, CHECKOUT))


def library_tag(data, path):
    """manylinux_2_34_x86_64 or linux_x86_64, from the library itself: what it was built for is not always what this
    Python runs on, and which C library it needs is not always this system's."""
    if data[:4] != b"\x7fELF" or len(data) < 20:
        fail("%s is no shared library (ELF)" % path)
    machine = struct.unpack("<H" if data[5] == 1 else ">H", data[18:20])[0]
    if data[4] != 2 or machine not in MACHINES:
        fail("%s is for a processor that is not known here (ELF machine %d)" % (path, machine))
    oldest = oldest_glibc(data, MACHINES[machine]) if data[5] == 1 else None
    return ("linux_" if oldest is None else "manylinux_%d_%d_" % oldest) + MACHINES[machine]


def oldest_glibc(data, machine):
    """(2, 34): the oldest glibc that has every symbol which the library asks for; None where it asks for others than
    glibc's, or cannot be read."""
    try:
        libraries, versions = needs(data)
    except (struct.error, ValueError, IndexError):
        return None
    if not libraries or not libraries <= EVERYWHERE | {LOADERS.get(machine)}:
        return None
    found = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version) for version in versions]
    if None in found:  # GLIBC_PRIVATE, GCC_..., GLIBCXX_...
        return None
    return max([OLDEST] + [(int(version.group(1)), int(version.group(2))) for version in found])


def needs(data):
    """The names of libraries that an ELF file needs, and those of the versions of their symbols."""
    at, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", data, at + i * size) for i in range(count)]

    def place(address):
        """Where in the file lies what is loaded there."""
        return next(address - start + offset for kind, _, offset, start, _, length, _, _ in segments
                    if kind == 1 and start <= address < start + length)

    def name(offset):
        begin = place(told[5]) + offset  # DT_STRTAB
        return data[begin:data.index(b"\0", begin)].decode()

    dynamic = next((segment for segment in segments if segment[0] == 2), None)
    if dynamic is None:
        raise ValueError("not linked dynamically")
    entries = list(struct.iter_unpack("<QQ", data[dynamic[2]:dynamic[2] + dynamic[5] // 16 * 16]))
    told = dict(entries)
    libraries = {name(value) for tag, value in entries if tag == 1}  # DT_NEEDED
    versions = set()
    if 0x6ffffffe in told:  # DT_VERNEED: a list of libraries, each with a list of versions
        library = place(told[0x6ffffffe])
        for _ in range(told[0x6fffffff]):
            _, n_versions, _, first, following = struct.unpack_from("<HHIII", data, library)
            version = library + first
            for _ in range(n_versions):
                _, _, _, text, another = struct.unpack_from("<IHHII", data, version)
                versions.add(name(text))
                version += another
            library += following
    return libraries, versions


# ---- archives ----

def moment():
    """The time that is written for every file: 1 January 1980, the first that a zip can say, or SOURCE_DATE_EPOCH."""
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800)


def zip_time():
    import time

    return time.gmtime(moment())[:6]


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return "%s,sha256=%s,%d" % (name, digest, len(data))


def about_files(info):
    """What is told about the package beside it: name to bytes."""
    about = {info + "/METADATA": metadata(), info + "/top_level.txt": b"esper\n"}
    license_file = os.path.join(CHECKOUT, "LICENSE")
    if not os.path.exists(license_file):
        license_file = os.path.join(ROOT, "LICENSE")
    if os.path.exists(license_file):
        about[info + "/LICENSE"] = read(license_file)
    return about


def write_wheel(folder, tag, files):
    """files: name to bytes. Adds what a wheel has besides and gives its name."""
    info = "%s-%s.dist-info" % (FILE_NAME, version())
    about = about_files(info)
    about[info + "/WHEEL"] = ("Wheel-Version: 1.0\nGenerator: esper_build %s\nRoot-Is-Purelib: false\nTag: %s\n"
                              % (version(), tag)).encode()
    entries = sorted(files.items()) + sorted(about.items())  # what describes a wheel comes last in it
    record = [record_line(name, data) for name, data in entries] + [info + "/RECORD,,"]
    entries.append((info + "/RECORD", ("\n".join(record) + "\n").encode()))
    name = "%s-%s-%s.whl" % (FILE_NAME, version(), tag)
    os.makedirs(folder, exist_ok=True)
    with zipfile.ZipFile(os.path.join(folder, name), "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in entries:
            head = zipfile.ZipInfo(entry, zip_time())
            head.compress_type = zipfile.ZIP_DEFLATED
            head.create_system = 3
            head.external_attr = (0o100755 if entry.endswith(".so") else 0o100644) << 16
            archive.writestr(head, data)
    return name


# ---- what installers call ----

def get_requires_for_build_wheel(config_settings=None):
    return []


get_requires_for_build_sdist = get_requires_for_build_editable = get_requires_for_build_wheel


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = "%s-%s.dist-info" % (FILE_NAME, version())
    os.makedirs(os.path.join(metadata_directory, info), exist_ok=True)
    with open(os.path.join(metadata_directory, info, "METADATA"), "wb") as file:
        file.write(metadata())
    return info


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    path = find_library()
    data = read(path)
    files = sources()
    files["esper/lib/" + LIBRARY] = data
    engine = os.environ.get("ESPER_WHEEL_ENGINE")
    if engine:  # it needs more than the C library, so what has it is for systems like this one
        path, data = engine, read(engine) if os.path.exists(engine) else fail("there is no %s" % engine)
        files["esper/lib/libesper.so"] = data
    return write_wheel(wheel_directory, "py3-none-" + library_tag(data, path), files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """The checkout itself, by a line that puts it on Python's path; it loads the library from build/."""
    find_library()
    return write_wheel(wheel_directory, "py3-none-any", {FILE_NAME + "_editable.pth": (ROOT + "\n").encode()})


def build_sdist(sdist_directory, config_settings=None):
    """Python alone: a wheel made from it takes the library from ESPER_GUARD_LIBRARY or from the system."""
    base = "%s-%s" % (FILE_NAME, version())
    files = sources()
    files.update({"PKG-INFO": metadata(), "pyproject.toml": read(ROOT, "pyproject.toml"),
                  "README.md": read(ROOT, "README.md"),
                  "backend/esper_build.py": read(ROOT, "backend", "esper_build.py")})
    for folder in (CHECKOUT, ROOT):
        if "LICENSE" not in files and os.path.exists(os.path.join(folder, "LICENSE")):
            files["LICENSE"] = read(folder, "LICENSE")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            head = tarfile.TarInfo(base + "/" + name)
            head.size, head.mtime, head.mode = len(data), moment(), 0o644
            archive.addfile(head, io.BytesIO(data))
    os.makedirs(sdist_directory, exist_ok=True)
    with open(os.path.join(sdist_directory, base + ".tar.gz"), "wb") as file:
        file.write(gzip.compress(packed.getvalue(), mtime=0))
    return base + ".tar.gz"


def write_unpacked(folder):
    """The package's files, and what says that it is there; which library it loads is the system's affair."""
    info = "%s-%s.dist-info" % (FILE_NAME, version())
    about = metadata().replace(b"License-File: LICENSE\n", b"")  # a system has its own place for that
    for name, data in {**sources(), info + "/METADATA": about}.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--unpacked":
        write_unpacked(arguments[1])
        return 0
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__[__doc__.index("usage:"):].rstrip(), file=sys.stderr)
        return 2
    name = build_wheel(arguments[0])
    print("%s/%s is ready: pip install it where PyTorch is" % (arguments[0].rstrip("/"), name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
