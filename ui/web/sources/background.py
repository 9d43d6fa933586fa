"""Judging that takes longer than a reader waits: in threads, with the last answer at hand. All viewers share it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from kvitals.rules.finding import Triage
from kvitals.ui.web.failure import NotYetError, UnansweredError
from kvitals.ui.web.sources.base import PageWindow

MAX_AT_ONCE = 2
"""Judgements of one source at the same time."""

MAX_KEPT = 16
"""Answers, each a document of up to some megabytes; the one that was not asked for longest leaves."""

REST_SHARE = 2.0
"""A source that takes 10 s to be judged is judged again 20 s after it at the earliest: it has other readers too."""

LEAST_REST_SECONDS, OLD_SECONDS = 5.0, 300.0
PATIENCE_SECONDS = 1.0
"""How long a question waits for its first answer before the reader sees that it is under way."""


@dataclass(frozen=True)
class _Answer:
    result: Triage | Exception
    at: float  # when it was there, by the monotonic clock
    took: float  # seconds


class BackgroundJudge:
    """Gives the last verdict at once, and has a thread make the next one while somebody asks.

    A page change never waits for a judgement that was made before; the first one raises NotYetError until it is there.
    """

    def __init__(
        self, judge: Callable[[PageWindow | None], Triage], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`judge`: makes the verdict on a window, of None the present one. It runs in threads."""
        self._judge = judge
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: OrderedDict[PageWindow | None, _Answer] = OrderedDict()
        self._running: dict[PageWindow | None, tuple[float, threading.Event]] = {}

    def verdict(self, window: PageWindow | None) -> Triage:
        """The last verdict. Raises NotYetError while the first is made, UnansweredError where the last try failed."""
        with self._lock:
            answer = self._kept(window)
            done = self._start(window) if self._is_due(window, answer) else self._event(window)
        if answer is None and done is not None and done.wait(PATIENCE_SECONDS):
            with self._lock:
                answer = self._answers.get(window)
        if answer is None:
            raise NotYetError(self.waited(window))
        if isinstance(answer.result, Exception):
            raise answer.result.with_traceback(None)
        return answer.result

    def waited(self, window: PageWindow | None) -> float:
        """Seconds since the judgement that is under way began; 0 where none is."""
        with self._lock:
            running = self._running.get(window)
            return self._clock() - running[0] if running else 0.0

    def _kept(self, window: PageWindow | None) -> _Answer | None:
        answer = self._answers.get(window)
        if answer is None:
            return None
        if window is None and self._clock() - answer.at > max(OLD_SECONDS, 4 * answer.took):
            del self._answers[window]  # nobody asked for long: an old verdict must not look like a present one
            return None
        self._answers.move_to_end(window)
        return answer

    def _is_due(self, window: PageWindow | None, answer: _Answer | None) -> bool:
        if window in self._running:
            return False
        if answer is None:
            return len(self._running) < MAX_AT_ONCE
        again = window is None or isinstance(answer.result, Exception)  # the past does not change
        return again and self._clock() - answer.at > max(LEAST_REST_SECONDS, REST_SHARE * answer.took)

    def _event(self, window: PageWindow | None) -> threading.Event | None:
        running = self._running.get(window)
        return running[1] if running else None

    def _start(self, window: PageWindow | None) -> threading.Event:
        done = threading.Event()
        self._running[window] = (self._clock(), done)
        threading.Thread(target=self._run, args=(window, done), name="judge", daemon=True).start()
        return done

    def _run(self, window: PageWindow | None, done: threading.Event) -> None:
        began = self._clock()
        result: Triage | Exception
        try:
            result = self._judge(window)
        except UnansweredError as error:
            result = error
        except Exception as error:  # raised again for whoever asks: nobody else sees this thread
            result = error
        with self._lock:
            now = self._clock()
            self._answers[window] = _Answer(result, now, now - began)
            while len(self._answers) > MAX_KEPT:
                self._answers.popitem(last=False)
            del self._running[window]
        done.set()
