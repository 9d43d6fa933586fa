"""What engine maps learn from arbitrary command lines, answers and labels: numbers, short strings, and no crash."""

import math
import random
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.agent.collectors.page_parser import PageLayout
from kvitals.agent.collectors.page_reading import MAX_LABEL, Reading, read, recognise
from kvitals.agent.collectors.status import Identity
from kvitals.agent.command_line import LAUNCHERS, launched_engine, parse
from kvitals.rules.engine_map import MAX_FACT, MAX_STRING, EngineMap, load_map, systems
from tests.fuzz.__main__ import target
from tests.fuzz.attacked import PAGES
from tests.fuzz.mutations import mutate, seeds

MAPS = [load_map(system) for system in systems()]
LEARNING = [one for one in MAPS if one.flags]
ANSWERING = [one for one in MAPS if one.endpoint is not None]

texts = st.text(max_size=20) | st.sampled_from(
    ("true", "1e999", "nan", "-1", "9" * 400, "1_000", "0x10", "٣", "a" * 1000)
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def check_told(facts: dict[str, float], strings: dict[str, str]) -> None:
    assert all(isinstance(value, float) and math.isfinite(value) for value in facts.values()), facts
    assert all(isinstance(text, str) and text for text in strings.values()), strings


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[EngineMap, list[str]]:
    system = draw(st.sampled_from(LEARNING))
    names = st.sampled_from(sorted(system.flags)).map(lambda name: f"--{name}") | texts
    arguments: list[str] = []
    for _ in range(draw(st.integers(0, 8))):
        name, value = draw(names), draw(texts | st.sampled_from(('{"a":', '{"a":1}', "[" * 5000, '{"a":' * 5000)))
        arguments += draw(st.sampled_from(([name], [name, value], [f"{name}={value}"], [f"{name}.{value}", value])))
    return system, arguments


@settings(deadline=None, max_examples=150)
@given(command_lines(), st.sampled_from(("", "0.32.0", "0.5.23", "banana", "999")), st.sampled_from(LAUNCHERS))
def test_any_command_line_teaches_facts_that_are_numbers(line, version, launcher) -> None:
    system, arguments = line
    facts, strings = system.learn(parse(launcher, arguments), version)
    check_told(facts, strings)


@given(st.lists(texts, max_size=8))
def test_any_process_is_an_engine_or_none(arguments) -> None:
    found = launched_engine(arguments)
    assert found is None or found[0] in LAUNCHERS


@st.composite
def answers(draw: st.DrawFn) -> tuple[EngineMap, object]:
    """An answer that has some of the keys that are asked for, with any values, and some that nobody asked for."""
    system = draw(st.sampled_from(ANSWERING))
    assert system.endpoint is not None
    answer: dict[str, object] = draw(st.dictionaries(texts, json_values, max_size=3))
    for paths in (system.endpoint.numbers, system.endpoint.strings, system.endpoint.given, system.endpoint.absent):
        for path in draw(st.lists(st.sampled_from(sorted(paths.values()) or ["x"]), max_size=4)):
            inner = answer
            *keys, last = path.split(".")
            for key in keys:
                found = inner.setdefault(key, {})
                if not isinstance(found, dict):
                    break
                inner = found
            else:
                inner[last] = draw(json_values)
    return system, answer


@settings(deadline=None, max_examples=200)
@given(answers())
def test_any_answer_teaches_facts_that_are_numbers(found) -> None:
    system, answer = found
    assert system.endpoint is not None
    facts, strings = system.endpoint.learn(answer)
    check_told(facts, strings)
    assert all(abs(value) < MAX_FACT for value in facts.values())
    assert all(len(text) <= MAX_STRING for text in strings.values())


@settings(deadline=None, max_examples=100)
@given(json_values)
def test_an_answer_of_another_shape_teaches_nothing_or_facts(answer) -> None:
    for system in ANSWERING:
        assert system.endpoint is not None
        check_told(*system.endpoint.learn(answer))


def _labels(system: EngineMap) -> list[str]:
    """The labels that a map looks at, and `le`."""
    of_metrics = {label for m in system.metrics for label in (*m.labels, *m.where)}
    of_infos = {fact.label for info in system.infos for fact in info.numbers.values()}
    own = {part for texts in system.series_labels.values() for text in texts for part in text.split("/")}
    others = (*system.rank_labels, *system.replica_labels, system.model_label, system.role_label, *system.users)
    return sorted({*of_metrics, *of_infos, *own, *filter(None, others), "le", "x"})


@st.composite
def layouts(draw: st.DrawFn) -> tuple[EngineMap, PageLayout]:
    system = draw(st.sampled_from(MAPS))
    prefixes = [""] if system.full_names else [*system.recognise.prefixes, ""]
    raws = [metric.raw for metric in system.metrics] + [info.raw for info in system.infos] + ["x"]
    names = st.builds(
        lambda prefix, raw, part: prefix + raw + part,
        st.sampled_from(prefixes), st.sampled_from(raws), st.sampled_from(("", "_bucket", "_sum", "_count", "_total")),
    )  # fmt: skip
    values = st.text(min_size=1, max_size=8) | st.sampled_from(("0", "1", "+Inf", "nan", "1e999", "True", "a" * 600))
    labels = st.dictionaries(st.sampled_from(_labels(system)), values, max_size=5).map(
        lambda d: tuple(sorted(d.items()))
    )
    series = draw(st.lists(st.tuples(names, labels), max_size=25, unique=True))
    return system, PageLayout(series, ["unknown"] * len(series), 0, 0)


@settings(deadline=None, max_examples=200)
@given(layouts(), layouts(), st.sampled_from(("", "0.32.0", "0.5.23", "1", "banana")))
def test_any_labels_are_read(first, second, version) -> None:
    before: Reading | None = None
    for system, layout in (first, second, first):
        recognise(layout, MAPS)
        found = read(layout, system, version, Identity("h:1", "", {}), before)
        alone = read(layout, system, version, Identity("h:1", "", {}))
        assert found.meanings == alone.meanings, "what was read before shows"
        assert len(found.meanings) == len(layout.series)
        assert len(set(found.ranks)) == len(found.ranks) > 0
        for meaning in filter(None, found.meanings):
            assert all(len(text) <= MAX_LABEL + len("h:1/") for text in meaning.labels.values())
            assert math.isfinite(meaning.scale)
        for facts, strings in zip(found.facts.values(), found.info.values(), strict=False):
            assert all(math.isfinite(value) for value in facts.values())
            assert all(len(text) <= MAX_LABEL for text in strings.values())
        before = found


@pytest.mark.parametrize("name", PAGES)
def test_a_few_mutated_pages(name: str) -> None:
    """What `make fuzz` does for minutes: that it still can, and that the recorded pages themselves pass."""
    attacked, rng = target(name), random.Random(7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for session in seeds():
            attacked.attack(session)
            attacked.attack(mutate(session, rng))


@pytest.mark.parametrize("text", ["nan", "1e999", "-inf", "9" * 400, "", "None"])
def test_a_label_that_is_no_usable_number_is_no_fact(text: str) -> None:
    labels = (("block_size", "16"), ("engine", "0"), ("num_gpu_blocks", text))
    layout = PageLayout([("vllm:cache_config_info", labels)], ["gauge"], 0, 0)
    facts = read(layout, load_map("vllm"), "0.32.0", Identity("h:1", "", {})).facts["0"]
    assert facts["block_tokens"] == 16.0
    assert all(math.isfinite(value) for value in facts.values())
