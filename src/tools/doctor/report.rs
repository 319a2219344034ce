//! Doctor's report: servers with what is wrong with each, as text and as JSON.

use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use crate::{
    config::{ConfigErrors, Problem},
    log_text::plain_line,
};

/// A problem that was found.
#[derive(Clone)]
pub(super) struct Finding {
    /// Whether the server cannot vote, no command can be forwarded, no bridged lock can be taken, a lock may be
    /// granted twice, or a proxy does not start.
    pub(super) is_grave: bool,
    pub(super) what: String,
    /// What to do about the problem.
    pub(super) advice: String,
    /// Whether the server is a lock node that does not vote now and needs no repair: it waits, or is paused.
    pub(super) waits: bool,
}

impl Finding {
    pub(super) fn grave(what: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { is_grave: true, what: what.into(), advice: advice.into(), waits: false }
    }

    pub(super) fn minor(what: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { is_grave: false, what: what.into(), advice: advice.into(), waits: false }
    }
}

/// A part that was examined, in most cases one server, with what is wrong.
pub(super) struct Examined {
    /// What it is: `lock node 2`.
    pub(super) part: String,
    /// Its address; empty if there is none, or if `part` has it.
    pub(super) address: String,
    pub(super) summary: String,
    pub(super) findings: Vec<Finding>,
    /// Whether the verdict counts it among the servers.
    pub(super) is_server: bool,
}

impl Examined {
    pub(super) fn server(
        part: impl Into<String>,
        address: impl Into<String>,
        summary: impl Into<String>,
        findings: Vec<Finding>,
    ) -> Examined {
        let (part, address, summary) = (part.into(), address.into(), summary.into());
        Examined { part, address, summary, findings, is_server: true }
    }

    /// Makes a part that is not one server.
    pub(super) fn other(
        part: impl Into<String>,
        summary: impl Into<String>,
        findings: Vec<Finding>,
    ) -> Examined {
        Examined { is_server: false, ..Examined::server(part, "", summary, findings) }
    }

    pub(super) fn is_fit(&self) -> bool {
        !self.findings.iter().any(|finding| finding.is_grave)
    }

    /// Whether it is a lock node that does not vote now and needs no repair.
    pub(super) fn waits(&self) -> bool {
        self.findings.iter().any(|finding| finding.waits)
    }
}

/// All that was examined.
pub(super) struct Report {
    pub(super) all: Vec<Examined>,
    /// The number of lock nodes in the list that votes.
    pub(super) nodes: usize,
    /// How many of them do not vote now and need no repair.
    pub(super) waiting: usize,
}

impl Report {
    /// The number of those that are not fit for their part.
    pub(super) fn grave(&self) -> usize {
        self.all.iter().filter(|one| !one.is_fit()).count()
    }

    fn minor(&self) -> usize {
        let findings = self.all.iter().flat_map(|one| &one.findings);
        findings.filter(|finding| !finding.is_grave).count()
    }

    fn may_fail(&self) -> usize {
        self.nodes - (self.nodes / 2 + 1)
    }

    /// Whether locks can be had now. If not, and nothing is grave, nothing needs repair: the waiting lock nodes
    /// will vote by themselves, or once `lockgate init` is run, and the paused ones once an operator resumes them.
    fn can_lock(&self) -> bool {
        self.grave() == 0 && self.waiting <= self.may_fail()
    }

    /// What is not fit: how many servers, and the names of the other parts.
    pub(super) fn unfit(&self) -> String {
        let servers = || self.all.iter().filter(|one| one.is_server);
        let (all, grave) = (servers().count(), servers().filter(|one| !one.is_fit()).count());
        let counted = (grave > 0).then(|| format!("{grave} of {all} servers"));
        let others = self.all.iter().filter(|one| !one.is_server && !one.is_fit());
        let named = others.map(|one| one.part.clone());
        counted.into_iter().chain(named).collect::<Vec<_>>().join(", ")
    }

    fn verdict(&self) -> String {
        let (nodes, waiting, may_fail) = (self.nodes, self.waiting, self.may_fail());
        match self.grave() {
            0 if !self.can_lock() => format!(
                "fit, but no lock can be had now: {waiting} of {nodes} lock nodes do not vote, and a lock needs {} votes",
                nodes - may_fail
            ),
            0 if waiting > 0 => format!(
                "fit: {waiting} of {nodes} lock nodes {}, and {} more may fail",
                if waiting == 1 { "does not vote now" } else { "do not vote now" },
                may_fail - waiting
            ),
            0 => format!("fit: of {nodes} lock nodes {may_fail} may fail"),
            _ => format!("not fit: {} (!!)", self.unfit()),
        }
    }

    /// The report for programs.
    pub(super) fn json(&self) -> Value {
        let finding = |finding: &Finding| {
            json!({
                "severity": if finding.is_grave { "grave" } else { "minor" },
                "what": finding.what,
                "advice": finding.advice,
            })
        };
        let examined = |one: &Examined| {
            json!({
                "part": one.part,
                "address": one.address,
                "summary": one.summary,
                "fit": one.is_fit(),
                "waits": one.waits(),
                "findings": one.findings.iter().map(finding).collect::<Vec<_>>(),
            })
        };
        json!({
            "fit": self.grave() == 0,
            "can_lock": self.can_lock(),
            "verdict": self.verdict(),
            "lock_nodes": self.nodes,
            "may_fail": self.may_fail(),
            "waiting": self.waiting,
            "examined": self.all.iter().map(examined).collect::<Vec<_>>(),
        })
    }
}

/// Removes control characters, which a terminal would obey, from what others named or answered.
pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

/// The report for programs where the configuration cannot be used.
pub(super) fn unusable(errors: &ConfigErrors) -> Value {
    let problem = |problem: &Problem| {
        json!({
            "file": errors.file,
            "line": problem.line,
            "key": problem.key,
            "what": problem.what,
        })
    };
    json!({
        "fit": false,
        "verdict": "the configuration cannot be used",
        "problems": errors.problems.iter().map(problem).collect::<Vec<_>>(),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Examined { part, address, summary, findings, .. } in &self.all {
            let mut title = part.clone();
            for more in [address, summary].into_iter().filter(|more| !more.is_empty()) {
                write!(title, "  {more}")?;
            }
            writeln!(f, "{}", plain_line(&title))?;
            for Finding { is_grave, what, advice, .. } in findings {
                let mark = if *is_grave { "!!" } else { " -" };
                writeln!(f, "  {mark} {}\n     {}", plain_line(what), plain_line(advice))?;
            }
        }
        let minor = self.minor();
        let rest = if minor == 0 { String::new() } else { format!("; to look at: {minor} (-)") };
        writeln!(f, "{}{rest}", self.verdict())
    }
}
