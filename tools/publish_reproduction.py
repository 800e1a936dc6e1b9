"""Put the findings of a run of ``genprior reproduce all`` into the docs: text, figures, every number.

genprior reproduce all --out run
python tools/publish_reproduction.py run
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    """Read the command line, and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("--docs", type=Path, default=DOCS)
    given = parser.parse_args()
    publish(given.run, given.docs)


def publish(run: Path, docs: Path) -> None:
    """Copy ``reproduction.md``, ``reproduction/`` and ``results.json``; files of an earlier publication go."""
    for needed in ("reproduction.md", "reproduction", "results.json"):
        if not (run / needed).exists():
            raise FileNotFoundError(f"{run} has no {needed}: the run is not finished")
    shutil.rmtree(docs / "reproduction", ignore_errors=True)
    shutil.copytree(run / "reproduction", docs / "reproduction")
    shutil.copy(run / "results.json", docs / "reproduction" / "results.json")
    text = (run / "reproduction.md").read_text(encoding="utf-8")
    text += "\nEvery number: [results.json](reproduction/results.json).\n"
    (docs / "reproduction.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
