"""Groups of items by a key."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K")


def grouped(items: Iterable[T], key: Callable[[T], K]) -> defaultdict[K, list[T]]:
    """Key → its items, both in order of appearance; [] for any other key.

    >>> dict(grouped(["a1", "b1", "a2"], lambda text: text[0]))
    {'a': ['a1', 'a2'], 'b': ['b1']}
    """
    found: defaultdict[K, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found
