// Keeps the page up to date: asks for it again, puts what changed in its place, and says so when nobody answers.

import { hover } from "./hover.js";
import { morph } from "./morph.js";
import { view } from "./view.js";

const TIMEOUT_MS = 10_000;
const root = document.documentElement;
const title = document.title;

let paused = false;
let answered = Date.now();
let fault = "";
let said = ""; // the headline, as it was when the agent was last heard
let asking = false;
let again = false;

// XMLHttpRequest and not fetch: it parses the HTML itself, without running scripts, and the page's policy
// (require-trusted-types-for) forbids parsing of text.
function readPage() {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", location.pathname + location.search);
    request.responseType = "document";
    request.timeout = TIMEOUT_MS;
    request.onload = () => (request.status === 200 && request.response ? resolve(request.response) : reject(refusal(request)));
    request.onerror = () => reject(new Error("the agent cannot be reached"));
    request.ontimeout = () => reject(new Error("the agent does not answer"));
    request.send();
  });
}

function refusal({ status }) {
  return new Error(status === 401 ? "a password is asked for: load the page again" : `the agent answers ${status}`);
}

async function refresh() {
  again = asking; // whoever asks meanwhile wants another view
  if (asking) return;
  asking = true;
  try {
    const fresh = await readPage();
    for (const part of ["header", "main", "footer"]) morph(document.querySelector(part), fresh.querySelector(part));
    answered = Date.now();
    fault = said = "";
    hover.update();
  } catch (error) {
    fault = error.message;
  } finally {
    asking = false;
    root.dataset.updates = Number(root.dataset.updates ?? 0) + 1;
    tellState();
    if (again) refresh();
  }
}

// What is old is called old, by words, and in the tab's title for who looks elsewhere.
function tellState() {
  const seconds = Math.round((Date.now() - answered) / 1000);
  const at = new Date(answered).toLocaleTimeString([], { hourCycle: "h23" });
  root.classList.toggle("lost", Boolean(fault));
  if (fault && !lost.isConnected) document.getElementById("lost").replaceChildren(lost);
  if (!fault) lost.remove();
  else doubt(at);
  const words = fault ? `AGENT LOST: ${fault}. Everything below is from ${at} and may no longer be so.` : "";
  if (warning.textContent !== words) warning.textContent = words;
  since.textContent = `(last answer ${seconds} s ago)`; // outside of the alert: a screen reader would read it out every second
  document.title = fault ? `LOST · ${title}` : paused ? `PAUSED · ${title}` : title;
  document.getElementById("age").hidden = Boolean(fault) || paused; // it would no longer be true
  state.textContent = paused ? `paused at ${at}` : fault ? "not connected, trying again" : isOld() ? "connected" : "live";
}

// The largest letters must not go on saying that all is well. The next answer puts the sentence back.
function doubt(at) {
  const sentence = document.querySelector("#headline .sentence");
  if (!sentence) return;
  said ||= (sentence.querySelector("bdi") ?? sentence).textContent;
  const words = `Not known since ${at}. Then: ${said}`;
  document.getElementById("headline").className = "unknown";
  if (sentence.textContent !== words) sentence.textContent = words;
}

// The agent answers, but with figures that are old.
function isOld() {
  return Boolean(document.querySelector("#banners[data-old]"));
}

const state = document.createElement("span");
const pause = document.createElement("button");
const lost = document.createElement("p");
pause.type = "button";
pause.textContent = "Pause";
pause.addEventListener("click", () => {
  paused = !paused;
  pause.textContent = paused ? "Resume" : "Pause";
  tellState();
  if (!paused) refresh();
});
const warning = document.createElement("span");
const since = document.createElement("span");
warning.setAttribute("role", "alert");
lost.className = "banner";
lost.append(warning, " ", since);
document.getElementById("live").replaceChildren(state, " ", pause);

// A tab that nobody sees asks for nothing; when it is seen again it is up to date at once.
document.addEventListener("visibilitychange", () => !document.hidden && !paused && refresh());
setInterval(() => !document.hidden && !paused && refresh(), Number(root.dataset.refreshSeconds) * 1000);
setInterval(() => fault && tellState(), 1000);
view.start(refresh);
hover.start();
tellState();
root.dataset.updates = 1; // what is shown has just been read
