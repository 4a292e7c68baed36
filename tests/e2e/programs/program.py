#!/usr/bin/env python3
"""Runs one program forwarded to the server of these tests: it must exit with 0 in time, without a sanitizer report.

With --direct it runs on the software GPU in place of the driver's library, without a server. With --against FILE its
output must equal that file, which the program wrote on a real GPU.

With --own-server it has a server of its own.

With --interpreter PYTHON it is a script, which runs as users run one: `gpupool run -- PYTHON SCRIPT`.

With --sections the program lists its sections (--list) and runs them in one process. If that fails, each section runs
by itself as well, to show which of them fail. The sections in not-yet.txt are skipped, and reported as such.
"""

import sys
from pathlib import Path

import not_yet
from setting import indent, parse, run


def differences(output, path):
    seen, expected = output.splitlines(), Path(path).read_text(encoding="utf-8").splitlines()
    pairs = zip(seen + [""] * len(expected), expected + [""] * len(seen))
    return [f"{one!r}, on a real GPU {other!r}" for one, other in pairs if one != other]


def run_once(setting, name, environment, command, limit_s, against=None):
    """True on success; on failure prints the program's output."""
    known = setting.written_reports(name) + setting.written_reports("server")
    outcome = run(command, environment, limit_s)
    # A report of the server may belong to a test that runs meanwhile: then both fail, and the report names the cause.
    clean = all([setting.check_reports(name, known), setting.check_reports("server", known)])
    different = differences(outcome.output, against) if against and outcome.status == 0 else []
    if different:
        print(indent("\n".join(different)))
    held = outcome.status == 0 and clean and not different
    print(
        f"{'ok  ' if held else 'FAIL'} {' '.join(str(part) for part in command[1:]) or name}  ({outcome.seconds:.1f} s)"
    )
    if not held:
        print(indent(outcome.output + outcome.errors) + f"    ended with {outcome.end()}")
    return held


def list_sections(environment, command, limit_s):
    listing = run([*command, "--list"], environment, limit_s)
    if listing.status != 0:
        sys.exit(f"{command[-1]} --list ended with {listing.end()}:\n{indent(listing.output + listing.errors)}")
    # "NAME (only when named)" is for other transports.
    return [line for line in listing.output.splitlines() if line and " " not in line]


def run_sections(setting, arguments, environment, command, sections):
    """True if the sections pass in one process. Otherwise runs each by itself as well, to show which of them fail."""

    def run_some(some, limit_s):
        return run_once(setting, arguments.name, environment, [*command, *some, *arguments.arguments], limit_s)

    if run_some(sections, arguments.limit):
        return True
    for section in sections:
        run_some([section], arguments.limit / 5)
    return False


def main():
    def add(parser):
        parser.add_argument("--name", required=True, help="identifies the reports of this test's processes")
        parser.add_argument("--limit", type=float, default=250, help="seconds for one run")
        parser.add_argument("--sections", action="store_true")
        parser.add_argument("--direct", action="store_true")
        parser.add_argument(
            "--without",
            action="append",
            default=[],
            metavar="SECTION",
            help="a section that does not apply to this kind of run",
        )
        parser.add_argument("--interpreter", metavar="PYTHON")
        parser.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="added to the program's environment"
        )
        parser.add_argument("--own-server", action="store_true", help="with a server to which --set applies as well")
        parser.add_argument("--against", metavar="FILE")
        parser.add_argument("program")
        parser.add_argument("arguments", nargs="*")

    setting, arguments = parse(__doc__, add)
    program = setting.build / arguments.program
    environment = setting.direct(arguments.name) if arguments.direct else setting.client(arguments.name)
    command = [program]
    through_gpupool = [setting.build / "bin/gpupool", "run"]
    if arguments.interpreter:
        command = [*through_gpupool, "--server", setting.address(), "--", arguments.interpreter, program]
    elif arguments.own_server:
        command = [*through_gpupool, "--local", "--driver", "software", "--", program]
    environment |= dict(entry.split("=", 1) for entry in arguments.set)
    if not arguments.sections:
        held = run_once(
            setting, arguments.name, environment, [*command, *arguments.arguments], arguments.limit, arguments.against
        )
        sys.exit(0 if held else 1)

    sections = [
        section for section in list_sections(environment, command, arguments.limit) if section not in arguments.without
    ]
    left_out = not_yet.sections_of(program.name)
    gone = sorted(set(left_out) - set(sections))
    chosen = [section for section in sections if section not in left_out]
    passed = run_sections(setting, arguments, environment, command, chosen)
    for section in sections:
        if section in left_out:
            print(f"not yet {section}: {left_out[section]}")
    if gone:
        print(f"FAIL not-yet.txt names sections that {program.name} does not have: {', '.join(gone)}")
    print(f"{program.name}: {len(sections)} sections, {len(left_out)} skipped")
    sys.exit(0 if passed and not gone else 1)


if __name__ == "__main__":
    main()
