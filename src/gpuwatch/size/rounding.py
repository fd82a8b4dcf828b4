"""Print two numbers with enough digits to show that they differ."""


def rounded_apart(one: float, other: float, digits: int = 2) -> tuple[str, str]:
    """Both with the fewest decimals that show the difference, from `digits` to 6.

    >>> rounded_apart(0.847, 0.9), rounded_apart(0.8991, 0.9)
    (('0.85', '0.90'), ('0.899', '0.900'))
    >>> rounded_apart(10.02, 9.98, digits=1), rounded_apart(2.0, 2.0)
    (('10.02', '9.98'), ('2.00', '2.00'))
    """
    alike = f"{one:.{digits}f}", f"{other:.{digits}f}"
    for more in range(digits, 7):
        texts = f"{one:.{more}f}", f"{other:.{more}f}"
        if texts[0] != texts[1]:
            return texts
    return alike
