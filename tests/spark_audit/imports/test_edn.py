"""The EDN reader reads every form, and names the place of a form that it refuses. It does not wait for the end of the
file."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import pytest

from spark_audit.imports import edn
from spark_audit.imports.edn import Name, NotEdn, form_of, forms, text_of


def _read(text: str) -> list[tuple[int, Any]]:
    return list(forms(io.StringIO(text)))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("nil", None),
        ("true", Name("true")),
        ("#{1 true 1.0}", frozenset({1, Name("true"), Name("1.0")})),
        ("9" * 5_000, Name("9" * 5_000)),
        ("-12", -12),
        ("7N", 7),
        ("1.50M", Name("1.50M")),
        (":read", Name(":read")),
        (":a.b/c-d?", Name(":a.b/c-d?")),
        ("sym/bol", Name("sym/bol")),
        ("\\newline", Name("\\newline")),
        ("\\(", Name("\\(")),
        ("##Inf", Name("##Inf")),
        ('"a \\"b\\" \\n \\u00e9 [;#"', 'a "b" \n é [;#'),
        ('"\\ud83d\\ude00"', "😀"),
        ("[1 (2, nil) []]", (1, (2, None), ())),
        ("{:a 1, [2] #{3 4}}", {Name(":a"): 1, (2,): frozenset({3, 4})}),
        ("[1 #_ [2 3] 4 #_5]", (1, 4)),
        ("[#_ #_ 1 2 3]", (3,)),
        ('#inst "2015"', "2015"),
        ("#jepsen.history.Op{:index #x/y 1}", {Name(":index"): 1}),
    ],
)
def test_a_form_is_read_as_what_it_stands_for(text: str, form: Any) -> None:
    """The forms are those of https://github.com/edn-format/edn, but a tag is dropped, and inexact numbers stay text."""
    assert form_of(text) == form


def test_a_keyword_never_equals_the_same_text() -> None:
    assert form_of(":a") != form_of('":a"')
    assert form_of('{:a 1 ":a" 2}')[Name(":a")] == 1


@pytest.mark.parametrize("text", ["{:b [1 nil \\a], :a #{:x}}", '"a\\"\\\\\\n"', "[true [] 1.5]", ":k"])
def test_what_is_printed_reads_as_the_same_form(text: str) -> None:
    form = form_of(text)

    assert form_of(text_of(form)) == form
    assert text_of(form_of(text_of(form))) == text_of(form)


@pytest.mark.parametrize(
    "text", ["{:a 1}\n\n{:a 2}\n", "[{:a 1}\n\n {:a 2}]", "; all\n({:a 1}\n;more\n{:a 2})\n", "{:a 1}\n\n{:a\n2}"]
)
def test_forms_may_stand_alone_or_in_one_collection_and_know_their_line(text: str) -> None:
    first, second = _read(text)

    assert [first[1], second[1]] == [{Name(":a"): 1}, {Name(":a"): 2}]
    assert second[0] - first[0] == 2


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("{:a 1}\n{:a", 2, "the end of a map begun on line 2"),
        ("[1\n2", 1, "the end of a vector begun on line 1"),
        ("[1\n(2]", 2, "the end of a list begun on line 2"),
        ("1\n]", 2, "a form"),
        ("[1]\n[2]", 2, "the end of the file, after the collection"),
        ("[1]\n2", 2, "the end of the file, after the collection"),
        ("[1]\n\n]", 3, "a form"),
        ("{:a 1 :b}", 1, "a map with a value for each key"),
        ("{:a 1 :a 2}", 1, "a map with each key once"),
        ("#{1 1}", 1, "a set with each key once"),
        ("{{} 1}", 1, "keys and members that are no maps"),
        ('1 "a\n\nb" "c', 3, "the end of a text"),
        ('"a\\', 1, "the end of a text"),
        ('"\\q"', 1, "an escape of EDN in a text"),
        ('"\\ud83d"', 1, "both halves of a surrogate pair"),
        ("\n01", 2, "a form"),
        ('#"a"', 1, "a form"),
        ("[1 #_]", 1, "the end of #_ begun on line 1"),
        ("(" * 200, 1, "at most 100 levels"),
    ],
)
def test_what_is_no_edn_is_refused_where_it_stands(text: str, line: int, expected: str) -> None:
    with pytest.raises(NotEdn) as caught:
        _read(text)

    assert (caught.value.line, caught.value.expected) == (line, expected)


def test_where_the_file_is_cut_into_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token at the end of a chunk may continue in the next chunk."""
    text = '; c\n[{:process 12 :value "a\\\\ \\" ; \n b" #_nil} #{1.5 \\a}\n\n(true #t/x {:k nil})\n"😀\\u0041\\\\"]\n'
    whole = _read(text)

    for size in (*range(1, 20), *(Random(1).randrange(20, 90) for _ in range(5))):
        monkeypatch.setattr(edn, "CHUNK_CHARACTERS", size)
        assert _read(text) == whole, size


def test_forms_come_before_the_file_has_been_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole history is never in memory at once."""
    monkeypatch.setattr(edn, "CHUNK_CHARACTERS", 64)
    text = io.StringIO("[" + "{:a 1}\n" * 10_000 + "]")

    reading = forms(text)

    assert [next(reading)[1] for _ in range(3)] == [{Name(":a"): 1}] * 3
    assert text.tell() < 200


def test_a_text_that_never_ends_is_refused_before_it_has_filled_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edn, "CHUNK_CHARACTERS", 64)
    monkeypatch.setattr(edn, "TOKEN_CHARACTERS_MAX", 1_000)
    text = io.StringIO('\n"' + "x" * 100_000)

    with pytest.raises(NotEdn, match="the end of a text"):
        list(forms(text))
    assert text.tell() < 1_200
