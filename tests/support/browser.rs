//! A headless Chromium that a test drives over its debugging pipe, so that no port is open.

use std::{
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use super::LIMIT;

/// The pipe is at descriptors 3 and 4.
const START: &str = "exec chromium --headless --no-sandbox --disable-gpu --disable-quic \
    --no-first-run --disable-background-networking --disable-component-update --disable-sync \
    --disable-breakpad --disable-crash-reporter --remote-debugging-pipe --user-data-dir=\"$0\" \
    \"$@\" about:blank 3<&0 4>&1 </dev/null >/dev/null 2>\"$0/log\"";

/// A browser with one page. It ends when this is dropped.
pub struct Browser {
    child: Child,
    pipe: ChildStdin,
    messages: Receiver<Value>,
    calls: u64,
    session: String,
    /// The events that the page has sent.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts Chromium with an empty profile, and opens an empty page.
    pub fn start() -> Browser {
        Browser::start_with(&[])
    }

    /// Starts Chromium like [`Browser::start`], with further arguments.
    pub fn start_with(arguments: &[&str]) -> Browser {
        let profile = tempfile::tempdir().expect("directory");
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "sh", "-c", START])
            .arg(profile.path())
            .args(arguments)
            .env("HOME", profile.path())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromium; make test installs it");
        let (pipe, mut answers) =
            (child.stdin.take().expect("pipe"), child.stdout.take().expect("pipe"));
        let (tell, messages) = channel();
        thread::spawn(move || {
            let (mut bytes, mut some) = (Vec::new(), [0; 65536]);
            while let Ok(count @ 1..) = answers.read(&mut some) {
                bytes.extend_from_slice(&some[..count]);
                while let Some(end) = bytes.iter().position(|byte| *byte == 0) {
                    let message: Vec<u8> = bytes.drain(..=end).take(end).collect();
                    let _ = tell.send(serde_json::from_slice(&message).expect("JSON"));
                }
            }
        });
        let (session, events) = (String::new(), Vec::new());
        let mut browser =
            Browser { child, pipe, messages, calls: 0, session, events, _profile: profile };
        let page = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let page = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", page);
        browser.session = attached["sessionId"].as_str().expect("session").to_owned();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method of Chromium's debugging protocol.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut call = json!({"id": self.calls, "method": method, "params": params});
        if !self.session.is_empty() {
            call["sessionId"] = self.session.as_str().into();
        }
        let mut bytes = call.to_string().into_bytes();
        bytes.push(0);
        self.pipe.write_all(&bytes).expect("chromium runs; make test installs it");
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = self.messages.recv_timeout(left);
            let message = message.unwrap_or_else(|error| panic!("{method}: {error}"));
            if message["id"] == self.calls {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    /// Opens a page, and waits until it has loaded.
    pub fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({"url": url}));
        assert!(opened["errorText"].is_null(), "{opened}");
        super::eventually("the page has loaded", || self.run("document.readyState") == "complete");
    }

    /// Runs a script in the page, and returns its value.
    pub fn run(&mut self, script: &str) -> Value {
        let params = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
        let told = self.call("Runtime.evaluate", params);
        assert!(told["exceptionDetails"].is_null(), "{script}: {told}");
        told["result"]["value"].clone()
    }

    /// Returns the text that a part of the page shows; empty if the part is hidden or missing.
    pub fn text(&mut self, selector: &str) -> String {
        let script = format!(
            "(part => part?.checkVisibility() ? part.innerText : '')(document.querySelector({selector:?}))"
        );
        self.run(&script).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a part of the page shows this text.
    pub fn shows(&mut self, selector: &str, text: &str) {
        let deadline = Instant::now() + LIMIT;
        let mut shown = self.text(selector);
        while !shown.contains(text) {
            assert!(Instant::now() < deadline, "{selector} shows no {text:?}, but {shown:?}");
            thread::sleep(Duration::from_millis(20));
            shown = self.text(selector);
        }
    }

    /// Presses a key: `Tab`, `Enter`, `Escape`.
    pub fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            other => panic!("no key: {other}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let params = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text,
            });
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// Types a text into the element with the focus.
    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses Tab until this element has the focus.
    pub fn tab_to(&mut self, selector: &str) {
        let has_focus = format!("document.activeElement?.matches({selector:?}) ?? false");
        for _ in 0..60 {
            if self.run(&has_focus) == true {
                return;
            }
            self.press("Tab");
        }
        panic!("Tab never comes to {selector}");
    }

    /// Returns the addresses of everything that was fetched.
    pub fn fetched(&mut self) -> Vec<String> {
        let requests = self.told("Network.requestWillBeSent");
        let url = |event: &Value| event["request"]["url"].as_str().map(str::to_owned);
        requests.iter().filter_map(url).collect()
    }

    /// Returns everything in the console.
    pub fn console(&mut self) -> Vec<Value> {
        let mut all = self.told("Runtime.exceptionThrown");
        all.extend(self.told("Runtime.consoleAPICalled"));
        all.extend(self.told("Log.entryAdded"));
        all
    }

    /// Returns the events of this name so far.
    fn told(&mut self, name: &str) -> Vec<Value> {
        // After this answer all earlier events are there.
        self.run("0");
        let events = self.events.iter().filter(|event| event["method"] == name);
        events.map(|event| event["params"].clone()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
