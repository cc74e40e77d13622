"""The words of a reply, one for each change of a call."""

from __future__ import annotations

from typing import Any

from ._errors import NotCounted, OutcomeUnknown


def results_of(words: list[Any], sizes: list[int]) -> list[Any]:
    """Returns the result of each change of a call. `sizes` are the numbers of words of the partitions."""
    count = sum(sizes)
    if len(words) > count:  # without the total that each partition has in front of its words
        for size in sizes:
            words = words[size + 1 :] + words[1 : size + 1]
    if len(words) == 1 and isinstance(words[0], bytes):  # after DUP they are one text
        words = words[0].split()
    if all(isinstance(word, bytes) and word[0] in b"123456789" and b":" in word for word in words):
        refused = dict(word.split(b":", 1) for word in words)  # by the number of the word
        words = [refused.get(b"%d" % number) for number in range(1, count + 1)]
    return list(map(result_of, words))


class Before(int):
    """The number that a request returned when it was counted before."""


def result_of(word: Any) -> Any:
    """Returns a number, the ticket of a miss, or the error of a word such as `FULL` or `RANGE:5`."""
    if not isinstance(word, bytes):
        return word
    reason, _, value = word.decode().partition(":")
    if reason == "MISS":
        return value
    if reason == "BEFORE":
        result = result_of(value.encode())
        return Before(result) if isinstance(result, int) else result
    if reason == "EXPIRED":
        return OutcomeUnknown(reason)
    if not reason.isalpha():
        return int(word)
    return NotCounted(reason, value=int(value) if value else None, temporary=reason == "NOCALENDAR")
