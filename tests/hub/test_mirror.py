from __future__ import annotations

from mtptools.hub import mirror, missing, parse
from mtptools.tensors import Blob, read_blob
from tests.hub.contents import Bytes, index, shard
from tests.hub.server import Hub

SHARDS = {
    "model-00001-of-00002.safetensors": {"a": 400_000, "b": 300_000},
    "model-00002-of-00002.safetensors": {"c": 500_000, "mtp.x": 200_000, "d": 100_000},
}


def test_bytes_arrive_when_they_are_read(hub: Hub) -> None:
    files = {name: shard(tensors) for name, tensors in SHARDS.items()}
    commit = hub.add("user/repo", {"config.json": Bytes(b"{}"), "model.safetensors.index.json": index(SHARDS), **files})
    address = parse("user/repo")
    assert address is not None
    path, origin = mirror(address)
    assert origin.commit == commit
    assert (path / "config.json").read_bytes() == b"{}"
    name = "model-00002-of-00002.safetensors"
    whole = files[name]
    assert (path / name).stat().st_size == whole.size
    blob = Blob(path / name, len(whole.head) + 500_000, 200_000)
    assert missing([blob]).nbytes == 200_000
    before = hub.sent
    assert read_blob(blob) == whole.read(blob.offset, blob.nbytes)
    assert hub.sent - before <= 256 << 10


def test_reading_on_takes_few_requests(hub: Hub) -> None:
    """Samples close together, a whole file in small runs, and single ones far apart."""
    content = shard({"a": 20_000_000})
    hub.add("user/repo", {"config.json": Bytes(b"{}"), "model.safetensors": content})
    address = parse("user/repo")
    assert address is not None
    path = mirror(address)[0] / "model.safetensors"

    def requests(offsets: range) -> int:
        before = len(hub.asked("cdn"))
        for at in offsets:
            assert read_blob(Blob(path, at, 512)) == content.read(at, 512)
        return len(hub.asked("cdn")) - before

    sent = hub.sent
    assert requests(range(4_000_000, 4_250_000, 4096)) == 1
    assert requests(range(6_000_000, 12_000_000, 1_000_000)) == 6
    assert hub.sent - sent == 7 * (256 << 10)
    assert requests(range(12_000_000, 19_000_000, 4096)) <= 6
