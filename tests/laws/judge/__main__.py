"""Judge from the command line; see the package."""

from __future__ import annotations

import sys

from tests.laws.judge.problems import SOLVERS
from tests.laws.judge.verdicts import Tally, run


def main(arguments: list[str]) -> None:
    """Numbers as ``17:Auto``, ``17`` or ``0-1500``; ``--every``: each problem with every solver rather than one."""
    names, tally = list(SOLVERS), Tally()
    for argument in (a for a in arguments if not a.startswith("--")):
        span, _, solver = argument.partition(":")
        first, _, last = span.partition("-")
        for number in range(int(first), int(last or int(first) + 1)):
            chosen = [solver] if solver else names if "--every" in arguments else [names[number % len(names)]]
            for name in chosen:
                before = len(tally.faults)
                run(number, name, tally)
                for fault in tally.faults[before:]:
                    sys.stdout.write(f"{fault}\n")
                    sys.stdout.flush()
    sys.stdout.write(f"{dict(tally.counts)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
