// Elements, texts and tables: what the page is made of.
//
// What clients choose, as names of locks and their own, is text here and never markup.
const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, text, kind) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}
function set(element, text) { if (element.textContent !== text) element.textContent = text; }

// Numbers and times.

function number(value) { return value === null || value === undefined ? "–" : value.toLocaleString("en"); }
function count(value, thing) { return number(value) + " " + thing + (value === 1 ? "" : "s"); }
function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value > 0 && value < 0.1) return "< 0.1";
  return value < 10 && value % 1 ? value.toFixed(1) : number(Math.round(value));
}
function time(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return ms + " ms";
  const s = ms / 1000;
  if (s < 60) return s.toFixed(1) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  if (s < 172800) return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
  return Math.floor(s / 86400) + " days";
}
function clockTime(at_ms) { return new Date(at_ms).toLocaleTimeString(); }
function micros(us) {
  if (us === null || us === undefined) return "–";
  const size = Math.abs(us);
  return size < 1000 ? us + " µs" : size < 1e6 ? (us / 1000).toFixed(1) + " ms" : (us / 1e6).toFixed(1) + " s";
}

// Names.

// Control characters, marks that turn the direction of writing, those that join the character before them,
// and whatever else is not seen are told by their numbers, a backslash as two, and so are blanks at an end or
// beside each other: two names look alike only where their letters do. `lockgate top` has the same.
const UNSEEN = /[\p{C}\p{Zl}\p{Zp}\p{DI}\p{Gr_Ext}\u2800\\]|(?! )\p{Zs}|^ | (?= |$)/gu;
const SHORT = {"\\": "\\\\", "\0": "\\0", "\t": "\\t", "\n": "\\n", "\r": "\\r"};
function plain(text) {
  return text.replace(UNSEEN, c => SHORT[c] || "\\u{" + c.codePointAt(0).toString(16) + "}");
}
// The same of bytes in hexadecimal, of which those that are no text are told as \xff.
function plainBytes(hex) {
  const bytes = Uint8Array.from(hex.match(/../g) || [], pair => parseInt(pair, 16));
  const decoder = new TextDecoder("utf-8", {fatal: true, ignoreBOM: true});
  const text = (at, length) => {
    try { return at + length <= bytes.length ? decoder.decode(bytes.subarray(at, at + length)) : ""; } catch { return ""; }
  };
  let shown = "", run = "";
  for (let at = 0; at < bytes.length;) {
    const length = [1, 2, 3, 4].find(length => text(at, length));
    if (length) { run += text(at, length); at += length; continue; }
    shown += plain(run) + "\\x" + bytes[at].toString(16).padStart(2, "0");
    run = "";
    at += 1;
  }
  return shown + plain(run);
}
function lockName(lock) { return lock.key_hex ? plainBytes(lock.key_hex) : plain(lock.key); }

// A name of any length and direction stays in its place. Of a long one both ends are shown.
function name(shown) {
  const letters = [...shown], code = make("code");
  if (letters.length <= 160) {
    code.append(make("bdi", shown));
    return code;
  }
  code.title = shown;
  code.append(make("bdi", letters.slice(0, 100).join("")), make("span", " … ", "soft"),
    make("bdi", letters.slice(-40).join("")), make("span", " (" + count(letters.length, "character") + ")", "soft"));
  return code;
}
// A name as a part of a sentence, whole.
function whole(shown) {
  const code = make("code", null, "whole");
  code.append(make("bdi", shown));
  return code;
}
function who(client) {
  if (!client) return make("span", "–", "soft");
  const box = make("span");
  if (client.name) box.append(make("bdi", plain(client.name), "client"), " ");
  box.append(make("span", client.address || "?", "soft"));
  if (!client.connected) box.append(make("span", " (gone)", "warn"));
  return box;
}

// Tables.

// A cell is text, or a node that is made anew when its kind has changed, or one that is kept and brought up to
// date in its place.
function once(kind, node) { return {kind, node}; }
function kept(kind, node, update) { return {kind, node, update}; }

// Fills a table and keeps the rows that stay.
function fill(table, columns, rows) {
  if (!table.tHead) begin(table, columns);
  const body = table.tBodies[0], known = table.known, ids = new Set(rows.map(row => row.id));
  // Before others are placed: a row that moves loses the focus.
  for (const [id, line] of known) if (!ids.has(id)) { line.remove(); known.delete(id); }
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
    columns.forEach(([, show], at) => {
      const cell = line.cells[at], value = show(row.data);
      if (typeof value !== "object") {
        set(cell, String(value));
        // On a narrow screen such a cell would only push others down.
        cell.classList.toggle("nothing", value === "–" || value === "0" || value === "");
        return;
      }
      if (cell.kind !== value.kind) {
        cell.kind = value.kind;
        cell.replaceChildren(value.node());
      }
      if (value.update) value.update(cell.firstChild);
    });
    if (body.rows[place] !== line) body.insertBefore(line, body.rows[place] || null);
  });
}
function begin(table, columns) {
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

// Has what had the focus keep it though its row moves; if it is gone, what stands in its place has it, or the
// heading above.
function keepingFocus(change) {
  const had = document.activeElement, cell = had?.closest("td"), part = had?.closest("section");
  change();
  if (!had || had === document.body || document.activeElement === had) return;
  for (const next of [had, cell?.querySelector("button, summary"), part?.querySelector("h2")]) {
    if (next?.isConnected) next.focus({preventScroll: true});
    if (next && document.activeElement === next) return;
  }
}
