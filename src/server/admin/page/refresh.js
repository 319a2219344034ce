// Asks the proxy again and again, and shows what it tells.
let busy = false, again = false, told = 0, ticks = 0;

async function get(path) {
  const limit = AbortSignal.timeout(5000);
  const answer = await fetch(path, {cache: "no-store", credentials: "omit", signal: limit});
  const body = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(body.error), {status: answer.status});
  return body;
}

// Apart from the rest, which must not wait for a proxy that does not answer.
let asking = false;
async function refreshProxies(wanted) {
  $("proxies-part").hidden = !wanted;
  if (!wanted || asking) return;
  asking = true;
  try {
    const list = await get("/api/proxies");
    keepingFocus(() => showProxies(list));
  } catch {
    // That this proxy does not answer is told already.
  } finally {
    asking = false;
  }
}

// A phone has no room for more.
const narrow = matchMedia("(max-width: 720px)");
function most() { return narrow.matches ? 20 : 50; }

async function refresh(now) {
  if (busy) { if (now) again = true; return; }
  if (!now && (!$("live").checked || document.hidden)) return;
  busy = true;
  try {
    const pattern = $("match").value;
    // Of a family any number of locks are one row.
    const count = listed.families.length ? 1000 : most();
    const locks = "/api/locks?count=" + count + "&by=" + $("by").value + (pattern ? "&match=" + encodeURIComponent(pattern) : "");
    const wanted = [get("/api/status"), get("/api/hot"), get(locks).then(list => ({...list, count}), error => {
      // The pattern, and nothing else, may be wrong.
      if (error.status === 400) return {locks: [], families: [], wrong: error.message};
      throw error;
    })];
    if (ticks++ % 2 === 0 || !history) wanted.push(get("/api/history").then(got => { history = got; }));
    const [status, hot, list] = await Promise.all(wanted);
    if (status.adoption) adopted = await get("/api/adopted?count=20");
    refreshProxies(status.proxy.peers > 0);
    if (!status.proxy.actions && token) forget("The page has forgotten the token: the proxy takes none any more.");
    keepingFocus(() => {
      showHead(status); showVerdict(status); showTiles(status); showEvents(); showNodes(status); showHot(hot); showLocks(list);
      showSharing(status.sharing); showGuards(status.guards); showAdoption(status.adoption);
      document.body.classList.toggle("may", token !== "");
      $("acts").hidden = !status.proxy.actions;
      $("acts-none").hidden = status.proxy.actions;
    });
    told = Date.now();
    $("stale").hidden = true;
    set($("when"), "as of " + new Date(told).toLocaleTimeString());
  } catch (error) {
    const since = told ? "What stands below is from " + new Date(told).toLocaleTimeString() + "." : "";
    set($("stale"), "The proxy does not answer (" + error.message + "). " + since);
    $("stale").hidden = false;
    // What was well may not be so any more.
    $("verdict").className = "verdict soft";
    set($("state"), "Stale");
    $("state").className = "badge bad";
    document.title = "● Lockgate: stale";
  } finally {
    busy = false;
  }
  if (again) { again = false; refresh(true); }
}

if (location.protocol === "http:" && !/^(localhost|127(\.\d+){3}|\[::1\])$/i.test(location.hostname)) {
  $("plain-http").hidden = false;
  $("token").setAttribute("aria-describedby", "token-note plain-http");
}
$("by").addEventListener("change", () => refresh(true));
$("match").addEventListener("input", () => refresh(true));
$("live").addEventListener("change", () => refresh(false));
document.addEventListener("visibilitychange", () => refresh(false));
refresh(true);
setInterval(() => refresh(false), 2000);
