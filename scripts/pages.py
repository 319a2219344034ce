"""Copies the pages that packages have, and what they lead to, into a folder.

    pages.py DIRECTORY

Links to what no package has, the sources and their tests, become the words that they are on: whoever has
installed a package has no such file.
"""

import argparse
import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[1]
PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("directory", type=pathlib.Path, help="made anew")
TREE = PARSER.parse_args().directory.resolve()
WHAT = [
    "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/*.md",
    "docs/*.md", "docs/*/*.md", "docs/images/*",
    "config/*.y*ml", "config/lockgate.service", "config/compose/*.yaml", "config/compose/*.yml",
    "config/compose/grafana/*", "config/grafana/*",
]
# The text may be a link's or a picture's, and go on over a line's end.
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")


def as_there(page, text):
    """The text of a page without links that lead nowhere in the folder."""

    def one(found):
        target = found[3].split("#")[0]
        if not target or "://" in target or (page.parent / target).exists():
            return found[0]
        return found[2]

    return LINK.sub(one, text)


if TREE.exists():
    shutil.rmtree(TREE)
files = [file for pattern in WHAT for file in sorted(ROOT.glob(pattern))]
for file in files:
    there = TREE / file.relative_to(ROOT)
    there.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, there)
for page in TREE.rglob("*.md"):
    page.write_text(as_there(page, page.read_text()))
