# ctest: timeout=240
"""docs/guard.md: its Python runs and prints what the page says, and the tests in its coverage table are there."""
import ast
import contextlib
import io
import os
import re
import unittest

import torch

FOLDER = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(os.environ["SOURCE_DIR"], "docs", "guard.md")


def page():
    with open(PAGE, encoding="utf-8") as file:
        return file.read()


def tests_of(file):
    """"test_guard.TestRows.test_tied" and so on."""
    with open(os.path.join(FOLDER, file), encoding="utf-8") as text:
        tree = ast.parse(text.read())
    for kind in tree.body:
        if isinstance(kind, ast.ClassDef):
            for function in kind.body:
                if isinstance(function, ast.FunctionDef) and function.name.startswith("test"):
                    yield f"{file[:-3]}.{kind.name}.{function.name}"


@unittest.skipUnless(os.path.exists(PAGE), "docs/guard.md is not here")
class TestPage(unittest.TestCase):
    def test_blocks(self):
        """A block of Python marked `test` prints the block of text behind it."""
        blocks = re.findall(r"```python test\n(.*?)```.*?```text test\n(.*?)```", page(), re.DOTALL)
        self.assertGreaterEqual(len(blocks), 1)
        for code, expected in blocks:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(code, PAGE, "exec"), {"__name__": "page"})
            got, wanted = said.getvalue().splitlines(), expected.splitlines()
            if not torch.__version__.startswith("1.13"):  # how it works there is another matter than what it finds
                got, wanted = ([line for line in lines if line.startswith("step ")] for lines in (got, wanted))
            self.assertEqual(got, wanted)

    def test_coverage_table(self):
        rows = re.findall(r"(?m)^\|[^|]*\| `(test_[a-z_]+\.[A-Za-z]+\.test_[a-z_0-9]+)` \|", page())
        self.assertGreater(len(rows), 15)
        known = {name for file in os.listdir(FOLDER) if re.fullmatch(r"test_.*\.py", file) for name in tests_of(file)}
        self.assertEqual([row for row in rows if row not in known], [])
        self.assertEqual(len(rows), len(set(rows)))


if __name__ == "__main__":
    unittest.main()
