#!/usr/bin/env python3
"""Tests cmake/compile-cached: ccache gives no outdated precompiled header."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(sys.argv.pop(1)).resolve()
CCACHE = shutil.which("ccache")
COMPILER = shutil.which("g++")


@unittest.skipUnless(CCACHE and COMPILER, "needs ccache and g++")
class CompileCached(unittest.TestCase):
    def setUp(self):
        self.kept = tempfile.TemporaryDirectory()
        self.folder = Path(self.kept.name)

    def tearDown(self):
        self.kept.cleanup()

    def precompile(self, clone, value):
        """Writes `value` into a clone's header, and precompiles it as CMake does. Returns the value it then holds."""
        folder = self.folder / clone
        folder.mkdir(exist_ok=True)
        (folder / "header.h").write_text(f"enum {{ kValue = {value} }};\n")
        (folder / "pch.hxx").write_text("#pragma GCC system_header\n#include <header.h>\n")
        (folder / "pch.hxx.cxx").write_text("")
        (folder / "use.cpp").write_text('#include <cstdio>\nint main() { std::printf("%d", kValue); }\n')
        self.compile(folder, "-fpch-preprocess", "-x", "c++-header", "-c", "pch.hxx.cxx", "-o", "pch.hxx.gch")
        self.compile(folder, "-fpch-preprocess", "-Winvalid-pch", "-Werror", "-c", "use.cpp", "-o", "use.o")
        subprocess.run([COMPILER, "use.o", "-o", "use"], cwd=folder, check=True)
        return int(subprocess.run(["./use"], cwd=folder, check=True, capture_output=True, text=True).stdout)

    def compile(self, folder, *arguments):
        command = [SCRIPT, folder, CCACHE, COMPILER, f"-I{folder}", "-include", folder / "pch.hxx", *arguments]
        environment = {**os.environ, "CCACHE_DIR": str(self.folder / "cache")}
        subprocess.run(command, cwd=folder, check=True, env=environment)

    def test_a_changed_header_is_precompiled_anew(self):
        for clone, value in (("one", 1), ("two", 1), ("one", 2), ("two", 3), ("one", 1)):
            self.assertEqual(self.precompile(clone, value), value, clone)


if __name__ == "__main__":
    unittest.main()
