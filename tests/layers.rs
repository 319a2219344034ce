//! Checks which folder of `src/` may name which, that no files call each other in a circle, that no two types share a
//! name, that everything cited by comments and pages exists, and that pages have every error that clients may be
//! told.
//!
//! A folder that is missing in the table, or a name that its row does not allow, fails with the line that names it,
//! in tests too.
//!
//! This test has a binary of its own: it only reads the sources, so it can run after any change.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::{Attribute, File, Item, Lit, UseTree, spanned::Spanned, visit::Visit};

/// Rooms, which are the folders and files at the top of `src/`. Each has the rooms that it may name, which stand
/// above it.
const ROOMS: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("glob", &[]),
    ("key", &[]),
    ("config", &["glob"]),
    ("log_writer", &[]),
    ("metrics", &[]),
    ("report", &[]),
    ("resp", &[]),
    ("sync", &[]),
    ("card", &["key", "sync"]),
    ("log_text", &["sync"]),
    ("net", &["config", "metrics", "resp"]),
    ("sentinel", &["clock", "config", "metrics", "net", "resp", "sync"]),
    ("cluster", &["clock", "config", "metrics", "net", "resp"]),
    ("data", &["clock", "cluster", "config", "metrics", "net", "resp", "sentinel", "sync"]),
    ("command", &["config", "glob", "key", "lock", "resp", "log_text"]),
    ("adopt", &["config", "glob", "key", "metrics", "resp", "sync"]),
    ("fleet", &["config", "sync"]),
    ("share", &["data", "metrics", "net", "resp", "sync"]),
    ("guard", &["cluster", "config", "data", "glob", "key", "net", "resp", "log_text"]),
    (
        "lock",
        &[
            "card",
            "clock",
            "cluster",
            "config",
            "glob",
            "key",
            "log_writer",
            "metrics",
            "net",
            "resp",
            "sentinel",
            "sync",
            "log_text",
        ],
    ),
    ("bridge", &["adopt", "card", "clock", "config", "data", "key", "lock", "net"]),
    (
        "session",
        &[
            "adopt", "bridge", "card", "clock", "cluster", "command", "config", "data", "fleet",
            "glob", "guard", "key", "lock", "metrics", "net", "resp", "sync", "log_text",
        ],
    ),
    (
        "server",
        &[
            "adopt",
            "bridge",
            "card",
            "clock",
            "config",
            "data",
            "fleet",
            "guard",
            "key",
            "lock",
            "log_writer",
            "metrics",
            "net",
            "report",
            "resp",
            "session",
            "share",
            "sync",
            "log_text",
        ],
    ),
    (
        "tools",
        &[
            "bridge", "cluster", "config", "data", "fleet", "glob", "lock", "net", "report",
            "sentinel", "server", "log_text",
        ],
    ),
    (
        "depth",
        &[
            "adopt", "cluster", "command", "config", "fleet", "glob", "guard", "lock", "net",
            "resp", "server",
        ],
    ),
    (
        "simulation",
        &[
            "adopt", "bridge", "config", "data", "fleet", "guard", "key", "lock", "net", "resp",
            "session",
        ],
    ),
];

/// Rooms whose files may call each other in a circle, as stages of one thing; their types still form no circle. In
/// all other rooms no file needs another one that needs it, directly or through others.
const CALLING_EACH_OTHER: &[&str] = &[
    // A check belongs to its key, but looks at the whole configuration.
    "config",
    // A guarded write goes from one stage to another, and back for another attempt.
    "session",
];

/// Names of the crate's rooms in one file, with their positions.
#[derive(Default)]
struct Named(Vec<(String, Span)>);

impl Named {
    fn tree(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.0.push((path.ident.to_string(), path.ident.span())),
            UseTree::Name(name) => self.0.push((name.ident.to_string(), name.ident.span())),
            UseTree::Rename(name) => self.0.push((name.ident.to_string(), name.ident.span())),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item)),
            UseTree::Glob(glob) => panic!("crate::* at {:?}", glob.span().start()),
        }
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

impl<'ast> Visit<'ast> for Named {
    fn visit_use_path(&mut self, path: &'ast syn::UsePath) {
        if path.ident == "crate" {
            self.tree(&path.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let [first, room, ..] = &path.segments.iter().collect::<Vec<_>>()[..]
            && first.ident == "crate"
        {
            self.0.push((room.ident.to_string(), room.ident.span()));
        }
        syn::visit::visit_path(self, path);
    }
}

/// Finds all Rust files below `folder`, with their text.
fn files(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            files(&path, found);
        } else if name.ends_with(".rs") {
            found.insert(path.display().to_string(), fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn each_room_names_only_those_that_it_may() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut texts = BTreeMap::new();
    files(&source, &mut texts);
    let (mut faults, mut rooms, mut arrows) = (Vec::new(), Vec::new(), 0);
    for (path, text) in &texts {
        let local = path.strip_prefix(&format!("{}/", source.display())).unwrap();
        let room = local.split('/').next().unwrap().trim_end_matches(".rs");
        if matches!(room, "lib" | "main") {
            continue;
        }
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
            faults.push(format!("src/{local}: '{room}' is not in the table"));
            continue;
        };
        rooms.push(room);
        let parsed: File = syn::parse_file(text).unwrap();
        let mut named = Named::default();
        named.visit_file(&parsed);
        for (name, span) in named.0 {
            arrows += 1;
            // A macro or a function at the root is no room.
            let is_room = ROOMS.iter().any(|(room, _)| *room == name);
            if name != room && is_room && !allowed.contains(&&*name) {
                let line = span.start().line;
                faults.push(format!("src/{local}:{line}: '{room}' must not name '{name}'"));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    assert!(ROOMS.iter().all(|(room, _)| rooms.contains(room)), "a room that is not there");
    assert!(arrows > 100, "they are not found: {arrows}");
}

/// Paths that the `use`s of one file name in the crate, from the crate's root. Paths that the file re-exports are
/// kept apart.
#[derive(Default)]
struct Uses {
    own: Vec<Vec<String>>,
    passed_on: Vec<Vec<String>>,
}

impl Uses {
    /// Returns the paths that the file of this module uses.
    fn of(module: &[String], file: &File) -> Uses {
        let mut uses = Uses::default();
        for item in &file.items {
            if let Item::Use(item) = item
                && !is_for_tests(&item.attrs)
            {
                let mut paths = Vec::new();
                flatten(&item.tree, &mut Vec::new(), &mut paths);
                let passed_on = !matches!(item.vis, syn::Visibility::Inherited);
                let uses = if passed_on { &mut uses.passed_on } else { &mut uses.own };
                uses.extend(paths.iter().filter_map(|path| from_root(module, path)));
            }
        }
        uses
    }
}

fn flatten(tree: &UseTree, before: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    let name = match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, paths);
            before.pop();
            return;
        }
        UseTree::Group(group) => {
            return group.items.iter().for_each(|item| flatten(item, before, paths));
        }
        UseTree::Name(name) => name.ident.to_string(),
        UseTree::Rename(name) => name.ident.to_string(),
        UseTree::Glob(_) => return,
    };
    let last = Some(name).filter(|name| name != "self");
    paths.push(before.iter().cloned().chain(last).collect());
}

/// Returns the path from the crate's root, or `None` if it leads out of the crate.
fn from_root(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|word| *word == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => Some([&module[..module.len() - supers], &path[supers..]].concat()),
        "self" => Some([module, &path[1..]].concat()),
        // For example `pub use acquire::Acquire`, beside the module of that name.
        _ => Some([module, path].concat()),
    }
}

/// Whether a path names a type, and not a module, function or constant.
fn is_type(path: &[String]) -> bool {
    path.last().is_some_and(|name| {
        name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase)
    })
}

/// Returns the module of `all` into which a path leads: the longest that is a prefix of it, or the one whose name
/// that module re-exports.
fn home(all: &BTreeMap<Vec<String>, Uses>, path: &[String]) -> Option<Vec<String>> {
    let length = (1..=path.len()).rev().find(|length| all.contains_key(&path[..*length]))?;
    let (module, rest) = path.split_at(length);
    let passed_on = rest.first().and_then(|name| {
        all[module].passed_on.iter().find(|passed_on| passed_on.last() == Some(name))
    });
    match passed_on {
        // A macro is re-exported under its own path.
        Some(further) if further != path => home(all, further),
        _ => Some(module.to_vec()),
    }
}

/// Names of the types of one file with their positions, including tests and `labels!`.
#[derive(Default)]
struct Types(Vec<(String, Span)>);

impl<'ast> Visit<'ast> for Types {
    fn visit_item(&mut self, item: &'ast Item) {
        let name = match item {
            Item::Struct(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) => &item.ident,
            _ => return syn::visit::visit_item(self, item),
        };
        self.0.push((name.to_string(), name.span()));
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let words: Vec<_> = item.tokens.clone().into_iter().collect();
        for pair in words.windows(2) {
            if let [TokenTree::Ident(keyword), TokenTree::Ident(name)] = pair
                && keyword == "enum"
            {
                self.0.push((name.to_string(), name.span()));
            }
        }
    }
}

#[test]
fn each_type_has_a_name_of_its_own() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut texts = BTreeMap::new();
    files(&source, &mut texts);
    let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in &texts {
        let local = path.strip_prefix(&format!("{}/", source.display())).unwrap();
        let mut types = Types::default();
        types.visit_file(&syn::parse_file(text).unwrap());
        for (name, span) in types.0 {
            let place = format!("src/{local}:{}", span.start().line);
            named.entry(name).or_default().push(place);
        }
    }
    assert!(named.len() > 300, "they are not found: {}", named.len());
    named.retain(|_, places| places.len() > 1);
    let twice: Vec<String> =
        named.iter().map(|(name, places)| format!("{name}: {}", places.join(", "))).collect();
    assert!(twice.is_empty(), "\n{}", twice.join("\n"));
}

/// A file is found by its name, so no two have one name, but for the heads of folders and what crates begin with.
#[test]
fn each_file_has_a_name_of_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("src")];
    let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let place = path.strip_prefix(root).unwrap().display().to_string();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            named.entry(name).or_default().push(place);
        }
    }
    assert!(named.len() > 250, "they are not found: {}", named.len());
    named.remove("mod.rs");
    named.retain(|_, places| places.len() > 1);
    let twice: Vec<String> = named.into_values().map(|places| places.join(", ")).collect();
    assert!(twice.is_empty(), "\n{}", twice.join("\n"));
}

#[test]
fn no_file_needs_another_that_needs_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut faults, mut arrows) = (Vec::new(), 0);
    for (room, _) in ROOMS.iter().filter(|(room, _)| source.join(room).is_dir()) {
        let mut texts = BTreeMap::new();
        files(&source.join(room), &mut texts);
        texts.retain(|path, _| !path.ends_with("tests.rs"));
        let mut all = BTreeMap::new();
        for (path, text) in &texts {
            let local = path.strip_prefix(&format!("{}/", source.display())).unwrap();
            let words = local.trim_end_matches(".rs").trim_end_matches("/mod").split('/');
            let module: Vec<String> = words.map(str::to_owned).collect();
            let uses = Uses::of(&module, &syn::parse_file(text).unwrap());
            all.insert(module, uses);
        }
        let mut needs: BTreeMap<&Vec<String>, Vec<Vec<String>>> = BTreeMap::new();
        for (module, uses) in &all {
            // A `mod.rs` does not need the names that it only re-exports.
            let only_types = CALLING_EACH_OTHER.contains(room);
            let counts = |path: &&Vec<String>| !only_types || is_type(path);
            let homes = uses.own.iter().filter(counts).filter_map(|path| home(&all, path));
            // A room's own types, in its `mod.rs`, are below all of its files.
            let others = homes.filter(|home| home.len() > 1 && home != module);
            needs.insert(module, others.collect());
        }
        arrows += needs.values().map(Vec::len).sum::<usize>();
        // Removes modules that need only removed ones, or that only removed ones need.
        while let Some(module) = {
            let is_below = |module: &Vec<String>| {
                !needs[module].iter().any(|needed| needs.contains_key(needed))
            };
            let is_above =
                |module: &Vec<String>| !needs.values().any(|needed| needed.contains(module));
            needs.keys().find(|module| is_below(module) || is_above(module)).copied()
        } {
            needs.remove(module);
        }
        let left: Vec<String> = needs.keys().map(|module| module.join("::")).collect();
        if !left.is_empty() {
            faults.push(left.join(", "));
        }
    }
    assert!(faults.is_empty(), "in a circle, or between two:\n{}", faults.join("\n"));
    assert!(arrows > 300, "they are not found: {arrows}");
}

/// Returns the file names that a comment or a page cites.
fn cited(text: &str) -> impl Iterator<Item = &str> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    text.split(move |c| !is_path(c))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.ends_with(".md") || word.ends_with(".rs") && word.contains('/'))
}

#[test]
fn each_page_and_file_that_is_cited_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut comments = BTreeMap::new();
    files(&root.join("src"), &mut comments);
    let mut faults = Vec::new();
    let mut found = 0;
    for (path, text) in &comments {
        let lines = text.lines().filter(|line| line.trim_start().starts_with("//"));
        for name in lines.flat_map(cited) {
            found += 1;
            // Paths from the root, from src/, or from the file's own folder.
            let here = Path::new(path).parent().unwrap();
            let places = [root.to_owned(), root.join("src"), here.to_owned()];
            if !places.iter().any(|place| place.join(name).exists()) {
                faults.push(format!("{path}: {name}"));
            }
        }
    }
    assert!(found >= 5, "they are not found: {found}");
    for page in pages(root) {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let to = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let is_page = to.extension().is_some_and(|ending| ending == "md");
            let has_heading = |text: String| headings(&text).any(|anchor| anchor == heading);
            let is_there = match heading.is_empty() || !is_page {
                true => to.exists(),
                false => fs::read_to_string(&to).is_ok_and(has_heading),
            };
            if !is_there {
                faults.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Pages name functions, variants and constants as `Type::name`. Returns those on a page.
fn named_in_code(page: &str) -> impl Iterator<Item = &str> {
    let is_path = |text: &&str| {
        text.contains("::")
            && text.split("::").all(|part| {
                !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            })
    };
    page.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(is_path)
}

#[test]
fn what_pages_name_in_the_code_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = BTreeMap::new();
    for folder in ["src", "tests"] {
        files(&root.join(folder), &mut texts);
    }
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let words: std::collections::HashSet<&str> = texts
        .values()
        .flat_map(|text| text.split(|c: char| !c.is_ascii() || !is_word(c as u8)))
        // A file's tests are named by the file.
        .chain(texts.keys().filter_map(|path| Path::new(path).file_stem()?.to_str()))
        .collect();
    let (mut found, mut missing) = (0, Vec::new());
    for page in pages(root) {
        let text = fs::read_to_string(&page).unwrap();
        for name in named_in_code(&text) {
            found += 1;
            if !name.split("::").all(|part| words.contains(part)) {
                missing.push(format!("{}: {name}", page.display()));
            }
        }
    }
    assert!(found > 50, "they are not found: {found}");
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

fn pages(root: &Path) -> Vec<PathBuf> {
    let folders =
        ["", "docs", "docs/design", "docs/clients", "docs/commands", "bench", "clients/python"];
    let entries = folders.into_iter().flat_map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect()
}

/// Returns the targets of a page's links, except web addresses.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
    links.filter(|link| !link.starts_with("http"))
}

/// Returns the anchors of a page's headings, as GitHub and mdBook make them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    let names = lines.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    names.map(|name| {
        let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
        name.chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[test]
fn the_site_has_every_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = root.join("docs").canonicalize().unwrap();
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: Vec<_> =
        links(&summary).map(|link| docs.join(link).canonicalize().unwrap()).collect();
    let missing: Vec<_> = pages(root)
        .into_iter()
        .map(|page| page.canonicalize().unwrap())
        .filter(|page| !page.ends_with("SUMMARY.md") && !listed.contains(page))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A program that is run in the root of the repository may leave its output there, and a commit takes it along.
#[test]
fn the_root_has_nothing_but_what_belongs_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let known = [
        "ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md README.md SECURITY.md",
        "LICENSE LICENSE-APACHE LICENSE-MIT Makefile Dockerfile build.rs",
        "Cargo.toml Cargo.lock clippy.toml deny.toml rustfmt.toml",
        "bench charts clients config docs examples fuzz scripts src tests",
        // What .gitignore names, besides *.rdb.
        "target node_modules __pycache__ proptest-regressions",
    ]
    .join(" ");
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name());
    let strays: Vec<_> = entries
        .map(|name| name.into_string().unwrap())
        .filter(|name| !name.starts_with('.') && !name.ends_with(".rdb"))
        .filter(|name| !known.split(' ').any(|known| known == name))
        .collect();
    assert!(strays.is_empty(), "{strays:?}");
}

/// The same below docs.
#[test]
fn docs_has_nothing_but_pages() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut folders = vec![docs.clone()];
    let mut strays = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_page = path.extension().is_some_and(|ending| ending == "md");
            let is_known = ["book.toml", "images"].iter().any(|known| docs.join(known) == path);
            match path.is_dir() && !is_known {
                true => folders.push(path),
                false if is_page || is_known => {}
                false => strays.push(path),
            }
        }
    }
    assert!(strays.is_empty(), "{strays:?}");
}

/// Macros of one file that print outside of tests, with their positions.
#[derive(Default)]
struct Prints(Vec<Span>);

impl<'ast> Visit<'ast> for Prints {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        if let Some(name) = item.path.segments.last()
            && ["print", "println", "eprint", "eprintln"].iter().any(|it| name.ident == it)
        {
            self.0.push(name.ident.span());
        }
    }
}

/// In the log's format for people, a value by `%` has no quotes: ` fence=1` in a name would look like another field.
#[test]
fn names_that_clients_choose_are_quoted_in_the_log() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut texts = BTreeMap::new();
    files(&source, &mut texts);
    let is_bare = |line: &&str| line.contains("%shown(") || line.contains("%self.shown(");
    let faults: Vec<_> = texts
        .iter()
        .flat_map(|(path, text)| text.lines().filter(is_bare).map(move |line| (path, line)))
        .collect();
    assert!(faults.is_empty(), "{faults:?}");
}

/// Lines in which a macro of the log writes a field by `?`.
#[derive(Default)]
struct DebugFields(Vec<Span>);

impl<'ast> Visit<'ast> for DebugFields {
    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let levels = ["error", "warn", "info", "debug", "trace"];
        if !item.path.segments.last().is_some_and(|it| levels.iter().any(|level| it.ident == level))
        {
            return;
        }
        // A field begins the macro, or stands behind a comma or its name; the operator `?` stands behind an expression.
        let mut begins = true;
        for token in item.tokens.clone() {
            let mark = match &token {
                TokenTree::Punct(mark) => mark.as_char(),
                _ => ' ',
            };
            if begins && mark == '?' {
                self.0.push(token.span());
            }
            begins = matches!(mark, ',' | '=');
        }
    }
}

/// The log has the words of the configuration file, and times as the file writes them: not Rust's `Some(3600s)`.
#[test]
fn no_field_of_the_log_is_written_as_rust_would() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut texts = BTreeMap::new();
    files(&source, &mut texts);
    let mut faults = Vec::new();
    for (path, text) in &texts {
        let mut fields = DebugFields::default();
        fields.visit_file(&syn::parse_file(text).unwrap());
        faults.extend(fields.0.iter().map(|at| format!("{path}:{}", at.start().line)));
    }
    assert!(faults.is_empty(), "by ?:\n{}", faults.join("\n"));
}

#[test]
fn what_commands_print_goes_through_one_place() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut texts = BTreeMap::new();
    files(&source, &mut texts);
    // There is no terminal, or only a word of the system itself.
    let others = ["simulation/", "adopt/normal_tests.rs", "depth.rs", "server/entry/listeners.rs"];
    let (mut faults, mut found) = (Vec::new(), 0);
    for (path, text) in &texts {
        let local = path.strip_prefix(&format!("{}/", source.display())).unwrap();
        let mut prints = Prints::default();
        prints.visit_file(&syn::parse_file(text).unwrap());
        match local {
            "tools/say.rs" => found = text.matches("plain(&line.to_string())").count(),
            local if others.iter().any(|other| local.starts_with(other)) => {}
            _ => {
                faults.extend(prints.0.iter().map(|at| format!("src/{local}:{}", at.start().line)))
            }
        }
    }
    assert_eq!(found, 2);
    assert!(faults.is_empty(), "not through tools::say:\n{}", faults.join("\n"));
}

/// First words of errors: Lockgate's own, and those of Redis with which Lockgate answers in its place.
const CODES: &[&str] = &[
    "ASK",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "DEADLOCK",
    "DENIED",
    "ERR",
    "EXECABORT",
    "FENCED",
    "LOCKLOST",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOQUORUM",
    "NOREPLICAS",
    "NOSCRIPT",
    "NOTHELD",
    "NOTOKEN",
    "OOM",
    "QUEUEFULL",
    "READONLY",
    "TRYAGAIN",
    "UNREPLICATED",
    "UNSURE",
    "WRONGTYPE",
];

/// Errors for which Lockgate looks in Redis's replies. Only Redis sends them.
const HEARD: &[&str] =
    &["DISCARD without MULTI", "EXECABORT Transaction discarded because of: READONLY"];

/// Texts of one file outside of its tests and comments, with their positions.
#[derive(Default)]
struct Texts(Vec<(String, Span)>);

impl Texts {
    fn take(&mut self, literal: &Lit) {
        let text = match literal {
            Lit::Str(text) => text.value(),
            Lit::ByteStr(bytes) => String::from_utf8_lossy(&bytes.value()).into_owned(),
            _ => return,
        };
        self.0.push((text, literal.span()));
    }

    fn take_all(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.take_all(group.stream()),
                TokenTree::Literal(literal) => self.take(&Lit::new(literal)),
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Texts {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let syn::Meta::List(list) = &attribute.meta
            && list.path.is_ident("error")
        {
            self.take_all(list.tokens.clone());
        }
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.take_all(item.tokens.clone());
    }

    fn visit_lit(&mut self, literal: &'ast Lit) {
        self.take(literal);
    }
}

/// Returns the words of an error that a page must have: the longest piece between its names and numbers, up to a
/// comma or a semicolon. Returns `None` for a text that is no error.
fn phrase(text: &str) -> Option<&str> {
    let text = text.trim_start_matches('-').trim_end();
    let (code, rest) = text.split_once(' ').filter(|(code, _)| CODES.contains(code))?;
    // The admin address leaves this word out, so pages may leave it out too.
    let text = if code == "ERR" { rest } else { text };
    let pieces = text.split('{').enumerate().map(|(at, piece)| match at {
        0 => piece,
        _ => piece.split_once('}').unwrap_or_default().1,
    });
    let longest = pieces.max_by_key(|piece| piece.len())?;
    Some(longest.split([',', ';']).next()?.trim_matches([' ', ':', '(', '\'']))
}

#[test]
fn pages_have_every_error_that_clients_are_told() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = root.join("docs");
    let texts = pages(root).into_iter().filter(|page| page.starts_with(&docs));
    let texts: Vec<String> = texts.map(|page| fs::read_to_string(page).unwrap()).collect();
    // Lines are joined, and a table's bars appear as a reader sees them.
    let told = texts.join(" ").replace("\\|", "|");
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut sources = BTreeMap::new();
    files(&root.join("src"), &mut sources);
    let is_no_product = ["/simulation/", "/tools/", "/session/pair/", "/depth.rs", "tests.rs"];
    sources.retain(|path, _| !is_no_product.iter().any(|part| path.contains(part)));
    let (mut faults, mut heard, mut found) = (Vec::new(), Vec::new(), 0);
    for (path, text) in &sources {
        let mut texts = Texts::default();
        texts.visit_file(&syn::parse_file(text).unwrap());
        for (text, span) in &texts.0 {
            let Some(phrase) = phrase(text) else { continue };
            found += 1;
            if HEARD.contains(&phrase) {
                heard.push(phrase.to_owned());
            } else if !told.contains(phrase) {
                faults.push(format!("{path}:{}: {phrase}", span.start().line));
            }
        }
    }
    assert!(faults.is_empty(), "on no page of docs/:\n{}", faults.join("\n"));
    assert!(found > 100, "they are not found: {found}");
    let not_heard: Vec<_> =
        HEARD.iter().filter(|text| !heard.iter().any(|it| it == *text)).collect();
    assert!(not_heard.is_empty(), "in no source: {not_heard:?}");
}
