"""MkDocs hooks: documents of the root become pages, and linked files are copied into the site.

Pages link to sources, records and configuration by their path in the repository. The site is read
without the repository and without a network, so every such file is copied into it, under `files/`.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs"
# documents of the root, and the pages they become
ROOT_PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
}
# code is matched first and left as it is
LINK = re.compile(
    r"(?P<code>^```.*?^```$|`[^`\n]*`)|(?P<mark>\]\()(?P<there>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)",
    re.DOTALL | re.MULTILINE,
)
OUTSIDE = re.compile(r"[a-z]+:|#|/")
SHOWN = (".json", ".png", ".svg")  # browsers show these; everything else is copied as text
# marks of generated blocks: in a line they would end its paragraph
FIGURE = re.compile(r"<!-- /?fig(?::[\w.+-]+)? -->")
BLOCK = re.compile(r"^<!-- .*? -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the root's documents, and every file that a page links to."""
    for name, page in ROOT_PAGES.items():
        if files.get_file_from_path(page) is None and (ROOT / name).is_file():
            files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    for page in list(files.documentation_pages()):
        for path in linked(page):
            if files.get_file_from_path(copied(path)) is None:
                files.append(File.generated(config, copied(path), abs_src_path=str(ROOT / path)))
        for folder in linked_folders(page):
            if files.get_file_from_path(listing(folder)) is None:
                add_listing(files, config, folder)
    return files


def add_listing(files: Files, config: MkDocsConfig, folder: str) -> None:
    """Add a folder's files, and a page that lists them."""
    names = sorted(path.name for path in (ROOT / folder).iterdir() if path.is_file())
    for name in names:
        place = copied(f"{folder}/{name}")
        if files.get_file_from_path(place) is None:
            source = str(ROOT / folder / name)
            files.append(File.generated(config, place, abs_src_path=source))
    last = posixpath.basename(folder)
    lines = [f"- [{name}]({last}/{posixpath.basename(copied(name))})" for name in names]
    page = File.generated(config, listing(folder), content=f"# {folder}\n\n" + "\n".join(lines))
    page.inclusion = InclusionLevel.NOT_IN_NAV
    files.append(page)


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point links that leave the documentation to pages and copies inside the site."""
    home = posixpath.dirname(page.file.src_uri)

    def rewritten(match: re.Match[str]) -> str:
        target = None if match["code"] else site_path(page.file, match["there"])
        if target is None:
            return match[0]
        return f"{match['mark']}{posixpath.relpath(target, home or '.')}{match['anchor'] or ''})"

    return LINK.sub(rewritten, BLOCK.sub("", FIGURE.sub("", markdown)))


def targets(page: File) -> list[str]:
    """Paths in the repository that a page links to."""
    found = (
        repository_path(page, match["there"])
        for match in LINK.finditer(page.content_string)
        if not match["code"]
    )
    return [path for path in found if path is not None]


def linked(page: File) -> list[str]:
    """Files outside the documentation that a page links to."""
    return [path for path in targets(page) if outside(path)]


def linked_folders(page: File) -> list[str]:
    """Folders outside the documentation that a page links to."""
    return [path for path in targets(page) if outside_folder(path)]


def repository_path(page: File, link: str) -> str | None:
    """A link's target by its path in the repository; None if it leads out of the repository."""
    if OUTSIDE.match(link) or page.abs_src_path is None:  # a page made here links within the site
        return None
    source = Path(str(page.abs_src_path)).relative_to(ROOT).as_posix()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return None if path.startswith("..") else path


def outside(path: str) -> bool:
    """True for a file of the repository that is not part of the documentation."""
    return path not in ROOT_PAGES and not path.startswith(f"{DOCS}/") and (ROOT / path).is_file()


def outside_folder(path: str) -> bool:
    """True for a folder of the repository that is not part of the documentation."""
    return path != DOCS and not path.startswith(f"{DOCS}/") and (ROOT / path).is_dir()


def site_path(page: File, link: str) -> str | None:
    """Target of a link in the site; None if the link stays as it is."""
    path = repository_path(page, link)
    if path is None:
        return None
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if outside(path):
        return copied(path)
    if outside_folder(path):
        return listing(path)
    within = path.removeprefix(f"{DOCS}/")
    return f"{within}/index.md" if (ROOT / path / "index.md").is_file() else within


def copied(path: str) -> str:
    """A file's path in the site."""
    return f"files/{path}" if path.endswith(SHOWN) else f"files/{path}.txt"


def listing(folder: str) -> str:
    """The page that lists a folder."""
    return f"files/{folder}.md"
