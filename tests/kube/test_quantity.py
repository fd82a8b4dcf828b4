from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from gpuwatch.sources.kube.resources import quantity, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", "8"),
        (8, "8"),
        (0.5, "0.5"),
        ("7910m", "7.91"),
        ("100u", "0.0001"),
        ("5n", "0.000000005"),
        ("32Gi", str(32 * 2**30)),
        ("87425380Ki", str(87425380 * 2**10)),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("1e-3", "0.001"),
        ("1E", str(10**18)),
        ("1Ei", str(2**60)),
        ("1.5G", "1500000000"),
        ("2k", "2000"),
        ("3M", "3000000"),
        (".5Mi", str(2**19)),
        ("5.", "5"),
        ("-1", "-1"),
        ("+2", "2"),
    ],
)
def test_known_quantities(text: str | int | float, value: str) -> None:
    assert quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "eight", "8GB", "8 Gi", "1K", "ki", "--1", "1e", "1e1.5", "0x10", "٣", "1e9999"])
def test_what_the_api_server_refuses_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(ValueError, match="no Kubernetes quantity"):
        quantity(text)


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("1001m", 2), ("1000m", 1), ("999m", 1), ("0", 0), ("1Ki", 1024)]
)
def test_a_count_is_rounded_up(text: str, count: int) -> None:
    assert whole(text) == count


numbers = st.decimals(min_value=-(10**9), max_value=10**9, places=3, allow_nan=False).map(lambda value: f"{value:f}")
suffixes = st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])


@given(numbers, suffixes)
def test_agrees_with_the_official_client(number: str, suffix: str) -> None:
    assert quantity(number + suffix) == parse_quantity(number + suffix)


@given(st.integers(-(10**6), 10**6), st.integers(-9, 18))
def test_exponents_shift_the_point(number: int, exponent: int) -> None:
    assert quantity(f"{number}e{exponent}") == Decimal(number) * Decimal(10) ** exponent


@given(st.text(max_size=8))
def test_any_text_is_a_finite_value_or_a_value_error(text: str) -> None:
    try:
        value = quantity(text)
    except ValueError:
        return
    assert value.is_finite()
