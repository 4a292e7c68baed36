#!/usr/bin/env python3
"""Checks every include against the column "may use" of the table of folders in ARCHITECTURE.md.

    may_use.py [--source DIR]

An entry is a folder ("common/") or a pattern of files ("client/config.*"); the longest entry that matches a file
applies. A folder that may use another may also use what that one may use.
"""

import argparse
import fnmatch
import re
import sys
from pathlib import Path

SOURCE_SUFFIXES = {".h", ".cpp", ".def", ".c", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def read_table(text):
    """{entry: entries that it may use directly}; None stands for everything."""
    rules = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3 or not cells[0].startswith("`"):
            continue
        for entry in re.findall(r"`([^`]+)`", cells[0]):
            used = (
                None if cells[2] == "everything" else {name.rstrip("/") for name in re.findall(r"`([^`]+)`", cells[2])}
            )
            rules[entry.rstrip("/")] = used
    return rules


def covers(entry, path):
    return path == entry or path.startswith(entry + "/") or ("*" in entry and fnmatch.fnmatchcase(path, entry))


def owner_of(rules, path):
    fitting = [entry for entry in rules if covers(entry, path)]
    return max(fitting, key=len) if fitting else None


def reachable(rules, entry):
    """All entries that `entry` may use, itself included; None: everything."""
    found, waiting = set(), [entry]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if rules.get(name, set()) is None:
            return None
        waiting += rules.get(name, set())
        waiting += [other for other in rules if other.startswith(name + "/")]  # "protocol" means all of its folders
    return found


def check(source):
    rules = read_table((source / "ARCHITECTURE.md").read_text())
    mistakes = [f"ARCHITECTURE.md: there is no {entry}" for entry in rules if not list(source.glob(entry))]
    mistakes += [
        f"ARCHITECTURE.md: {entry} may use {name}, which is in no row"
        for entry, used in rules.items()
        for name in used or ()
        if not any(covers(name, other) for other in rules)
    ]
    roots = {entry.split("/")[0] for entry in rules}
    includes = 0
    for path in sorted(path for root in roots for path in (source / root).rglob("*") if path.suffix in SOURCE_SUFFIXES):
        name = path.relative_to(source).as_posix()
        owner = owner_of(rules, name)
        if owner is None:
            mistakes.append(f"{name}: it is in no row of ARCHITECTURE.md's table of folders")
            continue
        allowed = reachable(rules, owner)
        for included in INCLUDE.findall(path.read_text(errors="replace")):
            if included.split("/")[0] not in roots:
                continue
            includes += 1
            if allowed is not None and not any(covers(entry, included) for entry in allowed):
                mistakes.append(f"{name}: it includes {included}, and {owner} may not use that")
    if len(rules) < 10 or includes < 100:
        mistakes.append(f"only {len(rules)} rows and {includes} includes were found: is this the repository?")
    return mistakes, includes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    mistakes, includes = check(parser.parse_args().source)
    for mistake in mistakes:
        print(mistake)
    if mistakes:
        sys.exit(1)
    print(f"{includes} includes, all as ARCHITECTURE.md allows")


if __name__ == "__main__":
    main()
