"""Whatever a page says under a program's names, it is read or refused; nothing that it says is an error of ours."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.agent.collectors.page_parser import PageParser
from kvitals.agent.collectors.status import Identity
from kvitals.agent.families import SERVER_INFO, Translator
from kvitals.rules.engine_map import EngineMap, load_map, systems
from kvitals.series.window import Window

TEXT = st.one_of(
    st.sampled_from(["0", "1", "-1", "", "None", "1e309", "nan", "0.1", "+Inf"]),
    st.text(st.characters(exclude_characters='"\\\n', exclude_categories=("Cs",)), max_size=5),
)
VALUE = st.one_of(st.sampled_from([float("inf"), float("-inf"), float("nan"), 1e308, -1e308, 0.0]), st.floats())


def labels_of(m: EngineMap) -> list[str]:
    """The raw labels that mean something to a map."""
    found = {"le", "quantile", "other", m.model_label, m.role_label, *m.rank_labels, *m.replica_labels, *m.users}
    for metric in m.metrics:
        found.update(metric.labels, metric.where, metric.unless)
    for info in m.infos:
        found.update(where.label for where in info.numbers.values())
    return sorted(found - {""})


@cache
def samples(system: str) -> st.SearchStrategy[str]:
    m = load_map(system)
    prefix = "" if m.full_names else m.recognise.prefixes[0]
    names = [("" if metric.bare else prefix) + metric.raw for metric in m.metrics]
    names += [prefix + name for name in (*[info.raw for info in m.infos], *list(m.ignored)[:3], "new_name")]
    wanted = {label: value for metric in m.metrics for label, value in metric.where.items()}
    label = st.sampled_from(labels_of(m))
    pair = st.one_of(st.tuples(label, TEXT), st.sampled_from(sorted(wanted.items()) or [("other", "x")]))
    return st.builds(
        lambda name, part, pairs, value: (
            f"{name}{part}{{{','.join(f'{k}={chr(34)}{v}{chr(34)}' for k, v in dict(pairs).items())}}} {value!r}\n"
        ),
        st.sampled_from(names),
        st.sampled_from(["", "", "_bucket", "_sum", "_count", "_total"]),
        st.lists(pair, max_size=5),
        VALUE,
    )


@pytest.mark.parametrize("system", systems())
@settings(max_examples=25)
@given(data=st.data())
def test_nothing_on_a_page_crashes_it(system, data):
    window = Window(1000.0, 120)
    translator = Translator(window, "t", Identity("h:1"), [load_map(system) for system in systems()])
    parser, lines = PageParser(), samples(system)
    for t in range(1, 5):
        page = parser.parse("".join(data.draw(st.lists(lines, min_size=1, max_size=15))).encode())
        assert translator.good(float(t), page, 0.0, 0).reason in ("ok", "no_engine")
        if data.draw(st.booleans()):
            translator.learn(SERVER_INFO, {"block_tokens": 1e300}, {"version": data.draw(TEXT)})
        if data.draw(st.booleans()):
            translator.bad(t + 0.5, "refused", "", 0.0)
    assert window.series <= 120
