// What clients choose, as names of locks and their own, is text here and never markup.
const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let token = "", history = null, adopted = null, busy = false, again = false, told = 0, ticks = 0;

function make(tag, text, kind) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}
function set(element, text) { if (element.textContent !== text) element.textContent = text; }
function number(value) { return value === null || value === undefined ? "–" : value.toLocaleString("en"); }
function time(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return ms + " ms";
  const s = ms / 1000;
  if (s < 60) return s.toFixed(1) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  if (s < 172800) return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
  return Math.floor(s / 86400) + " days";
}
function micros(us) {
  if (us === null || us === undefined) return "–";
  const size = Math.abs(us);
  return size < 1000 ? us + " µs" : size < 1e6 ? (us / 1000).toFixed(1) + " ms" : (us / 1e6).toFixed(1) + " s";
}
// A name of any length and direction stays in its place.
function name(text) {
  const shown = make("bdi", text.length > 160 ? text.slice(0, 160) + "…" : text);
  if (text.length > 160) shown.title = text.slice(0, 4096);
  const code = make("code");
  code.append(shown);
  return code;
}
function who(client) {
  if (!client) return make("span", "–", "soft");
  const box = make("span");
  if (client.name) box.append(make("bdi", client.name), " ");
  box.append(make("span", client.address || "?", "soft"));
  if (!client.connected) box.append(make("span", " (gone)", "warn"));
  return box;
}
function spark(values, label) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 120 30");
  svg.setAttribute("preserveAspectRatio", "none");
  const known = (values || []).filter(value => value !== null);
  if (known.length > 1) {
    const most = Math.max(...known);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label + ": up to " + number(most) + " in the last ten minutes");
    let line = null;
    values.forEach((value, at) => {
      if (value === null) { line = null; return; }
      if (!line) {
        line = document.createElementNS(SVG, "polyline");
        line.setAttribute("points", "");
        svg.append(line);
      }
      const x = 120 - (values.length - 1 - at), y = most > 0 ? 28 - value / most * 26 : 28;
      line.setAttribute("points", line.getAttribute("points") + " " + x + "," + y.toFixed(1));
    });
  } else {
    svg.setAttribute("aria-hidden", "true");
  }
  return svg;
}
// Fills a table and keeps the rows that stay, and with them what has the focus.
function fill(table, columns, rows) {
  if (!table.tHead) {
    // On a narrow screen rows are blocks, which are no rows unless they are called so.
    table.setAttribute("role", "table");
    const head = table.createTHead().insertRow();
    head.setAttribute("role", "row");
    columns.forEach(([label]) => {
      const cell = make("th", label || "Action", label ? "" : "act");
      cell.scope = "col";
      cell.setAttribute("role", "columnheader");
      head.append(cell);
    });
    table.createTBody();
    table.known = new Map();
  }
  const body = table.tBodies[0], known = table.known, kept = new Set();
  rows.forEach((row, place) => {
    let line = known.get(row.id);
    if (!line) {
      line = make("tr");
      line.setAttribute("role", "row");
      columns.forEach(([label]) => {
        const cell = line.insertCell();
        cell.setAttribute("role", "cell");
        if (!label) cell.className = "act";
        cell.dataset.label = label;
      });
      known.set(row.id, line);
    }
    kept.add(row.id);
    columns.forEach(([, show], at) => {
      const cell = line.cells[at], value = show(row.data);
      if (typeof value !== "object") {
        set(cell, String(value));
      } else if (!(value.mark !== undefined && cell.mark === value.mark)) {
        cell.mark = value.mark;
        cell.replaceChildren(value.node || value);
      }
    });
    if (body.rows[place] !== line) body.insertBefore(line, body.rows[place] || null);
  });
  for (const [id, line] of known) if (!kept.has(id)) { line.remove(); known.delete(id); }
}
function once(mark, node) { return {mark, get node() { return node(); }}; }
function idOf(lock) { return lock.key_hex ? "hex " + lock.key_hex : "key " + lock.key; }

async function get(path) {
  const limit = AbortSignal.timeout(5000);
  const answer = await fetch(path, {cache: "no-store", credentials: "omit", signal: limit});
  const body = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(body.error), {status: answer.status});
  return body;
}
async function post(path, body) {
  const answer = await fetch(path, {
    method: "POST", cache: "no-store", credentials: "omit",
    headers: {"Content-Type": "application/json", "Authorization": "Bearer " + token},
    body: JSON.stringify(body),
  });
  const told = await answer.json().catch(() => ({error: "status " + answer.status}));
  if (!answer.ok) throw new Error(told.error);
  return told;
}

function showHead(status) {
  const {proxy, problems, quorum} = status;
  const state = proxy.draining ? "Draining" : !proxy.ready ? "Not ready" : problems.length ? "Ready, not all well" : "Ready";
  set($("state"), state);
  $("state").className = "badge " + (!proxy.ready ? "bad" : problems.length ? "warn" : "good");
  set($("name"), proxy.name);
  set($("about"), proxy.version + ", up " + time(proxy.uptime_ms));
  document.title = (proxy.ready && !problems.length ? "" : "● ") + "Lockgate: " + state;
  $("problems").hidden = !problems.length;
  const lines = [...$("problem-list").children].map(line => line.textContent);
  if (lines.join("\n") !== problems.join("\n")) {
    $("problem-list").replaceChildren(...problems.map(problem => make("li", problem)));
  }
  set($("quorum"), quorum.voting + " of " + quorum.nodes + " vote, " + quorum.needed + " are needed: " +
    (quorum.slack < 0 ? "no lock is granted" : quorum.slack + " more may fail"));
  $("quorum").className = quorum.slack < 0 ? "bad" : quorum.slack === 0 && quorum.nodes > 1 ? "warn" : "soft";
}
function showTiles(status) {
  const {locks, totals, proxy, data, guards, adoption} = status, past = history || {};
  const last = column => past[column] && past[column].length ? past[column][past[column].length - 1] : null;
  const tiles = [
    ["Locks held", number(locks.held), "held", locks.session + " session, " + locks.leases + " leases"],
    ["Waiting", number(locks.waiters), "waiters", "longest " + time(locks.longest_wait_ms)],
    ["Grants a second", number(last("grants_per_s")), "grants_per_s", number(totals.grants) + " in all"],
    ["Busy a second", number(last("busy_per_s")), "busy_per_s", number(totals.busy) + " in all"],
    ["NOQUORUM a second", number(last("no_quorum_per_s")), "no_quorum_per_s", number(totals.no_quorum) + " in all"],
    ["Locks lost", number(totals.lost), "lost_per_s", "session locks"],
    ["Clients", number(proxy.connections), "connections", "connected"],
    ["Data node", data.up ? "up" : "down", null, data.address || data.name],
  ];
  if (guards) tiles.push(["Guards refused", number(totals.guard_refusals), "guard_refusals_per_s", "writes"]);
  if (adoption) tiles.push(["Adopted", number(totals.adopted), "adopted_per_s", number(totals.adopt_refusals) + " refused"]);
  if (locks.paused_ms) tiles.push(["New LOCKs wait", time(locks.paused_ms), null, "LOCKGATE PAUSE"]);
  $("tiles").replaceChildren(...tiles.map(([label, value, column, more]) => {
    const tile = make("li");
    tile.append(make("span", label, "soft"), make("b", value));
    if (column) tile.append(spark(past[column], label));
    tile.append(make("small", more, "soft"));
    return tile;
  }));
}
function showNodes(status) {
  const times = seat => ((history || {}).nodes || []).find(node => node.seat === seat);
  const state = node => {
    const word = node.votes ? "votes" : node.paused ? "paused" : node.up ? "up, does not vote" : "down";
    const box = make("span");
    box.append(make("b", (node.votes ? "✓ " : "✗ ") + word, node.votes ? "good" : "bad"));
    if (node.state !== "ok") box.append(make("span", ": " + node.state));
    return box;
  };
  const columns = [
    ["Seat", node => node.seat],
    ["Address", node => node.address],
    ["State", node => once(node.votes + node.state + node.paused, () => state(node))],
    ["Round trip", node => micros(node.round_trip_us)],
    ["Ten minutes", node => once((history || {at_ms: []}).at_ms.slice(-1)[0] + "", () =>
      spark((times(node.seat) || {}).round_trip_us, "Round trip of node " + node.seat + " in µs"))],
    ["Clock ahead", node => micros(node.clock_ahead_us)],
    ["", node => once(token + node.paused + node.address, () => {
      if (!token) return make("span");
      const button = make("button", node.paused ? "Resume" : "Pause");
      button.setAttribute("aria-label", button.textContent + " " + node.address);
      button.addEventListener("click", () => node.paused ? resume(node) : pause(node));
      return button;
    })],
  ];
  fill($("nodes"), columns, status.nodes.map(node => ({id: node.seat, data: node})));
}
function freeButton(lock) {
  return once(token + lock.fence, () => {
    if (!token || lock.fence === null) return make("span");
    const button = make("button", "Free");
    button.setAttribute("aria-label", "Free the lock " + lock.key.slice(0, 80));
    button.addEventListener("click", () => free(lock));
    return button;
  });
}
const holderOf = lock => lock.kind === "elsewhere"
  ? once("elsewhere", () => make("span", "held elsewhere", "soft"))
  : once(JSON.stringify(lock.holder), () => who(lock.holder));
const nameOf = lock => once("name", () => name(lock.key));
function showHot(list) {
  const columns = [
    ["Lock", nameOf],
    ["Holder", holderOf],
    ["Held for", lock => time(lock.held_ms)],
    ["Waiting", lock => once(JSON.stringify(lock.line.map(one => one.client)) + lock.waiters, () => {
      const box = make("span", String(lock.waiters));
      if (!lock.line.length) return box;
      const line = make("ol", null, "plain");
      lock.line.forEach(one => { const item = make("li"); item.append(who(one.client)); line.append(item); });
      if (lock.waiters > lock.line.length) line.append(make("li", "and " + (lock.waiters - lock.line.length) + " more"));
      const more = make("details");
      more.append(make("summary", lock.waiters + " in line"), line);
      return more;
    })],
    ["Waited in all", lock => time(lock.waited_ms)],
    ["Longest wait", lock => time(lock.longest_ms)],
    ["", freeButton],
  ];
  $("hot").hidden = !list.hot.length;
  $("hot-none").hidden = list.hot.length > 0;
  fill($("hot"), columns, list.hot.map(lock => ({id: idOf(lock), data: lock})));
}
function showLocks(list) {
  const columns = [
    ["Lock", nameOf],
    ["Kind", lock => lock.kind + (lock.adopted ? ", " + lock.adopted : "")],
    ["Holder", holderOf],
    ["Held for", lock => time(lock.held_ms)],
    ["Ends in", lock => time(lock.remaining_ms)],
    ["Waiting", lock => lock.waiters ? lock.waiters + ", longest " + time(lock.longest_wait_ms) : "0"],
    ["Fence", lock => lock.fence === null ? "–" : String(lock.fence)],
    ["", freeButton],
  ];
  $("locks").hidden = !list.locks.length;
  $("locks-none").hidden = list.locks.length > 0;
  set($("locks-note"), list.locks.length >= 50 ? "the first 50" : "");
  fill($("locks"), columns, list.locks.map(lock => ({id: idOf(lock), data: lock})));
}
function showGuards(guards) {
  $("guards-part").hidden = !guards;
  if (!guards) return;
  const w = guards.writes;
  set($("guards-sum"), "Writes: " + number(w.passed) + " passed, " + number(w.notheld) + " without the lock, " +
    number(w.fenced) + " too late, " + number(w.refused) + " not checked; " + number(w.audited) + " passed without their lock in audit." +
    (guards.informed ? "" : " All commands are refused: the data node has not told which it has.") +
    (guards.unacknowledged ? " Replicas have not acknowledged the last " + guards.unacknowledged + " fences." : ""));
  fill($("guards"), [["Keys", rule => rule.keys], ["Lock", rule => rule.lock], ["Policy", rule => rule.policy]],
    guards.rules.map((rule, at) => ({id: at, data: rule})));
}
function showAdoption(adoption) {
  $("adopt-part").hidden = !adoption;
  if (!adoption) return;
  set($("adopt-sum"), number(adoption.seen) + " commands seen, " + number(adoption.unsafe) + " of them unsafe, " +
    number(adoption.refused) + " refused" + (adoption.mode_conflicts ? "; " + adoption.mode_conflicts +
    " rules are two steps apart in another proxy" : "") + ".");
  fill($("adopt"), [["Keys", rule => rule.keys], ["Lock", rule => rule.lock || "the key"], ["Mode", rule => rule.mode]],
    adoption.rules.map((rule, at) => ({id: at, data: rule})));
  const seen = adopted ? adopted.adopted : [];
  $("seen").hidden = !seen.length;
  fill($("seen"), [
    ["Seen", kind => number(kind.times)],
    ["Idiom", kind => kind.idiom + (kind.library ? ", " + kind.library : "")],
    ["Form", kind => kind.form],
    ["Client", kind => once(kind.client, () => make("bdi", kind.client))],
    ["Unsafe", kind => once(kind.unsafe, () => make("span", kind.unsafe || "no", kind.unsafe ? "warn" : ""))],
    ["Verdict", kind => kind.verdict + (kind.because ? ": " + kind.because : "")],
  ], seen.map((kind, at) => ({id: at, data: kind})));
}

function confirmed(title, text, yes) {
  const ask = $("ask");
  set($("ask-title"), title); set($("ask-text"), text); set($("ask-yes"), yes);
  return new Promise(resolve => {
    ask.addEventListener("close", () => resolve(ask.returnValue === "yes"), {once: true});
    ask.returnValue = "no";
    ask.showModal();
  });
}
$("ask-yes").addEventListener("click", () => $("ask").close("yes"));
$("ask-no").addEventListener("click", () => $("ask").close("no"));
async function act(doing, path, body) {
  try {
    const answer = await post(path, body);
    set($("done"), doing(answer));
    $("done").className = "good";
  } catch (error) {
    set($("done"), "Not done: " + error.message);
    $("done").className = "bad";
  }
  refresh(true);
}
async function free(lock) {
  const holder = lock.holder ? (lock.holder.name + " " + lock.holder.address).trim() : "an unknown client";
  const sure = await confirmed("Free this lock?", "The lock " + lock.key.slice(0, 200) + " with the fence " + lock.fence + " is taken from " +
    holder + ", who may still be at work. Another client may have it at once.", "Free it");
  if (!sure) return;
  const which = lock.key_hex ? {key_hex: lock.key_hex} : {key: lock.key};
  act(answer => answer.freed ? "The lock was freed." : "That grant does not hold the lock any more.",
    "/api/locks/unlock", {...which, fence: lock.fence});
}
async function pause(node) {
  const sure = await confirmed("Pause this lock node?", node.address + " is asked for no new locks by this proxy from now on. It keeps " +
    "those that it has. Other proxies go on asking it.", "Pause it");
  if (sure) act(() => node.address + " is paused.", "/api/nodes/pause", {address: node.address});
}
function resume(node) { act(() => node.address + " is asked again.", "/api/nodes/resume", {address: node.address}); }

$("acts").addEventListener("submit", event => {
  event.preventDefault();
  token = $("token").value.trim();
  $("token").value = "";
  $("forget").hidden = !token;
  set($("done"), token ? "Locks can be freed and lock nodes paused now." : "");
  $("done").className = "soft";
  refresh(true);
});
$("forget").addEventListener("click", () => {
  token = "";
  $("forget").hidden = true;
  set($("done"), "Forgotten.");
  refresh(true);
});
$("by").addEventListener("change", () => refresh(true));
$("match").addEventListener("input", () => refresh(true));
$("live").addEventListener("change", () => refresh(false));
document.addEventListener("visibilitychange", () => refresh(false));

async function refresh(now) {
  if (busy) { if (now) again = true; return; }
  if (!now && (!$("live").checked || document.hidden)) return;
  busy = true;
  try {
    const pattern = $("match").value;
    const locks = "/api/locks?count=50&by=" + $("by").value + (pattern ? "&match=" + encodeURIComponent(pattern) : "");
    const wanted = [get("/api/status"), get("/api/hot"), get(locks).catch(error => {
      // The pattern, and nothing else, may be wrong.
      if (error.status === 400) return {locks: [], wrong: error.message};
      throw error;
    })];
    if (ticks++ % 2 === 0 || !history) wanted.push(get("/api/history").then(got => { history = got; }));
    const [status, hot, list] = await Promise.all(wanted);
    if (status.adoption) adopted = await get("/api/adopted?count=20");
    showHead(status); showTiles(status); showNodes(status); showHot(hot); showLocks(list);
    if (list.wrong) set($("locks-note"), list.wrong);
    showGuards(status.guards); showAdoption(status.adoption);
    document.body.classList.toggle("may", token !== "");
    $("acts").hidden = !status.proxy.actions;
    $("acts-none").hidden = status.proxy.actions;
    told = Date.now();
    $("stale").hidden = true;
    set($("when"), "as of " + new Date(told).toLocaleTimeString());
  } catch (error) {
    const since = told ? "What stands below is from " + new Date(told).toLocaleTimeString() + "." : "";
    set($("stale"), "The proxy does not answer (" + error.message + "). " + since);
    $("stale").hidden = false;
    set($("state"), "Stale");
    $("state").className = "badge bad";
    document.title = "● Lockgate: stale";
  } finally {
    busy = false;
  }
  if (again) { again = false; refresh(true); }
}
refresh(true);
setInterval(() => refresh(false), 2000);
