//! The page of one or more runs: curves, speed, memory, where the time went, configuration, samples.
//!
//! It is one HTML file that needs nothing else: its script and style are ours and inside it, so it opens from a disk, from a mail
//! and in ten years. Long runs are thinned to what a screen can show, with the extremes kept.

mod record;
mod track;

pub use record::Record;

use crate::failure::{Failure, Result};
use ironmill_text::durable;
use serde_json::{Value, json};
use std::path::Path;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Writes the page of some runs. `columns` are keys of the configuration that a table of the runs shows, for sweeps.
pub fn write(path: &Path, title: &str, runs: &[Record], columns: &[String]) -> Result<()> {
    let data = json!({
        "title": title,
        "columns": columns,
        "runs": runs.iter().map(Record::to_json).collect::<Vec<Value>>(),
    });
    durable::write(path, page(title, &data).as_bytes()).map_err(|error| Failure::write(path, &error))
}

/// The page with its parts put in. The data goes last, so that no text of a run is taken for a place of the page.
fn page(title: &str, data: &Value) -> String {
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    // Inside a script element only `<` can end it or begin something else.
    let data = data.to_string().replace('<', "\\u003c");
    let (before, after) = PAGE.split_once("{data}").unwrap_or((PAGE, ""));
    let fill =
        |part: &str| part.replace("{title}", &title).replace("{style}", STYLE).replace("{script}", SCRIPT);
    [fill(before), data, fill(after)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_run_cannot_leave_their_place() {
        let data = json!({"runs": [{"samples": ["</script><script>alert(1)</script> {title} {script}"]}]});
        let page = page("a < b & c", &data);
        assert!(page.contains("<title>a &lt; b &amp; c</title>"));
        assert!(!page.contains("<script>alert"));
        assert!(page.contains("\\u003c/script>\\u003cscript>alert(1)\\u003c/script> {title} {script}"));
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        for part in [PAGE, STYLE, SCRIPT] {
            for word in ["http:", "https:", "src=", "@import", "url(", "fetch(", "import("] {
                let allowed = part.replace("http://www.w3.org/2000/svg", "");
                assert!(!allowed.contains(word), "{word}");
            }
        }
    }
}
