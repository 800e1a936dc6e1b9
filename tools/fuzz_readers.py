"""Run the readers on many damaged and hostile files, in separate processes: no crash, no hang, little memory, one error type.

    python tools/fuzz_readers.py --mutants 20000 --seed 0

Every file type gets its share of the mutants, in batches; then come the bombs of ``tests/files/bombs.py``, one by one.
A batch whose process dies, or takes longer than ``--seconds``, is repeated mutant by mutant, and the guilty one is kept
in ``--keep``. Ends with 1 if anything was found.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from tests.files.bombs import bombs
from tests.files.mutants import kinds, mutant

BATCH = 250
KINDS = kinds()


def work(kind: str, seed: int, numbers: range, folder: str, send: Any) -> None:
    """Run some mutants of a type; send what happened, and the peak memory of this process."""
    name, whole, read = KINDS[kind]
    found: Counter[str] = Counter()
    faults: list[str] = []
    longest = 0.0
    for number in numbers:
        chance = random.Random(f"{seed} {kind} {number}")
        path = Path(folder) / name
        path.write_bytes(mutant(whole, chance))
        start = time.process_time()
        outcome = met(read, path)
        longest = max(longest, time.process_time() - start)
        found[outcome.partition(":")[0]] += 1
        if outcome.startswith("FAULT"):
            faults.append(f"{kind} {number}: {outcome}")
    send.send((found, faults, longest, memory()))


def met(read: Any, path: Path) -> str:
    """What a reader did with a file: read it, refused it, or failed."""
    try:
        read(path)
    except (ValueError, OSError) as problem:
        return "refused" if str(problem) else f"FAULT: {type(problem).__name__} without words"
    except BaseException as problem:
        return f"FAULT: {type(problem).__name__}: {str(problem)[:200]}"
    return "read"


def memory() -> int:
    """Peak memory of this process, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def bomb(name: str, kind: str, send: Any) -> None:
    """One hostile file, already written."""
    start = time.process_time()
    outcome = met(KINDS[kind][2], Path(name))
    send.send((outcome, time.process_time() - start, memory()))


def apart(target: Any, arguments: tuple[Any, ...], seconds: float) -> Any:
    """What a function sends, from a separate process; a description if it sends nothing."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=target, args=(*arguments, send))
    process.start()
    send.close()
    try:
        return receive.recv() if receive.poll(seconds) else f"took longer than {seconds:.0f} s"
    except EOFError:
        process.join()
        return f"died (exit code {process.exitcode})"
    finally:
        process.kill()
        process.join()


def fuzz(count: int, seed: int, seconds: float, keep: Path, only: str) -> tuple[list[str], int]:
    """All mutants; what was wrong, and the peak memory."""
    faults: list[str] = []
    most = 0
    wanted = [kind for kind in KINDS if only in kind]
    share = -(-count // max(1, len(wanted)))
    for kind in wanted:
        total: Counter[str] = Counter()
        longest, peak = 0.0, 0
        for start in range(0, share, BATCH):
            numbers = range(start, min(share, start + BATCH))
            with tempfile.TemporaryDirectory() as folder:
                done = apart(work, (kind, seed, numbers, folder), seconds * len(numbers) ** 0.5)
                if isinstance(done, str):
                    faults += guilty(kind, seed, numbers, seconds, keep) or [f"{kind} {numbers}: {done}, together only"]
                    continue
            total, longest, peak = total + done[0], max(longest, done[2]), max(peak, done[3])
            faults += done[1]
        most = max(most, peak)
        summary = ", ".join(f"{number} {outcome}" for outcome, number in total.most_common())
        print(f"{kind:22} {summary:40} longest {longest:5.2f} s, memory {peak} MB", flush=True)
    return faults, most


def guilty(kind: str, seed: int, numbers: range, seconds: float, keep: Path) -> list[str]:
    """Which mutants of a batch end the process or take too long; they are kept."""
    found = []
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            done = apart(work, (kind, seed, range(number, number + 1), folder), seconds)
        if isinstance(done, str):
            found.append(f"{kind} {number}: {done}")
            keep.mkdir(exist_ok=True)
            content = mutant(KINDS[kind][1], random.Random(f"{seed} {kind} {number}"))
            (keep / f"{kind.replace(' ', '-')}-{number}-{KINDS[kind][0]}").write_bytes(content)
    return found


def explode(seconds: float, limit: int, only: str) -> tuple[list[str], int]:
    """All bombs; what was wrong, and the peak memory."""
    faults: list[str] = []
    most = 0
    for title, (name, write, kind) in bombs().items():
        if only not in title:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            write(path)
            size = path.stat().st_size
            done = apart(bomb, (str(path), kind), 6 * seconds)
        outcome, took, peak = (done, seconds, 0) if isinstance(done, str) else done
        most = max(most, peak)
        if outcome not in ("read", "refused") or peak > limit:
            faults.append(f"{title}: {outcome}, {peak} MB")
        print(f"{title:34} {size / 1e6:8.3f} MB on disk: {outcome}, {took:.2f} s, memory {peak} MB", flush=True)
    return faults, most


def main() -> int:
    """Run both; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0, help="for one file")
    parser.add_argument("--megabytes", type=int, default=1000, help="memory of one process, with the libraries")
    parser.add_argument("--keep", type=Path, default=Path("fuzz"), help="folder for files that end a process")
    parser.add_argument("--kinds", default="", help="only file types with this in their name")
    parser.add_argument("--bombs", default="", help="only those with this in their name")
    given = parser.parse_args()
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork")
    base = memory()
    faults, most = fuzz(given.mutants, given.seed, given.seconds, given.keep, given.kinds) if given.mutants else ([], 0)
    more, other = explode(given.seconds, given.megabytes, given.bombs)
    faults += more + ([f"memory {most} MB"] if most > given.megabytes else [])
    print(*faults, sep="\n")
    print(f"{len(faults)} faults; most memory {max(most, other)} MB, of which {base} MB are the libraries")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
