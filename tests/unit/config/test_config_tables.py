"""The tables of kvitals.toml: their defaults, and that the documentation names each key and its default."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import fields

from kvitals.config import (
    FROM_ENVIRONMENT,
    AgentTable,
    Kubernetes,
    MuteTable,
    NodeLabels,
    ObjectiveTable,
    Otlp,
    OtlpOutTable,
    PrometheusTable,
    RequestLog,
    SloTable,
    TapTable,
    TargetTable,
    TenantsTable,
    check_codes,
    load,
    normal_url,
)
from kvitals.rules.loader import load as load_knowledge
from tests.support.config_texts import made

DOCUMENT = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
EXAMPLE = DOCUMENT.partition("```toml\n")[2].partition("```")[0]


def test_defaults(folder: Path) -> None:
    config = load(env={"HOME": str(folder)})
    assert config.agent.address == ("127.0.0.1", 9477)
    assert (config.agent.interval, config.agent.window) == (5.0, 1800.0)
    assert (config.slo.ttft_p99_seconds, config.slo.itl_p99_seconds) == (2.0, 0.2)
    assert config.labels.node
    assert not config.targets and not config.mutes
    assert config.file is None


def test_the_example_of_the_document_is_valid() -> None:
    config = made(EXAMPLE)
    assert config.agent.rules == (Path("/etc/kvitals/rules.d"),)
    assert config.agent.targets_file == (Path("/etc/kvitals/engines.txt"), Path("/etc/kvitals/sd/engines-*.json"))
    target, remote, insecure = config.targets
    assert target.labels == {"pool": "chat", "role": "decode", "hardware": "H200"}
    assert target.slo is not None and target.slo.ttft_p99_seconds == 0.5
    assert remote.bearer_file == Path("/run/secrets/token")
    assert remote.ca_file == Path("/etc/ssl/our-ca.pem")
    assert insecure.insecure
    assert [o.class_ for o in config.objectives] == ["", "", "gold"]
    assert config.kubernetes is not None and config.kubernetes.role == ("llm-d.ai/role",)
    assert config.tenants.classes == {"gold": ("acme", "t-5kq2v7ndm3")} and config.tenants.gateways == ("10.1.0.0/16",)
    nginx, ours = config.request_logs
    assert (nginx.name, nginx.format, ours.name, ours.format) == ("nginx", "nginx", "front-door", "")
    assert ours.mapping == Path("/etc/kvitals/our-gateway.yaml") and ours.tenant == ("customer",)
    assert config.otlp is not None and config.otlp.grpc_address == ("10.1.0.7", 4317)
    assert config.otlp_out is not None and config.otlp_out.endpoint == "https://collector.internal:4318/v1/traces"
    assert config.prometheus is not None and (config.prometheus.tenant, config.prometheus.step) == ("serving", 15.0)
    (mute,) = config.mutes
    assert mute.until == datetime(2026, 12, 1, tzinfo=UTC)
    assert config.params == {"KVC05": {"refault_share": 0.3}}


@pytest.mark.parametrize(
    "kind",
    [
        AgentTable,
        NodeLabels,
        SloTable,
        ObjectiveTable,
        TargetTable,
        Kubernetes,
        TenantsTable,
        RequestLog,
        Otlp,
        OtlpOutTable,
        PrometheusTable,
        TapTable,
        MuteTable,
    ],
)
def test_every_key_is_in_the_example_and_explained(kind: type[Struct]) -> None:
    keys = {item.encode_name for item in fields(kind)}
    in_example = set(re.findall(r"^(\w+) = ", EXAMPLE, re.MULTILINE))
    explained = set(re.findall(r"`(\w+)`", DOCUMENT.replace(EXAMPLE, "")))
    assert keys <= explained
    assert keys - {"ca_file", "classes"} <= in_example  # `ca_file` excludes `insecure`; a table of its own
    assert in_example <= explained | {"refault_share", "gold"}


def test_every_variable_is_explained() -> None:
    explained = set(re.findall(r"KVITALS_[A-Z_]+", DOCUMENT))
    assert explained == {*FROM_ENVIRONMENT, "KVITALS_CONFIG", "KVITALS_TARGETS", "KVITALS_TENANT_KEY_FILE"}


@pytest.mark.parametrize(
    ("table", "kind"),
    [("agent", AgentTable), ("kubernetes", Kubernetes), ("tenants", TenantsTable), ("otlp", Otlp), ("tap", TapTable)],
)
def test_the_defaults_in_the_document_are_the_defaults(table: str, kind: type[Struct]) -> None:
    section = DOCUMENT.partition(f"# `[{table}]`\n")[2].partition("\n#")[0]
    told = [
        row for row in re.findall(r"^\| `(\w+)` \| [^|]+ \| `(.+?)` \|", section, re.MULTILINE) if "$" not in row[1]
    ]
    assert len(told) > 2
    for key, written in told:
        config = made(f"[{table}]\n{key} = {written}")
        assert getattr(getattr(config, table), key) == getattr(kind(), key), key


@pytest.mark.parametrize(
    ("written", "seconds"), [("5", 5), ("0.5", 0.5), ('"5s"', 5), ('"2m"', 120), ('"500ms"', 0.5), ('"7"', 7)]
)
def test_durations(written: str, seconds: float) -> None:
    assert made(f"[agent]\ninterval = {written}").agent.interval == seconds


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:9477", ("127.0.0.1", 9477)),
        (":80", ("", 80)),
        ("[::1]:0", ("::1", 0)),
        ("gpu-7:9477", ("gpu-7", 9477)),
    ],
)
def test_listen(listen: str, address: tuple[str, int]) -> None:
    assert made(f'[agent]\nlisten = "{listen}"').agent.address == address


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://a/", "http://a"),
        ("https://a:8443/engine/metrics", "https://a:8443/engine/metrics"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_urls(text: str, url: str) -> None:
    assert normal_url(text) == url


@pytest.mark.parametrize("text", ["", "http://", "http://a:port", "http://a:99999", "http://[::1", "a b", "a?x=1"])
def test_no_urls(text: str) -> None:
    with pytest.raises(ValueError, match=r"URL|must end"):
        normal_url(text)


class TestMutes:
    config = made("""
        [[mute]]
        rule = "KVC05"
        entity = {engine = "a"}
        until = 2001-09-09
        reason = "known"
        [[mute]]
        rule = "LAT01"
        until = "2001-09-09T01:46:40Z"
        reason = "known"
    """)

    def test_covers(self) -> None:
        one, all_of_them = self.config.mutes
        assert one.covers("KVC05", {"engine": "a", "node": "n"}, 0)
        assert not one.covers("KVC05", {"engine": "b"}, 0)
        assert not one.covers("KVC06", {"engine": "a"}, 0)
        assert all_of_them.covers("LAT01", {"engine": "b"}, 1e9 - 1)

    def test_ends(self) -> None:
        _, all_of_them = self.config.mutes
        assert not all_of_them.covers("LAT01", {}, 1e9)


def test_codes_that_there_are_not() -> None:
    config = made("""
        [params.KVC05]
        refault_shar = 1
        [params.KVC55]
        x = 1
        [[mute]]
        rule = "XYZ99"
        reason = "x"
    """)
    assert check_codes(config, {"KVC05": {"refault_share": True}, "LAT01": {}}) == [
        "/etc/kvitals/kvitals.toml: [[mute]] rule 'XYZ99' does not exist",
        "/etc/kvitals/kvitals.toml: [params.KVC05] has no parameter 'refault_shar'; did you mean 'refault_share'?",
        "/etc/kvitals/kvitals.toml: [params.KVC55]: this rule does not exist; did you mean 'KVC05'?",
    ]


def test_a_share_that_is_written_in_percent() -> None:
    """KVC01 was silenced for ever, and `kvitals config` called the file valid."""
    known = load_knowledge().parameters_by_rule()
    config = made("""
        [params.KVC01]
        kv_high = 99
        [params.KVC06]
        full = 1.5
    """)
    assert check_codes(config, known) == [
        "/etc/kvitals/kvitals.toml: [params.KVC01] kv_high = 99: a share is from 0 to 1; 95 % is written as 0.95"
    ]
    defaults = {code: {n: p.default for n, p in rule.params.items()} for code, rule in load_knowledge().rules.items()}
    assert check_codes(msgspec.structs.replace(config, params=defaults), known) == []
