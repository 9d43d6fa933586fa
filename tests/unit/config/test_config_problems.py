"""What a configuration is refused for: each problem is named, with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.config import (
    MAX_OBJECTIVES,
    MAX_TARGETS,
    Config,
    ConfigError,
    build,
    load,
)
from tests.support.config_texts import made
from tests.support.loops import for_each


@for_each(
    "text, says",
    [
        ('[agent]\nlissen = "x"', "[agent] unknown key 'lissen'; did you mean 'listen'?"),
        ("[agent]\nzzz = 1", "[agent] unknown key 'zzz'; there are listen, interval,"),
        ("[targets]\nurl = 1", "unknown key 'targets'; did you mean 'target'?"),
        ('[target]\nurl = "http://a"', "[[target]] is a list: write it with two brackets"),
        ('agent = "x"', "[agent] must be a table"),
        ("[agent]\ninterval = true", "[agent].interval: must be a duration"),
        ('[agent]\ninterval = "soon"', "[agent].interval: must be a duration, such as"),
        ("[agent]\ninterval = 0.01", "interval must be from 0.2 to 300 seconds, not 0.01"),
        ("[agent]\nwindow = nan", "[agent].window: nan is not finite"),
        ('[agent]\nlisten = "9477"', "listen must be HOST:PORT"),
        ('[agent]\nlisten = "::1:9477"', "listen must be HOST:PORT"),
        ('[agent]\nlisten = "a:99999"', "listen must be HOST:PORT"),
        ("[agent]\nlisten = 9477", "[agent].listen: expected text, got a whole number"),
        ("[agent]\nrules = [1]", "[agent].rules[0]: must be the path of a file"),
        ('[agent]\ntargets_file = ""', "[agent].targets_file[0]: must be the path of a file"),
        ('[agent]\ntargets_file = "*/a.json"', "only the last part of a path may be a pattern"),
        ('[agent]\nprefixes = {"a b" = "vllm:"}', "must be prefixes of metric names"),
        ("[[objective]]\nmodel = 'x'", "[[objective]] 1: set ttft_p99_seconds, itl_p99_seconds or both"),
        ("[[objective]]\nclass = 'gold*'\nttft_p99_seconds = 1", "the name of one class, not a pattern"),
        ("[[objective]]\nttft_p99_seconds = 0", "ttft_p99_seconds must be from 0.001"),
        ("[[objective]]\nmodell = 'x'", "[[objective]] 1 unknown key 'modell'; did you mean 'model'?"),
        ("[[objective]]\nttft_p99_seconds = 1\n" * (MAX_OBJECTIVES + 1), "200 entries are allowed, these are 201"),
        ('[[target]]\nurl = "http://a"\n' * (MAX_TARGETS + 1), "1000 entries are allowed, these are 1001"),
        ('[[target]]\nurl = "http://a"\nlabels = {role = "decoder"}', "did you mean 'decode'?"),
        ('[[target]]\nurl = "http://a"\ninsecure = true\nca_file = "x"', "remove"),
        ("[kubernetes]\nselector = 'a;b'", "selector must be written as for kubectl"),
        ("[kubernetes]\nnamespaces = ['../x']", "is not the name of a namespace"),
        ("[kubernetes]\nports = [0]", "ports must be names of ports or numbers"),
        ("[kubernetes]\npool = ['a b']", "'a b' is not the name of a pod label"),
        (
            "[kubernetes]\nserver = 'http://10.0.0.1'",
            "server must be an https URL, because kvitals sends a token there",
        ),
        ("[kubernetes]\nnode = 'a,b=c'", "node must be the name of the node"),
        ("[kubernetes]\nannotation = 'a b'", "annotation must be the part before the slash"),
        ('[labels]\nnode = "a\\nb"', "node must be one line"),
        ("[slo]\nttft_p99_seconds = -1", "ttft_p99_seconds must be from 0.001"),
        ('[slo]\nttft_p99_seconds = "2s"', "[slo].ttft_p99_seconds: expected a number, got text"),
        ('[[target]]\nname = "a"', "[[target]] 1: the key 'url' is missing"),
        ('[[target]]\nurl = "http://a"\n[[target]]\nurl = "ftp://b"', "[[target]] 2: 'ftp://b' is not the URL"),
        ('[[target]]\nurl = "http://u:pass@a"', "contains a password: use bearer_file"),
        ('[[target]]\nurl = "http://a"\nlabels = {polo = "x"}', "not 'polo'; did you mean 'pool'?"),
        ('[[target]]\nurl = "http://a"\nlabels = {pool = 1}', ".labels: expected text, got a whole number"),
        ('[[target]]\nurl = "http://a"\nlabels = {pool = ""}', "labels.pool must be one line"),
        ('[[target]]\nurl = "http://a"\nfacts = {Slots = 1}', "facts.Slots: names of facts"),
        ('[[target]]\nurl = "http://a"\nfacts = {slots = inf}', "[[target]] 1.facts.slots: inf is not finite"),
        ('[[target]]\nurl = "http://a"\nslo = {ttft = 1}', "[[target]] 1.slo unknown key 'ttft'"),
        ('[[target]]\nurl = "http://a"\nslo = 3', "[[target]] 1.slo: expected"),
        ('[[target]]\nurl = "http://a"\ntimeout = 900', "timeout must be from"),
        ('[[target]]\nurl = "http://a"\nname = "a\\u0000"', "name must be one line"),
        ("[tenants]\nnames = 'hidden'", "[tenants].names"),
        ("[tenants]\nttl = '1s'", "ttl must be from 60"),
        ("[tenants.classes]\ngold = 'acme'", "[tenants].classes"),
        ('[[request_log]]\nformat = "nginx"', "[[request_log]] 1: the key 'path' is missing"),
        ('[[request_log]]\npath = "a"', "set either format (envoy_ai_gateway, litellm, nginx) or mapping"),
        ('[[request_log]]\npath = "a"\nformat = "nginx"\nmapping = "b.yaml"', "set either format"),
        ('[[request_log]]\npath = "a"\nformat = "ngnix"', "did you mean 'nginx'?"),
        ('[[request_log]]\npath = "*/a"\nformat = "nginx"', "only the last part of a path may be a pattern"),
        ('[[request_log]]\npath = "a"\nformat = "nginx"\nname = "tap"', "differ from otlp, tap"),
        ('[[request_log]]\npath = "a"\nmapping = "My Log.yaml"', "name 'My Log' must have"),
        ('[[request_log]]\npath = "a"\nformat = "nginx"\ntenant = [""]', "tenant must list keys"),
        (
            '[[request_log]]\npath = "a"\nformat = "nginx"\n' * 2,
            "[[request_log]] 1 and 2 have the same name 'nginx'",
        ),
        (
            "".join(f'[[request_log]]\npath = "a"\nformat = "nginx"\nname = "a{n}"\n' for n in range(17)),
            "16 entries are allowed, these are 17",
        ),
        (
            "[otlp]\ngrpc = '0.0.0.0:4317'",
            "other machines can reach grpc = '0.0.0.0:4317': set a token_file",
        ),
        ("[otlp]\nhttp = ':4318'", "set a token_file"),
        ("[otlp]\nhttp = '4318'", "http must be HOST:PORT"),
        ("[otlp]\nhttp = ''\ngrpc = ''", "both switched off"),
        ("[otlp]\ncert_file = 'a'", "belong together"),
        ("[otlp]\nmax_bytes = 1", "max_bytes must be from 65536"),
        ("[otlp_out]\nsample = 0.5", "the key 'endpoint' is missing"),
        ("[otlp_out]\nendpoint = 'http://c:4317/v1/traces'\nprotocol = 'grpc'", "must have no path"),
        ("[otlp_out]\nendpoint = 'http://c:4318'\nsample = 2", "sample must be from 0 to 1, not 2"),
        ("[prometheus]\nstep = 5", "the key 'url' is missing"),
        ("[prometheus]\nurl = 'http://p:9090'\nstep = 0.1", "step must be from 1"),
        ("[prometheus]\nurl = 'http://p:9090'\nkey_file = 'k'", "set cert_file as well"),
        ("[prometheus]\nurl = 'http://p:9090'\nbearer_file = 'a'\nbasic_file = 'b'", "not both"),
        ("[prometheus]\nurl = 'http://u:p@p:9090'", "contains a password"),
        ("[tap]\nupstream = 'ftp://x'", "not the URL of a server"),
        ("[tap]\nlisten = '8100'", "listen must be HOST:PORT"),
        ("[tap]\nadmin = 'x'", "admin must be HOST:PORT"),
        ("[tap]\nrouter = true\nengine = 'a'", "remove either router, or engine and role"),
        ("[tap]\nsession_headers = ['a b']", "session_headers: 'a b' is not the name of a header"),
        ("[tap]\nsession_headers = []", "session_headers must have 1 to 32 entries"),
        ("[tap]\nmax_connections = 0", "max_connections must be from 1 to 100000"),
        ("[tap]\ndrain = '2h'", "drain must be from 0 to 3600"),
        ("[tap]\nrole = 'router'", "[tap].role"),
        ('[[mute]]\nrule = "KVC05"', "[[mute]] 1: the key 'reason' is missing"),
        ('[[mute]]\nrule = "KVC05"\nreason = " "', "reason must explain the mute"),
        ('[[mute]]\nrule = "kvc"\nreason = "x"', "must be a code such as KVC05"),
        ('[[mute]]\nrule = "KVC05"\nreason = "x"\nentity = {url = "x"}', "entity may have cluster"),
        ('[[mute]]\nrule = "KVC05"\nreason = "x"\nuntil = 2026-12-01T00:00:00', "needs a time zone"),
        ("[params]\nKVC05 = 3", "[params] must hold tables of numbers"),
        ('[params.KVC05]\nx = "y"', "[params] must hold tables of numbers"),
        ("[params.KVC05]\nx = nan", "[params].KVC05.x: nan is not finite"),
        ("[params.KVC05]\nx = 1e400", "[params].KVC05.x: inf is not finite: a number must be from -1e+15 to 1e+15"),
        ("[params.KVC05]\nx = -2e15", "[params].KVC05.x: -2e+15: a number must be from"),
        (f"[tap]\nmax_connections = {10**30}", "[tap].max_connections: a number of more than 15 digits"),
        ("[review]\nprices = {h100 = inf}", "[review].prices.h100: inf is not finite"),
        (
            '[[target]]\nurl = "http://a"\nname = "a"\n' * 2,
            "[[target]] 1 and 2 have the same name 'a' and the same labels: give each its own name",
        ),
        ("[review]\nprices = {h100 = -1, h200 = 1e7}", "prices.h100 = -1, prices.h200 = 1e+07: a price is"),
        ("[review]\nusd_per_gpu_hour = -1", "usd_per_gpu_hour must be from 0 to a million, not -1"),
        (
            "[notify]\n" + '[[notify.webhook]]\nurl = "http://a"\nname = "x"\n' * 3,
            "the targets webhook 1, webhook 2 and webhook 3 have the same name 'x': give each",
        ),
        ("[slo]\nttft_p99_seconds = inf", "[slo].ttft_p99_seconds: inf is not finite"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        made(text)
    assert str(error.value).startswith("/etc/kvitals/kvitals.toml: ")
    assert says in str(error.value)


def test_every_problem_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        made("[agent]\na = 1\nb = 2\n[slo]\nttft_p99_seconds = 0\n[[target]]\n")
    assert len(str(error.value).splitlines()) == 4


def test_of_many_problems_the_first_are_said_and_the_rest_is_counted() -> None:
    with pytest.raises(ConfigError) as error:
        made("[agent]\n" + "\n".join(f"wrong_{n} = 1" for n in range(1500)))
    lines = str(error.value).splitlines()
    assert len(lines) == 21 and lines[-1].endswith(": and 1,480 more problems")


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)
_keys = st.sampled_from(
    ["listen", "interval", "url", "labels", "slo", "rule", "until", "KVC05", "name", "ports", "class"]
)


@given(
    st.dictionaries(
        st.sampled_from(["agent", "labels", "slo", "objective", "target", "kubernetes", "mute", "params"]),
        _values | st.dictionaries(_keys, _values) | st.lists(st.dictionaries(_keys, _values), max_size=2),
    )
)
def test_anything_is_a_config_or_a_config_error(data: dict[str, object]) -> None:
    try:
        assert isinstance(build(data), Config)
    except ConfigError as error:
        assert str(error)


def test_brackets_that_are_nested_too_deeply_are_named(tmp_path: Path) -> None:
    file = tmp_path / "kvitals.toml"
    file.write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="brackets are nested too deeply: remove some levels"):
        load(file)


def test_every_value_that_is_wrong_is_named(tmp_path: Path) -> None:
    """One problem of a table hid the others: a file was corrected and checked six times."""
    file = tmp_path / "kvitals.toml"
    file.write_text(
        '[agent]\ninterval = "fast"\nlistn = "x"\ntimeout = [1]\n'
        '[[target]]\nname = 3\ntimeout = "never"\n[[target]]\nurl = "http://127.0.0.1:8000"\ninsecure = "no"\n'
    )
    with pytest.raises(ConfigError) as refused:
        load(file, {})
    named = [line.partition(": ")[2].partition(":")[0] for line in str(refused.value).splitlines()]
    assert named == [
        "[agent] unknown key 'listn'; did you mean 'listen'?",
        "[agent].interval",
        "[agent].timeout",
        "[[target]] 1.name",
        "[[target]] 1.timeout",
        "[[target]] 2.insecure",
    ]


def test_every_number_out_of_range_is_named(tmp_path: Path) -> None:
    """The first of a table hid the others, and a number that is not finite hid all other tables."""
    file = tmp_path / "kvitals.toml"
    file.write_text(
        "[agent]\ninterval = 0.01\ntimeout = 900\nwindow = nan\nmemory_limit = 3\n[slo]\nttft_p99_seconds = 0\n"
        'itl_p99_seconds = 100\n[tap]\nmax_connections = 0\ndrain = "9h"\n[history]\nfull = 1\nmax_bytes = 1\n'
        '[[target]]\nurl = "http://a"\ntimeout = 900\nslo = {ttft_p99_seconds = 0, itl_p99_seconds = inf}\n'
        "[params.KVC05]\nx = inf\n"
    )
    with pytest.raises(ConfigError) as refused:
        load(file, {})
    lines = [line.removeprefix(f"{file}: ") for line in str(refused.value).splitlines()]
    assert [re.match(r"(.*?)(?: must be|: \S+ is not finite)", line)[1] for line in lines] == [  # type: ignore[index]
        "[agent].window",
        "[agent]: interval",
        "[agent]: timeout",
        "[agent]: memory_limit",
        "[slo]: ttft_p99_seconds",
        "[slo]: itl_p99_seconds",
        "[history]: full",
        "[history]: max_bytes",
        "[tap]: max_connections",
        "[tap]: drain",
        "[[target]] 1.slo.itl_p99_seconds",
        "[[target]] 1.slo: ttft_p99_seconds",
        "[[target]] 1: timeout",
        "[params].KVC05.x",
    ]


def test_one_name_with_other_labels_is_allowed() -> None:
    config = made("".join(f'[[target]]\nurl = "http://{p}"\nname = "a"\nlabels = {{pool = "{p}"}}\n' for p in "xy"))
    assert [target.name for target in config.targets] == ["a", "a"]
