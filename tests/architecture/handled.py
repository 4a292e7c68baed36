#!/usr/bin/env python3
"""Checks that the call table dispatches to every function of gpupool::client::entry; others would never run."""

import argparse
import re
import subprocess
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True, type=Path, help="protocol/calls/table")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("libraries", nargs="+", help="the client's static libraries")
    options = parser.parse_args()

    handled = set()
    for part in sorted(options.table.glob("*.def")):
        for line in part.read_text(encoding="utf-8").splitlines():
            if row := re.match(r"GP_CALL\(\d+, (\w+), \w+, \d+, \([^)]*\), (\w+)(.*)", line):
                symbol, delivery, rules = row.groups()
                if delivery == "local" or re.search(r"\b(handled|composed)\b", rules):
                    handled.add(symbol)
    defined = set()
    for library in options.libraries:
        names = subprocess.run([options.nm, "-C", library], check=True, capture_output=True, text=True).stdout
        defined |= set(re.findall(r" [TW] gpupool::client::entry::(cu\w+)\(", names))
    unreached = sorted(defined - handled)
    for symbol in unreached:
        print(f"{symbol}: client/calls/ defines it, but its line of the table is neither local, handled nor composed")
    print(f"{len(defined)} functions, {len(handled)} lines of the table that need one")
    return 1 if unreached or not defined or not handled else 0


if __name__ == "__main__":
    sys.exit(main())
