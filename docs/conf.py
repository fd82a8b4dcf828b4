"""The site that `make docs` makes. Its source is the repository, so that links lead to the same pages as on GitHub."""

from typing import Any

project = "gpuwatch"
html_title = "gpuwatch"
root_doc = "docs/index"
extensions = ["myst_parser"]
include_patterns = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "lab/README.md",
    "lab/benchmarks/README.md",
    "dashboards/README.md",
    "deploy/README.md",
    "deploy/chart/gpuwatch/README.md",
    "docs/**",
    "rules/README.md",
    "src/gpuwatch/*/README.md",
    "tests/README.md",
]
exclude_patterns = [".*", "build", "dist", "out"]  # not walked: they are large
myst_heading_anchors = 4  # as GitHub makes them
highlight_language = "none"  # of code without a language
suppress_warnings = ["misc.highlighting_failure"]  # Pygments knows no colon in the name of a recorded series
html_theme = "furo"
html_extra_path = ["site"]  # an index.html that leads to docs/index.html
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False


def list_runbooks(_app: Any, page: str, text: list[str]) -> None:
    """Puts the runbooks below their index. On GitHub, a directive in that page would be read as text."""
    if page == "docs/runbooks/README":
        text[0] += "\n```{toctree}\n:hidden:\n:glob:\n\nG*\n```\n"


def setup(app: Any) -> None:
    app.connect("source-read", list_runbooks)
