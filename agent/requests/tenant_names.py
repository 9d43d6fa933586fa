"""Tenants: whose a request is, as a pseudonym that only this installation can make and only its memory can resolve.

    tenants, said = open_tenants(config.tenants)      # reads the key, or makes one
    tenants.pseudonym("acme")                         # t-5kq2v7ndm3
    tenants.of_key("Bearer sk-...")                   # k-...; what the key is, nobody can ask
    tenants.of_headers(headers, "10.1.2.3")           # the tap's way: only what a gateway sent counts
    tenants.of_attributes(attributes)                 # of a span
    tenants.resolve("t-5kq2v7ndm3")                   # "acme", while it is remembered

A pseudonym is a keyed hash. Without the key a capture tells whose requests belong together and no names, and two
installations name the same tenant differently. The empty text is an unknown tenant, everywhere.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import secrets
import stat
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b, sha256
from pathlib import Path

from kvitals.agent.paths import state_directory
from kvitals.config import ConfigError, TenantsTable
from kvitals.series.files import open_regular

KEY_BYTES = 32
KEY_VARIABLE = "KVITALS_TENANT_KEY_FILE"
MAX_KEY_FILE_BYTES = 4096

MAX_NAME = 128
"""Characters of a name that can be shown. A longer one, such as a token, has its pseudonym and nothing else."""

MAX_RAW = 8192
"""Characters of which a pseudonym is made; what is longer is no tenant."""

MAX_NAMES = 50_000
"""Names that are remembered, the ones seen last."""

ANONYMOUS = frozenset(("", "-", "null", "(null)", "none", "nil", "undefined", "unknown", "anonymous"))
"""What programs write where there is no tenant, in lower case."""

RESERVED = frozenset(("other", "shared", "unattributed"))
"""What series say in place of a tenant; a tenant of that name has its pseudonym, also where names are plain."""

CREDENTIALS = frozenset(("authorization", "proxy-authorization", "x-api-key", "api-key"))
"""Headers that hold a key: who sends it has proved who they are to whom checks it, whatever stands between."""

_PSEUDONYM = re.compile(r"[tk]-[a-z2-7]{10}")
_SECRET = re.compile(r"(bearer|basic)\s+\S{16,}\s*\Z|sk-[\w-]{16,}|eyJ[\w-]{16,}\.|[0-9a-f]{64}\s*\Z", re.IGNORECASE)
_SCHEME = re.compile(r"(bearer|basic)\s+", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.IGNORECASE)


@dataclass(slots=True)
class _Seen:
    """A name in memory."""

    pseudonym: str
    name: str
    at: float  # when it was seen last, by the clock


class TenantNames:
    """Names to pseudonyms, and back while they are remembered. For several threads at a time."""

    def __init__(self, config: TenantsTable, key: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        """`key` is the installation's; `clock` tells seconds."""
        self._key = blake2b(key, digest_size=KEY_BYTES).digest()
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, _Seen] = OrderedDict()  # by the name as it came in; the one seen last is last
        self._raw: dict[str, str] = {}  # pseudonym -> the name as it came in
        self.configure(config)

    def configure(self, config: TenantsTable) -> None:
        """Take another configuration. Records keep the names that they have."""
        self._plain = config.names == "plain"
        self._ttl = float(config.ttl)
        self._headers = config.headers
        self._attributes = config.attributes
        self._gateways = config.gateways
        with self._lock:
            self._seen.clear()  # what is plain may have changed
            self._raw.clear()
        self._classes = {
            one if _PSEUDONYM.fullmatch(one) else self.pseudonym(one): name
            for name, members in config.classes.items()
            for one in members
        }

    def pseudonym(self, raw: str) -> str:
        """What stands for a tenant; the name itself where names are plain, and empty for an anonymous one.

        What looks like a key or token counts as one (see `of_key`), wherever it was found.
        """
        with self._lock:
            seen = self._seen.get(raw)
            if seen is not None:
                seen.at = self._clock()
                self._seen.move_to_end(raw)
                return seen.pseudonym
        if len(raw) > MAX_RAW:
            return ""
        if _SECRET.match(raw.lstrip()):
            return self.of_key(raw)
        name = normal(raw)
        if name.lower() in ANONYMOUS:
            return ""
        if len(name) > MAX_NAME:
            return f"t-{self._hash(name, b'tenant')}"
        plain = self._plain and name not in RESERVED and not _PSEUDONYM.fullmatch(name)
        return self._remember(raw, name, name if plain else f"t-{self._hash(name, b'tenant')}")

    def of_key(self, secret: str) -> str:
        """What stands for whoever sent an API key, with or without `Bearer`. It can not be resolved.

        LiteLLM tells the SHA-256 of a key in its place: both give the same.
        """
        bare = _SCHEME.sub("", normal(secret), count=1)
        if bare.lower() in ANONYMOUS or len(bare) > MAX_RAW:
            return ""
        hashed = bare.lower() if _SHA256.fullmatch(bare) else sha256(bare.encode()).hexdigest()
        return f"k-{self._hash(hashed, b'key')}"

    def session(self, raw: str) -> str:
        """What stands for a session or conversation. It can not be resolved."""
        name = normal(raw)
        if name.lower() in ANONYMOUS or len(name) > MAX_RAW:
            return ""
        return sys.intern(f"s-{self._hash(name, b'session')}")  # tens of thousands of records share it

    def of_headers(self, headers: Mapping[str, str], peer: str) -> str:
        """The tenant of a request that came from address `peer`, by the first of the trusted headers that tells it.

        A name counts only from a configured gateway, since anybody can send one. A key counts from anybody.
        `headers` finds names whatever their case, as HTTP libraries' mappings do.
        """
        for header in self._headers:
            value = headers.get(header, "")
            if not value:
                continue
            if header in CREDENTIALS and (found := self.of_key(value)):
                return found
            if header not in CREDENTIALS and self.trusts(peer) and (found := self.pseudonym(value)):
                return found
        return ""

    def of_attributes(self, attributes: Mapping[str, object]) -> str:
        """The tenant of a span, by the first of the configured attributes that tells it."""
        for attribute in self._attributes:
            value = attributes.get(attribute)
            if isinstance(value, str | int) and not isinstance(value, bool) and (found := self.pseudonym(str(value))):
                return found
        return ""

    def trusts(self, peer: str) -> bool:
        """Whether an address is a gateway's, whose word on tenants counts."""
        return _within(peer, self._gateways)

    def class_of(self, tenant: str) -> str:
        """The class of a tenant, by what stands for it; empty where it has none."""
        return self._classes.get(tenant, "") if tenant else ""

    def subkey(self, use: bytes) -> bytes:
        """A key of this installation for one other use, such as hashes of blocks: 32 bytes."""
        return blake2b(use, key=self._key, person=b"subkey", digest_size=KEY_BYTES).digest()

    def resolve(self, pseudonym: str) -> str | None:
        """The name behind a pseudonym, for loopback and the terminal only; None where it is not remembered."""
        if self._plain and not _PSEUDONYM.fullmatch(pseudonym):
            return pseudonym
        with self._lock:
            seen = self._seen.get(self._raw.get(pseudonym, ""))
            return seen.name if seen and seen.at >= self._clock() - self._ttl else None

    def _remember(self, raw: str, name: str, pseudonym: str) -> str:
        with self._lock:
            now = self._clock()
            while self._seen and (len(self._seen) >= MAX_NAMES or next(iter(self._seen.values())).at < now - self._ttl):
                old, gone = self._seen.popitem(last=False)
                if self._raw.get(gone.pseudonym) == old:
                    del self._raw[gone.pseudonym]
            if len(raw) <= MAX_NAME:
                self._seen[raw], self._raw[pseudonym] = _Seen(pseudonym, name, now), raw
        return pseudonym

    def _hash(self, text: str, use: bytes) -> str:
        """50 bits: among 100,000 tenants two are alike with a chance of 4 in a million; 8 hex digits: more likely
        than not."""
        digest = blake2b(text.encode(), key=self._key, person=use, digest_size=7).digest()
        return base64.b32encode(digest).decode()[:10].lower()


def classes_as_listed(config: TenantsTable) -> dict[str, str]:
    """Tenant -> class, by what the configuration calls the tenant: all that is known without the installation's key."""
    return {member: name for name, members in config.classes.items() for member in members}


def normal(raw: str) -> str:
    """A name without space around it and without what can not be printed, such as control characters."""
    printable = raw if raw.isprintable() else "".join(c for c in raw if c.isprintable())
    return printable.strip()


def open_tenants(config: TenantsTable, env: Mapping[str, str] = os.environ) -> tuple[TenantNames, list[str]]:
    """Tenants with this installation's key, and what to tell the user.

    The key is the file that the environment names, which must be there (else ConfigError), or one in the state
    directory that is made once. Where that can not be written the key lasts as long as this process.
    """
    if named := env.get(KEY_VARIABLE):
        return TenantNames(config, read_key(Path(named))), []
    path = state_directory(env) / "tenant.key"
    try:
        return TenantNames(config, read_key(path) if path.exists() else make_key(path)), []
    except OSError as error:
        told = f"{path}: cannot be written ({error.strerror}), so tenants have other pseudonyms after a restart: make"
        return TenantNames(config, secrets.token_bytes(KEY_BYTES)), [
            f"{told} the folder writable, or set {KEY_VARIABLE}"
        ]


def tenants_of_one_look(config: TenantsTable, env: Mapping[str, str] = os.environ) -> TenantNames:
    """Tenants with this installation's key where it has one, else with one of the moment. Writes nothing. Raises
    ConfigError."""
    named = env.get(KEY_VARIABLE)
    path = Path(named) if named else state_directory(env) / "tenant.key"
    return TenantNames(config, read_key(path) if named or path.exists() else secrets.token_bytes(KEY_BYTES))


def read_key(path: Path) -> bytes:
    """The key in a file. Raises ConfigError, saying what to do."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: the key of tenants' pseudonyms cannot be read: {error.strerror}") from error
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ConfigError(
            f"{path}: others can read or change the key of tenants' pseudonyms: chmod 600 it (for a Kubernetes "
            "secret: defaultMode: 0440)"
        )
    if not KEY_BYTES <= len(key) <= MAX_KEY_FILE_BYTES:
        raise ConfigError(
            f"{path}: the key of tenants' pseudonyms must have {KEY_BYTES} to {MAX_KEY_FILE_BYTES} random "
            f"bytes: create it with head -c 32 /dev/urandom"
        )
    return key


def make_key(path: Path) -> bytes:
    """A new key in a file of its own, or the one that another process made meanwhile. Raises OSError, ConfigError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 (a descriptor)
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(part)  # as a whole, and never over one that there is
    except FileExistsError:
        pass
    finally:
        part.unlink(missing_ok=True)
    return read_key(path)


@lru_cache(maxsize=1024)
def _within(peer: str, networks: Sequence[str]) -> bool:
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in ipaddress.ip_network(network) for network in networks)
