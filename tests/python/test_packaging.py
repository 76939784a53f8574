# ctest: timeout=400 cost=11
"""The package as a wheel, a source archive and an editable install; `pip install .` without a network."""
import base64
import email
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

SOURCE = os.environ["SOURCE_DIR"]
PACKAGE = os.path.join(SOURCE, "bindings", "python")
LIBRARY = os.path.realpath(os.environ["ESPER_GUARD_LIBRARY"])
# `pip check` is about all packages, of which a system has others that it complains about.
CHECK = "import subprocess, sys; print(subprocess.run([sys.executable, '-m', 'pip', 'check'], text=True, " \
        "stdout=subprocess.PIPE).stdout)"
ENGINE = os.path.realpath(os.environ["ESPER_ENGINE_LIBRARY"])
NOWHERE = "http://127.0.0.1:9/simple"  # a registry that cannot be reached


def header_version():
    with open(os.path.join(SOURCE, "include", "esper.h")) as file:
        return re.search(r'#define ESPER_VERSION "(.*)"', file.read()).group(1)


def expected_tag():
    """As the linker's own tools read the library: the newest version of a glibc symbol that it asks for."""
    said = subprocess.run(["readelf", "-d", LIBRARY], stdout=subprocess.PIPE, text=True, check=True).stdout
    if set(re.findall(r"\(NEEDED\).*\[(.*)\]", said)) - {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2",
                                                         "ld-linux-aarch64.so.1"}:
        return "linux_" + os.uname().machine  # one with a sanitizer in it
    said = subprocess.run(["objdump", "-T", LIBRARY], stdout=subprocess.PIPE, text=True, check=True).stdout
    newest = max((int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", said))
    return "manylinux_%d_%d_%s" % (*max(newest, (2, 17)), os.uname().machine)


def build(package, kind, folder, **environment):
    """Calls the backend as an installer does: in a process of its own. Gives its status, output and the file's path."""
    code = "import sys; sys.path[:0] = ['backend']; import esper_build as b; print(b.build_%s(%r))" % (kind, folder)
    env = {name: value for name, value in os.environ.items() if name != "ESPER_GUARD_LIBRARY"}
    env.update(environment, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run([sys.executable, "-c", code], cwd=package, env=env, text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    path = os.path.join(folder, done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else None
    return done.returncode, done.stdout + done.stderr, path


def content(path):
    with open(path, "rb") as file:
        return file.read()


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=".", prefix="packaging-")
        self.folder = os.path.abspath(self.folder)
        self.addCleanup(shutil.rmtree, self.folder)

    def place(self, name):
        return os.path.join(self.folder, name)

    def built(self, package, kind, name, **environment):
        status, said, path = build(package, kind, self.place(name), **environment)
        self.assertEqual(status, 0, said)
        return path

    def copy(self):
        """A checkout without a built library."""
        shutil.copytree(PACKAGE, self.place("co/bindings/python"), ignore=shutil.ignore_patterns("__pycache__", "lib"))
        os.mkdir(self.place("co/include"))
        shutil.copy(os.path.join(SOURCE, "include", "esper.h"), self.place("co/include"))
        return self.place("co/bindings/python")


class TestWheel(Folder):
    def test_what_is_in_it(self):
        path = self.built(PACKAGE, "wheel", "w", ESPER_GUARD_LIBRARY=LIBRARY)
        version = header_version()
        tag = expected_tag()
        self.assertEqual(os.path.basename(path), f"esper_guard-{version}-py3-none-{tag}.whl")
        info = f"esper_guard-{version}.dist-info/"
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            for name in ("esper/__init__.py", "esper/__main__.py", "esper/py.typed", "esper/lib/libesper-guard.so",
                         info + "METADATA", info + "WHEEL", info + "LICENSE"):
                self.assertIn(name, names)
            self.assertEqual(names[-1], info + "RECORD")
            self.assertEqual([name for name in names if "__pycache__" in name or "backend" in name], [])
            self.assertEqual(wheel.read("esper/lib/libesper-guard.so"), content(LIBRARY))
            self.assertEqual({entry.date_time for entry in wheel.infolist()}, {(1980, 1, 1, 0, 0, 0)})
            self.assertIn(f"Tag: py3-none-{tag}\n", wheel.read(info + "WHEEL").decode())
            about = wheel.read(info + "METADATA").decode()
            self.assertIn(f"Name: esper-guard\nVersion: {version}\n", about)
            self.assertIn("\nClassifier: Typing :: Typed\n", about)
            self.assertIn("\nKeywords: pytorch,", about)
            self.assertIn("pip install", about)  # the manual of the wheel says how it is got
            self.look_at_metadata(about, names, info)
            recorded = dict(line.split(",", 1) for line in wheel.read(info + "RECORD").decode().splitlines())
            self.assertEqual(set(recorded), set(names))
            for name in names[:-1]:
                digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
                self.assertEqual(recorded[name], f"sha256={digest},{len(wheel.read(name))}")

    def look_at_metadata(self, about, names, info):
        """As those who keep an index read it: every field is there once, and lists are of words that they know."""
        read = email.message_from_string(about)
        self.assertEqual(read["License"], "MIT")
        self.assertIn(info + read["License-File"], names)
        self.assertEqual(read["Author"], "The Esper developers")
        self.assertEqual(read["Requires-Python"], ">=3.8")
        self.assertEqual(read["Description-Content-Type"], "text/markdown")
        self.assertLessEqual(len(read["Summary"]), 512)
        self.assertTrue(read.get_payload().startswith("# esper-guard\n"))
        several = {"Classifier", "License-File"}
        self.assertEqual([name for name in read.keys() if read.keys().count(name) > 1 and name not in several], [])
        if importlib.util.find_spec("trove_classifiers"):  # Debian: python3-trove-classifiers
            known = importlib.import_module("trove_classifiers").classifiers
            self.assertEqual([name for name in read.get_all("Classifier") if name not in known], [])

    def test_unpacked(self):
        """As a Debian package has it: installed, and without a library of its own."""
        subprocess.run([sys.executable, os.path.join(PACKAGE, "backend", "esper_build.py"), "--unpacked",
                        self.place("root")], check=True, env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
        self.assertEqual(sorted(os.listdir(self.place("root"))),
                         ["esper", f"esper_guard-{header_version()}.dist-info"])
        self.assertFalse(os.path.exists(self.place("root/esper/lib")))
        said = subprocess.run(
            [sys.executable, "-c", "import esper; from importlib import metadata as m; print(esper.__file__); "
                                   "print(m.version('esper-guard'), m.metadata('esper-guard')['License-File'])"],
            cwd=self.folder, env=dict(os.environ, PYTHONPATH=self.place("root"), PYTHONDONTWRITEBYTECODE="1"),
            stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        self.assertEqual(said, [self.place("root/esper/__init__.py"), header_version(), "None"])

    @unittest.skipUnless(os.path.exists(ENGINE) and importlib.util.find_spec("numpy"), "no engine, or no NumPy")
    def test_with_the_engine(self):
        """It is found in the package, and the wheel is for systems like this one."""
        path = self.built(PACKAGE, "wheel", "w", ESPER_GUARD_LIBRARY=LIBRARY, ESPER_WHEEL_ENGINE=ENGINE)
        self.assertTrue(path.endswith("-py3-none-linux_" + os.uname().machine + ".whl"), path)
        with zipfile.ZipFile(path) as wheel:
            self.assertEqual(wheel.read("esper/lib/libesper.so"), content(ENGINE))
            wheel.extractall(self.place("here"))
        env = {name: value for name, value in os.environ.items() if not name.startswith("ESPER")}
        done = subprocess.run([sys.executable, "-c", "import esper\nfrom esper import _engine\nprint(_engine.load().path)\n"
                               "print(esper.GrowEnv('synth', 2, max_steps=1, batch=8).reset()[1]['params'].shape)"],
                              cwd=self.folder, env=dict(env, PYTHONPATH=self.place("here")), text=True, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.split("\n")[:2], [self.place("here/esper/lib/libesper.so"), "(2,)"])
        status, said, _ = build(PACKAGE, "wheel", self.place("w"), ESPER_GUARD_LIBRARY=LIBRARY, ESPER_WHEEL_ENGINE="/nowhere")
        self.assertNotEqual(status, 0)
        self.assertIn("there is no /nowhere", said)

    def test_the_same_bytes_each_time(self):
        one = self.built(PACKAGE, "wheel", "one", ESPER_GUARD_LIBRARY=LIBRARY)
        two = self.built(self.copy(), "wheel", "two", ESPER_GUARD_LIBRARY=LIBRARY)
        with zipfile.ZipFile(one) as first, zipfile.ZipFile(two) as second:
            lacks = [name for name in first.namelist() if name not in second.namelist()]
        self.assertEqual([os.path.basename(name) for name in lacks], ["LICENSE"])  # the copy has none
        shutil.copy(os.path.join(SOURCE, "LICENSE"), self.place("co"))
        two = self.built(self.place("co/bindings/python"), "wheel", "two", ESPER_GUARD_LIBRARY=LIBRARY)
        self.assertEqual(content(one), content(two))

    def test_command(self):
        """What `make wheel` calls."""
        done = subprocess.run([sys.executable, os.path.join(PACKAGE, "backend", "esper_build.py"), self.place("w")],
                              env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"), stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"w/esper_guard-[0-9.]+-py3-none-\w*linux_\w+\.whl is ready")
        self.assertEqual([name[-4:] for name in os.listdir(self.place("w"))], [".whl"])

    def test_library_of_the_checkout(self):
        package = self.copy()
        os.mkdir(self.place("co/build"))
        shutil.copy(LIBRARY, self.place("co/build/libesper-guard.so"))
        with zipfile.ZipFile(self.built(package, "wheel", "w")) as wheel:
            self.assertEqual(wheel.read("esper/lib/libesper-guard.so"), content(LIBRARY))

    def test_without_the_library(self):
        for kind in ("wheel", "editable"):
            status, said, _ = build(self.copy() if kind == "wheel" else self.place("co/bindings/python"), kind,
                                    self.place("w"))
            if "esper_guard" in said and status == 0:
                self.skipTest("this system has libesper-guard.so installed")
            self.assertEqual(status, 1)
            self.assertIn("libesper-guard.so is not built yet. Run `make` in the root of the project first", said)
            self.assertNotIn("Traceback", said)

    def test_a_library_that_is_none(self):
        with open(self.place("text.so"), "w") as file:
            file.write("not a library at all")
        status, said, _ = build(PACKAGE, "wheel", self.place("w"), ESPER_GUARD_LIBRARY=self.place("text.so"))
        self.assertEqual(status, 1)
        self.assertIn("text.so is no shared library (ELF)", said)
        status, said, _ = build(PACKAGE, "wheel", self.place("w"), ESPER_GUARD_LIBRARY=self.place("absent.so"))
        self.assertIn("absent.so, and there is no such file", said)

    def test_another_processor(self):
        data = bytearray(content(LIBRARY))
        data[18:20] = (183).to_bytes(2, "little")
        with open(self.place("arm.so"), "wb") as file:
            file.write(data)
        path = self.built(PACKAGE, "wheel", "w", ESPER_GUARD_LIBRARY=self.place("arm.so"))
        self.assertTrue(path.endswith("-py3-none-linux_aarch64.whl"), path)  # for its loader is another's

    def test_what_only_this_system_has(self):
        """A library that needs more than glibc is for systems like this one."""
        data = content(LIBRARY).replace(b"\0libm.so.6\0", b"\0libx.so.6\0")
        self.assertNotEqual(data, content(LIBRARY))
        with open(self.place("needy.so"), "wb") as file:
            file.write(data)
        path = self.built(PACKAGE, "wheel", "w", ESPER_GUARD_LIBRARY=self.place("needy.so"))
        self.assertTrue(path.endswith(f"-py3-none-linux_{os.uname().machine}.whl"), path)


class TestSourceArchive(Folder):
    def test_makes_the_same_wheel(self):
        archive = self.built(PACKAGE, "sdist", "s")
        self.assertEqual(os.path.basename(archive), f"esper_guard-{header_version()}.tar.gz")
        self.assertEqual(content(archive), content(self.built(PACKAGE, "sdist", "again")))
        with tarfile.open(archive) as packed:
            packed.extractall(self.place("unpacked"))
        root = self.place("unpacked/" + os.path.basename(archive)[:-len(".tar.gz")])
        one = self.built(root, "wheel", "one", ESPER_GUARD_LIBRARY=LIBRARY)
        two = self.built(PACKAGE, "wheel", "two", ESPER_GUARD_LIBRARY=LIBRARY)
        self.assertEqual(content(one), content(two))


class TestVersion(unittest.TestCase):
    def test_one_for_all(self):
        with open(os.path.join(PACKAGE, "esper", "__init__.py")) as file:
            text = file.read()
        found = re.search(r'(?m)^__version__(?:: str)? = "(.*)"', text)
        if found:
            self.assertEqual(found.group(1), header_version())
        else:
            self.assertIn("__version__", text)


class TestPip(Folder):
    """In an environment that sees the system's packages, as Debian's PyTorch needs it."""

    def run_in(self, *command, status=0, **environment):
        env = dict(os.environ, PIP_INDEX_URL=NOWHERE, PIP_NO_CACHE_DIR="1", PIP_DISABLE_PIP_VERSION_CHECK="1",
                   PIP_RETRIES="0", PIP_CONFIG_FILE=os.devnull, PYTHONDONTWRITEBYTECODE="1", **environment)
        for name in ("PYTHONPATH", "ESPER_GUARD_LIBRARY", "PIP_FIND_LINKS"):
            if name not in environment:
                env.pop(name, None)
        done = subprocess.run(command, cwd=self.folder, env=env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=200)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def setUp(self):
        super().setUp()
        made = subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", self.place("v")],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if made.returncode != 0:
            self.skipTest("no venv with pip here (Debian packages python3-venv and python3-pip)")
        self.python = self.place("v/bin/python")

    def where(self):
        return self.run_in(self.python, "-c", "import esper, esper._abi as a; print(esper.__file__); "
                                              "print(a.load().path); print(esper.__version__)").split()

    def test_install(self):
        package = self.copy()
        os.mkdir(self.place("co/build"))
        said = self.run_in(self.python, "-m", "pip", "install", package, status=1)
        self.assertIn("Run `make` in the root of the project first", said)
        shutil.copy(LIBRARY, self.place("co/build/libesper-guard.so"))
        self.run_in(self.python, "-m", "pip", "install", package)
        self.assertNotIn("esper-guard", self.run_in(self.python, "-c", CHECK))
        init, library, version = self.where()
        self.assertTrue(init.startswith(self.place("v/")), init)
        self.assertTrue(library.startswith(self.place("v/")), library)
        self.assertEqual(version, header_version())
        self.run_in(self.python, "-m", "pip", "install", "--no-index", "-e", package)
        init, library, version = self.where()
        self.assertEqual(init, os.path.join(package, "esper", "__init__.py"))
        self.assertEqual(library, self.place("co/build/libesper-guard.so"))
        self.run_in(self.python, "-m", "pip", "uninstall", "-y", "esper-guard")
        self.run_in(self.python, "-c", "import esper", status=1)


if __name__ == "__main__":
    unittest.main()
