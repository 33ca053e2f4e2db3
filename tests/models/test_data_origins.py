"""Data sets come from where they are published, are unpacked, and may be put there by hand."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from bench.models.data import cifar10, download, fashion_mnist, mnist, prepare
from bench.models.data.download import Remote
from tests.models.data_files import pack, write_cifar, write_mnist
from tests.models.site import Site


def serve_mnist(site: Site, monkeypatch: pytest.MonkeyPatch, home: Path, module: object) -> None:
    """Small files of the format, at addresses on loopback."""
    write_mnist(home)
    files: object = module.FILES  # type: ignore[attr-defined]
    packed = {name: gzip.compress((home / name).read_bytes()) for name in files.digests}
    site.files |= {f"/{name}.gz": content for name, content in packed.items()}
    digests = {name: hashlib.md5(content).hexdigest() for name, content in packed.items()}
    monkeypatch.setattr(
        module, "ORIGIN", replace(files, mirrors=[f"{site.url}/gone/", f"{site.url}/"], digests=digests).origin
    )


@pytest.mark.parametrize("module", [mnist, fashion_mnist])
def test_mnist_is_downloaded_where_torchvision_has_it(
    module: object, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_mnist(site, monkeypatch, tmp_path / "origin", module)
    name = module.FILES.name
    prepare(name, str(tmp_path / "data"))
    raw = tmp_path / "data" / module.FILES.folder / "raw"
    assert {path.name: path.read_bytes() for path in raw.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "origin").iterdir()
    }
    count = len(site.asked)
    prepare(name, str(tmp_path / "data"))
    assert len(site.asked) == count, "what is there needs no network"
    (raw / "t10k-labels-idx1-ubyte").unlink()
    prepare(name, str(tmp_path / "data"))
    assert [path for path, _ in site.asked[count:]] == ["/gone/t10k-labels-idx1-ubyte.gz", "/t10k-labels-idx1-ubyte.gz"]


@pytest.fixture
def cifar(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_cifar(tmp_path / "origin")
    archive = tmp_path / "cifar-10-python.tar.gz"
    pack(archive, tmp_path / "origin" / "cifar-10-batches-py")
    site.files["/cifar"] = archive.read_bytes()
    about = Remote(archive.name, (f"{site.url}/cifar",), hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(cifar10, "ORIGIN", replace(cifar10.FILES, archive=about).origin)
    return archive


def test_cifar_is_downloaded_and_unpacked(cifar: Path, site: Site, tmp_path: Path) -> None:
    home = tmp_path / "data"
    left = home / ".cifar10.unpacked" / "cifar-10-batches-py"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"of an attempt that was killed")
    prepare("cifar10", str(home))
    assert len(list((home / "cifar-10-batches-py").iterdir())) == 6
    assert sorted(path.name for path in home.iterdir() if not path.name.startswith(".")) == [
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
    ]
    (home / "cifar-10-batches-py" / "test_batch").unlink()
    prepare("cifar10", str(home))
    assert len(site.asked) == 1, "the archive is still there"


def test_an_archive_put_there_by_hand_is_unpacked(cifar: Path, site: Site, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    cifar.rename(tmp_path / "data" / cifar.name)
    prepare("cifar10", str(tmp_path / "data"))
    assert site.asked == []


OFFLINE = {
    "mnist": ("train-images-idx3-ubyte, ", "put these files there, unpacked, as torchvision keeps them"),
    "cifar10": ("data_batch_1, ", "put cifar-10-python.tar.gz into "),
    "shakespeare": ("input.txt not found in ", "put this file there"),
}


@pytest.mark.parametrize("name", OFFLINE)
def test_offline_one_line_says_what_to_put_where(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise download.urllib.error.URLError(OSError(-2, "Name or service not known"))

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    missing, remedy = OFFLINE[name]
    with pytest.raises(ValueError, match=rf"^data set {name}: {missing}") as caught:
        prepare(name, str(tmp_path / "data"))
    said = str(caught.value)
    for part in ("Name or service not known", remedy, "or set data.dir", str(tmp_path / "data")):
        assert part in said
    assert "\n" not in said
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file() and not path.name.startswith(".")]


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"data set shakespeare: .*/file/data/shakespeare.*Not a directory"):
        prepare("shakespeare", str(tmp_path / "file" / "data"))
