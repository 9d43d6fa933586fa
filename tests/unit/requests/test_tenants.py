"""Tenants: what stands for them, who is believed, what is remembered, and the key."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.requests import tenant_names as module
from kvitals.agent.requests.tenant_names import MAX_NAME, MAX_RAW, TenantNames, make_key, normal, open_tenants, read_key
from kvitals.config import ConfigError, TenantsTable

KEY = bytes(range(32))


class Clock:
    t = 1000.0

    def __call__(self) -> float:
        return self.t


def made(key: bytes = KEY, **config: object) -> TenantNames:
    return TenantNames(TenantsTable(**config), key)  # type: ignore[arg-type]


def test_a_pseudonym_is_short_stable_and_of_this_installation() -> None:
    one = made().pseudonym("acme")
    assert re.fullmatch(r"t-[a-z2-7]{10}", one)
    assert one == made().pseudonym("acme") == made().pseudonym("  acme\n")
    assert len({one, made().pseudonym("Acme"), made().pseudonym("acme2"), made(bytes(32)).pseudonym("acme")}) == 4


def test_many_tenants_have_as_many_pseudonyms() -> None:
    tenants = made()
    assert len({tenants.pseudonym(f"tenant-{n}") for n in range(100_000)}) == 100_000


@pytest.mark.parametrize("raw", ["", " ", "-", "null", "None", "ANONYMOUS", "(null)", "\x00", "a" * (MAX_RAW + 1)])
def test_what_names_nobody_is_unknown(raw: str) -> None:
    tenants = made()
    assert tenants.pseudonym(raw) == tenants.of_key(raw) == tenants.session(raw) == ""
    assert tenants.class_of("") == ""


@given(st.text(max_size=300))
def test_whatever_a_name_is_what_stands_for_it_is_safe(raw: str) -> None:
    tenants = made()
    assert re.fullmatch(r"([tk]-[a-z2-7]{10})?", tenants.pseudonym(raw))
    plain = made(names="plain").pseudonym(raw)
    assert plain.isprintable() and len(plain) <= MAX_NAME and plain == plain.strip()
    assert normal(raw).isprintable()


def test_a_name_is_resolved_while_it_is_remembered() -> None:
    clock = Clock()
    tenants = TenantNames(TenantsTable(), KEY, clock)
    acme, bolt = tenants.pseudonym("acme"), tenants.pseudonym(" bolt\x07 ")
    assert (tenants.resolve(acme), tenants.resolve(bolt), tenants.resolve("t-aaaaaaaaaa")) == ("acme", "bolt", None)
    clock.t += 20 * 3600
    assert tenants.pseudonym("acme") == acme
    clock.t += 20 * 3600
    assert (tenants.resolve(acme), tenants.resolve(bolt)) == ("acme", None)
    clock.t += 25 * 3600
    assert tenants.resolve(acme) is None
    assert tenants.pseudonym("acme") == acme and tenants.resolve(acme) == "acme"


def test_only_the_names_seen_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NAMES", 3)
    tenants = made()
    first = {name: tenants.pseudonym(name) for name in "abc"}
    tenants.pseudonym("a")
    first["d"] = tenants.pseudonym("d")
    assert {name: tenants.resolve(p) for name, p in first.items()} == {"a": "a", "b": None, "c": "c", "d": "d"}
    assert tenants.pseudonym("b") == first["b"]


def test_a_name_written_in_two_ways_is_resolved_by_either() -> None:
    tenants = made()
    assert tenants.pseudonym("acme") == tenants.pseudonym("acme ")
    assert tenants.resolve(tenants.pseudonym("acme")) == "acme"


def test_plain_names() -> None:
    tenants = made(names="plain", classes={"gold": ["acme"]})
    assert (tenants.pseudonym(" acme "), tenants.resolve("acme"), tenants.class_of("acme")) == ("acme", "acme", "gold")
    for reserved in ("other", "shared", made().pseudonym("acme"), "a" * (MAX_NAME + 1)):
        assert re.fullmatch(r"t-[a-z2-7]{10}", tenants.pseudonym(reserved))
    assert tenants.resolve(tenants.pseudonym("other")) == "other"


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghijklmnop",
        "Bearer abcdefghijklmnopqrstu",
        "Basic dXNlcjpwYXNzd29yZDEyMw==",
        "eyJhbGciOiJIUzI1NiIsInR5cCI.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2ln",
        sha256(b"sk-1234").hexdigest(),
    ],
)
@pytest.mark.parametrize("names", ["pseudonym", "plain"])
def test_a_key_is_never_kept_or_shown(secret: str, names: Literal["pseudonym", "plain"]) -> None:
    tenants = made(names=names)
    found = tenants.pseudonym(secret)
    assert re.fullmatch(r"k-[a-z2-7]{10}", found)
    assert found == tenants.of_key(secret) == tenants.pseudonym(f" {secret} ")
    assert tenants.resolve(found) is None
    assert secret.split()[-1] not in repr(vars(tenants))


def test_ordinary_names_are_no_keys() -> None:
    assert all(made().pseudonym(name).startswith("t-") for name in ("sk-telecom", "bearer inc", "Basic Foods", "eyJ"))


def test_a_key_is_the_same_in_every_header_and_as_its_hash() -> None:
    tenants = made()
    found = {
        tenants.of_key(s) for s in ("sk-1234", "Bearer sk-1234", "bearer  sk-1234", sha256(b"sk-1234").hexdigest())
    }
    assert len(found) == 1
    assert tenants.of_key("sk-1235") not in found


def test_a_header_counts_only_from_a_gateway() -> None:
    tenants = made(gateways=["10.0.0.0/8", "fd00::/8"])
    headers = {"x-tenant-id": "acme"}
    acme = tenants.pseudonym("acme")
    for peer in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1"):
        assert tenants.of_headers(headers, peer) == acme
    for peer in ("127.0.0.1", "11.0.0.1", "", "unix:", "10.0.0.1, 8.8.8.8"):
        assert tenants.of_headers(headers, peer) == ""
    assert made().of_headers(headers, "127.0.0.1") == made().of_headers(headers, "::1") == acme


def test_headers_in_order_and_a_key_from_anybody() -> None:
    tenants = made(headers=["X-Tenant-ID", "x-team", "authorization"], gateways=["10.0.0.1"])
    key = {"authorization": "Bearer sk-1234"}
    assert tenants.of_headers({"x-team": "t", "x-tenant-id": "acme"}, "10.0.0.1") == tenants.pseudonym("acme")
    assert tenants.of_headers({"x-team": "t", "x-tenant-id": "-"}, "10.0.0.1") == tenants.pseudonym("t")
    assert tenants.of_headers({"x-team": "t", **key}, "8.8.8.8") == tenants.of_key("sk-1234")
    assert tenants.of_headers(key | {"x-other": "acme"}, "10.0.0.1") == tenants.of_key("sk-1234")
    assert tenants.of_headers({}, "10.0.0.1") == ""


def test_attributes_in_order() -> None:
    tenants = made()
    assert tenants.of_attributes({"user.id": "u", "tenant.id": "acme"}) == tenants.pseudonym("acme")
    assert tenants.of_attributes({"user.id": 42, "tenant.id": ""}) == tenants.pseudonym("42")
    assert tenants.of_attributes({"user.id": True, "tenant.id": ["a"], "tenant": "acme"}) == ""


def test_sessions_are_hashed_apart_from_tenants() -> None:
    tenants = made()
    session = tenants.session("acme")
    assert re.fullmatch(r"s-[a-z2-7]{10}", session)
    assert session[2:] != tenants.pseudonym("acme")[2:]
    assert tenants.resolve(session) is None


def test_classes_by_name_by_key_and_by_pseudonym() -> None:
    bolt = made().pseudonym("bolt")
    tenants = made(classes={"gold": ["acme", "sk-abcdefghijklmnop"], "trial": [bolt]})
    assert (
        tenants.class_of(tenants.pseudonym("acme")) == tenants.class_of(tenants.of_key("sk-abcdefghijklmnop")) == "gold"
    )
    assert tenants.class_of(tenants.pseudonym("bolt")) == "trial"
    assert tenants.class_of(tenants.pseudonym("cord")) == tenants.class_of("acme") == ""
    tenants.configure(TenantsTable())
    assert tenants.class_of(tenants.pseudonym("acme")) == ""


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    file = tmp_path / "state" / "kvitals" / "tenant.key"
    first, said = open_tenants(TenantsTable(), env)
    assert not said
    assert len(file.read_bytes()) == 32 and file.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in file.parent.iterdir()] == ["tenant.key"]
    again, _ = open_tenants(TenantsTable(), env)
    assert first.pseudonym("acme") == again.pseudonym("acme")
    assert make_key(file) == read_key(file)  # who comes second takes what there is


def test_without_a_place_for_the_key_it_lasts_as_long_as_the_process(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, where a folder should be")
    tenants, said = open_tenants(TenantsTable(), {"XDG_STATE_HOME": str(tmp_path / "state")})
    assert tenants.pseudonym("acme").startswith("t-")
    assert len(said) == 1 and "KVITALS_TENANT_KEY_FILE" in said[0]


def test_a_key_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "key"
    env = {"KVITALS_TENANT_KEY_FILE": str(file), "HOME": str(tmp_path)}
    with pytest.raises(ConfigError, match="cannot be read"):
        open_tenants(TenantsTable(), env)
    file.write_bytes(b"short")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="32 to 4096 random bytes"):
        open_tenants(TenantsTable(), env)
    file.write_bytes(KEY)
    assert open_tenants(TenantsTable(), env)[0].pseudonym("acme") == made().pseudonym("acme")
    file.chmod(0o440)
    assert read_key(file) == KEY
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        open_tenants(TenantsTable(), env)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"names": "hidden"}, None),
        ({"headers": ["x tenant"]}, "not the name of a header"),
        ({"gateways": ["10.0.0.0/33"]}, "not an address or network"),
        ({"attributes": [""]}, "one line of 1 to 200"),
        ({"classes": {"gold": ["a"], "free": ["a"]}}, "remove it from one of them"),
        ({"classes": {"g*": ["a"]}}, "without"),
        ({"classes": {"gold": ["a\nb"]}}, "list tenants"),
        ({"classes": {"gold": [str(n) for n in range(10_001)]}}, "at most 10000 tenants"),
        ({"headers": ["a"] * 33}, "at most 32 entries"),
        ({"top": 0}, "top must be"),
        ({"ttl": 1}, "ttl must be"),
    ],
)
def test_a_wrong_table_is_refused(table: dict[str, object], problem: str | None) -> None:
    from kvitals.config import build

    with pytest.raises(ConfigError, match=problem or r"\[tenants\]"):
        build({"tenants": table})


def test_records_of_one_session_share_its_pseudonym() -> None:
    """Tens of thousands of records are in memory; each had a text of its own."""
    names = TenantNames(TenantsTable(), KEY)
    assert names.session("chat-1") is names.session("chat-1")
