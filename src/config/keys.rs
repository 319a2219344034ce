//! Code generated from the table of keys.

/// Generates a section of the file from a table of its keys. A line such as
///
/// ```text
/// /// Connections accepted at the same time.
/// live maxclients: usize = 10_000 => at_least(1, "0 lets nobody in; give at least 1");
/// ```
///
/// gives what SIGHUP does with the key, its type, its default and, behind `=>`, the checks of its value by
/// itself. The comment is what editors show of the key.
///
/// - `live`: a running proxy takes the new value over.
/// - `fixed`: something was made from the value, so a new one needs a restart or an upgrade.
/// - `section`: a mapping with a table of its own.
///
/// With `(crate)` behind that, only this crate reads the key; other keys are read by the binary or by tests too.
///
/// The text behind `at` is the prefix of the section's keys in the log. Fields under `beside` are not keys.
macro_rules! keys {
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident at $at:literal {
            $(
                $(#[doc = $about_key:literal])*
                $how:ident $(($only:ident))? $key:ident: $type:ty = $default:expr $(=> $($check:expr),+)?;
            )*
        }
        $(beside {
            $($(#[$about_other:meta])* $other:ident: $other_type:ty = $other_default:expr;)*
        })?
    ) => {
        $(#[$about])*
        $vis struct $name {
            $($(#[doc = $about_key])* pub $(($only))? $key: $type,)*
            $($($(#[$about_other])* pub $other: $other_type,)*)?
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($key: $default,)* $($($other: $other_default,)*)? }
            }
        }

        impl $name {
            /// The keys as written, in the order of the annotated file.
            pub(super) const KEYS: &[&str] = &[$(stringify!($key)),*];

            /// Reads the keys that `section` has; the others keep their values.
            pub(super) fn read(&mut self, reader: &mut Reader<'_>, section: &Section<'_>) {
                $(self.$key.fill(reader, section, stringify!($key));)*
            }

            /// Reports what is wrong with each value by itself.
            pub(super) fn check(&self, reader: &mut Reader<'_>, section: &Section<'_>) {
                $($($(
                    if let Some(what) = $check(&self.$key) {
                        reader.problem(&section.path(stringify!($key)), what);
                    }
                )+)?)*
            }

            /// Takes over each key whose value in `read` differs, if `may` agrees. `may` gets the key and
            /// whether it can change in a running proxy.
            pub(crate) fn take(
                &mut self,
                read: &$name,
                may: &mut dyn FnMut(&'static str, bool) -> bool,
            ) {
                $($crate::config::keys::take!(
                    $how, self.$key, read.$key, concat!($at, stringify!($key)), may
                );)*
            }
        }

        impl $crate::config::schema::ValueShape for $name {
            fn shape() -> serde_json::Value {
                let mut keys = serde_json::Map::new();
                $(
                    let mut shape = <$type as $crate::config::schema::ValueShape>::shape();
                    shape["description"] = concat!($($about_key),*).trim().replace('`', "").into();
                    keys.insert(stringify!($key).to_owned(), shape);
                )*
                $crate::config::schema::object(keys, &[])
            }
        }

        impl Fill for $name {
            fn fill(&mut self, reader: &mut Reader<'_>, parent: &Section<'_>, key: &str) {
                let section = reader.section(parent, key, $name::KEYS);
                self.read(reader, &section);
            }
        }
    };
}

/// Takes one key over, as its `live`, `fixed` or `section` says.
macro_rules! take {
    (live, $to:expr, $from:expr, $key:expr, $may:ident) => {
        if $to != $from && $may($key, true) {
            $to = $from.clone();
        }
    };
    (fixed, $to:expr, $from:expr, $key:expr, $may:ident) => {
        if $to != $from && $may($key, false) {
            $to = $from.clone();
        }
    };
    (section, $to:expr, $from:expr, $key:expr, $may:ident) => {
        $to.take(&$from, $may);
    };
}

/// Makes a type readable that is one of a few words: each word with its value, behind the text that names all of them.
macro_rules! words {
    ($type:ty: $wanted:literal, $($word:literal => $value:expr),+ $(,)?) => {
        impl $crate::config::reader::FromYaml for $type {
            fn read(
                _: &mut $crate::config::reader::Reader<'_>,
                value: &serde_yaml::Value,
                _: &[$crate::config::locate::PathStep],
            ) -> Result<Self, $crate::config::reader::Wrong> {
                match value.as_str() {
                    $(Some($word) => Ok($value),)+
                    _ => Err($crate::config::reader::Wrong::Wanted($wanted)),
                }
            }
        }

        impl $crate::config::schema::ValueShape for $type {
            fn shape() -> serde_json::Value {
                $crate::config::schema::words(&[$($word),+])
            }
        }
    };
}

pub(super) use {keys, take, words};
