"""Shared by the Python checks: a registry of checks, and a main program that runs them.

A check is a function that raises on a failure, and otherwise returns a value that must be the same in every run. The
program prints one `name value` line per check. Values marked as volatile (memory in use) may differ. A check raises
Absent when a package is missing: then it counts as neither passed nor failed.
"""

import argparse
import json
import sys
import traceback

CHECKS = []


class Absent(Exception):
    """A package that a check needs is not installed."""


def check(function=None, *, volatile=False):
    def register(body):
        CHECKS.append((body.__name__, body, volatile))
        return body

    return register(function) if function else register


def run(body):
    """The value, and whether the check passed (None: a package is missing)."""
    try:
        return str(body()), True
    except Absent as absent:
        return f"absent:_{absent}".replace(" ", "_"), None
    except Exception as error:  # one check's failure must not hide the others'
        traceback.print_exc(file=sys.stderr)
        first_line = (str(error).strip().splitlines() or [""])[0]
        return f"{type(error).__name__}:_{first_line}".replace(" ", "_"), False


def main(description, versions):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="also write the values as JSON")
    parser.add_argument("names", nargs="*", help="checks to run (all)")
    arguments = parser.parse_args()
    results = {}
    for name, body, volatile in CHECKS:
        if arguments.names and name not in arguments.names:
            continue
        value, held = run(body)
        print(name, ("FAILED_" if held is False else "") + value, flush=True)
        if held is None:
            continue
        results[name] = {"value": value, "held": held, "volatile": volatile}
        if name == "is_available" and not held:
            break  # without a GPU the other checks would repeat the failure
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"versions": versions, "checks": results}, file, indent=1)
    failed = [name for name, result in results.items() if not result["held"]]
    print(f"{len(results) - len(failed)} checks held, {len(failed)} failed")
    return 1 if failed or not results else 0
