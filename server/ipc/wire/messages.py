"""All messages between the HTTP process and a worker, and their encoding with msgpack (no pickle).

| file                   | messages to a worker                            | messages from a worker               |
|------------------------|-------------------------------------------------|--------------------------------------|
| `worker_messages.py`   | Configure, Shutdown                             | Loading, Computing, Progress,        |
|                        |                                                 | PreparingKernels, Ready, LoadFailed  |
| `generate_messages.py` | Generate, Vocabulary, SequencePart,             | events in `StepOutput`               |
|                        | ForgetSequences                                 |                                      |
| `encode_messages.py`   | Encode                                          | events in `StepOutput`               |
| `step_messages.py`     | Abort                                           | StepOutput, Stats                    |
| `model_messages.py`    | MeasureModel, LoadModel, GiveBackCache,         | ModelMeasured, ModelLoaded,          |
|                        | UnloadModel                                     | ModelFailed, CacheGivenBack,         |
|                        |                                                 | ModelUnloaded                        |

Times are seconds of `time.monotonic()`, whose clock all processes of a machine share. A `sequence_id` names one row of
a `Generate` or one `Encode`. It is unique in the life of the HTTP process.
"""

from __future__ import annotations

import msgspec

from server.ipc.wire.encode_messages import Encode
from server.ipc.wire.generate_messages import Generate, SequenceMessage, Vocabulary
from server.ipc.wire.message_base import Message
from server.ipc.wire.model_messages import ModelAnswer, ModelMessage
from server.ipc.wire.step_messages import Abort, Stats, StepOutput
from server.ipc.wire.worker_messages import (
    Computing,
    Configure,
    LoadFailed,
    Loading,
    PreparingKernels,
    Progress,
    Ready,
    Shutdown,
)

ToWorker = Configure | Vocabulary | SequenceMessage | Generate | Encode | Abort | ModelMessage | Shutdown
FromWorker = Loading | Computing | Progress | PreparingKernels | Ready | LoadFailed | ModelAnswer | StepOutput | Stats

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode(message: Message) -> bytes:
    """Encode a message as msgpack."""
    return _encoder.encode(message)


def decode_to_worker(body: bytes | memoryview) -> ToWorker:
    """Decode a message to a worker. Raises msgspec.DecodeError or ValidationError if the body is not such a message."""
    return _to_worker.decode(body)


def decode_from_worker(body: bytes | memoryview) -> FromWorker:
    """Decode a message from a worker. Raises msgspec.DecodeError or ValidationError if the body is no such message."""
    return _from_worker.decode(body)
