"""`triptych quantize`: write a quantized copy of a checkpoint. Imports torch only when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from server.errors import CheckpointError, StartError
from server.system.help_texts import HelpFormatter

if TYPE_CHECKING:
    from models.checkpoint.quantize_checkpoint import QuantizeReport

EXAMPLES = """\
  triptych quantize /path/llama /path/llama-int8 --to int8
  triptych quantize /path/llama /path/llama-int4 --to int4 --calibrate letters.txt manuals.txt
  triptych quantize org/llama llama-fp8 --to fp8 --quiet"""
HELP_END = f"""
examples:
{EXAMPLES}

The copy is in the format of compressed-tensors, which transformers and vLLM read too; vLLM has kernels for 4 and 8
bits, so it does not run int6, and int4 only without its matrices of 6 bits (int4-128). The copy loads faster than
`serve --quantize` rounds, and needs less disk and memory for that.

  int8       linear layers in 8 bits, in groups of 32 inputs: the numbers of `serve --quantize int8`
  int6       the same with 6 bits: the numbers of `serve --quantize int6`
  int4       linear layers in 4 bits, in groups of 32 inputs; 6 bits where `serve --quantize int4` has 6 bits. The
             format has no minimums, so the matrices of 4 bits differ from those of `serve --quantize int4`
  int8-fast  linear layers in 8 bits, one scale per output feature, as `serve --quantize int8-fast`
  int4-128   linear layers in 4 bits, in groups of 128 inputs (64 or 32 where 128 does not divide them), as `serve
             --quantize int4-128`
  fp8        linear layers in fp8 (E4M3), one scale per output feature; for other engines, because this server computes
             fp8 in floating point

With --calibrate, weights are rounded with the inputs that they have in some texts, so that products change little: a
matrix is rounded input by input, and the weights of later inputs make up for the errors so far. Take texts of the kind
that the model will see, some pages at least. The texts are divided into pieces, of which {{pieces}} are read.

Token tables, output head, norms, biases and routers of experts keep their dtype. Tokenizer, settings and licence are
copied. One matrix at a time is in memory, with --calibrate one layer. OUT appears when it is complete.
Exit code: 0 written, 1 the checkpoint cannot be quantized, 2 wrong command or OUT cannot be written, 130 Ctrl-C.
"""

_PIECES = 32
_PIECE_CHARACTERS, _PIECE_TOKENS = 2400, 512
"""Limits of one piece of the calibration texts: characters before tokenization, and tokens. Longer pieces are cut."""
_MAX_BYTES = 64 << 20
PRECISIONS = ("int8", "int6", "int4", "int8-fast", "int4-128", "fp8")

_ROUNDED_AS = {
    "int4": "4 bits without minimums, 6 bits as serve --quantize int4",
    "fp8": "weights alone, for other engines",
}
"""Description of the rounding, for the precisions that `serve --quantize` rounds differently or does not have."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.formatter_class = HelpFormatter
    parser.usage = f"triptych quantize IN OUT [--calibrate FILE ...]\n       --to {'|'.join(PRECISIONS)}"
    parser.epilog = HELP_END.format(pieces=f"up to {_PIECES}, of {_PIECE_TOKENS} tokens at most,")
    parser.add_argument("source", metavar="IN", help="directory or Hugging Face Hub id of an unquantized checkpoint")
    parser.add_argument("out", metavar="OUT", type=Path, help="directory to create; it must not exist")
    parser.add_argument("--to", required=True, choices=PRECISIONS, help="format of the linear layers")
    parser.add_argument(
        "--calibrate", metavar="FILE", nargs="+", type=Path, default=[], help="text files to round with, in UTF-8"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")


def run(arguments: argparse.Namespace) -> Sequence[tuple[str, str]]:
    """Run the command. Returns the rows of a table, (name, text), that describes the written checkpoint.

    Raises CheckpointError for a checkpoint that cannot be found or quantized, and StartError if the calibration texts
    cannot be read or the copy cannot be written.
    """
    from tqdm import tqdm

    from models.checkpoint.quantize_checkpoint import quantize_checkpoint
    from models.config import ConfigError
    from weights.errors import ResolveError, WeightsError
    from weights.resolve import resolve

    # A bar is drawn on a terminal only.
    hidden = True if arguments.quiet else None
    with tqdm(desc=f"to {arguments.to}", unit="B", unit_scale=True, unit_divisor=1024, disable=hidden) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        try:
            source = resolve(arguments.source)
            texts = _token_ids(source, arguments.calibrate) if arguments.calibrate else ()
            report = quantize_checkpoint(source, arguments.out, arguments.to, progress, texts)
        except (ConfigError, WeightsError, ResolveError) as error:
            raise CheckpointError(str(error)) from None
        except OSError as error:
            raise StartError(f"OUT cannot be written: {error.strerror or type(error).__name__}") from None
    before, after = report.bytes_before / 2**20, report.bytes_after / 2**20
    return [
        ("family", f"{report.family} ({report.architecture})"),
        ("format", report.description),
        ("rounded as", _rounded_as(arguments.to, report)),
        ("rounded", f"{report.matrices:,} matrices with {report.weights:,} weights"),
        ("kept", f"{report.others:,} of {report.matrices + report.others:,} matrices in their dtype"),
        ("weights", f"{before:,.1f} MiB before, {after:,.1f} MiB after ({after / before:.0%})"),
        ("written", str(arguments.out)),
    ]


def _rounded_as(precision: str, report: QuantizeReport) -> str:
    if report.calibrated:
        return f"{report.calibrated:,} of {report.matrices:,} matrices with the inputs that the texts gave them"
    return _ROUNDED_AS.get(precision, f"serve --quantize {precision}")


def _token_ids(source: Path, files: Sequence[Path]) -> Sequence[Sequence[int]]:
    """Return the token ids of up to `_PIECES` pieces of the calibration texts, spread evenly over them.

    source: directory of the checkpoint, whose tokenizer is used. files: the texts.
    Raises StartError for a file that cannot be read, is too large or is not UTF-8.
    """
    from models.checkpoint.checkpoint_heads import read_files
    from server.text.tokenizers.load import load_tokenizer

    longest = min(_PIECE_TOKENS, read_files(source).config().max_positions or _PIECE_TOKENS)
    text = "\n\n".join(map(_read, files))
    pieces = [text[start : start + _PIECE_CHARACTERS] for start in range(0, len(text), _PIECE_CHARACTERS)]
    step = max(1.0, len(pieces) / _PIECES)
    chosen = [pieces[int(number * step)] for number in range(min(_PIECES, len(pieces)))]
    encoded = load_tokenizer(source).encode(chosen, offsets=False) if chosen else ()
    return [encoding.ids[:longest] for encoding in encoded if encoding.ids]


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise StartError(f"--calibrate: {file.name} has more than {_MAX_BYTES >> 20} MiB")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise StartError(f"--calibrate: {file.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartError(f"--calibrate: {file.name} is no text in UTF-8") from None
