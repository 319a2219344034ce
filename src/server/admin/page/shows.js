// What the proxy tells, put on the page. Each part takes one document of the JSON.
let history = null, adopted = null;

// A colour is never alone: a sign stands beside it.
const SIGNS = {good: "✓ ", bad: "✗ ", warn: "⚠ "};

function showHead(status) {
  const {proxy, quorum} = status, problems = status.problems.map(plain);
  const state = proxy.draining ? "Draining" : !proxy.ready ? "Not ready" : problems.length ? "Ready, not all well" : "Ready";
  set($("state"), state);
  $("state").className = "badge " + (!proxy.ready ? "bad" : problems.length ? "warn" : "good");
  set($("name"), proxy.name);
  set($("about"), "version " + proxy.version + ", up " + time(proxy.uptime_ms));
  document.title = (proxy.ready && !problems.length ? "" : "● ") + "Lockgate: " + state;
  set($("quorum"), quorum.voting + " of " + quorum.nodes + " vote, " + quorum.needed + " are needed: " +
    (quorum.slack < 0 ? "no lock is granted" : quorum.slack + " more may fail"));
  $("quorum").className = quorum.slack < 0 ? "bad" : quorum.slack === 0 && quorum.nodes > 1 ? "warn" : "soft";
}

// What a peer told is text of a stranger. The link is the address in this proxy's own configuration.
function proxyCell(proxy) {
  const fresh = () => {
    const box = make("span");
    box.append(proxy.url && !proxy.here ? make("a") : make("b"), make("br"), make("bdi", "", "soft"));
    return box;
  };
  return kept(String(!proxy.url || proxy.here), fresh, box => {
    const [address, , name] = box.children, told = proxy.told || {};
    if (address.tagName === "A" && address.href !== proxy.url + "/") address.href = proxy.url + "/";
    set(address, proxy.here ? "this proxy" : proxy.url.replace("http://", ""));
    set(name, plain(told.name || "") + (told.version ? ", version " + plain(told.version) : ""));
  });
}
function proxyState(proxy) {
  const told = proxy.told || {}, problems = told.problems || [];
  const [kind, word] = !proxy.answers ? ["bad", "does not answer"] : told.draining ? ["warn", "draining"]
    : !told.ready ? ["bad", "not ready"] : problems.length ? ["warn", "ready, not all well"] : ["good", "ready"];
  const since = proxy.answers ? "" : ": " + proxy.error + ". For " + time(proxy.silent_ms) +
    (proxy.answered_ms === null ? "; it has never answered" : "");
  const fresh = () => {
    const box = make("span");
    box.append(make("b", SIGNS[kind] + word, kind), make("span"));
    if (proxy.answers && problems.length) {
      const list = make("ul", null, "plain");
      problems.slice(0, 3).forEach(problem => list.append(make("li", plain(problem))));
      if (problems.length > 3) list.append(make("li", "and more"));
      box.append(list);
    }
    return box;
  };
  return kept(JSON.stringify([kind, word, problems]), fresh, box => set(box.children[1], plain(since)));
}
function showProxies(list) {
  const told = proxy => (proxy.answers && proxy.told) || {}, data = {true: ["good", "up"], false: ["bad", "down"]};
  const columns = [
    ["Proxy", proxyCell],
    ["State", proxyState],
    ["Clients", proxy => number(told(proxy).connections)],
    ["Locks", proxy => number(told(proxy).held)],
    ["Waiting", proxy => number(told(proxy).waiters)],
    ["Lock nodes", proxy => {
      const {nodes, nodes_up, nodes_voting} = told(proxy);
      if (nodes === undefined) return "–";
      return nodes_up + " of " + nodes + " up" + (nodes_voting === nodes_up ? "" : ", " + nodes_voting + " vote");
    }],
    ["Data node", proxy => {
      const [kind, word] = data[told(proxy).data_up] || ["soft", "–"];
      return once(word, () => make("span", (SIGNS[kind] || "") + word, kind));
    }],
  ];
  const silent = list.proxies.filter(proxy => !proxy.answers).length, all = list.proxies.length;
  set($("proxies-sum"), silent ? silent + " of " + all + (silent === 1 ? " does not answer." : " do not answer.")
    : (all === 1 ? "admin.peers names no other." : "All " + all + " answer.") + " Locks and clients below are those of this proxy alone.");
  $("proxies-sum").className = silent ? "bad" : "soft";
  fill($("proxies"), columns, list.proxies.map(proxy => ({id: proxy.here ? "" : proxy.url, data: proxy})));
}

function showNodes(status) {
  const stamp = String((history || {at_ms: []}).at_ms.slice(-1)[0]);
  const past = node => ((history || {}).nodes || []).find(one => one.seat === node.seat && one.address === node.address);
  const state = node => {
    const word = node.votes ? "votes" : node.paused ? "paused" : node.up ? "up, does not vote" : "down";
    const box = make("span"), kind = node.votes ? "good" : "bad";
    box.append(make("b", SIGNS[kind] + word, kind));
    if (node.state !== "ok") box.append(make("span", ": " + plain(node.state)));
    return box;
  };
  const columns = [
    ["Seat", node => node.seat],
    ["Address", node => node.address],
    ["State", node => once(JSON.stringify([node.votes, node.up, node.paused, node.state]), () => state(node))],
    ["Round trip", node => micros(node.round_trip_us)],
    ["Ten minutes", node => once(stamp + node.address, () =>
      spark((past(node) || {}).round_trip_us, "Round trip of node " + node.seat, micros))],
    ["Clock ahead", node => micros(node.clock_ahead_us)],
    ["", node => {
      const word = node.paused ? "Resume" : "Pause";
      return rowButton(node, word, word + " " + node.address, node => node.paused ? resume(node) : pause(node));
    }],
  ];
  fill($("nodes"), columns, status.nodes.map(node => ({id: node.seat, data: node})));
}

function freeButton(lock) {
  const shown = lockName(lock).slice(0, 200);
  if (lock.kind === "shared") return rowButton(lock, "Free from all", "Free from all readers: the lock " + shown, free);
  if (lock.fence !== null) return rowButton(lock, "Free", "Free the lock " + shown, free);
  if (lock.kind !== "elsewhere") return once("none", () => make("span"));
  return rowButton(lock, "Free whoever has it", "Free whoever has it: the lock " + shown, free);
}
function heldOf(family) { return family.held.length + " of " + family.n + " held here"; }
function holderOf(lock) {
  const family = lock.family_told;
  if (family && lock.fence === null) return once(heldOf(family), () => make("span", heldOf(family)));
  if (lock.kind === "elsewhere" && lock.proxy)
    return once(JSON.stringify([lock.holder, lock.proxy]), () => {
      const box = make("span");
      box.append(who(lock.holder), make("span", " through " + lock.proxy, "soft"));
      return box;
    });
  if (lock.readers > 1) {
    const all = lock.readers + " readers, first of them ";
    return once(JSON.stringify([all, lock.holder]), () => {
      const box = make("span");
      box.append(make("span", all), who(lock.holder));
      return box;
    });
  }
  return lock.kind === "elsewhere"
    ? once("elsewhere", () => make("span", "held elsewhere", "soft"))
    : once(JSON.stringify(lock.holder), () => who(lock.holder));
}
function nameOf(lock) { return once("name", () => name(lockName(lock))); }
function byName(families) { return new Map(families.map(family => [lockName(family), family])); }
// Who waits is folded out, and stays so while others come and go.
function lineOf(lock) {
  const fresh = () => {
    const box = make("span"), more = make("details");
    more.append(make("summary"), make("ol", null, "plain"));
    box.append(make("span"), more);
    return box;
  };
  return kept("line", fresh, box => {
    const [alone, more] = box.children, [summary, list] = more.children;
    const left_out = lock.waiters - lock.line.length;
    const entries = lock.line.map(one => [JSON.stringify(one.client), () => who(one.client)]);
    if (left_out > 0) entries.push([String(left_out), () => make("span", "and " + left_out + " more")]);
    more.hidden = !lock.line.length;
    set(alone, lock.line.length ? "" : String(lock.waiters));
    set(summary, lock.waiters + " in line");
    entries.forEach(([kind, node], place) => {
      const item = list.children[place] || list.appendChild(make("li"));
      if (item.kind !== kind) { item.kind = kind; item.replaceChildren(node()); }
    });
    while (list.children.length > entries.length) list.lastChild.remove();
  });
}
function showHot(list) {
  const columns = [
    ["Lock", nameOf],
    ["Holder", holderOf],
    ["Held for", lock => time(lock.held_ms)],
    ["Waiting", lineOf],
    ["Waited in all", lock => time(lock.waited_ms)],
    ["Longest wait", lock => time(lock.longest_ms)],
    ["", freeButton],
  ];
  $("hot").hidden = !list.hot.length;
  $("hot-none").hidden = list.hot.length > 0;
  const families = byName(list.families);
  const data = lock => ({...lock, family_told: families.get(lockName(lock))});
  fill($("hot"), columns, list.hot.map(lock => ({id: lockName(lock), data: data(lock)})));
}

// The list that is shown, and the families in it whose permits are shown one by one.
let listed = {locks: [], families: []};
const unfolded = new Set();

// A row for each lock, and one for all permits of a family.
function lockRows({locks, families}) {
  const key = {age: "held_ms", waiters: "waiters", wait: "longest_wait_ms"}[$("by").value];
  const line = family => ({...family, kind: "permits", fence: null, family_told: family, permits: []});
  const lines = byName(families.map(line));
  // A lock may have a family's name, but no lock's name is shown with such a character.
  const rows = [...lines].map(([shown, data]) => ({id: "\0" + shown, data}));
  for (const lock of locks) {
    const family = lock.family && lines.get(lockName(lock.family)), id = lockName(lock);
    if (!family) rows.push({id, data: lock});
    else if (lock.kind !== "permits") family.permits.push({id, data: {...lock, folded: true}});
  }
  // Equal ones stay as the proxy sorts them.
  return rows.sort((a, b) => (b.data[key] || 0) - (a.data[key] || 0));
}
function lockCell(lock) {
  if (lock.folded) {
    return once("permit", () => {
      const code = name(lockName(lock));
      code.classList.add("permit");
      return code;
    });
  }
  if (!lock.permits) return nameOf(lock);
  const shown = lockName(lock), id = "\0" + shown;
  const fresh = () => {
    const fold = make("details"), summary = make("summary");
    summary.append(name(shown));
    fold.append(summary);
    fold.addEventListener("toggle", () => {
      if (fold.open === unfolded.has(id)) return;
      if (fold.open) unfolded.add(id); else unfolded.delete(id);
      keepingFocus(() => showLocks(listed));
    });
    return fold;
  };
  return kept("family", fresh, fold => { fold.open = unfolded.has(id); });
}
function showLocks(list) {
  listed = list;
  const columns = [
    ["Lock", lockCell],
    ["Kind", lock => lock.kind + (lock.adopted ? ", " + lock.adopted : "")],
    ["Holder", holderOf],
    ["Held for", lock => (lock.permits && lock.held_ms !== null ? "up to " : "") + time(lock.held_ms)],
    ["Ends in", lock => (lock.permits && lock.held_ms !== null ? "from " : "") + time(lock.remaining_ms)],
    ["Waiting", lock => lock.waiters ? lock.waiters + ", longest " + time(lock.longest_wait_ms) : "0"],
    ["Fence", lock => lock.fence === null ? "–" : String(lock.fence)],
    ["", freeButton],
  ];
  $("locks").hidden = !list.locks.length;
  // A pattern that cannot be used finds nothing, and that is no news of the locks.
  $("locks-none").hidden = list.locks.length > 0 || Boolean(list.wrong);
  const rows = lockRows(list), shown = rows.slice(0, most());
  const are_all = list.locks.length < list.count && shown.length === rows.length;
  set($("locks-note"), list.wrong || (are_all ? "" : "the first " + shown.length));
  $("locks-note").className = list.wrong ? "bad" : "soft";
  $("match").setAttribute("aria-invalid", String(Boolean(list.wrong)));
  fill($("locks"), columns, shown.flatMap(row => unfolded.has(row.id) ? [row, ...row.data.permits] : [row]));
}

function showSharing(sharing) {
  $("sharing-part").hidden = !sharing;
  if (!sharing) return;
  const {shared, own, come, pinned, links, owed, most_owed} = sharing, all = pinned.reduce((sum, cause) => sum + cause.clients, 0);
  set($("sharing-sum"), count(shared, "client") + " on " + count(links, "link") + " to the data node: " +
    (owed ? number(owed) + (owed === 1 ? " reply is" : " replies are") + " owed, " + number(most_owed) + " on one link." : "no reply is owed."));
  set($("sharing-own"), count(own, "client") + (own === 1 ? " has" : " have") + " a connection of " + (own === 1 ? "its" : "their") + " own. Of " +
    number(come) + " since the start " + number(all) + " got one" +
    (all ? ": " + pinned.map(cause => number(cause.clients) + " by " + cause.by).join(", ") : "") + ".");
}
function showGuards(guards) {
  $("guards-part").hidden = !guards;
  if (!guards) return;
  const w = guards.writes;
  set($("guards-sum"), "Writes: " + number(w.passed) + " passed, " + number(w.notheld) + " without the lock, " +
    number(w.fenced) + " too late, " + number(w.refused) + " not checked; " + number(w.audited) + " passed without their lock in audit." +
    (guards.informed ? "" : " All commands are refused: the data node has not told which it has.") +
    (guards.unacknowledged ? " Replicas have not acknowledged the last " + count(guards.unacknowledged, "fence") + "." : ""));
  fill($("guards"), [["Keys", rule => rule.keys], ["Lock", rule => rule.lock], ["Policy", rule => rule.policy]],
    guards.rules.map((rule, at) => ({id: at, data: rule})));
}
function showAdoption(adoption) {
  $("adopt-part").hidden = !adoption;
  if (!adoption) return;
  const conflicts = adoption.mode_conflicts;
  set($("adopt-sum"), count(adoption.seen, "command") + " seen, " + number(adoption.unsafe) + " of them unsafe, " +
    number(adoption.refused) + " refused" + (conflicts ? "; " + count(conflicts, "rule") +
    (conflicts === 1 ? " is" : " are") + " two steps apart in another proxy" : "") + ".");
  fill($("adopt"), [["Keys", rule => rule.keys], ["Lock", rule => rule.lock || "the key"], ["Mode", rule => rule.mode]],
    adoption.rules.map((rule, at) => ({id: at, data: rule})));
  const seen = adopted ? adopted.adopted : [];
  $("seen").hidden = !seen.length;
  fill($("seen"), [
    ["Seen", kind => number(kind.times)],
    ["Idiom", kind => kind.idiom + (kind.library ? ", " + kind.library : "")],
    ["Form", kind => kind.form],
    ["Client", kind => once(kind.client, () => make("bdi", plain(kind.client)))],
    ["Unsafe", kind => once(kind.unsafe, () => make("span", kind.unsafe || "no", kind.unsafe ? "warn" : ""))],
    ["Verdict", kind => kind.verdict + (kind.because ? ": " + kind.because : "")],
  ], seen.map((kind, at) => ({id: at, data: kind})));
}
