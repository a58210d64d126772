"""Signatures over an output in the OpenSSF model-signing format, with a key of one's own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from mtptools.checkpoint import Checkpoint
from mtptools.errors import InputError, MissingExtraError, SystemFailure, UsageError, typed

__all__ = ["sign", "signature_path", "verify_signature"]


def signature_path(ckpt: Checkpoint) -> Path:
    """`model.sig` in a folder, `OUT.sig` beside a file. Raises UsageError for a split file."""
    if ckpt.path.is_dir():
        return ckpt.path / "model.sig"
    if len(ckpt.files) > 1:
        raise UsageError(
            "a signature is of one file, or of a whole folder, and this is some files of one",
            where=ckpt.path,
            hint="put the shards into a folder of their own and name that",
        )
    return ckpt.path.with_name(ckpt.path.name + ".sig")


def sign(ckpt: Checkpoint, key: Path) -> Path:
    """Sign with an elliptic curve private key (PEM); the signature's path. Raises MissingExtraError, InputError."""
    package, out = _package("--sign"), signature_path(ckpt)
    _require(key, "the private key", "openssl ecparam -name prime256v1 -genkey -noout -out key.pem")
    config = package.signing.Config().use_elliptic_key_signer(private_key=key)
    if ckpt.path.is_dir():
        config = config.set_hashing_config(package.hashing.Config().set_ignored_paths(paths=[out.name]))
    try:
        config.sign(ckpt.path, out)
    except OSError as error:
        raise SystemFailure(f"cannot write the signature: {error.strerror or error}", where=out) from error
    except Exception as error:  # the package names no error of its own
        raise InputError(f"cannot be signed: {error}", where=ckpt.path, hint="is the key an EC one, in PEM?") from error
    return out


def verify_signature(ckpt: Checkpoint, key: Path) -> str | None:
    """Why the signature does not hold; None when it does. Raises MissingExtraError, InputError."""
    package, signature = _package("--verify-signature"), signature_path(ckpt)
    _require(key, "the public key", "openssl ec -in key.pem -pubout -out public.pem")
    _require(signature, "the signature", f"mtptools receipt {typed(ckpt.path)} --sign --key key.pem")
    config = package.verifying.Config().use_elliptic_key_verifier(public_key=key)
    try:
        config.verify(ckpt.path, signature)
    except Exception as error:  # of the package, of its cryptography, of a damaged signature: each of them is a no
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return None


def _package(needed_for: str) -> Any:
    try:
        for part in ("hashing", "signing", "verifying"):
            import_module(f"model_signing.{part}")
        return import_module("model_signing")
    except ImportError as error:
        lacks = (error.name or "").partition(".")[0]  # the package does not name all that it needs
        raise MissingExtraError(lacks if lacks != "model_signing" else "model-signing", "sign", needed_for) from error


def _require(path: Path, what: str, hint: str) -> None:
    if not path.is_file():
        raise InputError(f"{what} is not there", where=path, hint=hint)
