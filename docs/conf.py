"""How Sphinx makes the site: `make docs`. The source folder is the repository, so that pages link as they do on GitHub."""

project = "gpuwatch"
html_title = "gpuwatch"
root_doc = "docs/index"
extensions = ["myst_parser"]
include_patterns = [
    "docs/*.md",
    "docs/runbooks/*.md",
    "*.md",
    "benchmarks/README.md",
    "dashboards/README.md",
    "deploy/README.md",
    "deploy/chart/gpuwatch/README.md",
    "rules/README.md",
]
exclude_patterns = ["README.md"]  # docs/index.md has its place
myst_heading_anchors = 4
myst_enable_extensions = ["linkify"] if False else []
highlight_language = "none"
html_theme = "furo"
html_extra_path = ["site"]  # index.html leads to docs/index.html
html_show_sourcelink = False
html_copy_source = False
