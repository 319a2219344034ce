// What an operator looks at first: one sentence with what to do, the figures that matter now, and what happened.

// The sentence, how grave it is, and what to do about it.
function verdict(status) {
  const {proxy, quorum, data, locks, nodes} = status;
  const votes = quorum.voting + " of " + quorum.nodes + " lock nodes vote";
  const down = nodes.filter(node => !node.up), idle = nodes.filter(node => node.up && !node.votes);
  const cure = [];
  if (down.length) cure.push("Start " + inWords(down.map(node => node.address)) + " again, or correct locks.nodes.");
  if (idle.length) cure.push("See below what keeps " + inWords(idle.map(node => node.address)) + " from voting.");
  if (proxy.draining) return ["warn", "This process is ending: it lets no new client in.", ""];
  if (quorum.slack < 0) return ["bad", "No lock is granted: " + votes + ", and " + quorum.needed + " are needed.", cure.join(" ")];
  if (!data.up) {
    return ["bad", "Commands do not reach the data node, and no lock is granted without it: " + plain(data.problem || "") + ".",
      "Start " + (data.address || data.name) + " again, or correct data."];
  }
  if (!proxy.ready) return ["bad", "Not ready: " + plain(status.problems[0] || "") + ".", ""];
  if (locks.paused_ms) {
    return ["warn", "New locks wait for " + time(locks.paused_ms) + " more, as an operator asked.", "LOCKGATE PAUSE 0 ends that."];
  }
  if (cure.length) {
    return ["warn", "Locks are granted: " + votes + ", and " + (quorum.slack ? quorum.slack + " more may fail." : "none more may fail."), cure.join(" ")];
  }
  if (status.problems.length) return ["warn", "Locks are granted; not all is well: " + plain(status.problems[0]) + ".", ""];
  return ["good", "All is well: " + votes + ", " + (locks.held ? count(locks.held, "lock") + " held" : "no lock is held") + ", " +
    (locks.waiters ? count(locks.waiters, "client") + " waiting" : "nobody waits") + ".", ""];
}
function inWords(words) {
  return words.length < 2 ? words.join("") : words.slice(0, -1).join(", ") + " and " + words[words.length - 1];
}
function showVerdict(status) {
  const [kind, sentence, cure] = verdict(status);
  set($("verdict"), SIGNS[kind] + sentence);
  $("verdict").className = "verdict " + kind;
  set($("cure"), cure);
  $("cure").hidden = !cure;
  const problems = status.problems.map(plain), lines = [...$("problem-list").children].map(line => line.textContent);
  $("problems").hidden = !problems.length;
  if (lines.join("\n") !== problems.join("\n")) {
    $("problem-list").replaceChildren(...problems.map(problem => make("li", problem)));
  }
}

// The figures: those that are not well first, those that are 0 now last, and none that was 0 for ten minutes.
function figures(status) {
  const {locks, totals, proxy, data, guards, adoption} = status, past = history || {};
  const last = column => past[column] && past[column].length ? past[column][past[column].length - 1] : null;
  const now = column => last(column) > 0 ? "bad" : "";
  const all = [
    {label: "Data node", shown: data.up ? "up" : "down", below: data.address || data.name, kind: data.up ? "good" : "bad"},
    {label: "New LOCKs wait", value: locks.paused_ms, shown: time(locks.paused_ms), below: "LOCKGATE PAUSE", kind: "warn"},
    {label: "NOQUORUM a second", column: "no_quorum_per_s", unit: rate, below: number(totals.no_quorum) + " in all", kind: now("no_quorum_per_s")},
    {label: "Locks lost", value: totals.lost, column: "lost_per_s", unit: rate, shown: number(totals.lost), below: "session locks",
      kind: now("lost_per_s")},
    {label: "Waiting", value: locks.waiters, column: "waiters", below: "longest " + time(locks.longest_wait_ms)},
    {label: "Locks held", value: locks.held, column: "held", below: locks.session + " session, " + count(locks.leases, "lease")},
    {label: "Grants a second", column: "grants_per_s", unit: rate, below: number(totals.grants) + " in all"},
    {label: "Busy a second", column: "busy_per_s", unit: rate, below: number(totals.busy) + " in all"},
    guards && {label: "Guards refused", value: totals.guard_refusals, column: "guard_refusals_per_s", unit: rate,
      shown: number(totals.guard_refusals), below: "writes"},
    adoption && {label: "Adopted", value: totals.adopted, column: "adopted_per_s", unit: rate, shown: number(totals.adopted),
      below: number(totals.adopt_refusals) + " refused"},
    {label: "Clients", value: proxy.connections, column: "connections", below: "connected"},
  ].filter(Boolean);
  for (const figure of all) {
    figure.unit ||= number;
    if (figure.value === undefined && figure.column) figure.value = last(figure.column);
    figure.shown ??= figure.unit(figure.value);
  }
  const tells = figure => figure.value === undefined || figure.value > 0 || (past[figure.column] || []).some(value => value > 0);
  const rank = figure => ({bad: 0, warn: 1})[figure.kind] ?? (figure.value === 0 || figure.kind === "good" ? 3 : 2);
  return all.filter(tells).sort((a, b) => rank(a) - rank(b));
}
function showTiles(status) {
  const past = history || {}, stamp = String(past.at_ms && past.at_ms[past.at_ms.length - 1]);
  const tiles = $("tiles"), known = new Map([...tiles.children].map(tile => [tile.dataset.of, tile]));
  figures(status).forEach(({label, shown, column, unit, below, kind}, place) => {
    let tile = known.get(label);
    known.delete(label);
    if (!tile) {
      tile = make("li");
      tile.dataset.of = label;
      tile.append(make("span", label, "soft"), make("b"), make("div"), make("small", "", "soft"));
    }
    const [, value, line, more] = tile.children;
    set(value, (SIGNS[kind] || "") + shown);
    value.className = kind || "";
    if (column && tile.stamp !== stamp) { tile.stamp = stamp; line.replaceChildren(chart(past[column], label, unit)); }
    set(more, below);
    if (tiles.children[place] !== tile) tiles.insertBefore(tile, tiles.children[place] || null);
  });
  known.forEach(tile => tile.remove());
}

// What happened in the last ten minutes, read from the history: between one sample and the next, so to some seconds.
const MOST_EVENTS = 40;
function events(past) {
  const found = [], all = past.at_ms.length, add = (at, kind, text) => found.push({at_ms: past.at_ms[at], kind, text});
  for (let at = 1; at < all; at += 1) {
    if (past.ready[at] !== past.ready[at - 1]) add(at, past.ready[at] ? "good" : "bad", past.ready[at] ? "Ready again" : "Not ready");
    for (const node of past.nodes) {
      const [before, now] = [node.round_trip_us[at - 1], node.round_trip_us[at]].map(value => value !== null);
      if (before !== now) add(at, now ? "good" : "bad", "Lock node " + node.address + (now ? " answers" : " does not answer"));
    }
    const voting = past.voting[at];
    if (voting !== past.voting[at - 1]) {
      add(at, voting > past.voting[at - 1] ? "good" : "bad", voting + " of " + past.nodes.length + " lock nodes vote");
    }
  }
  const counted = [
    ["no_quorum_per_s", "bad", "command", " answered NOQUORUM"],
    ["lost_per_s", "bad", "session lock", " lost"],
    ["guard_refusals_per_s", "warn", "write", " refused by guards"],
    ["adopt_refusals_per_s", "warn", "adopted command", " refused"],
  ];
  // One event for samples in a row.
  for (const [column, kind, thing, became] of counted) {
    for (let at = 0; at < all; at += 1) {
      const begin = at;
      let sum = 0;
      while (at < all && past[column][at] > 0) { sum += past[column][at] * past.every_ms / 1000; at += 1; }
      if (at > begin) add(begin, kind, count(Math.max(1, Math.round(sum)), thing) + became);
    }
  }
  return found.sort((a, b) => b.at_ms - a.at_ms).slice(0, MOST_EVENTS);
}
function showEvents() {
  if (!history) return;
  const rows = events(history), shown = JSON.stringify(rows), box = $("events");
  $("events-none").hidden = rows.length > 0;
  if (box.shown === shown) return;
  box.shown = shown;
  box.replaceChildren(...rows.map(({at_ms, kind, text}) => {
    const line = make("li"), moment = make("time", clockTime(at_ms), "soft");
    moment.dateTime = new Date(at_ms).toISOString();
    line.append(moment, " ", make("span", SIGNS[kind] + plain(text), kind));
    return line;
  }));
}
