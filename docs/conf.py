"""How the documentation is built: `make docs`. It needs no network, neither to build nor to read."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import types
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

project = "genprior"
author = "the genprior authors"
copyright = "the genprior authors, MIT licence"
version = release = importlib.import_module("genprior").__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.py", "gallery/*.ipynb", "gallery/*.md5", "gallery/*.json", "gallery/*.zip"]
suppress_warnings = [
    "myst.header",  # pages begin with their own levels
    "config.cache",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
add_module_names = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"genprior {version}"
html_static_path: list[str] = []
html_show_sourcelink = False
html_copy_source = False
html_math_renderer = "mathml"
pygments_style = "friendly"

ORDER = [
    "compressive_sensing",
    "inpainting",
    "super_resolution",
    "deblurring",
    "l1_salt_and_pepper",
    "mri",
    "ecg",
    "linf_denoising",
    "gross_errors",
    "defence",
    "own_generator",
    "stranger_faces",
    "own_operator_and_term",
    "restarts",
    "sequence",
    "solvers",
    "certificate",
]


def gallery_order(source: str) -> tuple[int, str]:
    """Kinds of damage first, then ways to work; what is not listed comes last."""
    name = Path(source).stem.removeprefix("plot_")
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


class ByOrder:
    """What sphinx-gallery wants: made for a folder, called with the name of a file."""

    def __init__(self, folder: str) -> None:
        del folder

    def __call__(self, source: str) -> tuple[int, str]:
        """The place of a file."""
        return gallery_order(source)


sphinx_gallery_conf = {
    "within_subsection_order": ByOrder,
    "capture_repr": (),
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": "/plot_",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "min_reported_time": 10_000,
    "write_computation_times": False,
    "reset_modules_order": "both",
}


class PublicNames(SphinxDirective):
    """``.. public:: module`` documents every public name of a module; with words in its body, those names only.

    A module that cannot be found is passed over if the option ``optional`` is set.
    """

    required_arguments = 1
    has_content = True
    option_spec = {"optional": lambda text: True}  # noqa: RUF012 - as docutils wants it

    def run(self) -> list[nodes.Node]:
        """Write the autodoc directives, and let Sphinx read them."""
        path = self.arguments[0]
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError:
            if "optional" in self.options:
                return []
            raise
        names = " ".join(self.content).replace(",", " ").split() or public_names(module)
        lines = [line for name in names for line in _directive(module, path, name)]
        return self.parse_text_to_nodes(StringList(lines, source=f"public names of {path}"))


def public_names(module: object) -> list[str]:
    """``__all__``, or the public classes and functions that the module defines."""
    given = getattr(module, "__all__", None)
    if given is not None:
        return [name for name in given if not inspect.ismodule(getattr(module, name))]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__  # type: ignore[attr-defined]
    ]


def _directive(module: object, path: str, name: str) -> list[str]:
    value = getattr(module, name)
    if isinstance(value, types.GenericAlias):
        return [f".. py:data:: {path}.{name}", "", f"   ``{value}``", ""]
    kind = "autoclass" if inspect.isclass(value) else "autofunction" if callable(value) else "autodata"
    return [f".. {kind}:: {path}.{name}", ""]


def _mathml(display: str):
    """MathML, which browsers draw themselves: no script, no font to load."""

    def visit(translator, node: nodes.Element) -> None:  # noqa: ANN001
        formula = convert(node.astext(), display=display)
        translator.body.append(f'<div class="math">{formula}</div>' if display == "block" else formula)
        raise nodes.SkipNode

    return visit


def only_pages_that_exist(app: Sphinx, name: str, content: list[str]) -> None:
    """Lines ``page?`` in the index are pages that may be missing."""

    def kept(match: re.Match[str]) -> str:
        return match[1] if (Path(app.srcdir) / f"{match[1]}.md").exists() else ""

    if name == "index":
        content[0] = re.sub(r"^([a-z-]+)\?$", kept, content[0], flags=re.MULTILINE)


def plain_formulas(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings are written for people: indented formulas become literal blocks, bars are bars, last words stay text."""
    lines[:] = _last_words_first(lines)
    done: list[str] = []
    literal_from: int | None = None
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if literal_from is not None and line.strip() and indent < literal_from:
            literal_from = None
        before = next((text for text in reversed(lines[:number]) if text.strip()), "")
        opens = number > 0 and not lines[number - 1].strip() and indent >= len(before) - len(before.lstrip()) + 4
        if literal_from is None and opens and line.strip() and not before.rstrip().endswith("::"):
            literal_from = indent
            done += [" " * (indent - 4) + "::", ""]
        elif literal_from is None and before.rstrip().endswith("::") and opens:
            literal_from = indent
        done.append(line if literal_from is not None else _bars(line))
    lines[:] = done


def _last_words_first(lines: list[str]) -> list[str]:
    """Paragraphs that follow the list of parameters would be read as parameters: move them before it."""
    heads = [n for n, line in enumerate(lines[:-1]) if line == "Parameters" and set(lines[n + 1]) == {"-"}]
    if not heads:
        return lines
    start, moved, kept, number = heads[0], [], [], heads[0] + 2
    while number < len(lines) and not (number + 1 < len(lines) and set(lines[number + 1]) == {"-"}):
        end = next((n for n in range(number, len(lines)) if not lines[n].strip()), len(lines))
        block = [*lines[number:end], ""]
        is_text = bool(lines[number].strip()) and all(line[:1] not in {" ", ""} for line in lines[number:end])
        (moved if is_text else kept).extend(block)
        number = end + 1
    return [*lines[:start], *moved, *lines[start : start + 2], *kept, *lines[number:]]


def _bars(line: str) -> str:
    """Escape ``|`` outside of literals: it would mean a substitution."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    parts = re.split(r"(``.*?``)", line)
    return "".join(part if part.startswith("``") else part.replace("|", r"\|") for part in parts)


def setup(app: Sphinx) -> None:
    """Our directive, our way to write formulas and to read docstrings."""
    app.add_directive("public", PublicNames)
    app.add_html_math_renderer("mathml", (_mathml("inline"), None), (_mathml("block"), None))
    app.connect("source-read", only_pages_that_exist)
    app.connect("env-get-outdated", lambda *_: ["index"])  # which pages exist may have changed, though it has not
    app.connect("autodoc-process-docstring", plain_formulas, priority=400)
