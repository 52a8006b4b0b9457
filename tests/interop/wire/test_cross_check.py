"""The same scripted session with RocketMQ and with Penstock: every answer is compared field by field.

Both run it on fresh data. RocketMQ's answers are kept in the cache, so that Penstock alone can be
compared again while one works on it; they are used only while the scripts are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.java_release import CACHE_DIR
from tests.interop.wire import crosscheck, frames, session_admin, session_broker, session_nameserver
from tests.interop.wire.crosscheck import Recorder, Transcript
from tests.interop.wire.differences import judge, read_rows
from tests.interop.wire.peer import Server
from tests.interop.wire.servers import SERVERS, started


@pytest.fixture(params=list(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Without data, whatever other tests left in the server that they share."""
    running = started(request.param, tmp_path)
    yield running
    running.stop()


_SCRIPTS = (crosscheck, frames, session_admin, session_broker, session_nameserver)


def _kept() -> Path:
    digest = hashlib.sha256(b"".join(Path(str(script.__file__)).read_bytes() for script in _SCRIPTS))
    return CACHE_DIR / f"session-{digest.hexdigest()[:16]}.json"


# Once, so that a file edited meanwhile does not part the two halves of a run.
_KEPT = _kept()


def _record(server: Server) -> Transcript:
    recorder = Recorder(server)
    session_nameserver.run(recorder)
    session_broker.run(recorder)
    session_admin.run(recorder)
    return recorder.transcript


@pytest.mark.feature("admin-requests", "rocketmq-5.3")
@pytest.mark.feature("broker-requests", "rocketmq-5.3")
@pytest.mark.feature("nameserver-requests", "rocketmq-5.3")
@pytest.mark.feature("frames", "rocketmq-5.3")
def test_every_answer_is_the_same_or_explained(server: Server) -> None:
    transcript = _record(server)
    if server.name != "penstock":
        _KEPT.write_text(json.dumps(transcript, indent=1))
        assert len(transcript) > 300
        return
    if not _KEPT.exists():
        pytest.skip("RocketMQ's side of this session was not recorded: run the test with both servers")
    found = crosscheck.differences(json.loads(_KEPT.read_text()), transcript)
    problems = judge(found, read_rows("Answers that differ"))
    assert not problems, "\n".join(problems)
