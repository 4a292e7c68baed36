#!/usr/bin/env python3
"""prose_test.py LINT_PROSE: tests which sentences scripts/lint-prose reports, and which it accepts."""

import importlib.machinery
import importlib.util
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LINT_PROSE = sys.argv.pop(1)
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("lint_prose", LINT_PROSE)
lint_prose = importlib.util.module_from_spec(importlib.util.spec_from_loader("lint_prose", loader))
loader.exec_module(lint_prose)

FOUND = [
    "Who waits is woken.",
    "The lock is given to who waits.",
    "Whoever sends takes the role.",
    "Nobody waits for it.",
    "A mutex that somebody else holds.",
    "It stops for what comes next.",
    "What was captured there is lost.",
    "What a graph allocates counts from its launch on.",
    "It is bounded. What crosses threads crosses a queue.",
    "What the program has written goes to the worker.",
    "What both ends know has to be enough.",
    "What a copy waits for depends on its source.",
    "The stream is told to catch up.",
    "The reader has been told.",
    "The pump looks at the word.",
    "It has to look again.",
    "Before it sleeps, another look.",
    "In its turn, for the stream.",
    "Its turn has come.",
    "The launches are settled.",
    "The command is set aside.",
    "The dispatcher stays out.",
    "On the word of the worker.",
    "More than all else together.",
    "A value that makes no sense is refused.",
    "An error where it cannot be had.",
    "If processors are to spare, it polls.",
    "Pools of the program's making.",
]
LEFT_ALONE = [
    "A thread that waits is woken.",
    "No thread waits for it.",
    "The log says what is missing.",
    "What a launch needs to know about a function.",
    "What the workers have logged since this test began.",
    "What the process has allocated.",
    "What the nodes do when they run.",
    "What an event means that was recorded in a capture.",
    "What a copy waits for is shown where?",
    "The caller decides what the reply means.",
    "A look-up of the name.",
    "Looks up the name of the host.",
    "It looks like a hash.",
    "In turn the worker sends a reply.",
    "The setting of the daemon.",
    "Users who run several programs.",
    "The message tells the client which lease it has.",
    "A buffer of what the kernel prints.",
    "The check makes sense only with a GPU.",
    "Memory to spare is kept for the next allocation.",
    "It is making progress.",
]


class Prose(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def lint(self, name, text):
        """Writes a file, lints it, and returns the line numbers of the findings."""
        path = self.folder / name
        path.write_text(text)
        return [line for line, _ in lint_prose.findings(path)]

    def test_as_a_program(self):
        path = self.folder / "a.h"
        for text, output, status in (
            ("// Nobody waits.\n", f"{path}:1: 'Nobody': ", 1),
            ("// No thread waits.\n", "", 0),
        ):
            path.write_text(text)
            result = subprocess.run([sys.executable, LINT_PROSE, str(path)], capture_output=True, text=True)
            self.assertEqual((result.stderr, result.returncode), ("", status))
            self.assertTrue(result.stdout.startswith(output) and bool(result.stdout) == bool(output))

    def test_finds_each(self):
        for sentence in FOUND:
            with self.subTest(sentence):
                self.assertEqual(self.lint("a.h", f"// {sentence}\n"), [1])
                self.assertEqual(self.lint("a.md", f"{sentence}\n"), [1])

    def test_leaves_others_alone(self):
        for sentence in LEFT_ALONE:
            with self.subTest(sentence):
                self.assertEqual(self.lint("a.h", f"// {sentence}\n"), [])

    def test_kinds_of_files(self):
        self.assertEqual(self.lint("a.cpp", 'int a;\nconst char* b = "nobody waits";\n'), [2])
        self.assertEqual(self.lint("a.cpp", "/* one\n   nobody waits */\n"), [2])
        self.assertEqual(self.lint("a.py", 'def f():\n    """Nobody waits."""\n    return 1  # nobody\n'), [2, 3])
        self.assertEqual(self.lint("a.sh", "x=1\n# nobody waits\n"), [2])
        self.assertEqual(self.lint("CMakeLists.txt", "# nobody waits\n"), [1])
        self.assertEqual(self.lint("run", "#!/usr/bin/env bash\n# nobody waits\n"), [2])
        self.assertEqual(self.lint("a.json", '{"a": "nobody waits"}\n'), [])

    def test_code_is_no_prose(self):
        self.assertEqual(self.lint("a.cpp", "int look();\nint who = look_at();\n"), [])
        self.assertEqual(self.lint("a.md", "Call `settle()`.\n```\nnobody waits\n```\n"), [])
        self.assertEqual(self.lint("a.cpp", "bool nobody_waits();\n"), [1])
        self.assertEqual(self.lint("a.cpp", "void set_aside();\n"), [])
        self.assertEqual(self.lint("a.cpp", "bool stays_out();\n"), [1])
        self.assertEqual(self.lint("a.cpp", "void settle();\nbool has_settled;\nint settled_bytes;\n"), [1, 2, 3])

    def test_a_sentence_of_two_lines(self):
        self.assertEqual(self.lint("a.h", "// The frame that is\n// told to the peer.\n"), [1])
        self.assertEqual(self.lint("a.h", "// The frame is here.\n\n// told\n"), [])
        self.assertEqual(self.lint("a.h", "int a;  // it is\nint b;  // told\n"), [])

    def test_the_marker(self):
        self.assertEqual(self.lint("a.h", "// Nobody waits.  lint-prose: allow\n"), [])


if __name__ == "__main__":
    unittest.main()
