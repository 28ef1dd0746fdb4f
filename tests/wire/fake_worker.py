"""A worker without a model: it speaks the real messages, and tests can predict its answers.

Run as `fake_worker.py --fd N`. The start of a model's name selects its tasks (`TASKS`). Generation repeats the prompt
and then ends the text. The repeated prompt is rotated by as many bytes as the seed says when sampling, and otherwise by
the rank of the hypothesis. Every token has log-probability -0.5, minus the number of rotated bytes when sampling. The
first byte of the prompt (or source) can cause a failure:

    `!`  the process dies     `#`  the process hangs     `%`  the request fails

At a `&`, generation stops until the process gets SIGUSR1, so that tests do not depend on time. With the environment
variable FAKE_WORKER_PLAIN these characters have no meaning. FAKE_WORKER_BLOCKS is the size of each KV pool.
FAKE_WORKER_DEVICE describes the CUDA device that the worker has; by default it has none.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import struct
import sys
import time

from server.ipc.wire.descriptions import GenerationInfo, ModelInfo, ModelSpec
from server.ipc.wire.encode_messages import Encode, Encoded
from server.ipc.wire.frames import FRAME_HEADER, encode_frame
from server.ipc.wire.generate_messages import (
    Finished,
    ForgetSequences,
    Generate,
    GenerateRow,
    Hypothesis,
    PromptScored,
    SequencePart,
    Tokens,
)
from server.ipc.wire.logprobs import Logprobs, TokenLogprob, pack
from server.ipc.wire.messages import decode_to_worker
from server.ipc.wire.step_messages import Abort, Failed, Stats, StepOutput, StepTiming
from server.ipc.wire.worker_messages import Configure, LoadFailed, PreparingKernels, Progress, Ready, Shutdown

BOS, EOS, PAD, FIRST_BYTE, VOCAB = 0, 1, 2, 3, 259
HOLD = FIRST_BYTE + ord("&")
PLAIN = "FAKE_WORKER_PLAIN" in os.environ
TASKS = {
    "decoder": ["generate"],
    "translator": ["generate", "translate"],
    "embedder": ["embed"],
    "classifier": ["classify"],
    "judge": ["classify"],
    "reranker": ["classify", "rerank"],
    "masker": ["embed", "fill_mask"],
    "tagger": ["token_classify"],
    "answerer": ["question_answer"],
}
KV_BLOCKS = int(os.environ.get("FAKE_WORKER_BLOCKS", "64"))
LABELS = {"classify": ["bad", "fair", "good"], "rerank": ["relevance"], "token_classify": ["O", "B-UP", "I-UP"]}

JUDGEMENTS = ["contradiction", "neutral", "entailment"]


def describe(spec: ModelSpec) -> ModelInfo:
    tasks = next(tasks for prefix, tasks in TASKS.items() if spec.name.startswith(prefix))
    seq2seq = "translate" in tasks
    generates = "generate" in tasks
    return ModelInfo(
        name=spec.name,
        family="fake",
        architecture="FakeModel",
        tasks=tasks,
        dtype="float32",
        parameters=1000,
        weight_bytes=4000,
        vocab_size=VOCAB + ("fill_mask" in tasks),
        hidden_size=4,
        context_tokens=512,
        source_tokens=256 if seq2seq else 0,
        block_size=16 if generates else 0,
        kv_blocks=dict.fromkeys(("self", "cross") if seq2seq else ("self",), KV_BLOCKS) if generates else {},
        is_encoder_decoder=seq2seq,
        generation=GenerationInfo(
            end_token_ids=[EOS], decoder_start_token_ids=[PAD] if seq2seq else [], num_beams=2 if seq2seq else None
        ),
        labels=JUDGEMENTS if spec.name.startswith("judge") else LABELS.get(tasks[-1], []),
        problem_type="single_label_classification" if "classify" in tasks else None,
        load_seconds=0.01,
        execution="program",
    )


def tag(token: int, count: float) -> list[float]:
    """Logits of the labels O, B-UP and I-UP. The label of the token has the logit `count`, the others 0.

    `A` is labelled B-UP (begin of an entity), other capital letters I-UP (continuation), other tokens O.
    """
    letter = token - FIRST_BYTE
    if not ord("A") <= letter <= ord("Z"):
        return [count, 0.0, 0.0]
    return [0.0, count, 0.0] if letter == ord("A") else [0.0, 0.0, count]


class FakeSequence:
    """A row of a Generate message. Its answer is known from the start and is sent token by token."""

    def __init__(self, message: Generate, row: GenerateRow) -> None:
        self.message = message
        self.row = row
        self.prompt = message.prompts[row.prompt]
        self.started = time.monotonic()
        self.num_generated = 0
        tokens = self.answer(0).token_ids
        self.hold_position = tokens.index(HOLD) if HOLD in tokens and not PLAIN else -1

    def answer(self, rank: int) -> Hypothesis:
        """The hypothesis with a rank, which is 0 for the best one."""
        params = self.message.params
        prompt = [token for token in self.prompt if token >= FIRST_BYTE]
        rotation = (self.row.seed if params.do_sample else rank) % max(1, len(prompt))
        prompt = prompt[rotation:] + prompt[:rotation]
        repetitions = 1 + self.row.max_new_tokens // max(1, len(prompt))
        tokens = [*prompt, EOS] if params.end_token_ids else prompt * repetitions
        tokens = tokens[: self.row.max_new_tokens]
        token_bytes = [bytes([token - FIRST_BYTE]) if token >= FIRST_BYTE else b"" for token in tokens]
        texts = [b"".join(token_bytes[: i + 1]) for i in range(len(tokens))]
        stops = (i for i, text in enumerate(texts) if any(stop in text for stop in params.stop_texts))
        stop = next((i for i, token in enumerate(tokens) if token in params.stop_token_ids), next(stops, None))
        if stop is not None:
            tokens = tokens[: stop + 1]
        ended = tokens[-1] == EOS or tokens[-1] in params.stop_token_ids
        logprob = -0.5 - rotation if params.do_sample else -0.5
        logprobs = pack(self.logprob(token, logprob) for token in tokens) if params.logprobs else None
        score = -float(rank) if params.num_beams > 1 else None
        reason = "stop" if ended or stop is not None else "length"
        return Hypothesis(tokens, reason, tokens[-1] if ended else None, score, logprobs)

    def logprob(self, token: int, logprob: float) -> TokenLogprob:
        top = [((token + i) % VOCAB, logprob - i) for i in range(self.message.params.top_logprobs)]
        return TokenLogprob(token, logprob, top)


def encode(message: Encode, index: int) -> Encoded:
    """The answer to one item, which depends on its token ids, token types and number of tokens."""
    item = message.items[index]
    if message.task == "fill_mask":
        letters = [FIRST_BYTE + ord("a") + (item.mask_index + rank) % 26 for rank in range(26)]
        words = (message.target_ids or letters)[: message.top_k]
        scores = [1 / (2 + rank) for rank in range(len(words))]
        return Encoded(message.sequence_id, index, struct.pack(f"<{len(words)}f", *scores), 1, words)
    if message.task == "embed_sparse":
        weights = [float(place + 1) for place in range(len(item.token_ids))]
        values = struct.pack(f"<{len(weights)}f", *weights)
        return Encoded(message.sequence_id, index, values, 1, item.token_ids)
    count, types = float(len(item.token_ids)), float(sum(item.token_type_ids or []))
    if message.model.startswith("answerer"):
        letters = [chr(max(0, token - FIRST_BYTE)) for token in item.token_ids]
        rows = [[9.0 * (letter in "<["), 9.0 * (letter in ">]")] for letter in letters]
    elif message.task == "classify_tokens":
        rows = [tag(token, count) for token in item.token_ids]
    elif message.task == "embed_tokens":
        rows = [[float(token), float(place), count, 1.0] for place, token in enumerate(item.token_ids)]
    elif message.task == "embed_spans":
        rows = [[float(first), float(end), count] for first, end in item.spans]
    elif message.model.startswith("reranker"):
        rows = [[types - 3.0]]
    elif message.task == "classify":
        rows = [[types, 1.0, count]]
    else:
        rows = [[count, float(sum(item.token_ids) % 97), float(item.token_ids[0]), 1.0]]
    if message.task in ("embed", "embed_tokens", "embed_spans") and message.normalize:
        rows = [[value / sum(number * number for number in row) ** 0.5 for value in row] for row in rows]
    flat = [value for row in rows for value in row]
    return Encoded(message.sequence_id, index, struct.pack(f"<{len(flat)}f", *flat), len(rows))


class Worker:
    """Reads messages of the server from a socket and answers them."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray()
        self.sequences: dict[int, FakeSequence] = {}
        self.sequence_sets: set[int] = set()
        self.epoch = 0
        self.steps: list[StepTiming] = []
        self.released = False

    def release(self, *_: object) -> None:
        """The signal handler that lets sequences continue after a `&`."""
        self.released = True

    def is_held(self, sequence: FakeSequence) -> bool:
        """Whether a sequence waits at a `&`."""
        return sequence.num_generated == sequence.hold_position and not self.released

    def send(self, message: object) -> None:
        self.sock.sendall(encode_frame(message))

    def run(self) -> None:
        last_stats = 0.0
        while True:
            idle = all(map(self.is_held, self.sequences.values()))
            readable, _, _ = select.select([self.sock], [], [], 0.05 if idle else 0.0)
            if readable:
                data = self.sock.recv(1 << 16)
                if not data:
                    return
                self.buffer += data
                while len(self.buffer) >= 4:
                    (length,) = FRAME_HEADER.unpack_from(self.buffer)
                    if len(self.buffer) < 4 + length:
                        break
                    message = decode_to_worker(bytes(self.buffer[4 : 4 + length]))
                    del self.buffer[: 4 + length]
                    if isinstance(message, Shutdown):
                        return
                    self.handle(message)
            if self.epoch:
                self.step()
                if time.monotonic() - last_stats > 0.1:
                    last_stats = time.monotonic()
                    self.stats()

    def handle(self, message: object) -> None:
        if isinstance(message, Configure):
            self.epoch = message.epoch
            for spec in message.models:
                if not os.path.exists(os.path.join(spec.directory, "config.json")):
                    self.send(LoadFailed(self.epoch, f"{spec.name}: config.json is missing"))
                    sys.exit(1)
                while os.path.exists(os.path.join(spec.directory, "hang")):
                    time.sleep(0.01)
                if os.path.exists(os.path.join(spec.directory, "die")):
                    sys.exit(3)
                self.send(Progress(self.epoch, spec.name, 0, 4000))
                self.send(Progress(self.epoch, spec.name, 4000, 4000))
            devices = int(os.environ.get("FAKE_WORKER_DEVICES", "1"))
            models = [describe(spec) for spec in message.models]
            if message.device == "cuda" and "FAKE_WORKER_DEVICE" not in os.environ:
                self.send(LoadFailed(self.epoch, "device cuda was requested, but torch finds no CUDA device"))
                sys.exit(2)
            if message.device != "cuda":
                self.send(Ready(self.epoch, models, "cpu", devices))
                return
            for complete in (False, True):
                self.send(PreparingKernels(self.epoch, 40 + complete, 61.5, "/models/triton", complete))
            self.send(Ready(self.epoch, models, "cuda", devices, about_device=os.environ["FAKE_WORKER_DEVICE"]))
        elif isinstance(message, SequencePart):
            self.sequence_sets.add(message.set_id)
        elif isinstance(message, ForgetSequences):
            self.sequence_sets.remove(message.set_id)
        elif isinstance(message, Abort):
            self.sequences.pop(message.sequence_id, None)
        elif isinstance(message, Encode):
            encoded = [encode(message, index) for index in range(len(message.items))]
            self.send(StepOutput(self.epoch, encoded=encoded))
        elif isinstance(message, Generate):
            for row in message.rows:
                self.generate(message, row)

    def generate(self, message: Generate, row: GenerateRow) -> None:
        first = next((token for token in message.prompts[row.prompt] if token >= FIRST_BYTE), FIRST_BYTE) - FIRST_BYTE
        if PLAIN:
            first = 0
        if first == ord("!"):
            os._exit(9)
        if first == ord("#"):
            time.sleep(3600)
        if message.params.sequence_set and message.params.sequence_set not in self.sequence_sets:
            self.send(StepOutput(self.epoch, failed=[Failed(row.sequence_id, "engine_error", "unknown set")]))
        elif first == ord("%"):
            failed = [Failed(row.sequence_id, "engine_error", "non-finite logits in this row")]
            self.send(StepOutput(self.epoch, failed=failed))
        else:
            self.sequences[row.sequence_id] = FakeSequence(message, row)

    def step(self) -> None:
        now = time.monotonic()
        prompts, tokens, finished = [], [], []
        for sequence_id, sequence in list(self.sequences.items()):
            params = sequence.message.params
            deadline = sequence.message.deadline
            whole = sequence.answer(0)
            if deadline is not None and now > deadline:
                del self.sequences[sequence_id]
                if sequence.num_generated == 0:
                    failed = [Failed(sequence_id, "timeout", "the deadline passed before the first token")]
                    self.send(StepOutput(self.epoch, failed=failed))
                    continue
                partial = Hypothesis(whole.token_ids[: sequence.num_generated], "timeout")
                finished.append(Finished(sequence_id, [partial], 0.0, 0.0, 0.0))
                continue
            if self.is_held(sequence):
                continue
            if sequence.row.prompt_logprobs and sequence.num_generated == 0:
                logprobs = [sequence.logprob(token, -0.25) for token in sequence.prompt[1:]]
                prompts.append(PromptScored(sequence_id, pack(logprobs)))
            if params.num_beams == 1 or params.stream:
                index = sequence.num_generated
                if params.num_beams == 1 or index == 0:
                    logprobs = Logprobs(whole.logprobs)[index : index + 1].packed() if whole.logprobs else None
                    tokens.append(Tokens(sequence_id, whole.token_ids[index : index + 1], logprobs))
            sequence.num_generated += 1
            if sequence.num_generated >= len(whole.token_ids):
                del self.sequences[sequence_id]
                hypotheses = [sequence.answer(rank) for rank in range(params.num_return_sequences)]
                finished.append(Finished(sequence_id, hypotheses, 0.001, 0.002, now - sequence.started, 0))
        if prompts or tokens or finished:
            self.steps.append(StepTiming("decoder", "decode", 0.001, len(tokens), len(tokens)))
            self.send(StepOutput(self.epoch, tokens=tokens, finished=finished, prompts=prompts))

    def stats(self) -> None:
        running = len(self.sequences)
        self.send(Stats(self.epoch, running, 0, 0, {"self": running}, {"self": 64}, {"weights": 4000}, self.steps))
        self.steps = []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    try:
        worker = Worker(socket.socket(fileno=parser.parse_known_args()[0].fd))
        signal.signal(signal.SIGUSR1, worker.release)
        worker.run()
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


if __name__ == "__main__":
    main()
