"""Check built pages: every link inside leads to a file and an anchor that exist, and nothing is loaded from outside.

python tools/check_docs.py build/docs
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
POINTERS_ONLY = {"canonical", "next", "prev", "index", "search", "author"}


class Page(HTMLParser):
    """Anchors, links and loaded files of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag has."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and LOADS[tag] in given and given.get("rel") not in POINTERS_ONLY:
            self.loads.append(given[LOADS[tag]])


def problems(root: Path) -> list[str]:
    """One line for each link that leads nowhere and each file that comes from outside."""
    pages = {path.resolve(): Page(path) for path in sorted(root.rglob("*.html"))}
    found = [] if pages else [f"{root}: no pages"]
    for path, page in pages.items():
        name = path.relative_to(root.resolve())
        found += [f"{name} loads {target}" for target in page.loads if is_outside(target)]
        found += [
            f"{name} links to {target}: {complaint}"
            for target in {*page.links, *page.loads}
            if not is_outside(target) and (complaint := complain(path, target, pages))
        ]
    return found


def is_outside(target: str) -> bool:
    """Whether it has a host, or a scheme of its own (mail, data)."""
    parts = urlsplit(target)
    return bool(parts.netloc) or parts.scheme in {"http", "https", "mailto", "data"}


def complain(path: Path, target: str, pages: dict[Path, Page]) -> str:
    """What is wrong with a link inside, or nothing."""
    parts = urlsplit(target)
    file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if file.is_dir():
        file = file / "index.html"
    if not file.exists():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and file in pages and anchor not in pages[file].anchors and anchor != "top":
        return "no such anchor"
    return ""


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]))
    print("\n".join(lines) or "all links lead somewhere, nothing comes from outside")
    sys.exit(1 if lines else 0)
