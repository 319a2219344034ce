"""Follows each link of the pages below a folder; fails if one leads to no file there.

    links.py DIRECTORY
"""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1]).resolve()
pages = sorted(root.rglob("*.md"))
assert len(pages) > 30, f"only {len(pages)} pages in {root}"
nowhere = []
for page in pages:
    for target in re.findall(r"\]\(([^()\s]+)\)", page.read_text()):
        name = target.split("#")[0]
        file = (page.parent / name).resolve()
        if name and "://" not in name and not (file.is_file() and file.is_relative_to(root)):
            nowhere.append(f"{page.relative_to(root)}: {target}")
if nowhere:
    sys.exit("\n".join(nowhere))
