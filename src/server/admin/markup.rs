//! The page at `/`: its parts in one document, which fetches nothing from elsewhere.

/// The document. `STYLE` and `SCRIPT` are placeholders for the other parts, `NONCE` for a number of each answer's
/// own.
const FRAME: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// One script: its parts use each other's names.
const SCRIPT: &str = concat!(
    include_str!("page/parts.js"),
    include_str!("page/lines.js"),
    include_str!("page/acts.js"),
    include_str!("page/shows.js"),
    include_str!("page/summary.js"),
    include_str!("page/refresh.js"),
);

/// Returns the document, whose style and script have this nonce.
pub(super) fn document(nonce: &str) -> String {
    // The nonce first: the script may contain that word.
    FRAME.replace("NONCE", nonce).replace("STYLE", STYLE).replace("SCRIPT", SCRIPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_there_once_and_ends_where_it_should() {
        let page = document("0123");
        for part in
            [STYLE, SCRIPT, "<style nonce=\"0123\">", "<script type=\"module\" nonce=\"0123\">"]
        {
            assert_eq!(page.matches(part).count(), 1, "{part}");
        }
        for end in ["</style>", "</script>"] {
            assert_eq!(page.matches(end).count(), 1, "{end}");
        }
    }
}
