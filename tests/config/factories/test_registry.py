"""The syntax of --model and --data, and errors that name the fault and the known names."""

import pytest

from dpexp.config.errors import ConfigError
from dpexp.config.factories import Entry, Factory, Option, Registry
from dpexp.config.spec import Spec

ENTRIES = {
    "box": Entry(
        "A box.",
        "tests.none:Box",
        (
            Option("in", int, 5, "Width."),
            Option("rate", float, 0.5, "Rate.", min=0),
            Option("flat", bool, False, "Flat.", min=None),
            Option("label", str, "", "Label."),
        ),
    ),
    "file": Entry("A file.", "tests.none:File", (Option("length", int, 1, "Length."),), argument="PATH"),
}


def find(text: str) -> Factory:
    return Registry("--thing", "thing", ENTRIES).find(Spec(text))


def test_a_name_without_options() -> None:
    found = find("box")
    assert (found.name, found.options) == ("box", {})


def test_values_are_literals_of_the_options_type() -> None:
    assert find("box:in=7,rate=1,flat=true,label=a b").options == {
        "in": 7,
        "rate": 1.0,
        "flat": True,
        "label": "a b",
    }


def test_an_argument_may_hold_commas_colons_and_equal_signs() -> None:
    found = find("file:/data/a,b:c=d.txt,length=3")
    assert (found.argument, found.options) == ("/data/a,b:c=d.txt", {"length": 3})


def test_commas_within_brackets_do_not_split() -> None:
    found = find("package.module:make:widths=(8,16),names=['a','b']")
    assert found.options == {"widths": (8, 16), "names": ["a", "b"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bux", "unknown thing 'bux'; there are box, file: did you mean 'box'?"),
        ("box:rat=3", "box takes no option 'rat'; there are in, rate, flat, label: did you mean 'rate'?"),
        ("box:in=wide", "'in' takes a whole number, found 'wide'"),
        ("box:in=1.5", "'in' takes a whole number, found 1.5"),
        ("box:in=True", "'in' takes a whole number, found True"),
        ("box:in=0", "'in' must be at least 1, found 0"),
        ("box:rate=-1", "'rate' must be at least 0, found -1.0"),
        ("box:rate=1e999-1e999", "'rate' takes a number"),
        ("box:flat=1", "'flat' takes true or false, found 1"),
        ("box:in=3,in=4", "option 'in' is given twice"),
        ("box:5", "'5' is not an option; write KEY=VALUE"),
        ("file", "it needs PATH, as file:PATH"),
        ("file:,length=2", "it needs PATH"),
        ("file:a.txt,lenght=2", "file takes no option 'lenght'; there is length: did you mean 'length'?"),
        ("no/such.py:make", "there is no file no/such.py"),
        ("box,in=3,rate=1", "options follow a colon, as box:in=3,rate=1"),
        ("box in=3", "options follow a colon, as box:in=3"),
        ("some/model.py", "name the factory after the file, as some/model.py:make"),
        ("", "unknown thing ''"),
    ],
)
def test_bad_text_is_a_config_error_that_names_the_fault(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(text)
    assert words in str(caught.value)
    assert str(caught.value).startswith("--thing")
