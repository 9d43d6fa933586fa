"""Which sources there are and how each is opened. A place is a short text: `agent`, `demo:few_slots`, `file:1f0c...`.

Places are in links, which others send. So a link can name what this page was started with, what ships, and what was
uploaded to this very process; an address that somebody typed is known in their session alone.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kvitals.app.demo import incidents, incidents_with_kv_events
from kvitals.app.page_settings import PageSettings, read
from kvitals.app.pipeline import Setup
from kvitals.config import Config, ConfigError
from kvitals.config import load as load_config
from kvitals.rules.loader import Knowledge, KnowledgeError
from kvitals.rules.loader import load as load_knowledge
from kvitals.series.history.schema import FILE
from kvitals.ui.web.failure import Failure, UnansweredError
from kvitals.ui.web.sources.agent import AgentSource
from kvitals.ui.web.sources.base import PageSource, PageWindow
from kvitals.ui.web.sources.recording import Recording
from kvitals.ui.web.sources.server import Server

AGENT, RECORDING, PROMETHEUS = "agent", "recording", "prometheus"
DEMO, UPLOAD, TYPED_AGENT, TYPED_SERVER = "demo:", "file:", "agent:", "prometheus:"
MAX_RECORDINGS = 3
"""In memory; the one that was not looked at for longest leaves."""

MAX_SERVERS = 4
MAX_UPLOADS = 8
MAX_URL = 300
DEMOS = {
    "eviction_cascade": "Evictions cause more evictions: blocks, tenants, requests",
    "heavy_tenant": "Long generations of one tenant fill the KV cache",
    "few_slots": "Requests wait for slots while the cache has free blocks",
    "caching_off": "Prefix caching is off, and no first token is late: a note",
    "working_set": "The reused blocks do not fit into the cache, and no first token is late: a note",
    "unique_prompts": "Prompts without shared prefixes",
    "healthy": "No problem",
}
"""What each incident that ships is about."""
_names: dict[str, str] = {}  # of uploads
_uploads: OrderedDict[str, Path] = OrderedDict()
_recordings: OrderedDict[str, Recording] = OrderedDict()
_servers: OrderedDict[str, Server] = OrderedDict()
_lock = threading.Lock()


def knowledge() -> Knowledge:
    """What is known, the user's own rules included. Raises UnansweredError."""
    return setup().knowledge


def setup() -> Setup:
    """How recordings are judged. Raises UnansweredError."""
    return _setup(read().encode())


@lru_cache(maxsize=2)
def _setup(encoded: str) -> Setup:
    settings = msgspec.json.decode(encoded, type=PageSettings)
    try:
        config = _configuration(settings)
        directories = (*(Path(one) for one in settings.rules), *config.agent.rules)
        known = load_knowledge(directories)
        slo = msgspec.structs.replace(config.slo, **{f"{n}_seconds": v for n, v in settings.slo.items()})
    except (ConfigError, KnowledgeError, ValueError, TypeError) as error:
        raise UnansweredError(
            Failure("The configuration is invalid", str(error), "Fix it and start the page again.")
        ) from error
    sources = dict.fromkeys(settings.slo, "command line")
    return Setup(known, msgspec.structs.replace(config, slo=slo), sources, directories)


def _configuration(settings: PageSettings) -> Config:
    return load_config(Path(settings.config) if settings.config else None)


def first() -> str:
    """What is shown when nothing was chosen."""
    settings = read()
    return RECORDING if settings.recording else PROMETHEUS if settings.prometheus else AGENT


def offered_places() -> dict[str, str]:
    """Places that anyone may choose, and what they are called."""
    settings = read()
    found = {AGENT: f"Agent {settings.agent}"}
    if settings.recording:
        found[RECORDING] = f"Recording {Path(settings.recording).name}"
    if settings.prometheus:
        found[PROMETHEUS] = f"Prometheus {settings.prometheus}"
    found |= {place: path.stem.replace("_", " ") for place, path in demos().items()}
    with _lock:
        return found | {place: _names[place] for place in _uploads}


@cache
def demos() -> Mapping[str, Path]:
    """The incidents that ship, by place, what is worst first. They stay while a process runs, and every page asks five
    times."""
    paths = {path.stem: path for path in (*incidents(), *incidents_with_kv_events())}
    order = [*(name for name in DEMOS if name in paths), *sorted(paths.keys() - DEMOS.keys())]
    return {f"{DEMO}{name}": paths[name] for name in order}


def is_known(place: str) -> bool:
    """Whether a link may name it."""
    return place in offered_places()


def upload(name: str, data: bytes) -> str:
    """Keep a file that somebody sent, for as long as this process lives; its place."""
    place = UPLOAD + hashlib.sha256(data).hexdigest()[:16]
    with _lock:
        if place not in _uploads:
            path = _folder() / f"{place.removeprefix(UPLOAD)}.kvcap"
            path.write_bytes(data)
            _uploads[place] = path
            _names[place] = name[:100]
        _uploads.move_to_end(place)
        while len(_uploads) > MAX_UPLOADS:
            old, path = _uploads.popitem(last=False)
            path.unlink(missing_ok=True)
            _names.pop(old, None)
            if old in _recordings:
                _recordings.pop(old).close()
    return place


def file_of(place: str) -> Path | None:
    """The recording behind a place, if it is one."""
    settings = read()
    if place == RECORDING and settings.recording:
        return Path(settings.recording)
    if place.startswith(DEMO):
        return demos().get(place)
    with _lock:
        return _uploads.get(place)


def arguments(place: str) -> list[str]:
    """The same source as the command line names it, with how it is judged. Raises UnansweredError."""
    settings = read()
    path = file_of(place)
    if place == AGENT:
        history = _history(settings)
        source = [str(history) if history is not None else settings.agent]
    elif path is not None:
        source = [str(path)]
    elif place == PROMETHEUS:
        source = [f"--prometheus={settings.prometheus}"]
    elif settings.may_type and place.startswith(TYPED_AGENT):
        source = [check_url(place.removeprefix(TYPED_AGENT))]
    elif settings.may_type and place.startswith(TYPED_SERVER):
        source = [f"--prometheus={check_url(place.removeprefix(TYPED_SERVER))}"]
    else:
        raise UnansweredError(_gone(place))
    return [*source, *judging_options()]


def judging_options() -> list[str]:
    """How this page was told to judge, as options."""
    settings = read()
    told = [f"--config={settings.config}"] if settings.config else []
    told += [f"--rules={one}" for one in settings.rules]
    return [*told, *(f"--slo={name.removesuffix('_p99')}={seconds!r}s" for name, seconds in settings.slo.items())]


def place_name(place: str) -> str:
    """What a place is called."""
    return offered_places().get(place) or place.partition(":")[2] or place


def check_url(url: str) -> str:
    """An address that somebody typed, made whole. Raises UnansweredError."""
    url = url.strip().rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.username
    except ValueError:
        good = False
    if not good or len(url) > MAX_URL:
        raise UnansweredError(
            Failure("This is not an address", url[:MAX_URL], "Write it as http://HOST:PORT, without user and password.")
        )
    return url


def open_source(place: str) -> PageSource:
    """The source behind a place. Raises UnansweredError."""
    settings = read()
    if place == AGENT:
        return AgentSource(settings.agent, setup, _history(settings))
    if place == PROMETHEUS:
        return _server(settings.prometheus)
    if settings.may_type and place.startswith(TYPED_AGENT):
        return AgentSource(check_url(place.removeprefix(TYPED_AGENT)), setup)
    if settings.may_type and place.startswith(TYPED_SERVER):
        return _server(check_url(place.removeprefix(TYPED_SERVER)))
    path = file_of(place)
    if path is None:
        raise UnansweredError(_gone(place))
    return _recording(place, path, _names.get(place, path.name))


@dataclass(frozen=True)
class Progress:
    """How far an answer is: the share that is done where it is known, else the seconds since it began."""

    share: float | None
    seconds: float = 0.0

    @property
    def done(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.share is not None and self.share >= 1


def progress(place: str, look: PageWindow | None) -> Progress:
    """How far a source is with its verdict on a window. Raises UnansweredError."""
    source = open_source(place)
    if isinstance(source, Recording):
        return Progress(source.replayed())
    if isinstance(source, Server) and (seconds := source.judged_for(look)):
        return Progress(None, seconds)
    return Progress(1.0)


def _gone(place: str) -> Failure:
    return Failure("This source is gone", place[:MAX_URL], "Choose another source under Sources, or upload it again.")


def _recording(place: str, path: Path, name: str) -> Recording:
    """Replayed once, however many ask at the same time."""
    with _lock:
        if place in _recordings:
            _recordings.move_to_end(place)
            return _recordings[place]
    made = Recording(path, name, setup())
    with _lock:
        found = _recordings.setdefault(place, made)
        while len(_recordings) > MAX_RECORDINGS:
            _recordings.popitem(last=False)[1].close()
    if found is not made:
        made.close()
    return found


def _server(url: str) -> Server:
    """The same for all viewers, since it keeps what it judged."""
    with _lock:
        server = _servers.setdefault(url, Server(url, setup))
        _servers.move_to_end(url)
        while len(_servers) > MAX_SERVERS:
            _servers.popitem(last=False)
        return server


def _history(settings: PageSettings) -> Path | None:
    if not settings.history:
        return None
    place = Path(settings.history)
    path = place / FILE if place.is_dir() else place
    return path if path.exists() else None


@lru_cache(maxsize=1)
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="kvitals-web-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def forget() -> None:
    """Without what was uploaded and replayed, as a process that just started."""
    with _lock:
        for one in _recordings.values():
            one.close()
        _recordings.clear()
        _servers.clear()
        _uploads.clear()
        _names.clear()
