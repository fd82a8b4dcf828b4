"""Label selectors as kubectl takes them."""

import pytest

from gpuwatch.app.cli.scope import parse_selector
from gpuwatch.app.errors import OptionsError

POD = {"team": "vision", "tier": "prod"}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("team=vision", True),
        ("team==vision,tier=dev", False),
        ("tier!=dev", True),
        ("owner!=a", True),  # as kubectl: also where the label is missing
        ("team", True),
        ("!team", False),
        ("tier in (dev, prod)", True),
        ("tier notin (dev,prod),team", False),
        ("owner notin (a)", True),
    ],
)
def test_a_selector_selects_as_kubectl_does(selector: str, matches: bool) -> None:
    chosen = parse_selector(selector)
    assert chosen is not None
    assert chosen(POD) is matches


@pytest.mark.parametrize("selector", ["a=b=c", "!a=b", "a in b", "="])
def test_what_is_no_selector_is_refused(selector: str) -> None:
    with pytest.raises(OptionsError, match="is no label selector"):
        parse_selector(selector)
