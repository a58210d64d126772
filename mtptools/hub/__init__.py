"""Models on the hub and on the web, opened by byte range: only headers and wanted bytes are fetched.

    address = parse("user/repo@v2")            None for a local path
    path, origin = mirror(address)             sparse local files, to open like any others
    missing(blobs); prefetch(blobs, progress)  what is yet to come of some tensors, and getting it

Nothing here is imported until an address is opened; huggingface_hub is imported inside of functions.
"""

from __future__ import annotations

from mtptools.hub.address import Address, parse
from mtptools.hub.located import located
from mtptools.hub.mirrors import Missing, Origin, mirror, missing, prefetch, shown, unregistered

__all__ = ["Address", "Missing", "Origin", "located", "mirror", "missing", "parse", "prefetch", "shown", "unregistered"]
