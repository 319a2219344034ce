#!/usr/bin/env bash
# Builds the site of all pages with mdBook: target/book/html/index.html.
#
# mdBook reads pages from one folder alone. So that links between pages, and from pages to files, hold
# on the site as they do here, it is given a copy of what they lead to, at the same places.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=target/book/tree
rm -rf target/book
mkdir -p "$tree"
git ls-files --cached --others --exclude-standard -z -- '*.md' docs config charts src tests scripts examples \
  ':!docs/book.toml' ':!docs/SUMMARY.md' | xargs -0 cp --parents -t "$tree"
cp docs/book.toml "$tree/book.toml"

# The list of pages is read from the root there.
sed -e 's|](\([^.)][^)]*\))|](docs/\1)|' -e 's|](\.\./|](|' docs/SUMMARY.md >"$tree/SUMMARY.md"
sed -i 's|\[`docs/SUMMARY.md`\](docs/SUMMARY.md)|the list on the left|' "$tree/README.md" "$tree/ARCHITECTURE.md"
# A browser shows no YAML file, so the page has it whole.
{
  printf '\n```yaml\n'
  cat config/lockgate.yaml
  printf '```\n'
} >>"$tree/docs/run-it.md"

mdbook build "$tree"
echo "target/book/html/index.html"
