"""The templates of the reports and of the status page, and the filters by which they write values."""

import re
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, pass_context, select_autoescape
from jinja2.runtime import Context
from markupsafe import Markup

from gpuwatch.facts.catalog.tables import packaged
from gpuwatch.say import charts
from gpuwatch.say import weekly_words as say
from gpuwatch.say.plan_tables import called, short_worth
from gpuwatch.say.sizing_tables import patch_yaml
from gpuwatch.say.tables import evidence_line
from gpuwatch.say.words import escaped, listed, plural, quantity, short_uuid

T = TypeVar("T")

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""The Content-Security-Policy of all pages: they contain names from the cluster, so nothing is requested or sent."""

SCRIPT = Markup(packaged("templates/weekly.js", "gpuwatch.say"))  # noqa: S704
"""The one script of the weekly report; SCRIPT_HASH names it in a Content-Security-Policy."""
SCRIPT_HASH = f"sha256-{b64encode(sha256(SCRIPT.encode()).digest()).decode()}"


@cache
def template(name: str) -> Template:
    """Those of HTML escape everything; those of Markdown escape names, by the filter `text`."""
    environment = Environment(
        loader=PackageLoader("gpuwatch.say"),
        autoescape=select_autoescape(disabled_extensions=("md.j2",), default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        called=called,
        code=_code,
        device=short_uuid,
        evidence=evidence_line,
        hours=say.hours,
        known=_known,
        money=_in_currency(say.whole_money),
        percent=say.percent,
        plural=plural,
        saves_and_costs=short_worth,
        saving=_in_currency(say.saving),
        size=lambda value: say.UNKNOWN if value is None else quantity(value, "bytes"),
        speed=say.speed,
        text=escaped,
        workload_name=say.workload_name,
        workload_place=say.workload_place,
        wraps=_wraps,
        yaml=patch_yaml,
    )
    environment.globals.update(chart=charts, listed=listed, policy=POLICY, say=say)
    return environment.get_template(name)


def _known(text: str | Markup) -> str | Markup:
    """'unknown' in a style that no value has."""
    return Markup('<span class="unknown-text">unknown</span>') if text == say.UNKNOWN else text


def _wraps(name: str) -> Markup:
    """A name that may be broken after each slash, escaped."""
    return Markup.escape(name).replace("/", Markup("/<wbr>"))


def _code(text: str) -> Markup:
    """`names` in a sentence as code, escaped."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(Markup.escape(text))))  # noqa: S704


def _in_currency(said: Callable[[T, str], str]) -> Callable[[Context, T], str]:
    """The same as a filter, in the report's currency."""

    @pass_context
    def in_currency(context: Context, value: T) -> str:
        return said(value, context["report"].currency)

    return in_currency
