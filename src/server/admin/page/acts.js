// What an operator has the proxy do: it is asked about first, and only one thing is under way at a time.
//
// The token is kept here alone, in no element and in no storage.
const LIMIT_MS = 15000;
let token = "", acting = false;

function setActing(on) {
  acting = on;
  // One that is disabled would lose the focus.
  for (const button of document.querySelectorAll("button.does")) button.setAttribute("aria-disabled", String(on));
}
function doing(button, run) {
  button.classList.add("does");
  button.setAttribute("aria-disabled", String(acting));
  button.addEventListener("click", () => { if (!acting) run(); });
  return button;
}
// A button of a row, for what the row tells when it is pressed.
function rowButton(data, label, spoken, run) {
  if (!token) return once("none", () => make("span"));
  const fresh = () => {
    const button = make("button");
    return doing(button, () => run(button.data));
  };
  return kept("button", fresh, button => {
    button.data = data;
    set(button, label);
    button.setAttribute("aria-label", spoken);
  });
}

function tell(kind, text) {
  set($("done"), text);
  $("done").className = kind;
}
function forget(why) {
  token = "";
  $("forget").hidden = true;
  tell("soft", why);
}

// Fails with the status of a refusal, or with none if nobody knows what became of it.
async function post(path, body, by) {
  let answer, told;
  try {
    answer = await fetch(path, {
      method: "POST", cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(LIMIT_MS),
      headers: {"Content-Type": "application/json", "Authorization": "Bearer " + by},
      body: JSON.stringify(body),
    });
    told = await answer.json();
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new Error(late ? "none within " + LIMIT_MS / 1000 + " s" : error.message);
  }
  if (!answer.ok) throw Object.assign(new Error(told.error), {status: answer.status});
  return told;
}
// Returns whether it was done, or the status of the refusal.
async function act(done, path, body) {
  setActing(true);
  tell("soft", "The proxy was asked, and has not answered yet.");
  try {
    tell("good", done(await post(path, body, token)));
    return true;
  } catch (error) {
    if (error.status === 401) forget("Not done: the proxy does not take this token any more. The page has forgotten it.");
    else if (error.status) tell("bad", "Not done: " + error.message);
    else tell("bad", "No answer came (" + error.message + "): it may have been done all the same. Look again before you repeat it.");
    return error.status || false;
  } finally {
    setActing(false);
    refresh(true);
  }
}

// What hears the answer to the question that is asked, and where the focus was.
let decide = null, part = null;

// Asks before something is done. `text` is made of sentences and nodes.
function confirmed(title, text, yes, kind) {
  // The event of a dialog that was closed a moment ago may be still to come.
  decide?.(false);
  const ask = $("ask");
  part = document.activeElement?.closest("section");
  set($("ask-title"), title);
  $("ask-text").replaceChildren(...text);
  set($("ask-yes"), yes);
  $("ask-yes").className = kind || "main";
  return new Promise(resolve => {
    decide = resolve;
    ask.returnValue = "no";
    ask.showModal();
  });
}
$("ask").addEventListener("close", () => {
  const ask = $("ask"), hears = decide;
  // It is the event of the dialog before.
  if (ask.open || !hears) return;
  // The button that asked may be gone with its row.
  if (document.activeElement === document.body) part?.querySelector("h2")?.focus({preventScroll: true});
  decide = null;
  hears(ask.returnValue === "yes");
});
$("ask-yes").addEventListener("click", () => $("ask").close("yes"));
$("ask-no").addEventListener("click", () => $("ask").close("no"));

async function free(lock) {
  const shown = whole(lockName(lock)), elsewhere = lock.kind === "elsewhere" && lock.fence === null;
  const shared = lock.kind === "shared";
  const sure = shared
    ? await confirmed("Free it from all readers?", ["The lock ", shown, " is taken from all its readers, of this proxy and of others, " +
      "who may still be at work. Another client may have it alone at once."], "Free it from all", "danger")
    : elsewhere
    ? await confirmed("Free it, whoever has it?", ["The lock ", shown, " was granted by another proxy. This one knows neither who " +
      "has it nor the fence: whoever has it when you press the button loses it, also a client that got it a moment ago, and " +
      "may still be at work. The page of the proxy that granted it, and lockgate top, name the holder."],
      "Free whoever has it", "danger")
    : await confirmed("Free this lock?", ["The lock ", shown, " with the fence " + lock.fence + " is taken from ",
      lock.holder ? who(lock.holder) : "an unknown client", ", who may still be at work. Another client may have it at once."],
      "Free it");
  if (!sure) return;
  const which = lock.key_hex ? {key_hex: lock.key_hex} : {key: lock.key};
  if (elsewhere || shared) {
    act(answer => answer.freed ? "The lock was freed." : "Nobody held the lock any more.", "/api/locks/unlock", {...which, any: true});
  } else {
    act(answer => answer.freed ? "The lock was freed." : "That grant does not hold the lock any more.",
      "/api/locks/unlock", {...which, fence: lock.fence});
  }
}
async function pause(node) {
  const sure = await confirmed("Pause this lock node?", [node.address + " is asked for no new locks by this proxy from now on. It keeps " +
    "those that it has. Other proxies go on asking it."], "Pause it");
  if (!sure) return;
  const paused = () => node.address + " is paused.", path = "/api/nodes/pause";
  if (await act(paused, path, {address: node.address}) !== 409) return;
  const sure_again = await confirmed("Pause all the same?", ["Too few other lock nodes vote: while " + node.address + " is paused, this " +
    "proxy answers LOCK with NOQUORUM. Who holds a lock keeps it."], "Pause all the same", "danger");
  if (sure_again) act(paused, path, {address: node.address, force: true});
  else tell("soft", node.address + " was not paused: too few others vote.");
}
function resume(node) { act(() => node.address + " is asked again.", "/api/nodes/resume", {address: node.address}); }

$("acts").addEventListener("submit", async event => {
  event.preventDefault();
  const given = $("token").value.trim();
  if (acting || !given) return;
  $("token").value = "";
  setActing(true);
  tell("soft", "The proxy is asked whether this is its token.");
  try {
    await post("/api/token", {}, given);
    token = given;
    $("forget").hidden = false;
    tell("good", "It is. Locks can be freed and lock nodes paused now.");
  } catch (error) {
    if (error.status === 401) forget("This is not the token of this proxy. The page has kept none.");
    else tell("bad", "The page has kept no token: " + (error.status ? error.message : "no answer came (" + error.message + ")."));
  } finally {
    setActing(false);
    refresh(true);
  }
});
doing($("acts").querySelector("button"), () => {});
$("forget").addEventListener("click", () => {
  forget("Forgotten.");
  $("token").focus();
  refresh(true);
});
