// Keeps the page up to date: asks for it again, puts what changed in its place, and says so when nobody answers.

import { draw, redraw } from "./charts.js";
import { morph } from "./morph.js";
import { Points } from "./points.js";
import { sortable } from "./sorting.js";

const TIMEOUT_MS = 10_000;
const root = document.documentElement;
const title = document.title;
const points = new Points();

let paused = false;
let answered = Date.now();
let fault = "";
let asking = false;

// XMLHttpRequest and not fetch: it parses the HTML itself, without running scripts, and the page's policy
// (require-trusted-types-for) forbids parsing of text.
function readPage() {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", location.pathname);
    request.responseType = "document";
    request.timeout = TIMEOUT_MS;
    request.onload = () => (request.status === 200 && request.response ? resolve(request.response) : reject(refusal(request)));
    request.onerror = () => reject(new Error("the agent cannot be reached"));
    request.ontimeout = () => reject(new Error(`the agent has not answered for ${TIMEOUT_MS / 1000} s`));
    request.send();
  });
}

function refusal({ status }) {
  return new Error(status === 401 ? "a password is asked for: load the page again" : `the agent answers ${status}`);
}

async function refresh() {
  if (asking) return;
  asking = true;
  try {
    const fresh = await readPage();
    sortable(fresh);
    for (const part of ["header", "main"]) morph(document.querySelector(part), fresh.querySelector(part));
    answered = Date.now();
    await points.update();
    draw(points);
    fault = "";
  } catch (error) {
    fault = error.message;
  } finally {
    asking = false;
    root.dataset.updates = Number(root.dataset.updates ?? 0) + 1;
    tellState();
  }
}

// What is old is called old, by words, and in the tab's title for who looks elsewhere.
function tellState() {
  const seconds = Math.round((Date.now() - answered) / 1000);
  const at = new Date(answered).toLocaleTimeString([], { hourCycle: "h23" });
  lost.hidden = !fault;
  root.classList.toggle("lost", Boolean(fault));
  const words = fault ? `AGENT LOST: ${fault}. Everything below is from ${at} and may no longer be so.` : "";
  if (warning.textContent !== words) warning.textContent = words;
  since.textContent = `(${seconds} s ago)`; // outside of the alert: a screen reader would read it out every second
  document.title = fault ? `LOST · ${title}` : paused ? `PAUSED · ${title}` : title;
  document.getElementById("age").hidden = Boolean(fault) || paused; // it would no longer be true
  state.textContent = paused ? `paused at ${at}` : fault ? "not connected, trying again" : "live";
}

const live = document.getElementById("live");
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
lost.hidden = true;
lost.append(warning, " ", since);
live.replaceChildren(state, " ", pause, lost);

// A tab that nobody sees asks for nothing; when it is seen again it is up to date at once.
document.addEventListener("visibilitychange", () => !document.hidden && !paused && refresh());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(points));
setInterval(() => !document.hidden && !paused && refresh(), Number(root.dataset.refreshSeconds) * 1000);
setInterval(() => fault && tellState(), 1000);
sortable(document);
refresh();
