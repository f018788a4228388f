"""Compiled functions are dropped when any source file of the kernels has changed."""

from pathlib import Path

from sapwood.backends.torch.cpu_int8.compile_cache import STAMP, digest_of, drop_stale


def test_a_change_in_any_file_drops_what_was_compiled(tmp_path: Path) -> None:
    sources, folder = tmp_path / "sources", tmp_path / "compiled"
    sources.mkdir()
    (sources / "tile.py").write_text("one")
    (sources / "pass.py").write_text("two")
    digest_of.cache_clear()
    drop_stale(folder, sources)
    kept = folder / "pass.forward-1.py311.nbi"
    kept.write_text("")
    other = folder / "pass.cpython-311.pyc"
    other.write_text("")
    drop_stale.cache_clear()
    drop_stale(folder, sources)
    assert kept.exists()
    (sources / "tile.py").write_text("another")
    for made in (digest_of, drop_stale):
        made.cache_clear()
    drop_stale(folder, sources)
    assert not kept.exists()
    assert other.exists()
    for made in (digest_of, drop_stale):
        made.cache_clear()


def test_a_folder_that_cannot_be_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    drop_stale(tmp_path / "file" / "compiled", tmp_path)
    assert not (tmp_path / "file" / "compiled" / STAMP).exists()
