// The figures under the cursor, or where the arrow keys have gone: read off the areas that are drawn, as each one ends
// where the next one begins. They are told in the legend, in the place of those of now.

const SVG = "http://www.w3.org/2000/svg";
let shown = null; // { plot, x }

export const hover = {
  start() {
    document.addEventListener("pointermove", ({ target, clientX }) => {
      const plot = target.closest?.(".stack > .plot[data-total]");
      if (!plot) return leave();
      const box = plot.getBoundingClientRect();
      tell(plot, ((clientX - box.left) / box.width) * 1000);
    });
    document.addEventListener("keydown", (event) => {
      const plot = document.activeElement?.closest?.(".plot[data-total]");
      if (!plot || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      event.preventDefault();
      const now = Number(plot.dataset.now);
      const x = shown?.plot === plot ? shown.x : now;
      tell(plot, Math.max(0, Math.min(now, x + (event.key === "ArrowLeft" ? -20 : 20))));
    });
    document.addEventListener("focusout", ({ target }) => target === shown?.plot && leave());
  },
  // After the page has changed below it.
  update() {
    if (!shown) return;
    if (shown.plot.isConnected) tell(shown.plot, shown.x);
    else shown = null;
  },
};

function leave() {
  if (!shown) return;
  const { plot } = shown;
  shown = null;
  plot.querySelector(".cursor")?.remove();
  const card = plot.closest("article");
  for (const item of card?.querySelectorAll("[data-now-value]") ?? []) {
    item.querySelector("b").textContent = item.dataset.nowValue;
    delete item.dataset.nowValue;
  }
  const time = card?.querySelector(".told");
  if (time) time.remove();
}

function tell(plot, x) {
  if (shown && shown.plot !== plot) leave();
  const now = Number(plot.dataset.now);
  if (x > now) return leave();
  shown = { plot, x };
  let cursor = plot.querySelector(".cursor");
  if (!cursor) {
    cursor = document.createElementNS(SVG, "path");
    cursor.setAttribute("class", "cursor");
    plot.append(cursor);
  }
  cursor.setAttribute("d", `M${Math.round(x)} 0V2000`);
  const legend = plot.closest(".stack").parentElement.querySelector(".legend");
  const ago = (1 - x / now) * Number(plot.dataset.past);
  let time = legend.querySelector(".told");
  if (!time) {
    time = document.createElement("li");
    time.className = "told";
    time.setAttribute("aria-live", "polite");
    legend.append(time);
  }
  const areas = [...plot.querySelectorAll(".area")]; // the topmost first
  const tops = areas.map((area) => topAt(area, x));
  let all = null;
  areas.forEach((area, place) => {
    if (tops[place] !== null) all = Math.max(all ?? 0, tops[place]);
    const below = tops.slice(place + 1).find((top) => top !== null) ?? 0;
    const item = [...legend.children].find((each) => each.dataset.name === area.dataset.name);
    const value = item?.querySelector("b");
    if (!value) return;
    item.dataset.nowValue ??= value.textContent;
    value.textContent = tops[place] === null ? "–" : size(((tops[place] - below) / 2000) * Number(plot.dataset.total));
  });
  const whole = all === null ? "nothing was read" : `${size((all / 2000) * Number(plot.dataset.total))} in use`;
  time.textContent = `${duration(ago)} ago: ${whole}`;
}

// The height of an area at x, in units of the plot; null in a gap.
function topAt(area, x) {
  for (const part of area.getAttribute("d").split("Z")) {
    const points = [...part.matchAll(/L(\d+) (\d+)/g)].map(([, left, top]) => [Number(left), 2000 - Number(top)]);
    if (!points.length || x < points[0][0] || x > points.at(-1)[0]) continue;
    const after = points.findIndex(([left]) => left >= x);
    if (after <= 0) return points[0][1];
    const [[x0, y0], [x1, y1]] = [points[after - 1], points[after]];
    return x1 === x0 ? y1 : y0 + ((y1 - y0) * (x - x0)) / (x1 - x0);
  }
  return null;
}

function size(bytes) {
  const gib = Math.max(0, bytes) / 2 ** 30;
  return gib >= 0.95 ? `${gib.toFixed(1)} GiB` : `${Math.round(gib * 1024)} MiB`;
}

function duration(seconds) {
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return seconds < 90 ? `${Math.round(seconds)} s` : `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
