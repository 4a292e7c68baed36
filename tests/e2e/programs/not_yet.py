#!/usr/bin/env python3
"""Reads not-yet.txt: the sections of tests/gpu that the software GPU does not pass yet, a line each: PROGRAM SECTION
REASON.

Run as a program it prints them and their number, and fails when a line lacks a reason or the list exceeds its limit.
"""

import sys
from pathlib import Path

LIST = Path(__file__).with_name("not-yet.txt")
# The list's length when it was introduced. It may only shrink: lower this with it.
MOST = 0


def read():
    entries = []
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            entries.append((line.split(None, 2) + ["", ""])[:3])
    return entries


def sections_of(program):
    return {section: reason for name, section, reason in read() if name == program}


def main():
    entries = read()
    width = max((len(f"{program} {section}") for program, section, _ in entries), default=0)
    for program, section, reason in entries:
        print(f"{program + ' ' + section:{width}}  {reason}")
    print(f"not run: {len(entries)} sections")
    if not all(reason for _, _, reason in entries):
        sys.exit("FAIL a line without a reason")
    if len(entries) > MOST:
        sys.exit(f"FAIL the list is longer than {MOST}")


if __name__ == "__main__":
    main()
