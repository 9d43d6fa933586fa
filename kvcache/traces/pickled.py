"""SGLang's request dumps, which are Python pickles.

A pickle names functions that its reader calls. This reader resolves no name: each becomes a class without behaviour, so
that nothing of the file runs. It uses the interpreter's own unpickler in Python, which allocates no more than what the
file holds, unlike the one in C.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any

from kvitals.kvcache.traces.prompts import HashedPrompt
from kvitals.kvcache.traces.request import TraceError, TraceRequest, TraceUnits

MAX_BYTES = 64 << 20
"""Of a dump."""
MAX_MEMORY = 256 << 20
"""Bytes that the values of a dump take in memory, as estimated by their operations. A container of a byte takes 64, and
its place in the unpickler's memo 100."""
VALUE_BYTES = 40
CONTAINER_BYTES = 200
_CONTAINERS = b"".join(
    (pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.EMPTY_SET, pickle.EMPTY_TUPLE, pickle.DICT, pickle.LIST,
     pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.FROZENSET, pickle.MARK, pickle.OBJ, pickle.INST,
     pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.REDUCE, pickle.BUILD, pickle.GLOBAL, pickle.STACK_GLOBAL,
     pickle.MEMOIZE, pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT)
)  # fmt: skip
"""Operations after which a container or a place in the memo is there."""
UNITS = TraceUnits("SGLang request dump", "s", 16, fixed=True)


def read_pickled(data: bytes, name: str) -> Iterator[TraceRequest]:
    """The requests of a dump: `{"requests": [(request, output, created, finished), ...]}`, or the list alone.

    Raises TraceError.
    """
    if len(data) > MAX_BYTES:
        raise TraceError(f"{name}: a SGLang dump of more than {MAX_BYTES >> 20} MB; dump fewer requests into a file")
    try:
        dump = _unpickle(data, name)
        entries = dump.get("requests") if isinstance(dump, dict) else dump
        if not isinstance(entries, list):
            raise TraceError(f"{name}: a pickle that contains no list of requests; expected a SGLang request dump")
        for number, entry in enumerate(entries, 1):
            yield _request(entry, f"{name}: request {number}")
    except TraceError:
        raise
    except Exception as error:  # a pickle can be broken in any way
        raise TraceError(f"{name}: not a SGLang request dump: {type(error).__name__}: {error}") from error


def _unpickle(data: bytes, file: str) -> Any:
    class Inert:
        """Stands for every class and function that the file names."""

        def __new__(cls, *_: object, **__: object) -> Inert:
            return super().__new__(cls)

    class Unpickler(pickle._Unpickler):
        dispatch = _Bounded(pickle._Unpickler.dispatch, file)

        def find_class(self, _module: str, _name: str) -> type:
            return Inert

    return Unpickler(io.BytesIO(data)).load()


class _Bounded(dict[int, Any]):
    """The unpickler's functions by operation, for so much memory. Raises TraceError beyond it."""

    def __init__(self, functions: dict[int, Any], file: str) -> None:
        super().__init__(functions)
        self._file = file
        self._left = MAX_MEMORY

    def __getitem__(self, operation: int) -> Any:
        self._left -= CONTAINER_BYTES if operation in _CONTAINERS else VALUE_BYTES
        if self._left < 0:
            raise TraceError(
                f"{self._file}: a SGLang dump whose values take more than {MAX_MEMORY >> 20} MB of memory; dump fewer "
                f"requests into a file"
            )
        return super().__getitem__(operation)


def _request(entry: Any, where: str) -> TraceRequest:
    if not isinstance(entry, tuple | list) or len(entry) < 3:
        raise TraceError(f"{where}: expected a tuple of request, output and time")
    asked, answer, created = getattr(entry[0], "__dict__", {}), entry[1], entry[2]
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    meta = meta if isinstance(meta, dict) else {}
    ids, text = asked.get("input_ids"), asked.get("text")
    prompt = HashedPrompt()
    if isinstance(ids, list) and all(isinstance(id_, int) for id_ in ids):
        prompt.extend_ids(ids)
    elif isinstance(text, str):
        prompt.extend(text)
    session = asked.get("session_params")
    return TraceRequest(
        time=float(created),
        tokens=_count(meta.get("prompt_tokens"), prompt.tokens),
        output=_count(meta.get("completion_tokens"), None),
        chain=prompt.chain,
        session=str(session["id"]) if isinstance(session, dict) and session.get("id") else None,
    )


def _count(value: object, otherwise: Any) -> Any:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise
