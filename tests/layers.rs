//! Which folder of `src/` may name which.
//!
//! A folder that is not in the table, and a name that its row does not allow, fails with the
//! line that names it. What stands in `#[cfg(test)]` may name anything.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, fs, path::Path};

use proc_macro2::Span;
use syn::{Attribute, File, Item, UseTree, spanned::Spanned, visit::Visit};

/// A room of `src/`, and the rooms that it may name. Below come first.
const ROOMS: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("glob", &[]),
    ("key", &[]),
    ("config", &["glob"]),
    ("metrics", &["lock"]),
    ("resp", &[]),
    ("net", &["config", "metrics"]),
    ("command", &["config", "glob", "key", "lock", "resp"]),
    ("guard", &["config", "glob", "key", "net", "resp"]),
    ("lock", &["clock", "config", "key", "metrics", "net", "resp"]),
    (
        "session",
        &["clock", "command", "config", "glob", "guard", "key", "lock", "metrics", "net", "resp"],
    ),
    ("server", &["config", "guard", "lock", "metrics", "net", "resp", "session"]),
    ("tools", &["config", "lock", "net", "server"]),
];

/// Names of the crate's rooms in one file, each with where it stands.
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
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_for_tests(attributes) {
            syn::visit::visit_item(self, item);
        }
    }

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

/// All Rust files below `folder` that are part of the product, with their text.
fn files(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "simulation" {
                files(&path, found);
            }
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
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
            // A macro or a function at the root is nobody's room.
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
