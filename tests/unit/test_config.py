from __future__ import annotations

import re
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import fields

from kvitals.config import (
    FROM_ENVIRONMENT,
    MAX_OBJECTIVES,
    MAX_TARGETS,
    AgentTable,
    Config,
    ConfigError,
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
    build,
    check_codes,
    load,
    normal_url,
    read_targets,
)
from kvitals.rules.loader import load as load_knowledge
from tests.support.loops import for_each

DOCUMENT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
EXAMPLE = DOCUMENT.partition("```toml\n")[2].partition("```")[0]


def made(text: str) -> Config:
    return build(tomllib.loads(text), Path("/etc/kvitals/kvitals.toml"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a home of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


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
        ("[agent]\nwindow = nan", "agent.window: nan is not finite"),
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
        ('[[target]]\nurl = "http://a"\nfacts = {slots = inf}', "target[0].facts.slots: inf is not finite"),
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
        ('[[request_log]]\npath = "a"\nformat = "nginx"\n' * 2, "several have the name 'nginx'"),
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
        ("[params.KVC05]\nx = nan", "params.KVC05.x: nan is not finite"),
        ("[params.KVC05]\nx = 1e400", "params.KVC05.x: inf is not finite: a number must be from -1e+15 to 1e+15"),
        ("[params.KVC05]\nx = -2e15", "params.KVC05.x: -2e+15: a number must be from"),
        (f"[tap]\nmax_connections = {10**30}", "tap.max_connections: a number of more than 15 digits"),
        ("[review]\nprices = {h100 = inf}", "review.prices.h100: inf is not finite"),
        ("[slo]\nttft_p99_seconds = inf", "slo.ttft_p99_seconds: inf is not finite"),
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


class TestWhere:
    def test_search_order(self, folder: Path) -> None:
        env = {"HOME": str(folder / "home")}
        home = write(folder / "home/.config/kvitals/kvitals.toml", "")
        assert load(env=env).file == home
        xdg = write(folder / "xdg/kvitals/kvitals.toml", "")
        env["XDG_CONFIG_HOME"] = str(folder / "xdg")
        assert load(env=env).file == xdg
        write(folder / "kvitals.toml", "")
        assert load(env=env).file == Path("kvitals.toml")
        env["KVITALS_CONFIG"] = str(write(folder / "env.toml", ""))
        assert load(env=env).file == folder / "env.toml"
        assert load(write(folder / "given.toml", ""), env=env).file == folder / "given.toml"

    def test_a_file_that_is_named_must_be_there(self, folder: Path) -> None:
        for path, env in ((folder / "none.toml", {}), (None, {"KVITALS_CONFIG": "none.toml"})):
            with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
                load(path, env=env)

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"[agent\n", "line 1"),
            (b"\xff\xfe", "is not UTF-8"),
            (b"#" * (2 << 20), "larger than"),
            (b"x = " + b"[" * 100_000, "kvitals.toml: "),
            (b"[agent]\nport = 1_0" + b"9" * 5000, r"kvitals\.toml: integer of more than 4,300 digits.*at line 2"),
            (b"[agent]\nhosts = 0x" + b"f" * 5000, "kvitals.toml: "),
            (b"[history]\nretention = 0x" + b"f" * 5000, "kvitals.toml: "),
            (b"[params.KVC05]\nx = 0x" + b"f" * 5000, "kvitals.toml: "),
            (b"[[target]]\nurl = 0x" + b"f" * 5000, "kvitals.toml: "),
            (b"[[request_log]]\npath = 0x" + b"f" * 5000, "kvitals.toml: "),
            (b"[slo]\nttft = 0x" + b"f" * 5000, "kvitals.toml: "),
        ],
    )
    def test_unreadable(self, folder: Path, content: bytes, says: str) -> None:
        (folder / "kvitals.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=says):
            load(env={})

    def test_paths_are_relative_to_the_file(self, folder: Path) -> None:
        path = write(folder / "etc/k.toml", '[agent]\nrules = ["mine", "/abs"]\ntargets_file = "t.txt"\n')
        agent = load(path, env={}).agent
        assert agent.rules == (folder / "etc/mine", Path("/abs"))
        assert agent.targets_file == (folder / "etc/t.txt",)


class TestEnvironment:
    def test_overrides(self, folder: Path) -> None:
        write(folder / "kvitals.toml", '[agent]\nlisten = "1.1.1.1:1"\n[[target]]\nurl = "http://a"\n')
        config = load(
            env={
                "KVITALS_LISTEN": ":9000",
                "KVITALS_INTERVAL": "1s",
                "KVITALS_WINDOW": "600",
                "KVITALS_NODE": "n1",
                "KVITALS_CLUSTER": "",
                "KVITALS_TARGETS": "http://a/, b:8000  b:8000",
            }
        )
        assert config.agent.listen == ":9000"
        assert (config.agent.interval, config.agent.window) == (1.0, 600.0)
        assert (config.labels.node, config.labels.cluster) == ("n1", "")
        assert [target.url for target in config.targets] == ["http://a", "http://b:8000"]

    @pytest.mark.parametrize(
        ("variable", "value", "says"),
        [
            ("KVITALS_INTERVAL", "often", "KVITALS_INTERVAL: interval: must be a duration"),
            ("KVITALS_LISTEN", "[x]", "KVITALS_LISTEN: listen must be HOST:PORT"),
            ("KVITALS_TARGETS", "http://u:p@h", "KVITALS_TARGETS: the URL of h contains a password"),
        ],
    )
    def test_names_the_variable(self, folder: Path, variable: str, value: str, says: str) -> None:
        with pytest.raises(ConfigError, match=f"^{says}"):
            load(env={variable: value})

    def test_the_node_of_a_daemonset(self, folder: Path) -> None:
        """In a pod the host's name is the pod's, so the node's name is the label `node` as well."""
        write(folder / "kvitals.toml", "[kubernetes]\n")
        config = load(env={"NODE_NAME": "gpu-7"})
        assert config.kubernetes is not None
        assert (config.kubernetes.node, config.labels.node) == ("gpu-7", "gpu-7")
        write(folder / "kvitals.toml", '[kubernetes]\n[labels]\nnode = "seven"\n')
        config = load(env={"NODE_NAME": "gpu-8", "KVITALS_NODE": ""})
        assert config.kubernetes is not None
        assert (config.kubernetes.node, config.labels.node) == ("gpu-8", "seven")
        with pytest.raises(ConfigError, match=r"set the variable NODE_NAME from spec\.nodeName"):
            load(env={})

    def test_does_not_hide_a_broken_file(self, folder: Path) -> None:
        write(folder / "kvitals.toml", "agent = 3")
        with pytest.raises(ConfigError, match="must be a table"):
            load(env={"KVITALS_LISTEN": ":1"})


class TestTargetsFile:
    def test_lines(self, folder: Path) -> None:
        path = write(folder / "t", "# ours\nhttp://a:8000\n\n  b:8001/metrics  # the second\n")
        assert [t.url for t in read_targets(path)] == ["http://a:8000", "http://b:8001/metrics"]

    def test_file_sd(self, folder: Path) -> None:
        path = write(
            folder / "t.json",
            """[{"targets": ["a:8000", "b:8000"], "labels": {"pool": "chat", "job": "vllm"}},
                {"targets": ["d"], "labels": {"role": "gpu-node"}},
                {"targets": ["e"], "labels": {"role": "router"}},
                {"targets": ["c"], "labels": {"__scheme__": "https", "__metrics_path__": "/m"}},
                {"targets": []}]""",
        )
        targets = read_targets(path)
        assert [t.url for t in targets] == ["http://a:8000", "http://b:8000", "http://d", "http://e", "https://c/m"]
        assert [t.labels for t in targets] == [{"pool": "chat"}, {"pool": "chat"}, {}, {"role": "router"}, {}]

    @pytest.mark.parametrize(
        "text",
        [
            "http://a b",
            "[",
            "[1]",
            '[{"targets": "a"}]',
            '[{"targets": ["a"], "labels": [1]}]',
            '[{"targets": [{}]}]',
            "[" * 100_000,
        ],
    )
    def test_broken(self, folder: Path, text: str) -> None:
        path = write(folder / "t", text)
        with pytest.raises(ConfigError, match="^" + re.escape(str(path))):
            read_targets(path)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("http://a\n\nhttp://b c\n", "line 3: 'http://b c' is not the URL"),
            ("http://http://a:8000", "line 1: 'http://http://a:8000' is not the URL"),
            ('{"targets": ["a"]}', "must be a list, "),
            ("[\n" + "9" * 5000 + "]", r"integer of more than 4,300 digits: write a smaller number \(at line 2\)"),
            ('[{"targets": ["http://a:8000"]}]', "'http://a:8000' must be HOST:PORT; set its scheme with the label"),
        ],
    )
    def test_what_is_broken_is_said_with_its_place(self, folder: Path, text: str, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            read_targets(write(folder / "t", text))

    def test_missing(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="No such file"):
            read_targets(folder / "t")


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


@pytest.mark.parametrize("part", ["a", '"a b"', "'a' ", " a\t"])
@pytest.mark.parametrize("form", ["{}=1", "[{}]", "x={{{}=1}}"])
def test_a_key_of_many_parts_is_an_error_before_it_is_parsed(tmp_path: Path, part: str, form: str) -> None:
    file = tmp_path / "kvitals.toml"
    file.write_text("# a comment\n" + form.format(".".join([part] * 100_000)))
    began = time.process_time()
    with pytest.raises(ConfigError, match="line 2: a key may have at most 64 parts"):
        load(file, {})
    assert time.process_time() - began < 5.0


def test_dots_in_values_are_not_parts_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "kvitals.toml"
    urls = ", ".join(f'"http://10.0.{i // 250}.{i % 250}:8000"' for i in range(1000))
    file.write_text(f"x = [{urls}]")
    with pytest.raises(ConfigError, match="x"):
        load(file, {})


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
